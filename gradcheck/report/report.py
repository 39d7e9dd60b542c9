"""What a gradient check found: one line for each subject and oracle, as a table or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from glowtrain.errors import VerificationError
from glowtrain.files import write_atomically
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Cell, Piece, Table

Progress = Callable[[str, int, int], None]
"""Called with the subject that is done, the number of those done, and the number of all."""

LISTED = 40
"""Subjects that are listed though they passed, and failures that are told."""

Status = Literal["passed", "failed", "kink", "absent"]


@dataclass(frozen=True)
class Measure:
    """One comparison: ``error`` is the largest |difference|, ``ratio`` the largest difference over its tolerance.

    A ratio of at most 1 passes. "kink": the function has no derivative at this place; "absent": nothing to compare.
    """

    oracle: str
    error: float = 0.0
    ratio: float = 0.0
    detail: str = ""
    kind: Literal["compared", "kink", "absent"] = "compared"

    @property
    def status(self) -> Status:
        if self.kind != "compared":
            return self.kind
        return "passed" if self.ratio <= 1.0 else "failed"


@dataclass(frozen=True)
class Check:
    """All comparisons of one subject (an operator, a parameter, random programs) by one oracle."""

    subject: str
    oracle: str
    status: Status
    examples: int
    error: float
    ratio: float
    detail: str = ""
    """What failed first, and how to repeat it; where a kink lies."""


@dataclass(frozen=True)
class GradcheckReport(Displayable):
    """The checks of a run. ``seconds`` is its wall time; everything else depends on seed and examples only."""

    checks: tuple[Check, ...]
    seed: int = 0
    examples: int = 0
    seconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"

    def _contents(self) -> Iterator[str | Table]:
        yield self.summary()
        table = self.table(all_subjects=len(self.subjects) <= LISTED)
        if table.rows:
            yield table
        yield from (f"{check.subject}, {check.oracle}: {check.detail}" for check in self.failures[:LISTED])

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check.subject for check in self.checks))

    def of(self, subject: str) -> tuple[Check, ...]:
        """The checks of one subject."""
        return tuple(check for check in self.checks if check.subject == subject)

    def raise_if_failed(self) -> None:
        """Raise :class:`VerificationError` that lists the failures."""
        if self.failures:
            lines = [f"{c.subject}, {c.oracle}: {c.detail}" for c in self.failures]
            raise VerificationError(f"{plural(len(lines), 'gradient check')} failed:\n  " + "\n  ".join(lines))

    def head(self) -> dict[str, object]:
        """What JSON says of the whole run."""
        seconds = round(self.seconds, 3)
        return {"passed": self.passed, "seed": self.seed, "examples": self.examples, "seconds": seconds}

    def to_json(self, path: Path | str | None = None) -> str:
        """The report as JSON text, also written to ``path``, whole or not at all."""
        text = json.dumps(
            {**self.head(), "checks": [_plain(check) for check in self.checks]}, indent=1, allow_nan=False
        )
        if path is not None:
            write_atomically(Path(path), f"{text}\n".encode())
        return text

    def table(self, *, all_subjects: bool = False) -> Table:
        """A line for each subject that did not pass everywhere (or for all), with the largest error by each oracle."""
        oracles = list(dict.fromkeys(check.oracle for check in self.checks))
        found = {subject: {check.oracle: check for check in self.of(subject)} for subject in self.shown(all_subjects)}
        rows: list[tuple[Cell, ...]] = [
            (subject, *(_cell(checks.get(oracle)) for oracle in oracles)) for subject, checks in found.items()
        ]
        return Table(["checked", *(f"{oracle} error>" for oracle in oracles)], rows)

    def shown(self, every: bool) -> list[str]:
        """The subjects that did not pass everywhere, or all."""
        bad = {check.subject for check in self.checks if check.status in ("failed", "kink")}
        return [subject for subject in self.subjects if every or subject in bad]

    def summary(self) -> str:
        """One line: how much was checked, and what failed."""
        compared = sum(check.examples for check in self.checks if check.status != "absent")
        kinks = sum(check.status == "kink" for check in self.checks)
        oracles = plural(len({check.oracle for check in self.checks}), "oracle")
        words = [f"{len(self.subjects)} checked by {oracles}, {plural(compared, 'comparison')}"]
        words += [f"{kinks} at a kink"] if kinks else []
        words += [f"{len(self.failures)} failed" if self.failures else "all passed"]
        return ", ".join(words) + f" (seed {self.seed}, {self.seconds:.1f} s)"


def merged(subject: str, measures: Sequence[tuple[str, Measure]]) -> list[Check]:
    """The checks of one subject from single comparisons, each with a word on how to repeat it."""
    checks = []
    for oracle in dict.fromkeys(measure.oracle for _, measure in measures):
        chosen = [(where, measure) for where, measure in measures if measure.oracle == oracle]
        checks.append(_check(subject, oracle, chosen))
    return checks


def _check(subject: str, oracle: str, measures: Sequence[tuple[str, Measure]]) -> Check:
    order = ("failed", "kink", "passed", "absent")
    status = min((measure.status for _, measure in measures), key=order.index)
    where, first = next(pair for pair in measures if pair[1].status == status)
    told = f"{where}: {first.detail}" if first.detail and where else first.detail or where
    detail = told if status in ("failed", "kink") else ""
    counted = [measure for _, measure in measures if measure.kind == "compared"]
    error, ratio = _largest(m.error for m in counted), _largest(m.ratio for m in counted)
    return Check(subject, oracle, status, len(counted), error, ratio, detail)


def _largest(numbers: Iterable[float]) -> float:
    """The largest; NaN (of results that should not be) counts as infinite."""
    return max((math.inf if math.isnan(number) else number for number in numbers), default=0.0)


def _plain(check: Check) -> dict[str, object]:
    """JSON has no infinity: it becomes null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(check).items()}


def _cell(check: Check | None) -> Piece:
    if check is None or check.status == "absent":
        return "-", "absent"
    return f"{check.error:.1e}" if check.status != "kink" else "kink", check.status
