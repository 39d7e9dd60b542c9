"""Graphs and templates of known origin, which are made when somebody looks at their nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any

from glowtrain.graph import Binding, Graph, Template
from glowtrain.graph.registry import has_foreign
from glowtrain.kept.origin import GraphOrigin

_MADE = "inputs", "outputs", "updates"
"""The fields that are there when a graph is made."""


class PromisedGraph(Graph):
    """A graph whose origin says what it is, and which is made when more of it is asked for than is known already.

    A changed copy (:meth:`with_`) is a plain graph: its origin would no longer say what it is.
    """

    origin: GraphOrigin

    def __init__(self, origin: GraphOrigin, make: Callable[[], Graph], **known: Any) -> None:
        """``known``: the name, template, binding and results, and of the other attributes those that are known."""
        self.__dict__.update(known, origin=origin, _make=make)

    @classmethod
    def made_of(cls, origin: GraphOrigin, graph: Graph) -> PromisedGraph:
        """One that was made already."""
        return cls(origin, lambda: graph, **{item.name: getattr(graph, item.name) for item in fields(Graph)})

    @property
    def made(self) -> Graph:
        """The graph as it was made, the same each time; of several threads that ask first, each gets that of one."""
        if "_made" not in self.__dict__:
            self.__dict__.setdefault("_made", self._make())
        found: Graph = self.__dict__["_made"]
        return found

    def __getattr__(self, name: str) -> Any:
        if name not in _MADE:
            raise AttributeError(f"a graph has no attribute {name!r}")
        made = self.made
        self.__dict__.update((field, getattr(made, field)) for field in _MADE)
        return self.__dict__[name]

    def with_(self, **changes: Any) -> Graph:
        if changes.keys() <= {"template", "binding"}:
            known = {name: value for name, value in self.__dict__.items() if name not in ("origin", "_make", "_made")}
            return PromisedGraph(self.origin, lambda: self.made, **{**known, **changes})
        return Graph(**{item.name: getattr(self, item.name) for item in fields(Graph)} | changes)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Graph]]:
        """The graph itself: elsewhere nothing may be kept."""
        return _itself, (self.with_(name=self.name),)


class OriginalBuild:
    """What builds the graphs of a template, and its origin."""

    def __init__(self, origin: GraphOrigin, find: Callable[[], Callable[[Binding], Graph]]) -> None:
        """``find`` gives what builds, when the first graph is asked for."""
        self.origin = origin
        self._find = find

    @cached_property
    def build(self) -> Callable[[Binding], Graph]:
        return self._find()

    def __call__(self, binding: Binding) -> Graph:
        return self.build(binding)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any, ...]]:
        """What builds, without the origin: elsewhere nothing may be kept."""
        return _itself, (self.build,)


def _itself(value: Any) -> Any:
    return value


def origin_of(model: Graph | Template) -> GraphOrigin | None:
    """What a model is made from, where that is known, and nothing may stand in its operators' place."""
    if has_foreign():
        return None
    maker = model if isinstance(model, PromisedGraph) else getattr(model, "build", None)
    return maker.origin if isinstance(maker, (PromisedGraph, OriginalBuild)) else None
