"""A report as one HTML page that needs nothing else: numbers, failures, and a plot of errors by subject and oracle.

The plot shows each error over what is allowed for it, on a logarithmic axis, so a wrong gradient stands to the right of
the line at 1 whatever its magnitude. Drawing needs matplotlib (the ``plot`` extra).
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from glowtrain.files import write_atomically
from glowtrain.gradcheck.report.report import Check, GradcheckReport, Status
from glowtrain.presentation import figures, pages
from glowtrain.presentation.tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TICKS = {
    1e-8: "≤ 10⁻⁸", 1e-6: "10⁻⁶", 1e-4: "10⁻⁴", 1e-2: "10⁻²", 1.0: "1", 1e2: "10²", 1e4: "10⁴", 1e6: "≥ 10⁶",
}  # fmt: skip
LEAST, MOST = min(TICKS), max(TICKS)
WIDTH, ROW = 11.0, 0.21
"""Inches."""
COLUMNS = ("checked", "by", "result", "comparisons>", "worst error>", "of allowed>", "detail")


def html_page(report: GradcheckReport) -> str:
    """The report as one self-contained page. Raises :class:`InputError` without matplotlib."""
    result = "passed" if report.passed else "failed"
    chosen = {
        "What failed": [check for check in report.checks if check.status == "failed"],
        "At a kink": [check for check in report.checks if check.status == "kink"],
        "All comparisons": report.checks,
    }
    tables = {title: Table(COLUMNS, map(_row, checks), code="detail") for title, checks in chosen.items() if checks}
    sections = [pages.section(title, table) for title, table in tables.items()]
    title, height = "Errors, over what is allowed", 1.6 + ROW * len(report.subjects)
    plot = pages.section(title, figures.svg(partial(draw, report), WIDTH, height, title))
    return pages.page(f"Gradient check: {result}", report.summary(), [*sections[:-1], plot, *sections[-1:]], result)


def write_html(report: GradcheckReport, path: Path | str) -> None:
    """Write the report as one HTML page. Raises ``OSError``, and :class:`InputError` without matplotlib."""
    write_atomically(Path(path), html_page(report).encode())


def _row(check: Check) -> list[Cell]:
    numbers = [str(check.examples), _number(check.error), _number(check.ratio)]
    words = ["–"] * 3 if check.status in ("kink", "absent") and not check.examples else numbers
    return [check.subject, check.oracle, (check.status, check.status), *words, check.detail]


def _number(number: float) -> str:
    return f"{number:.2g}" if math.isfinite(number) else "∞"


def draw(report: GradcheckReport, figure: Figure) -> None:
    """A row for each subject, in it a mark for each oracle at its error over what is allowed; failures are ringed."""
    axes = figure.add_subplot(xscale="log", xlabel="worst error / allowed error", xlim=(LEAST / 2, 2 * MOST))
    for number, oracle in enumerate(dict.fromkeys(check.oracle for check in report.checks)):
        plot = partial(axes.plot, linestyle="", marker="osD^"[number // 10 % 4], color=f"C{number % 10}")
        plot(*_marks(report, oracle, "passed"), markersize=5, label=oracle)
        plot(*_marks(report, oracle, "failed"), markersize=9, mec=figures.LIMIT, mew=2)
    axes.axvline(1.0, color=figures.LIMIT, linestyle="--", label="allowed")
    axes.set_ylim(len(report.subjects) - 0.5, -0.5)
    axes.set_yticks(range(len(report.subjects)), [figures.short(name) for name in report.subjects])
    failed = {check.subject for check in report.failures}
    for label, subject in zip(axes.get_yticklabels(), report.subjects, strict=True):
        if subject in failed:
            label.set(color=figures.LIMIT, weight="bold")
    axes.set_xticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.tick_params(labeltop=True)
    figure.legend(loc="outside upper left", ncols=6)


def _marks(report: GradcheckReport, oracle: str, status: Status) -> tuple[list[float], list[int]]:
    """Errors over what is allowed, where there are marks for them, and the rows of their subjects."""
    rows = {subject: row for row, subject in enumerate(report.subjects)}
    found = [check for check in report.checks if check.oracle == oracle and check.status == status]
    ratios = [check.ratio if math.isfinite(check.ratio) else MOST for check in found]
    return [min(max(ratio, LEAST), MOST) for ratio in ratios], [rows[check.subject] for check in found]
