"""The picture of a partition: a lane for each stage, its parts in the order in which they run, and what passes between
them. Drawing needs matplotlib (the ``plot`` extra).
"""

from __future__ import annotations

from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from glowtrain.errors import InputError
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation import figures, pages
from glowtrain.presentation.messages import plural
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.runtime.partition.text import Crossing, crossings, milliseconds, to_text, variable_bytes
from glowtrain.trainer.checkpoints.files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, LANE = 2.6, 1.7
"""Inches of a part and of a stage."""
BOX = 0.62, 0.56
"""The part of a column, and of a lane, that a box takes."""
PAGE = ".html"
COLORS = ("#3d6fb0", "#4f9d5b", "#f0953f", "#5f5a8f", "#8a8f98", "#b0a6c8")
"""Of stages, in turns."""
THINNEST, THICKEST = 0.8, 5.0
"""Points of the lines for the fewest bytes and for the most."""


def draw(partition: Partition, path: str | Path) -> None:
    """Draw a partition into a file: the picture (``.svg``, ``.png``), or a page with its text too (``.html``).

    Raises :class:`InputError` for another name, :class:`MissingExtraError` without matplotlib, :class:`CheckpointError`
    for what cannot be written.
    """
    path = Path(path)
    check_drawing(path)
    write_atomically(path, _rendered(partition, path))


def check_drawing(path: Path) -> None:
    """Raise now what would make :func:`draw` fail later."""
    endings = (PAGE, *(f".{file_format}" for file_format in figures.FILE_FORMATS))
    if path.suffix.lower() not in endings:
        known = ", ".join(endings)
        raise InputError(f"{path}: a partition is drawn into a file whose name ends in one of {known}")
    figures.check_drawing()
    check_writable(path)


def _rendered(partition: Partition, path: Path) -> bytes:
    size = 1.0 + COLUMN * len(partition.parts), 0.8 + LANE * len(partition.stages)
    if path.suffix.lower() == PAGE:
        drawn = figures.svg(partial(_draw, partition), *size, "Parts and what passes between them")
        text = f"<pre>{escape(to_text(partition))}</pre>"
        title = f"{plural(len(partition.stages), 'stage')}, {plural(len(partition.parts), 'part')}"
        section = pages.section("Parts and what passes between them", drawn, text)
        return pages.page(f"{partition.name}: partition", title, [section]).encode()
    file_format = next(file_format for file_format in figures.FILE_FORMATS if path.suffix.lower() == f".{file_format}")
    return figures.picture(partial(_draw, partition), *size, file_format)


def _draw(partition: Partition, figure: Figure) -> None:
    axes = figure.add_subplot()
    lanes = {stage: -number for number, stage in enumerate(sorted(partition.stages))}
    positions = {part.name: (float(column), float(lanes[part.stage])) for column, part in enumerate(partition.parts)}
    most = max((crossing.nbytes for crossing in crossings(partition)), default=1)
    for crossing in crossings(partition):
        _arrow(axes, crossing, positions, most)
    for part in partition.parts:
        _box(axes, part, *positions[part.name])
    axes.set_xlim(-0.6, len(partition.parts) - 0.4)
    axes.set_ylim(-len(lanes) + 0.4, 0.6)
    axes.set_yticks(list(lanes.values()), [f"stage {stage}" for stage in lanes])
    axes.set_xticks([])
    axes.set_title(partition.name, fontsize=10, loc="left")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _box(axes: Axes, part: Part, x: float, y: float) -> None:
    from matplotlib.patches import FancyBboxPatch  # noqa: PLC0415  an extra

    width, height = BOX
    color = COLORS[part.stage % len(COLORS)]
    corner = x - width / 2, y - height / 2
    style = "round,pad=0,rounding_size=0.05"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=color, alpha=0.25, edgecolor=color))
    lines = [plural(len(part.graph.nodes), "node"), f"{byte_text(variable_bytes(part))} of variables"]
    text = "\n".join([figures.short(part.name, 24), *lines, *filter(None, [milliseconds(part)])])
    axes.text(x, y, text, ha="center", va="center", fontsize=8, linespacing=1.4)


def _arrow(axes: Axes, crossing: Crossing, positions: dict[str, tuple[float, float]], most: int) -> None:
    """An arrow from the side of the giver to that of the taker; over parts in between it takes a bow, and what it says
    stands near its beginning, where nothing else does."""
    (x, y), (to_x, to_y) = positions[crossing.giver.name], positions[crossing.taker.name]
    start, end = (x + BOX[0] / 2, y), (to_x - BOX[0] / 2, to_y)
    far = to_x - x > 1
    bow = 0.0 if not far else 0.18 if y == to_y else 0.3
    width = THINNEST + (THICKEST - THINNEST) * crossing.nbytes / max(most, 1)
    style = {"arrowstyle": "-|>", "linewidth": width, "color": "#7f8894", "connectionstyle": f"arc3,rad={bow}"}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    position = _along(start, end, bow, 0.3 if far and y != to_y else 0.5)
    label = f"{plural(len(crossing.values), 'value')}\n{byte_text(crossing.nbytes)}"
    axes.text(
        *position, label, ha="center", va="center", fontsize=7, bbox={"facecolor": "white", "alpha": 0.8, "lw": 0}
    )


def _along(start: tuple[float, float], end: tuple[float, float], bow: float, at: float) -> tuple[float, float]:
    """A point of the curve that matplotlib's ``arc3`` draws, a quadratic one, whose bow is measured in inches."""
    wide, high = (end[0] - start[0]) * COLUMN, (end[1] - start[1]) * LANE
    across = wide * at + 2 * at * (1 - at) * bow * high
    up = high * at - 2 * at * (1 - at) * bow * wide
    return start[0] + across / COLUMN, start[1] + up / LANE
