"""The report on a quantized model as one HTML page that needs nothing else: tables, noise as bars, and histograms.

Plots are SVG inside the page. A histogram shows what was observed of a value, on a logarithmic axis of counts, and the
range that is quantized; what lies outside of the lines is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.ops.quantization import limits
from glowtrain.quantization.profile import Histogram
from glowtrain.quantization.scheme import Parameters
from glowtrain.types import dtype_of

if TYPE_CHECKING:
    from glowtrain.quantization.report import Report

BLUE, RED = "#2364aa", "#c0262d"
LEFT, WIDTH, ROW = 220, 620, 20
PLOT_WIDTH, PLOT_HEIGHT, BARS = 260, 110, 65
MOST = 60.0
"""Decibels at the right end of the bars."""
LONGEST = 32

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --paper: #fff; --line: #d9dee5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #9aa5b4; --paper: #15191f; --line: #313945; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1000px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { color: var(--soft); margin: .3rem 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } td.number, th.number { text-align: right; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; } figcaption { font-size: 13px; }
.plot { overflow-x: auto; }
"""


def html_page(report: Report) -> str:
    """The report as one self-contained page."""
    title = f"{escape(report.title)}: quantized"
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in report.summary().splitlines()),
        *_noise(report),
        *_sensitivities(report),
        *_kept(report),
        *_histograms(report),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _number(number: float) -> str:
    return f"{number:.1f}" if math.isfinite(number) else ("∞" if number > 0 else "−∞")


def _noise(report: Report) -> Iterator[str]:
    rows = [row for row in report.layers if math.isfinite(row.decibels)]
    if not rows:
        return
    height, width = ROW * len(rows) + 30, LEFT + WIDTH + 60
    yield "<h2>Signal to noise of each rounded value, in decibels</h2>"
    head = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-size="12" fill="currentColor"'
    yield f'<div class="plot"><svg {head} font-family="system-ui, sans-serif" role="img"><title>Noise</title>'
    for number, row in enumerate(rows):
        y = ROW * number
        length = WIDTH * min(max(row.decibels, 0.0), MOST) / MOST
        yield f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{_short(row.name)}</text>'
        told = f"{row.name} ({row.operator}): {_number(row.decibels)} dB"
        yield f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" fill="{BLUE}">'
        yield f'<title>{escape(told)}</title></rect><text x="{LEFT + length + 6:.1f}" y="{y + 14}">'
        yield f"{_number(row.decibels)}</text>"
    yield "</svg></div>"


def _short(name: str) -> str:
    return escape(name if len(name) <= LONGEST else name[: LONGEST - 1] + "…")


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """A table whose last ``numbers`` columns are numbers."""
    if not rows:
        return
    yield f"<h2>{escape(title)}</h2><table><tr>"
    first = len(heads) - numbers
    yield "".join(f"<th{_class(k >= first)}>{escape(head)}</th>" for k, head in enumerate(heads)) + "</tr>"
    for row in rows:
        cells = "".join(f"<td{_class(k >= first)}>{escape(cell)}</td>" for k, cell in enumerate(row))
        yield f"<tr>{cells}</tr>"
    yield "</table>"


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _sensitivities(report: Report) -> Iterator[str]:
    rows = [(row.name, row.operator, _number(row.alone), _number(row.without)) for row in report.sensitivities]
    heads = ("layer", "operator", "only this one rounded, dB", "all but this one, dB")
    yield from _table("Sensitivity of the results, most sensitive layer first", heads, rows, 2)


def _kept(report: Report) -> Iterator[str]:
    rows = [(entry.name, entry.operator, entry.reason) for entry in report.kept]
    yield from _table("In floating point", ("name", "operator", "reason"), rows, 0)


def _histograms(report: Report) -> Iterator[str]:
    shown = [
        (name, report.profile.values[name].histogram) for name in report.parameters if name in report.profile.values
    ]
    plots = [_plot(name, found, report.parameters[name]) for name, found in shown if found is not None]
    if plots:
        yield '<h2>What was observed, and the range that is quantized</h2><div class="plots">'
        yield from plots
        yield "</div>"


def _plot(name: str, histogram: Histogram, parameters: Parameters) -> str:
    """One histogram as SVG, with lines at the ends of the range."""
    low, high = _range(parameters)
    left, right = min(histogram.low, low), max(histogram.high, high)
    edges = np.linspace(left, right, BARS + 1)
    counts, _ = np.histogram(histogram.centres, edges, weights=histogram.counts)
    tops = np.log1p(counts) / max(float(np.log1p(counts.max())), 1e-9) * (PLOT_HEIGHT - 10)
    step = PLOT_WIDTH / BARS
    bars = "".join(
        f'<rect x="{k * step:.1f}" y="{PLOT_HEIGHT - top:.1f}" width="{step:.1f}" height="{top:.1f}" fill="{BLUE}"/>'
        for k, top in enumerate(tops)
    )
    places = [(end - left) / (right - left) * PLOT_WIDTH for end in (low, high)]
    lines = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{PLOT_HEIGHT}" stroke="{RED}" stroke-dasharray="4 3"/>'
        for x in places
    )
    caption = f"{_short(name)}: observed [{histogram.low:.3g}, {histogram.high:.3g}], quantized [{low:.3g}, {high:.3g}]"
    svg = f'<svg viewBox="-2 0 {PLOT_WIDTH + 4} {PLOT_HEIGHT}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" role="img">'
    return f"<figure>{svg}<title>{_short(name)}</title>{bars}{lines}</svg><figcaption>{caption}</figcaption></figure>"


def _range(parameters: Parameters) -> tuple[float, float]:
    """The real numbers that the integers' ends stand for."""
    least, greatest = limits(dtype_of(parameters.zero_point.dtype))
    scale, zero = float(parameters.scale), int(parameters.zero_point.astype(np.int64))
    return (least - zero) * scale, (greatest - zero) * scale
