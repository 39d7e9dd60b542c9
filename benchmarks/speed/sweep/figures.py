"""Sweeps as plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.speed.sweep.analysis import Point, cliffs, line

LINE, RISE, FALL = "#1f78b4", "#e31a1c", "#b0b0b0"


def work(sweeps: Mapping[tuple[str, str], Sequence[Point]], path: Path) -> None:
    """Nanoseconds per multiply-add over each axis, a row for each family; cliffs are coloured, red where they rise."""
    families, axes = (list(dict.fromkeys(names)) for names in zip(*sweeps, strict=True))
    figure = Figure(figsize=(1 + 3.4 * len(axes), 0.8 + 2.7 * len(families)), layout="constrained")
    panels = figure.subplots(len(families), len(axes), sharey="row", squeeze=False)
    for row, family in zip(panels, families, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            if points := sweeps.get((family, axis)):
                _panel(panel, points)
                panel.set_title(f"{family}: {axis}", fontsize=10)
            else:
                panel.set_axis_off()
        row[0].set_ylabel("ns a multiply-add")
    figure.suptitle("Training steps of Glowtrain: time per multiply-add")
    figure.savefig(path, dpi=120)


def _panel(axes: Axes, points: Sequence[Point]) -> None:
    by_value = {point.value: point for point in points}
    axes.loglog([point.value for point in points], [point.each for point in points], "o-", color=LINE, markersize=3)
    for cliff in cliffs(points):
        ends = [by_value[cliff.before], by_value[cliff.after]]
        color = RISE if cliff.ratio > 1 else FALL
        axes.loglog([end.value for end in ends], [end.each for end in ends], color=color, linewidth=2.5)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for ticks in (axes.xaxis, axes.yaxis):
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ticks.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(linewidth=0.4, alpha=0.6)


def compiling(depths: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Seconds to load and compile over the number of layers, beside straight lines."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for family, points in depths.items():
        xs, ys = [point.value for point in points], [point.compiled for point in points]
        fit = line(xs, ys)
        (dots,) = axes.plot(xs, ys, "o", label=f"{family}: {fit}")
        axes.plot(xs, [fit.slope * x + fit.start for x in xs], "--", color=dots.get_color(), linewidth=1)
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds to build and compile the training step")
    axes.grid(linewidth=0.4, alpha=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
