"""Curves of training: the losses, and below them what else was measured, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glowtrain.errors import InputError
from glowtrain.presentation import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from glowtrain.trainer.history import Record

LOSSES = {"loss": "training", "val_loss": "validation"}
PARTS = {"train_": "training", "val_": "validation"}
"""How entries of metrics begin."""
WIDTH, HEIGHT, LOWER = 6.4, 3.6, 2.2
"""Inches: of the figure, of the losses, and of what stands below them."""
FEW = 40
"""Epochs that are marked one by one."""
WIDE = 10.0
"""From this ratio of the largest to the smallest loss on, their axis is logarithmic."""


def file_format_of(path: Path) -> figures.FileFormat:
    """The kind of picture that a name asks for. Raises :class:`InputError` for one that is not drawn."""
    for file_format in figures.FILE_FORMATS:
        if path.suffix.lower() == f".{file_format}":
            return file_format
    supported = " or ".join(f".{file_format}" for file_format in figures.FILE_FORMATS)
    raise InputError(f"{path}: a plot is drawn into a file whose name ends in {supported}")


def figure(records: Sequence[Record]) -> Figure:
    """The curves of records. Raises :class:`InputError` without matplotlib."""
    metrics = list(dict.fromkeys(filter(None, (metric_of(key) for record in records for key in record))))

    def draw(figure: Figure) -> None:
        rows = figure.subplots(1 + len(metrics), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        _losses(rows[0], records)
        for axes, metric in zip(rows[1:], metrics, strict=True):
            for number, (part, label) in enumerate(PARTS.items()):
                _curve(axes, records, part + metric, label, f"C{number}")
            axes.set_ylabel(metric)
        rows[-1].set_xlabel("epoch")
        rows[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        figure.align_ylabels()

    heights = [HEIGHT, *[LOWER] * len(metrics)]
    return figures.figure(draw, WIDTH, sum(heights))


def metric_of(key: str) -> str:
    """The metric that a record's entry is of, on training or validation data; empty for losses and other entries."""
    part = next((part for part in PARTS if key.startswith(part) and key not in LOSSES), None)
    return "" if part is None else key.removeprefix(part)


def _losses(axes: Axes, records: Sequence[Record]) -> None:
    values = [record[key] for record in records for key in LOSSES if key in record]
    for number, (key, label) in enumerate(LOSSES.items()):
        _curve(axes, records, key, label, f"C{number}")
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_yscale("log", subs=[])
        locator: Any = axes.yaxis.get_major_locator()
        locator.set_params(subs=(1, 2, 5))
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("loss")
    if values:
        axes.legend()


def _curve(axes: Axes, records: Sequence[Record], key: str, label: str, color: str) -> None:
    """One entry of the records that have it."""
    points = [(record["epoch"], record[key]) for record in records if key in record]
    if points:
        marker = "." if len(points) <= FEW else ""
        axes.plot(*zip(*points, strict=True), marker=marker, label=label, color=color)
