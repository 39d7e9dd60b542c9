"""What a run of the kit says at the end: which levels passed, which types run, what is missing and why."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePath
from typing import Any, NamedTuple

import pytest

from glowtrain.kit.refusals import ExpectedRefusals, plain_reason
from glowtrain.presentation.messages import plural

RAN, REFUSED, FAILED = "runs", "refused", "failed"
LEVELS = {"test_operators": 1, "test_programs": 1, "test_training": 2, "test_failures": 3}
"""The level of each module of tests."""
LISTED = 12
"""Operators that are named in a line."""
SUSPECTS = 3


def level_of(test: str) -> int:
    """The level of a test by its id, which is all that there is of one that ended its process; 0 if the kit has none
    such."""
    return LEVELS.get(PurePath(test.partition("::")[0]).stem, 0)


class OperatorUse(NamedTuple):
    """What became of an operator in an element type: ``outcome`` is one of :data:`RAN`, :data:`REFUSED` and
    :data:`FAILED`, ``details`` are failures, or the refusals as the backend words them, ``parts`` what the kernels that
    ran are made of."""

    family: str
    operator: str
    dtype: str
    outcome: str
    details: Sequence[str]
    parts: Sequence[str]


@dataclass(eq=False)
class KitReport:
    """Outcomes of tests: counts by level, and of each operator and type what happened.

    It is a plugin of pytest, so that with workers of pytest-xdist the process that reports sees all. An operator's test
    notes ``("use", fields of an OperatorUse)`` among its user properties.
    """

    expected: ExpectedRefusals | None = None
    counts: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    uses: list[OperatorUse] = field(default_factory=list)
    skipped: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test of the kit."""
        level = level_of(report.nodeid)
        if not level or (report.when != "call" and report.outcome == "passed"):
            return
        self.counts[level][report.outcome] += 1
        properties: list[tuple[str, Any]] = report.user_properties
        self.uses += [OperatorUse(*value) for name, value in properties if name == "use"]
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            self.skipped[level][report.longrepr[2].removeprefix("Skipped: ")] += 1

    def lines(self) -> list[str]:
        """The report."""
        return [*self._levels(), *self._wrong(), *self._families(), *self._missing()]

    def _levels(self) -> Iterator[str]:
        for level, counts in sorted(self.counts.items()):
            verdict = "FAILED" if counts["failed"] else "passed" if counts["passed"] else "nothing ran"
            parts = [f"{counts[name]} {name}" for name in ("passed", "failed", "skipped") if counts[name]]
            yield f"level {level}: {verdict} ({', '.join(parts)})"
            for why, count in self._reasons(level).most_common():
                yield f"    skipped {plural(count, 'time')}: {why}"

    def _reasons(self, level: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for why, count in self.skipped[level].items():
            counts[self._words(why)] += count
        return counts

    def _words(self, refusal: str) -> str:
        return (self.expected and self.expected.reason(refusal)) or plain_reason(refusal)

    def _wrong(self) -> Iterator[str]:
        """In each type the operators whose results are wrong, and the parts that they have rather than others."""
        for dtype in dict.fromkeys(use.dtype for use in self.uses):
            wrong, right = ([use for use in self.uses if (use.dtype, use.outcome) == (dtype, o)] for o in (FAILED, RAN))
            if wrong:
                names = [use.operator for use in sorted(wrong, key=lambda use: len(use.parts))]
                yield f"wrong in {dtype}, of the fewest parts first: {_listed(names)}"
                yield f"    suspects: {', '.join(_suspects(_counts(wrong), _counts(right)))}"

    def _families(self) -> Iterator[str]:
        """For each family of operators how many run in each type, of those that take it."""
        types = list(dict.fromkeys(use.dtype for use in self.uses))
        rows: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        for use in self.uses:
            rows[use.family][use.dtype][use.outcome] += 1
        if rows:
            yield "operators that run, by family and element type:"
            yield f"    {'':<16}" + "".join(f"{dtype:>12}" for dtype in types)
        for family, by_type in sorted(rows.items()):
            cells = (f"{counts[RAN]} of {counts.total()}" for counts in (by_type[dtype] for dtype in types))
            yield f"    {family:<16}" + "".join(f"{cell:>12}" for cell in cells)

    def _missing(self) -> Iterator[str]:
        """The operators that are refused in a type, by reason."""
        reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
        for use in self.uses:
            if use.outcome == REFUSED:
                reasons[self._words(use.details[0]), use.dtype].append(use.operator)
        if reasons:
            yield "missing, by reason:"
        for (why, dtype), operators in sorted(reasons.items(), key=lambda entry: -len(entry[1])):
            yield f"    {dtype}, {why}: {_listed(operators)}"


def _listed(operators: Sequence[str]) -> str:
    more = f" and {len(operators) - LISTED} more" if len(operators) > LISTED else ""
    return ", ".join(operators[:LISTED]) + more


def _counts(uses: Sequence[OperatorUse]) -> Counter[str]:
    return Counter(chain.from_iterable(use.parts for use in uses))


def _suspects(wrong: Counter[str], right: Counter[str]) -> Iterator[str]:
    """The parts that are most likely at fault, by the Ochiai coefficient (Abreu, Zoeteweij, van Gemund 2007: "On the
    accuracy of spectrum-based fault localization") but for a factor that all have in common."""
    likely = sorted(wrong, key=lambda part: (-wrong[part] / math.sqrt(wrong[part] + right[part]), part))
    for part in likely[:SUSPECTS]:
        yield f"{part} ({wrong[part]} wrong of {wrong[part] + right[part]})"
