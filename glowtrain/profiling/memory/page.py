"""The picture of a step's memory: as a file, and as one HTML page that needs nothing else.

Drawing needs matplotlib (the ``plot`` extra).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation import figures, pages
from glowtrain.presentation.tables import Table
from glowtrain.profiling.memory import table
from glowtrain.profiling.memory.contents import PHASES, Phase
from glowtrain.profiling.memory.report import MemoryReport
from glowtrain.trainer.checkpoints.files import check_writable, write_atomically
from glowtrain.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 11.0, 6.0
"""Inches."""
MIB = 1 << 20
THIN = 0.001
"""Of what is a smaller part of all bytes than this, the picture shows no name."""
NAMELESS = "_nolegend_"
"""What matplotlib takes for no name in a legend."""
NAMED = 3
"""Buffers that the picture names at its peak."""
PAGE = ".html"
COLORS = {
    "parameters": "#3d6fb0",
    "optimizer": "#8fb5df",
    "other state": "#5f5a8f",
    "constants": "#b0a6c8",
    "outputs": "#d9cfe6",
    "workspace": "#8a8f98",
    "activations": "#4f9d5b",
    "computed again": "#b4d679",
    "gradients": "#f0953f",
}
"""In the order in which they lie on one another."""
STRIP: dict[Phase, str] = {"forward": "#4f9d5b", "again": "#b4d679", "backward": "#f0953f", "update": "#3d6fb0"}
"""The colours of what kernels are for."""
SAID: dict[Phase, str] = {
    "forward": "forward", "again": "forward once more", "backward": "backward", "update": "update of variables",
}  # fmt: skip
EXPLAINED = (
    "Bytes that are taken while each kernel of the step runs, in their order. What stays from step to step lies below: "
    "variables, constants, the workspace of all threads. On top is what is alive in the arena: activations, what is "
    "computed again rather than kept, gradients. The strip at the bottom says what each kernel is for; the line across "
    "is all that is allocated."
)


def plot(report: MemoryReport, path: str | Path) -> None:
    """Draw the report into a file: a page (``.html``), or the picture alone (``.png``, ``.svg``).

    Raises :class:`InputError` for another name and without matplotlib, :class:`CheckpointError` for what cannot be
    written.
    """
    check_plot(Path(path))
    write_atomically(Path(path), rendered(report, Path(path)))


def check_plot(path: Path) -> None:
    """Raise now what would make :func:`plot` fail later."""
    if path.suffix.lower() not in _endings():
        known = ", ".join(_endings())
        raise InputError(f"{path}: a picture of memory is drawn into a file whose name ends in one of {known}")
    figures.check_drawing()
    check_writable(path)


def _endings() -> tuple[str, ...]:
    return PAGE, *(f".{file_format}" for file_format in figures.FILE_FORMATS)


def rendered(report: MemoryReport, path: Path) -> bytes:
    """The contents of a file with this name, as :func:`plot` draws it."""
    if path.suffix.lower() == PAGE:
        return html_page(report).encode()
    file_format = next(file_format for file_format in figures.FILE_FORMATS if path.suffix.lower() == f".{file_format}")
    return figures.picture(partial(draw, report), WIDTH, HEIGHT, file_format)


def html_page(report: MemoryReport) -> str:
    """The report as one self-contained page. Raises :class:`InputError` without matplotlib."""
    drawn = figures.svg(partial(draw, report), WIDTH, HEIGHT, "Memory over the step")
    again = report.again.contents
    listed = [table.listed(report, again)] if again else []
    return pages.page(
        f"{report.use.title}: memory",
        f"{byte_text(report.use.total)} in all\n{table.peak_line(report)}",
        [
            pages.section("Memory over the step", drawn, f"<p>{EXPLAINED}</p>"),
            pages.section("Taken in all", Table(("", "bytes>", "remark"), _parts(report))),
            pages.section("Alive at the peak", table.listed(report, report.at(report.peak))),
            pages.section("Computed again", *(f"<p>{line}</p>" for line in table.again_lines(report.again)), *listed),
            pages.section("Kernels", Table(("#>", "alive>", "for", "layer", "kernel"), _kernels(report))),
        ],
    )


def _parts(report: MemoryReport) -> Iterator[tuple[str, ...]]:
    for name, size, remark in report.use.rows():
        yield name, f"{size:,}", remark


def _kernels(report: MemoryReport) -> Iterator[tuple[str, ...]]:
    for number, (origin, phase) in enumerate(zip(report.origins, report.phases, strict=True)):
        layers, name = ", ".join(origin.layers), origin.name.replace("+", " + ")
        yield str(number), f"{report.sums[number]:,}", SAID[phase], layers, name


def layers_of(report: MemoryReport) -> dict[str, Array]:
    """The bytes of each part at each kernel, the lowest in the picture first; parts that there are not are left out."""
    count = len(report.phases)
    parts: dict[str, Array] = {name: np.full(count, size) for name, size, _ in report.use.rows() if name in COLORS}
    parts.update((str(kind), sizes) for kind, sizes in report.alive.items())
    return {name: parts[name] for name in COLORS if name in parts and parts[name].any()}


def draw(report: MemoryReport, figure: Figure) -> None:
    """Bytes over kernels, what they are for below."""
    upper, strip = figure.subplots(2, sharex=True, height_ratios=(30, 1))
    edges = np.arange(len(report.phases) + 1) - 0.5
    total = report.use.total / MIB
    _stack(report, upper, edges)
    _peak(report, upper)
    upper.axhline(total, color=figures.LIMIT, linestyle="--", linewidth=1)
    allocated = f"allocated: {byte_text(report.use.total)}"
    upper.annotate(allocated, (edges[-1], total), (-2, 3), textcoords="offset points", fontsize=8, ha="right")
    upper.set_ylim(0, total * 1.2 or 1)
    upper.set_xlim(edges[0], max(edges[-1], edges[0] + 1))
    upper.set_ylabel("MiB")
    upper.grid(visible=False, axis="x")
    _strip(report, strip, edges)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=len(COLORS))
    figure.legend(*strip.get_legend_handles_labels(), loc="outside lower center", ncols=len(STRIP))


def _stack(report: MemoryReport, axes: Axes, edges: Array) -> None:
    """The parts on one another; those that are too thin to be seen have no name."""
    low = np.zeros(len(report.phases))
    for name, sizes in layers_of(report).items():
        high = low + sizes / MIB
        label = name if sizes.max() > THIN * report.use.total else NAMELESS
        axes.fill_between(edges, _held(low), _held(high), step="post", color=COLORS[name], linewidth=0, label=label)
        low = high


def _held(values: Array) -> Array:
    """Values between edges, with the last one up to the last edge."""
    repeated: Array = np.append(values, values[-1:] if len(values) else [0.0])
    return repeated


def _strip(report: MemoryReport, axes: Axes, edges: Array) -> None:
    """What each kernel is for."""
    for phase in PHASES:
        where = np.array([each == phase for each in report.phases], bool)
        if where.any():
            high = _held(where.astype(float))
            axes.fill_between(edges, 0, high, step="post", color=STRIP[phase], linewidth=0, label=SAID[phase])
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel("kernel")
    locator: Any = axes.xaxis.get_major_locator()
    locator.set_params(integer=True, min_n_ticks=1)


def _peak(report: MemoryReport, axes: Axes) -> None:
    """A mark on the kernel at which most is alive, with its name and what is largest there."""
    if not report.phases:
        return
    at, alive = report.peak, int(report.sums[report.peak])
    height = (report.use.total - report.use.arena + alive) / MIB
    axes.plot([at], [height], marker="v", color=figures.LIMIT, markersize=6, clip_on=False)
    named = [f"{figures.short(c.buffer.name, 32)} {byte_text(c.nbytes)}" for c in table.largest(report.at(at), NAMED)]
    lines = (
        f"peak: {byte_text(alive)} in the arena at kernel {at}, {figures.short(report.origins[at].name)}",
        f"the largest there: {', '.join(named)}",
    )
    axes.text(0.01, 0.985, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=9)
