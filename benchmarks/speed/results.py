"""What was measured, ratios of it, and its file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.speed.engines import NARROW, OWN, tolerance


@dataclass
class Timing:
    """One engine in one row. ``ms``: the median of a step. ``ready``: seconds to load, compile and take the first step.

    ``apart``: how far its first result is from Glowtrain's. In processes of their own, where that was asked for:
    ``cold`` and ``warm``, seconds of the first step from the engine's import on, without and with what it kept of an
    earlier process; ``peak``, bytes of its largest resident set.
    """

    ms: float
    ready: float
    calls: int
    loss: float | None
    apart: float
    cold: float | None = None
    warm: float | None = None
    peak: int | None = None


@dataclass
class Result:
    """One row on so many cores: timings by engine, why others could not run it, and facts of Glowtrain's step."""

    part: str
    row: str
    cores: int
    timings: dict[str, Timing]
    failures: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def ratio(self, peer: str) -> float | None:
        """How many times as long as Glowtrain a peer takes; None where one of them did not run."""
        if peer not in self.timings or OWN not in self.timings:
            return None
        return self.timings[peer].ms / self.timings[OWN].ms

    def ratio_of_faster(self, peer: str) -> float | None:
        """The same with each of both in the precision in which it is faster; None where neither ran in bf16."""
        own, others = (
            [t.ms for name, t in self.timings.items() if NARROW.get(name, name) == each] for each in (OWN, peer)
        )
        return min(others) / min(own) if own and others and len(own + others) > 2 else None

    @property
    def disagreeing(self) -> list[str]:
        """Engines whose first result is not Glowtrain's."""
        return [name for name, timing in self.timings.items() if not timing.apart <= tolerance(self.part, name)]

    @property
    def place(self) -> str:
        """The row and the number of cores, in words."""
        return f"{self.row}, {self.cores} core{'s' if self.cores > 1 else ''}"

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the result of."""
        return self.part, self.row, self.cores


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Of those that are there; None of none."""
    logarithms = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def merged(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Old results with new ones in their places; rows in the order in which they came, each by its numbers of cores."""
    latest = {result.key: result for result in (*old, *new)}
    order = list(dict.fromkeys((part, row) for part, row, _ in latest))
    return sorted(latest.values(), key=lambda result: (order.index((result.part, result.row)), result.cores))


def write(path: Path, machine: Mapping[str, str], results: Iterable[Result]) -> None:
    """As JSON."""
    found = {"machine": dict(machine), "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Result]:
    """What :func:`write` wrote; nothing where there is no file."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    return [Result(**{**r, "timings": {name: Timing(**t) for name, t in r["timings"].items()}}) for r in found]
