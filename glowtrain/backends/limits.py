"""How fast a machine can compute and move bytes at most, as it was measured: the roofs of a roofline model.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for Multicore Architectures
(Communications of the ACM 52(4), 2009), with a roof for each cache and one for costly functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.program.analysis.work_count import BYTES, DOUBLES, FLOATS, INTEGERS, WorkCount

FUNCTIONS = "functions"
"""In place of a kind of operations: functions of floats that take many instructions."""
ROOFS: Mapping[str, str] = {
    FLOATS: "f32 arithmetic", DOUBLES: "f64 arithmetic", INTEGERS: "integer arithmetic", BYTES: "products of bytes",
    FUNCTIONS: "exp and the like",
}  # fmt: skip
"""What each kind is called."""


@dataclass(frozen=True)
class MemoryLevel:
    """A cache, or memory: the bytes that it holds for all threads together (0: any number), and bytes per second."""

    name: str
    size: int
    rate: float


@dataclass(frozen=True)
class MachineLimits:
    """Operations per second by their kinds, and memory from the nearest level to the farthest, of so many threads."""

    threads: int
    rates: Mapping[str, float]
    levels: tuple[MemoryLevel, ...]

    def called(self, kind: str) -> str:
        """What a kind of operations is called."""
        return ROOFS[kind]

    def level(self, nbytes: int) -> MemoryLevel:
        """The nearest level that holds so many bytes."""
        return next((level for level in self.levels if nbytes <= level.size), self.levels[-1])

    def roof(self, work: WorkCount) -> tuple[float, str]:
        """The seconds that work takes at least, and what it then waits for: the slowest of moving its bytes, which are
        all in the nearest level that holds them, its operations of each kind, and its costly functions."""
        level = self.level(work.bytes)
        needed = {**work.operations, FUNCTIONS: work.functions}
        times = {ROOFS[kind]: count / self.rates[kind] for kind, count in needed.items() if count}
        times[level.name] = work.bytes / level.rate
        slowest = max(times, key=lambda name: times[name])
        return times[slowest], slowest
