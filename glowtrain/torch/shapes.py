"""What is kept compiled for shapes of arguments: so many of them, those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, ValuesView
from typing import Generic, TypeVar

V = TypeVar("V")

SHAPES = 32
"""How many; the one that was used longest ago goes first."""


class ByShape(Generic[V]):
    """Values by what decides about them. Several threads may use it; who makes values sees to making each once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def values(self) -> ValuesView[V]:
        return self._kept.values()

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which is then the one that was used last."""
        found = self._kept.get(key)
        if found is not None:
            try:
                self._kept.move_to_end(key)
            except KeyError:  # another thread has dropped it meanwhile
                return found
        return found

    def put(self, key: Hashable, value: V) -> bool:
        """Keep a value, and drop what is too much: whether anything was dropped."""
        self._kept[key] = value
        full = len(self._kept) > SHAPES
        while len(self._kept) > SHAPES:
            self._kept.popitem(last=False)
        return full

    def clear(self) -> None:
        self._kept.clear()
