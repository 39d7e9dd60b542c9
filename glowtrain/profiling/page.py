"""A profile as one HTML page that needs nothing else: a roofline plot, layers and kernels.

Drawing needs matplotlib (the ``plot`` extra).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.backends.limits import FUNCTIONS, ROOFS
from glowtrain.presentation import figures, pages
from glowtrain.profiling import table
from glowtrain.profiling.report import KernelRow, ProfileReport
from glowtrain.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 11.0, 6.0
"""Inches."""
NUMBERED = 12
"""Kernels whose numbers stand in the plot."""
EXPLAINED = (
    "Each dot is a kernel: how many operations it does for a byte that it has to move, and how many in a second; the "
    "larger, the more of the step's time. Lines are what this machine does at most, by where the bytes are. The "
    "distance of a dot from the line above it is what could be gained; numbers are those of the table."
)


def html_page(report: ProfileReport) -> str:
    """The report as one self-contained page. Raises :class:`InputError` without matplotlib."""
    drawn = figures.svg(partial(draw_roofline, report), WIDTH, HEIGHT, "Roofline")
    return pages.page(
        f"{report.title}: profile",
        report.summary(),
        [
            pages.section("Roofline", drawn, f"<p>{EXPLAINED}</p>"),
            pages.section("Layers", table.layers(report)),
            pages.section("Kernels", table.kernels(report)),
        ],
    )


def draw_roofline(report: ProfileReport, figure: Figure) -> None:
    """Operations per second over operations per byte, on logarithmic axes."""
    axes = figure.add_subplot(xlabel="operations per byte", ylabel="Gop/s", xscale="log", yscale="log")
    dots = [PlottedKernel(number, row) for number, row in enumerate(table.large(report), 1) if row.operations]
    intensities = [dot.intensity for dot in dots] or [1.0]
    span = np.geomspace(min(intensities) / 4, max(max(intensities) * 4, 64.0), 200)
    _roofs(report, axes, span)
    _dots(report, axes, dots)
    axes.set_xlim(span[0], span[-1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=4)


@dataclass(frozen=True)
class PlottedKernel:
    """A kernel with its number in the table."""

    number: int
    row: KernelRow

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.row.operations / max(self.row.bytes, 1)

    @property
    def speed(self) -> float:
        """Gop/s."""
        return self.row.operations / self.row.seconds / 1e9


def _roofs(report: ProfileReport, axes: Axes, span: Array) -> None:
    """A line for each level of memory up to the highest rate of operations, and one across for each kind."""
    limits = report.limits
    rates = {kind: limits.rates[kind] for kind in ROOFS if kind in limits.rates and kind != FUNCTIONS}
    top = max(rates.values(), default=limits.levels[0].rate)
    for place, level in enumerate(limits.levels):
        axes.plot(span, np.minimum(span * level.rate, top) / 1e9, color=f"C{place}", linewidth=1.2)
        at = span[0], span[0] * level.rate / 1e9
        axes.annotate(level.name, at, (4, 6), textcoords="offset points", fontsize=8)
    for kind, rate in rates.items():
        axes.axhline(rate / 1e9, color=figures.LIMIT, linestyle="--", linewidth=1)
        name, at = f"{limits.called(kind)}, {rate / 1e9:,.0f} Gop/s", (span[-1], rate / 1e9)
        axes.annotate(name, at, (-4, 4), textcoords="offset points", fontsize=8, ha="right")


def _dots(report: ProfileReport, axes: Axes, dots: list[PlottedKernel]) -> None:
    """A dot for each kernel, in the colour of what bounds it."""
    levels = [level.name for level in report.limits.levels]
    bounds = dict.fromkeys([*levels, *ROOFS.values()])
    for place, bound in enumerate(bounds):
        chosen = [dot for dot in dots if dot.row.bound == bound]
        if chosen:
            sizes = [30 + 900 * dot.row.seconds / report.seconds for dot in chosen]
            axes.scatter(*_places(chosen), sizes, color=f"C{place}", alpha=0.5, linewidths=0)
            axes.scatter([], [], 40, color=f"C{place}", label=f"bound by {bound}")
    for dot in dots[:NUMBERED]:
        axes.annotate(str(dot.number), (dot.intensity, dot.speed), ha="center", va="center", fontsize=8)


def _places(dots: list[PlottedKernel]) -> tuple[list[float], list[float]]:
    return [dot.intensity for dot in dots], [dot.speed for dot in dots]
