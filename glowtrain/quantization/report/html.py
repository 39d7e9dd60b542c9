"""The report on a quantized model as one HTML page that needs nothing else: tables, accuracies, noise, histograms.

Drawing needs matplotlib (the ``plot`` extra).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.ops.quantized.convert import limits
from glowtrain.presentation import figures, pages
from glowtrain.quantization.calibration.profile import Histogram
from glowtrain.quantization.improve.sensitivity import decibel_text
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.types import dtype_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from glowtrain.quantization.report.report import Report

WIDTH, ROW = 10.0, 0.3
"""Inches."""
BARS = 65
EXPLAINED = "What was observed, and the range that is quantized (green, within dashed lines): the rest is cut off."


def html_page(report: Report) -> str:
    """The report as one self-contained page. Raises :class:`InputError` without matplotlib."""
    return pages.page(f"{report.title}: quantized", report.summary(), _sections(report))


def _sections(report: Report) -> Iterator[str]:
    for title, draw, rows in (
        (report.accuracy.capitalize(), draw_accuracies, len(report.accuracies)),
        ("Signal to noise of each rounded value", draw_noise, len(report.layers)),
    ):
        if rows:
            yield pages.section(title, figures.svg(partial(draw, report), WIDTH, 0.9 + ROW * rows, title))
    drawn = [_figure(*found) for found in observed(report)]
    if drawn:
        yield pages.section("Histograms", f"<p>{EXPLAINED}</p>", '<div class="figures">', *drawn, "</div>")
    yield from (pages.section(table.title, table) for table in report.sections())


def draw_accuracies(report: Report, figure: Figure) -> None:
    """A bar for each form of the model, in percent."""
    axes = figure.add_subplot(xlabel="accuracy (%)", xlim=(0, 100))
    percents = [100 * value for value in report.accuracies.values()]
    _bars(axes, list(report.accuracies), {"": percents}, "{:.2f}".format)


def draw_noise(report: Report, figure: Figure) -> None:
    """Bars for each rounded value and for the weights of its layer; what has no finite ratio has a word only."""
    axes = figure.add_subplot(xlabel="signal to noise (dB)")
    weights = [row.weight_decibels for row in report.layers]
    ratios = {"activations": [row.decibels for row in report.layers]}
    ratios |= {"weights": [math.nan if ratio is None else ratio for ratio in weights]}
    _bars(axes, [row.name for row in report.layers], ratios, decibel_text)
    figure.legend(loc="outside upper right", ncols=2)


def _bars(axes: Axes, names: list[str], bars: dict[str, list[float]], told: Callable[[float], str]) -> None:
    """Horizontal bars for each name from the top down, those of one kind in one colour; NaN: none."""
    thickness = 0.38
    for position, (kind, numbers) in enumerate(bars.items()):
        lengths = [number if math.isfinite(number) else 0.0 for number in numbers]
        middles = [row + (position - (len(bars) - 1) / 2) * thickness for row in range(len(names))]
        drawn = axes.barh(middles, lengths, thickness, label=kind, color=f"C{position}")
        words = ["" if math.isnan(number) else told(number) for number in numbers]
        axes.bar_label(drawn, words, padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), [figures.short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)


def observed(report: Report) -> Iterator[tuple[str, Histogram, tuple[float, float]]]:
    """The quantized values that have histograms, each with the real numbers that the integers' ends stand for."""
    for name, parameters in report.parameters.items():
        found = report.profile.values.get(name)
        if found is not None and found.histogram is not None:
            yield name, found.histogram, _range(parameters)


def _range(parameters: Parameters) -> tuple[float, float]:
    least, greatest = limits(dtype_of(parameters.zero_point.dtype))
    scale, zero = float(parameters.scale), int(parameters.zero_point.astype(np.int64))
    return (least - zero) * scale, (greatest - zero) * scale


def _figure(name: str, histogram: Histogram, ends: tuple[float, float]) -> str:
    said = f"{name}: observed [{histogram.low:.3g}, {histogram.high:.3g}], quantized [{ends[0]:.3g}, {ends[1]:.3g}]"
    drawn = figures.svg(partial(draw_histogram, histogram, ends), 3.4, 1.9, f"Histogram of {name}")
    return f"<figure>{drawn}<figcaption>{escape(said)}</figcaption></figure>"


def draw_histogram(histogram: Histogram, ends: tuple[float, float], figure: Figure) -> None:
    """Counts on a logarithmic axis; the range that is quantized is shaded, with lines at its ends."""
    axes = figure.add_subplot(xlabel="value", ylabel="elements", yscale="log")
    span = min(histogram.low, ends[0]), max(histogram.high, ends[1])
    counts, edges = np.histogram(histogram.centres, BARS, span, weights=histogram.counts)
    axes.stairs(counts, edges, fill=True, baseline=0.5)
    axes.set_ylim(bottom=0.5)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.axvspan(*ends, color="C2", alpha=0.12, zorder=0)
    for end in ends:
        axes.axvline(end, color=figures.LIMIT, linestyle="--", linewidth=1)
