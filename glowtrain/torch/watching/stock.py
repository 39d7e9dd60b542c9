"""Results of calls to come, made ahead: where code has left the caches, making one takes as long as making many."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import Lock
from typing import Any

from glowtrain.torch.memory import Allocation, address

MOST, MOST_BYTES = 32, 4096
"""Results that are made at once at most, and their bytes, if these are more than one's."""
COUNT, LEFT, CELLS = range(3)
"""The words that native code reads: how many tensors a result has, how many results are left, the cells of the step's
table; and behind these for each result where its tensors lie."""


class Stock:
    """Results: lists of tensors, or the tensors alone where they have but one. ``cells``: where a step reads the
    addresses of its results. Calling it makes new ones, if none are left."""

    def __init__(self, results: Allocation, cells: Sequence[int]) -> None:
        self.made: list[Any] = []
        self._results = results
        self._lock = Lock()
        self._count = max(1, min(MOST, MOST_BYTES // max(1, results.nbytes)))
        size = CELLS + (1 + self._count) * len(cells)
        self.words = (ctypes.c_uint64 * size)(len(cells), 0, *cells)

    def __call__(self) -> None:
        with self._lock:
            if self.words[LEFT]:
                return
            made = [self._results() for _ in range(self._count)]
            self.made[:] = [each if len(each) > 1 else each[0] for each in made]
            places = [address(tensor) for each in made for tensor in each]
            self.words[CELLS + self.words[COUNT] : CELLS + self.words[COUNT] + len(places)] = places
            self.words[LEFT] = self._count  # native code takes from them from here on
