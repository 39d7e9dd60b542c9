"""Memory for values between parts: taken for a run, given back, and taken by a later run."""

from __future__ import annotations

import numpy as np

from glowtrain.types import Array, TensorType


class BufferPool:
    """Arrays by their type. There are never more than runs have used at the same time; any thread may take and give."""

    def __init__(self) -> None:
        self._free: dict[TensorType, list[Array]] = {}

    def take(self, type_: TensorType) -> Array:
        """An array, whatever it holds."""
        try:
            return self._free[type_].pop()
        except (KeyError, IndexError):
            return np.empty(type_.shape, type_.dtype.numpy)

    def give(self, type_: TensorType, array: Array) -> None:
        """An array that nobody reads or writes any more."""
        self._free.setdefault(type_, []).append(array)
