"""What the Python code of a step reads beside tensors: numbers, flags, settings, which function a name stands for.

A trace runs that code once, so that these values become part of the compiled step (:mod:`.walk` finds them).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import call, is_
from typing import Any

import torch

from glowtrain.torch.tracing.attributes import PLAIN
from glowtrain.torch.tracing.started_code import StartedCode, TraceObserver
from glowtrain.torch.watching.values import Members
from glowtrain.torch.watching.walk import CONTAINERS, LONGEST, Walk, code_of

Started = tuple[types.CodeType, Members]
"""Code that ran, and its globals."""


@dataclass(frozen=True)
class Reference:
    """An object through which more is read, by the order in which such objects are read first: two names that stand for
    one object have one place."""

    kind: type
    number: int


class PythonReads:
    """What code read that starts at ``roots``, functions and modules, as it is when this is made. ``ran`` are the
    pieces of code that ran, with their globals, and ``tensors`` those whose elements it made numbers of."""

    def __init__(self, roots: Sequence[Any], ran: Sequence[Started], tensors: Sequence[torch.Tensor]) -> None:
        self._origin = roots, ran, tensors
        walk = Walk()
        for code, global_names in ran:
            walk.start(code, global_names)
        walk.follow(roots)
        walk.watch_elements(tensors)
        self._readers = [read for read, _ in walk.readers]
        self.values = list(chain.from_iterable(map(call, self._readers)))
        """Kept alive, as some count by identity."""
        self._seen, self._known = walk.seen, walk.surroundings.known
        self._order: dict[int, int] = {}
        """Objects that are seen through, in the order in which they are read first."""
        labels = chain.from_iterable(labels for _, labels in walk.readers)
        self.key = tuple(zip(labels, map(self._fingerprint, self.values), strict=True))
        """By value where that is plain: what is read, under labels for people."""

    def again(self) -> PythonReads:
        """What the same code would read now."""
        return PythonReads(*self._origin)

    @property
    def unchanged(self) -> bool:
        """Whether each value is the same object."""
        try:
            return all(map(is_, chain.from_iterable(map(call, self._readers)), self.values))
        except (AttributeError, ValueError):  # deleted, or a variable that has no value
            return False

    def reaches(self, owners: Iterable[Any]) -> bool:
        """Whether these objects, modules, global names and variables are among what it reads."""
        return all(id(owner) in self._seen or id(owner) in self._known for owner in owners)

    def changes(self, before: PythonReads) -> list[str]:
        """Labels of what has another value than before."""
        return list(dict.fromkeys(label for label, _ in set(self.named_values) ^ set(before.named_values)))

    @property
    def named_values(self) -> list[tuple[str, Any]]:
        """What is read under labels for people, without the objects that only lead to it."""
        return [(label, value) for label, value in self.key if not isinstance(value, Reference)]

    def _fingerprint(self, value: Any) -> Any:
        """What of a value decides about the step. What can be read through it has fingerprints of its own."""
        if isinstance(value, PLAIN):
            return type(value), repr(value)  # -0.0 is no 0.0
        if isinstance(value, types.FunctionType):
            return code_of(value)
        if isinstance(value, types.MethodType):
            return self._fingerprint(value.__func__), self._fingerprint(value.__self__)
        followed = isinstance(value, CONTAINERS) and len(value) <= LONGEST
        seen_through = hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, torch.nn.Module, type))
        if not followed and not seen_through:
            return id(value)
        return Reference(type(value), self._order.setdefault(id(value), len(self._order)))


class TracedCode:
    """Follows the code of one trace as it starts, before it draws random numbers."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self._roots = roots
        self._ran: list[Started] = []
        self._walk = Walk()
        self._walk.follow(roots)
        self.observed = TraceObserver(StartedCode(self._start), self._walk.draws, self._walk.surroundings)

    def _start(self, code: types.CodeType, global_names: Members) -> None:
        if (global_names.get("__name__") or "").partition(".")[0] != "glowtrain":  # which has put itself in between
            self._ran.append((code, global_names))
            self._walk.start(code, global_names)
            self._walk.follow(())

    def reads(self, tensors: Sequence[torch.Tensor]) -> PythonReads:
        """What it reads, elements of these tensors among it."""
        return PythonReads(self._roots, self._ran, tensors)
