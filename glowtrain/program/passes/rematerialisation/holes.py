"""Holes in the lives of buffers: where they are dropped, and what that does to the live bytes. Positions are those of
instructions."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.loops import Buffer
from glowtrain.program.passes.rematerialisation.recomputation import Recomputation


@dataclass(frozen=True, eq=False)
class Hole:
    """Instructions after ``begin`` and before ``end`` through which a buffer is not kept."""

    buffer: Buffer
    begin: int
    end: int
    recomputation: Recomputation


@dataclass(frozen=True)
class Gap:
    """Two instructions that touch a buffer, one next after the other, so that it need not be kept between them."""

    buffer: Buffer
    begin: int
    end: int


Holes = frozenset[tuple[Buffer, int, int, Recomputation]]
"""Buffers, where each is not kept, and how it is made again."""


@dataclass(frozen=True)
class Change:
    """Bytes that are alive in addition, from an instruction to before another one."""

    begin: int
    end: int
    nbytes: int

    def at(self, position: int) -> int:
        """Its bytes at an instruction."""
        return self.nbytes if self.begin <= position < self.end else 0


@dataclass(frozen=True)
class Drop:
    """A hole that could be made, the first of ``holes``; the others are those after which its sources are made again
    for it. Existing holes are ``filled`` before they end, and ``changes`` are what becomes of the bytes alive.
    """

    holes: tuple[Hole, ...]
    filled: tuple[tuple[Hole, int], ...]
    changes: tuple[Change, ...]

    def frees(self, position: int) -> int:
        """The bytes by which less is alive at an instruction."""
        return -sum(change.at(position) for change in self.changes)
