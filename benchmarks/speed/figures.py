"""The results as plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.speed.engines import TITLES
from benchmarks.speed.results import Result, geometric_mean
from benchmarks.speed.tables import HEADS, engines_of

COLORS = ("#d95f02", "#1f78b4", "#7570b3", "#1b9e77", "#666666")
"""Of the peers, in their order."""
MEAN = "geometric mean"
LEAST, MOST = 0.8, 2.0
"""Ratios that an axis shows at least."""
MARGIN = 0.15
"""The part of an axis that numbers beside the bars take, on either side."""
BAR, ROW_INCHES = 0.8, 0.42


def ratios(results: Sequence[Result], path: Path) -> None:
    """Bars of each peer's time over Glowtrain's, a panel for each number of cores, on a logarithmic axis."""
    cores, peers = sorted({result.cores for result in results}), engines_of(results)[1:]
    rows = list(dict.fromkeys(result.row for result in results))
    figure = Figure(figsize=(2.5 + 4.5 * len(cores), 1.4 + ROW_INCHES * (len(rows) + 1)), layout="constrained")
    panels = figure.subplots(1, len(cores), squeeze=False)[0]
    for panel, count in zip(panels, cores, strict=True):
        _panel(panel, {result.row: result for result in results if result.cores == count}, rows, peers)
        panel.set_title(f"{count} core{'s' * (count > 1)}")
    for panel in panels[1:]:
        panel.tick_params(labelleft=False)
    patches = [Patch(color=color, label=TITLES[peer]) for peer, color in zip(peers, COLORS, strict=False)]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(peers), frameon=False)
    figure.suptitle(f"{HEADS[results[0].part]}: time of others over Glowtrain's (right of 1: Glowtrain is faster)")
    figure.savefig(path, dpi=120)


def _panel(axes: Axes, results: Mapping[str, Result], rows: Sequence[str], peers: Sequence[str]) -> None:
    names = [*rows, MEAN]
    height = BAR / len(peers)
    for index, peer in enumerate(peers):
        values = [results[row].ratio(peer) if row in results else None for row in rows]
        for place, value in enumerate([*values, geometric_mean(values)]):
            if value is not None:
                y = place - BAR / 2 + height * (index + 0.5)
                axes.barh(y, value - 1, height * 0.92, left=1, color=COLORS[index])
                number = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
                axes.annotate(
                    number, (value, y), (3 if value >= 1 else -3, 0), textcoords="offset points",
                    fontsize=7, va="center", ha="left" if value >= 1 else "right",
                )  # fmt: skip
    known = [value for result in results.values() for value in map(result.ratio, peers) if value is not None]
    least, widest = min([*known, LEAST]), max([*known, MOST])
    margin = (widest / least) ** MARGIN
    axes.set_xscale("log")
    axes.set_xlim(least / margin, widest * margin)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if widest < 100 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
