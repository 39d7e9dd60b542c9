"""Graphs of which a cache has what callers must know, by their origins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from glowtrain.backends.cache.folder import Cache
from glowtrain.graph import Binding, Graph, Template
from glowtrain.kept.interfaces import Known, graph_bytes, names_bytes, read_graph, read_names, read_specs, specs_bytes
from glowtrain.kept.origin import GraphOrigin, hashed
from glowtrain.kept.promise import PromisedGraph
from glowtrain.types import Spec

Fact = TypeVar("Fact")


class KnownGraphs:
    """Promises graphs whose interfaces a cache has, and keeps those of others once their code is kept."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self._unkept: list[tuple[GraphOrigin, Callable[[], bytes | None]]] = []

    def graph(
        self,
        origin: GraphOrigin | None,
        make: Callable[[], Graph],
        *,
        template: Template | None = None,
        binding: Binding | None = None,
    ) -> Graph:
        """The graph that ``make`` makes: now, or if what callers must know of it is kept, when somebody looks at more.
        ``template`` and ``binding``: what it is specialised from, where that is known."""
        if origin is None or self.cache is None:
            return make()
        data = self.cache.get(_key(origin))
        if data is not None and (known := read_graph(data, origin)) is not None:
            found = _promised(known, origin, make, template, binding)
            self._unkept.append(
                (origin, lambda: None if known.key == found.__dict__.get("key") else graph_bytes(found, origin))
            )
            return found
        made = make()
        self._unkept.append((origin, lambda: graph_bytes(made, origin)))
        return made

    def specs(self, origin: GraphOrigin | None, make: Callable[[], dict[str, Spec]]) -> dict[str, Spec]:
        """The specs that ``make`` finds out: now, unless they are kept."""
        return self._fact(origin, make, read_specs, specs_bytes)

    def names(self, origin: GraphOrigin | None, make: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """The names that ``make`` finds out: now, unless they are kept."""
        return self._fact(origin, make, read_names, names_bytes)

    def _fact(
        self,
        origin: GraphOrigin | None,
        make: Callable[[], Fact],
        read: Callable[[bytes, GraphOrigin], Fact | None],
        write: Callable[[Fact, GraphOrigin], bytes],
    ) -> Fact:
        if origin is None or self.cache is None:
            return make()
        data = self.cache.get(_key(origin))
        if data is not None and (found := read(data, origin)) is not None:
            return found
        made = make()
        self._unkept.append((origin, lambda: write(made, origin)))
        return made

    def keep(self) -> None:
        """Keep what was made so far: the code of one of the graphs is kept."""
        unkept, self._unkept = self._unkept, []
        for origin, written in unkept:
            if self.cache is not None:
                origin.way.keep(self.cache)
                if (data := written()) is not None:
                    self.cache.put(_key(origin), data)


def _promised(
    known: Known, origin: GraphOrigin, make: Callable[[], Graph], template: Template | None, binding: Binding | None
) -> Graph:
    facts: dict[str, Any] = {} if known.key is None else {"key": known.key}
    return PromisedGraph(
        origin,
        make,
        name=known.name,
        template=template,
        binding=binding or known.binding,
        results=None,
        **known.interface,
        **facts,
    )


def _key(origin: GraphOrigin) -> str:
    return hashed("known", origin.key)
