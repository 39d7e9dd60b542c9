"""Arrays whose examples are read when they are needed: of files that are larger than memory, or of other libraries."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from glowtrain.types import Array


class StoredArray(ABC):
    """An array whose examples lie elsewhere. ``dtype`` and ``shape`` are as of an array in memory.

    ``sequential``: examples side by side are read together at about the price of one.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sequential: bool = False

    @abstractmethod
    def read(self, numbers: Array) -> Array:
        """The examples of numbers i64[n] that ascend, in memory. Raises :class:`DataError` for what cannot be read."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{list(self.shape)}>"

    @property
    def example_bytes(self) -> int:
        """Bytes of an example."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def sample(self) -> Array:
        """An example of zeros, for checks of type and shape."""
        return np.zeros((1, *self.shape[1:]), self.dtype)

    def __getitem__(self, index: Any) -> Array:
        """Examples in memory, by a number, a slice, numbers or a mask over the first axis."""
        numbers = np.arange(len(self))[index]
        ascending, positions = np.unique(numbers, return_inverse=True)
        return self.read(ascending)[positions.reshape(numbers.shape)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All examples in memory."""
        return np.asarray(self.read(np.arange(len(self))), dtype)

    def select(self, part: Array | slice) -> StoredArray:
        """The examples of ascending numbers, or of a slice, still to be read."""
        return Selected(self, np.arange(len(self))[part])


ExampleArray = Array | StoredArray
"""An array of examples, be they in memory or not."""


class Selected(StoredArray):
    """Examples of another array, by their numbers there, which ascend."""

    def __init__(self, base: StoredArray, numbers: Array) -> None:
        self.base = base
        self.numbers = numbers
        self.dtype, self.shape = base.dtype, (len(numbers), *base.shape[1:])
        self.sequential = base.sequential

    def read(self, numbers: Array) -> Array:
        return self.base.read(self.numbers[numbers])


def select(array: ExampleArray, part: Array | slice) -> ExampleArray:
    """Examples by ascending numbers or a slice: in memory, or still to be read."""
    return array.select(part) if isinstance(array, StoredArray) else array[part]


def take(array: ExampleArray, numbers: Array) -> Array:
    """Examples in memory by numbers in any order."""
    return array[numbers] if isinstance(array, StoredArray) else np.take(array, numbers, axis=0)


def sample_of(array: ExampleArray) -> Array:
    """What checks of types and values can look at: of what is not in memory, one example of zeros."""
    return array.sample if isinstance(array, StoredArray) else array
