"""What the doctor found, and what it means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from glowtrain.doctor.exercise import ExerciseRun, runs
from glowtrain.doctor.facts import facts
from glowtrain.errors import GlowtrainError
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table

_DISTRUST = "Results on this machine cannot be trusted; please report this with all of the above"


class BitsDiffer(GlowtrainError):
    """Compiled code gave other bits than it must."""


@dataclass(frozen=True)
class DoctorReport(Displayable):
    """Facts in words, and the runs of the exercise."""

    facts: dict[str, str]
    runs: tuple[ExerciseRun, ...]

    def __repr__(self) -> str:
        verdict = "all targets agree" if self.agrees else "targets compute different bits"
        return f"<Report of {plural(len(self.runs), 'run')}: {verdict}>"

    def _contents(self) -> Iterator[str | Table]:
        yield Table(("this machine", ""), self.facts.items())
        yield ""
        found = self.digests().items()
        rows = ((target, ", ".join(map(str, on)), digest) for target, each in found for digest, on in each.items())
        yield Table(("target", "threads", "parameters after ten steps"), rows)
        if self.agrees:
            yield ""
            yield from self.meaning()

    def digests(self) -> dict[str, dict[str, list[int]]]:
        """The digests of each target, with the numbers of threads that gave them."""
        found: dict[str, dict[str, list[int]]] = {}
        for run in self.runs:
            found.setdefault(_label(run), {}).setdefault(run.digest, []).append(run.threads)
        return found

    @property
    def agrees(self) -> bool:
        """Whether all targets with the same arithmetic gave the same bits each time, on any number of threads."""
        return all(len({run.digest for run in self._runs(fused)}) <= 1 for fused in (True, False))

    def _runs(self, fused: bool) -> list[ExerciseRun]:
        return [run for run in self.runs if run.fused is fused]

    def meaning(self) -> list[str]:
        """What the digests say, in sentences."""
        return [
            "All targets compute the same bits, again and on any number of threads: one digest with fused",
            "multiply-adds, another without (unfused), as processors compute that lack them.",
            "Another machine with these versions of everything prints the same digests.",
        ]

    def require(self) -> None:
        """Raise :class:`BitsDiffer` unless the report :attr:`agrees`."""
        for target, digests in self.digests().items():
            if len(digests) > 1:
                listed = ", ".join(f"{digest} on {_listed(threads)}" for digest, threads in digests.items())
                raise BitsDiffer(f"target {target} does not compute the same bits each time: {listed}. {_DISTRUST}")
        for runs_ in map(self._runs, (True, False)):
            other = next((run for run in runs_ if run.digest != runs_[0].digest), None)
            if other is not None:
                pair = " and ".join(f"{_label(run)} ({run.digest})" for run in (runs_[0], other))
                raise BitsDiffer(f"targets {pair} do not compute the same bits. {_DISTRUST}")

    def to_json(self) -> str:
        """All of it for programs."""
        found = [
            {"target": run.target, "fused": run.fused, "threads": run.threads, "digest": run.digest}
            for run in self.runs
        ]
        return json.dumps({"facts": self.facts, "runs": found, "agrees": self.agrees}, indent=1)


def _label(run: ExerciseRun) -> str:
    """A target by its name and arithmetic."""
    return run.target if run.fused else f"{run.target}, unfused"


def _listed(threads: list[int]) -> str:
    return " and ".join(map(str, threads)) + (" thread" if threads == [1] else " threads")


def examine(progress: Callable[[str], None] = lambda _: None) -> DoctorReport:
    """Look at this installation and machine, and run the exercise."""
    return DoctorReport(facts(), tuple(runs(progress)))
