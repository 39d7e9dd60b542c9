"""Along which lanes code is being written, and what has been computed already, by scope.

A value made inside of a loop is forgotten at the loop's end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.loops import Index

Item = TypeVar("Item")


@dataclass(frozen=True)
class Context:
    """How code is being written: which index runs along the lanes, how many there are, which of them exist."""

    index: Index | None = None
    width: int = 1
    mask: LlvmValue | None = None


class Scopes(Generic[Item]):
    """A stack of dictionaries; look-ups go from the innermost outwards."""

    def __init__(self) -> None:
        self._stack: list[dict[Hashable, Item]] = [{}]

    def get(self, key: Hashable) -> Item | None:
        for scope in reversed(self._stack):
            if key in scope:
                return scope[key]
        return None

    def set(self, key: Hashable, item: Item) -> Item:
        self._stack[-1][key] = item
        return item

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A new innermost scope for the duration."""
        self._stack.append({})
        try:
            yield
        finally:
            self._stack.pop()
