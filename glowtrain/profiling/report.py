"""What a profile found: a row for each kernel, and sums over layers and threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glowtrain.backends.base import WHOLE_CALL, StepProfile
from glowtrain.backends.limits import MachineLimits
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.profiling.layers import KernelProvenance
from glowtrain.program.analysis.work_count import WorkCount
from glowtrain.types import Array

NO_LAYER = "(no layer)"


@dataclass(frozen=True)
class KernelRow:
    """What a kernel did in one run: ``calls`` of it took ``seconds`` for ``work`` in each. ``roof`` is the seconds that
    the machine needs for a call at least, and ``bound`` what it would then wait for. ``busy`` is each thread's part of
    the time."""

    origin: KernelProvenance
    calls: int
    seconds: float
    work: WorkCount
    roof: float
    bound: str
    busy: tuple[float, ...]

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.origin.name

    @property
    def layer(self) -> str:
        """The first of its layers."""
        return next(iter(self.origin.layers), NO_LAYER)

    @property
    def operations(self) -> int:
        """Of all calls."""
        return self.calls * self.work.total

    @property
    def bytes(self) -> int:
        """Of all calls."""
        return self.calls * self.work.bytes

    @property
    def reached(self) -> float:
        """The part of what the machine can do: 1 is all of it."""
        return self.calls * self.roof / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Timing:
    """The fastest run of counted code; the seconds of a tick; those of all runs without and with counters."""

    run: StepProfile
    tick: float
    plain: tuple[float, ...]
    counted: tuple[float, ...]

    @property
    def overhead(self) -> float:
        """What counters add to the fastest run, as a part of it; runs differ by more than counters cost where other
        programs run, so that it may be less than 0."""
        return min(self.counted) / min(self.plain) - 1


@dataclass(frozen=True)
class ProfileReport(Displayable):
    """The profile of one graph on one backend; ``rows`` are in the order of the program."""

    title: str
    backend: str
    rows: tuple[KernelRow, ...]
    timing: Timing
    limits: MachineLimits

    def __repr__(self) -> str:
        return f"<Report on {self.title}: {plural(len(self.rows), 'kernel')} in {self.seconds * 1e3:,.3f} ms>"

    def _contents(self) -> Iterator[str | Table]:
        from glowtrain.profiling.table import busy, kernels, layers  # noqa: PLC0415  (written in terms of reports)

        yield kernels(self)
        yield ""
        yield layers(self)
        yield ""
        yield f"threads were busy for {busy(self.busy)} of the step; {self.reached:.0%} of the roofs in all"
        yield self.summary()

    @cached_property
    def seconds(self) -> float:
        """Of the step, from its first instruction to its last."""
        whole = self.timing.run.whole
        return float(whole["end"] - whole["begin"]) * self.timing.tick

    @property
    def threads(self) -> int:
        """Threads that it ran on."""
        return self.limits.threads

    @property
    def slowest(self) -> list[KernelRow]:
        """The rows, those of most time first."""
        return sorted(self.rows, key=lambda row: -row.seconds)

    @property
    def busy(self) -> tuple[float, ...]:
        """Each thread's part of the time of the step in which it ran tasks."""
        if not self.seconds:
            return (0.0,) * self.threads
        return tuple(sum(row.busy[t] * row.seconds for row in self.rows) / self.seconds for t in range(self.threads))

    @property
    def reached(self) -> float:
        """The part of what the machine can do, of all kernels."""
        return sum(row.calls * row.roof for row in self.rows) / self.seconds if self.seconds else 0.0

    def layers(self) -> dict[str, float]:
        """The seconds of each layer, most first; a kernel of several counts for the first of them."""
        found: dict[str, float] = {}
        for row in self.rows:
            found[row.layer] = found.get(row.layer, 0.0) + row.seconds
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))

    def summary(self) -> str:
        """The step's time, what counters cost, and what the machine can do."""
        plain, counted = (f"{min(runs) * 1e3:,.3f} ms" for runs in (self.timing.plain, self.timing.counted))
        threads, runs = plural(self.threads, "thread"), len(self.timing.plain)
        cost = f"{plain} a run without counters, {counted} with them ({self.timing.overhead:+.1%})"
        return f"{cost}: the fastest of {runs} each, on {threads}\nThe machine on {threads}: {roofs(self.limits)}"


def roofs(limits: MachineLimits) -> str:
    """``430 Gop/s of f32 arithmetic; L1 490 GB/s, memory 24 GB/s``"""
    rates = ", ".join(f"{rate / 1e9:,.3g} Gop/s of {limits.called(kind)}" for kind, rate in limits.rates.items())
    levels = ", ".join(f"{level.name} {level.rate / 1e9:,.3g} GB/s" for level in limits.levels)
    return "; ".join(filter(None, (rates, levels)))


def rows_of(
    work: Sequence[tuple[int, WorkCount]],
    origins: Sequence[KernelProvenance],
    run: StepProfile,
    tick: float,
    limits: MachineLimits,
) -> tuple[KernelRow, ...]:
    """A row for each call in the text of a step, by the spans of a run."""
    spent = ticks_of(run, len(work), limits.threads)
    rows = []
    for (calls, each), origin, (whole, *own) in zip(work, origins, spent, strict=True):
        roof, bound = limits.roof(each)
        busy = tuple(float(part) / float(whole) if whole else 0.0 for part in own)
        rows.append(KernelRow(origin, calls, float(whole) * tick, each, roof, bound, busy))
    return tuple(rows)


def ticks_of(run: StepProfile, calls: int, threads: int) -> Array:
    """A row for each call: the ticks from its begin to its end, added up, then those in which each thread ran its
    tasks. What was not shared out was run by the first thread."""
    found = np.zeros((calls + 1, threads + 1), np.int64)
    spans = run.spans
    np.add.at(found, (spans["call"], spans["thread"] - WHOLE_CALL), spans["end"] - spans["begin"])
    alone = ~found[:, 1:].any(axis=1)
    found[alone, 1] = found[alone, 0]
    return found[:calls]
