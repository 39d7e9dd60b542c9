"""The interface of epilogues, which finish a contraction's sums: a bias, an activation or an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, Number


class Coordinates(NamedTuple):
    """The index of each loop of a contraction, as :meth:`Epilogue.emit` is given them, and numbers to be added: what is
    near by has the same indices, and other numbers."""

    indices: Sequence[Number]
    further: Sequence[int]


class CacheLine(NamedTuple):
    """The cache line at an offset in bytes from an address; it is written, or only read."""

    begin: LlvmValue
    offset: int
    written: bool


class Epilogue(Protocol):
    """What is done to the finished sums before they are stored to C (bias, activation, residual, ...)."""

    @property
    def params(self) -> Sequence[tuple[str, str]]:
        """Further (type, name) parameters of the function: pointers, then indices of enclosing loops."""

    def length(self, lane: int, width: int) -> int:
        """About how many instructions a vector takes, with ``width`` lanes along loop ``lane`` (-1: a single one)."""

    def emit(
        self, f: LlvmFunction, value: LlvmValue, coordinates: Sequence[Number], lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        """Return what is stored to C for ``value``, lanes of finished sums.

        ``coordinates[l]`` is the index of loop ``l`` at lane 0 (a value or a number; 0 for reduction loops),
        ``lane`` the loop that runs along the lanes (-1 if none), ``mask`` the lanes that exist (None: all).
        """

    def cache_lines(
        self, f: LlvmFunction, where: Callable[[], Coordinates], lane: int, min_bytes: int
    ) -> list[CacheLine]:
        """The cache lines that :meth:`emit` reads and writes there, of buffers of ``min_bytes`` bytes or more."""
