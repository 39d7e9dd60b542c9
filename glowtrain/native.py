"""Functions in native code that operators bring along: from a shared library, or made in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array

_POINTERS = type(ctypes.CFUNCTYPE(None))
"""What types of function pointers are instances of, whatever library they are of."""


@dataclass(frozen=True, eq=False)
class NativeFunction:
    """``void name(const T *operand, ..., T *result, ... [, int64_t word])`` of the C calling convention.

    The pointers lead to contiguous row-major memory: of the operands in order, then of the results; types and shapes
    are the function's own business. ``function`` is a function of ctypes, or an address; ``word`` is passed last,
    if there is one; ``keep`` is held as long as the function is (a library, a compiler's engine). The function writes
    all of its results and nothing else, the same for the same operands.

    What calls it is compiled in every process, with a cache folder too: the function is an address of this process,
    whose content no key of a file could hold. Raises :class:`InputError` for a ``function`` that is neither, an address
    that no function has, and a ``word`` that is no integer of 64 bits.
    """

    name: str
    function: Any
    word: int | None = None
    keep: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.address < 1 << 64:
            raise InputError(f"native function {self.name!r} has address {self.address}")
        if self.word is not None and not self._is_word(self.word):
            raise InputError(f"native function {self.name!r}: word {self.word!r} is no integer of 64 bits")

    @property
    def address(self) -> int:
        """Where the code begins, in this process."""
        if isinstance(self.function, int) and not isinstance(self.function, bool):
            return self.function
        if not isinstance(type(self.function), _POINTERS):
            kind = type(self.function).__name__
            raise InputError(f"native function {self.name!r} is a {kind}, no ctypes function or address")
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    @staticmethod
    def _is_word(word: Any) -> bool:
        return isinstance(word, int | np.integer) and not isinstance(word, bool) and -(1 << 63) <= int(word) < 1 << 63

    def __call__(self, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Run the function on row-major arrays; ``results`` are written."""
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*operands, *results)]
        words = [] if self.word is None else [ctypes.c_int64(self.word)]
        kinds = [*[ctypes.c_void_p] * len(pointers), *[ctypes.c_int64] * len(words)]
        ctypes.CFUNCTYPE(None, *kinds)(self.address)(*pointers, *words)
