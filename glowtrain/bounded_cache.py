"""What is compiled for each of many bindings or shapes: so many of them, those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by what decides about them, ``limit`` of them at most: the one that was used longest ago goes first.
    Several threads may use it; who makes values sees to making each once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def values(self) -> list[V]:
        """All of them, the one that was used last at the end."""
        return list(self._values.values())

    def get(self, key: Hashable) -> V | None:
        """The value of a key, which is then the one that was used last."""
        found = self._values.get(key)
        if found is not None:
            try:
                self._values.move_to_end(key)
            except KeyError:  # another thread has dropped it meanwhile
                return found
        return found

    def put(self, key: Hashable, value: V) -> bool:
        """Add a value, and drop what is too much: whether anything was dropped."""
        self._values[key] = value
        full = len(self._values) > self.limit
        while len(self._values) > self.limit:
            self._values.popitem(last=False)
        return full

    def clear(self) -> None:
        self._values.clear()
