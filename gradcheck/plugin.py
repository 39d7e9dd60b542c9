"""What the pytest fixture ``gradcheck`` gives: checks that fail the test (see :mod:`glowtrain.pytest_plugin`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from glowtrain.gradcheck.models.model import check
from glowtrain.gradcheck.operators.oracles import ORACLES, check_sample
from glowtrain.gradcheck.operators.registry import check_registry
from glowtrain.gradcheck.report.html import write_html
from glowtrain.gradcheck.report.report import GradcheckReport, merged
from glowtrain.graph import Graph, Operator, Sample, Template
from glowtrain.presentation.messages import plural
from glowtrain.types import Array

EXAMPLES = 10


@dataclass
class GradCheck:
    """Checks for one test. ``examples`` overrides what the test says."""

    examples: int | None = None
    seed: int = 0
    reports: list[GradcheckReport] = field(default_factory=list)

    def operator(
        self, operator: type[Operator], examples: int = EXAMPLES, *, oracles: Sequence[str] | None = None
    ) -> GradcheckReport:
        """Check a registered operator on samples of its own domain (``Operator.sample``), by all oracles or some.

        Where hypothesis is installed a failure comes with the smallest sample that fails. Raises :class:`InputError`
        for an operator that is not registered.
        """
        chosen: dict[str, Any] = {} if oracles is None else {"oracles": tuple(oracles)}
        count = examples if self.examples is None else self.examples
        return self._judged(check_registry([operator.key()], count, self.seed, **chosen))

    def sample(
        self, operator: Operator, *inputs: Array | None, oracles: Sequence[str] = tuple(ORACLES)
    ) -> GradcheckReport:
        """Check one use of an operator: with these attributes, on these operands (floats in f64)."""
        measures = check_sample(Sample(operator, inputs), oracles, self.seed)
        checks = merged(operator.key(), [("", measure) for measure in measures])
        return self._judged(GradcheckReport(tuple(checks), self.seed, 1))

    def model(
        self, model: Graph | Template | str | Path, inputs: Mapping[str, Array] | None = None, **options: Any
    ) -> GradcheckReport:
        """Check every parameter and input of a model; ``options`` are those of :func:`glowtrain.gradcheck.check`."""
        return self._judged(check(model, inputs, **{"seed": self.seed, **options}))

    def report(self, report: GradcheckReport) -> GradcheckReport:
        """Judge a report that was made otherwise, such as :func:`glowtrain.torch.gradcheck` of a PyTorch module."""
        return self._judged(report)

    def write(self, folder: Path, test: str) -> None:
        """Write what a test checked as one page of HTML."""
        if self.reports:
            folder.mkdir(parents=True, exist_ok=True)
            checks = tuple(check for each in self.reports for check in each.checks)
            first, seconds = self.reports[0], sum(each.seconds for each in self.reports)
            whole = GradcheckReport(checks, first.seed, first.examples, seconds)
            write_html(whole, folder / (re.sub(r"[^\w.-]+", "_", test) + ".html"))

    def _judged(self, report: GradcheckReport) -> GradcheckReport:
        """The report; fails the test if a check did."""
        self.reports.append(report)
        if not report.passed:
            lines = [f"{check.subject}, {check.oracle}: {check.detail}" for check in report.failures]
            pytest.fail(f"{plural(len(lines), 'gradient check')} failed:\n  " + "\n  ".join(lines), pytrace=False)
        return report
