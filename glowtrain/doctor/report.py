"""What the doctor found, and what it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from glowtrain.doctor.exercise import ExerciseRun, runs
from glowtrain.doctor.facts import facts
from glowtrain.errors import GlowtrainError


class BitsDiffer(GlowtrainError):
    """Compiled code gave other bits than it must."""


@dataclass(frozen=True)
class DoctorReport:
    """Facts in words, and the runs of the exercise."""

    facts: dict[str, str]
    runs: tuple[ExerciseRun, ...]

    def digests(self) -> dict[str, dict[str, list[int]]]:
        """The digests of each target, with the numbers of threads that gave them."""
        found: dict[str, dict[str, list[int]]] = {}
        for run in self.runs:
            found.setdefault(run.target, {}).setdefault(run.digest, []).append(run.threads)
        return found

    @property
    def agrees(self) -> bool:
        """Whether every target gave the same bits each time, on any number of threads."""
        return all(len(digests) == 1 for digests in self.digests().values())

    def alike(self) -> list[tuple[str, ...]]:
        """Targets that gave the same bits; those of fewer instructions may differ, as their sums have another order."""
        found: dict[str, list[str]] = {}
        for target, digests in self.digests().items():
            found.setdefault(next(iter(digests)), []).append(target)
        return [tuple(names) for names in found.values()]

    def meaning(self) -> list[str]:
        """What the digests say, in sentences."""
        same = "; ".join(" = ".join(names) for names in self.alike())
        return [
            "Each target computes the same bits again and on any number of threads.",
            f"Between targets: {same}. Where they differ, sums have another order (or there is no fused multiply-add).",
            "Two machines that print the same digest for a target compute the same bits in it.",
            "Targets named after instructions print the same on all machines with these versions of everything.",
        ]

    def require(self) -> None:
        """Raise :class:`BitsDiffer` unless the report :attr:`agrees`."""
        for target, digests in self.digests().items():
            if len(digests) > 1:
                told = ", ".join(f"{digest} on {_listed(threads)}" for digest, threads in digests.items())
                raise BitsDiffer(
                    f"target {target} does not compute the same bits each time: {told}. Results on this machine cannot "
                    "be trusted; please report this with all of the above"
                )

    def to_json(self) -> str:
        """All of it for programs."""
        found = [{"target": run.target, "threads": run.threads, "digest": run.digest} for run in self.runs]
        return json.dumps({"facts": self.facts, "runs": found, "agrees": self.agrees}, indent=1)


def _listed(threads: list[int]) -> str:
    return " and ".join(map(str, threads)) + (" thread" if threads == [1] else " threads")


def examine(told: Callable[[str], None] = lambda _: None) -> DoctorReport:
    """Look at this installation and machine, and run the exercise."""
    return DoctorReport(facts(), tuple(runs(told)))
