"""What happened in training, epoch by epoch: in memory, as lines of JSON, as a picture."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glowtrain.errors import CheckpointError
from glowtrain.metrics.base import Direction
from glowtrain.presentation import figures
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.trainer.checkpoints.files import check_writable, write_atomically
from glowtrain.trainer.curves import figure, file_format_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
"""Numbers by name, and of metrics that are no single number nested lists."""

TIMINGS = ("seconds", "examples_per_second")
"""What differs between equal runs; checkpoints leave it out."""

LISTED = 20
"""Epochs that have a line where there are many."""


@dataclass
class History(Displayable):
    """One record for each epoch: ``epoch`` (from 1), ``loss``, ``train_<metric>`` where steps measure metrics, ``lr``
    (of the last update, with its schedule), with validation ``val_loss`` and ``val_<metric>``, ``seconds``
    and ``examples_per_second`` (of this run's epochs; neither compiling nor validation counts). ``resumed`` says
    with which other hyperparameters a restored run goes on, if it does; ``stopped`` says why training ended."""

    records: list[Record] = field(default_factory=list)
    stopped: str = ""
    resumed: str = ""

    def __repr__(self) -> str:
        """``<History of 3 epochs; the last: loss 0.1689, lr 1e-05, val_loss 0.1369>``"""
        shown = {key: value for key, value in numbers_of(self.last).items() if key not in ("epoch", *TIMINGS)}
        last = ", ".join(f"{key} {value:{'.4g' if key == 'lr' else '.4f'}}" for key, value in shown.items())
        return f"<History of {plural(len(self), 'epoch')}{f'; the last: {last}' if last else ''}>"

    def _contents(self) -> Iterator[str | Table]:
        """A table of epochs, of many some 20 of them, and why training ended."""
        every = spacing(len(self))
        listed = [numbers_of(r) for i, r in enumerate(self, 1) if i in (1, len(self)) or i % every == 0]
        columns = dict.fromkeys(("epoch", *(key for record in listed for key in record)))
        rows = ([_short(key, record) for key in columns] for record in listed)
        yield Table([f"{column}>" for column in columns], rows)
        yield "" if len(listed) == len(self) else f"{len(listed)} of {plural(len(self), 'epoch')}"
        yield self.stopped

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, key: str) -> list[Any]:
        """The values of one column, by epoch, of the epochs that have it."""
        return [record[key] for record in self.records if key in record]

    @property
    def loss(self) -> list[float]:
        """The mean training loss of each epoch."""
        return self["loss"]

    @property
    def last(self) -> Record:
        """The record of the last epoch; empty before the first."""
        return self.records[-1] if self.records else {}

    def watched(self, monitor: str | None = None) -> list[float]:
        """What early stopping goes by: an entry of the records, by default the validation loss, or the training loss
        without validation."""
        return (self["val_loss"] or self.loss) if monitor is None else self[monitor]

    def epochs_without_progress(self, min_delta: float, monitor: str | None = None, better: Direction = "min") -> int:
        """Epochs since what is :meth:`watched` was last better by more than ``min_delta`` than ever before."""
        best, since = float("inf"), 0
        for value in self.watched(monitor):
            value = -value if better == "max" else value
            best, since = (value, 0) if value < best - min_delta else (best, since + 1)
        return since

    def deterministic(self) -> list[Record]:
        """The records without what differs between equal runs."""
        return [{key: value for key, value in record.items() if key not in TIMINGS} for record in self.records]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw losses and metrics, of training and validation; with a ``path`` into that file, too: ``.png`` or
        ``.svg``. The figure is matplotlib's (the ``plot`` extra), and a notebook shows it.

        Raises :class:`InputError` without matplotlib and for another suffix, and :class:`CheckpointError` for what
        cannot be written.
        """
        if path is not None:
            check_plot(Path(path))
        drawn = figure([numbers_of(record) for record in self.records])
        if path is not None:
            write_atomically(Path(path), figures.saved(drawn, file_format_of(Path(path))))
        return drawn


def spacing(epochs: int) -> int:
    """From epoch to epoch with a line, so that no more than :data:`LISTED` have one: 1, 2, 5, 10, 20, 50, ..."""
    steps = (digit * int(10**power) for power in itertools.count() for digit in (1, 2, 5))
    return next(step for step in steps if step * LISTED >= epochs)


def numbers_of(record: Record) -> dict[str, float]:
    """A record without the metrics that are no single number, which have no room in a line or a curve."""
    return {name: value for name, value in record.items() if not isinstance(value, list)}


def _short(key: str, record: Mapping[str, float]) -> str:
    if key not in record:
        return ""
    return f"{record[key]:,.0f}" if key in ("epoch", "examples_per_second") else f"{record[key]:.4g}"


def check_plot(path: Path) -> None:
    """Raise now what would make :meth:`History.plot` fail later."""
    figures.check_drawing()
    check_writable(path)
    file_format_of(path)


class TrainingLog:
    """A file of JSON lines, one for each epoch. ``None`` as the path: no log.

    A run that goes on after ``done`` epochs appends; lines of later epochs, which it writes again, are removed first: a
    run can end between an epoch's line and its checkpoint. With ``done=None`` the file begins anew.
    """

    def __init__(self, path: str | Path | None, *, done: int | None) -> None:
        self.path = None if path is None else Path(path)
        if self.path is not None:
            check_writable(self.path)
            if done is None:
                self._write("", "w")
            elif self.path.is_file():
                self._keep(done)

    def add(self, record: Record) -> None:
        """Append a line. Raises :class:`CheckpointError` if the file cannot be written."""
        if self.path is not None:
            self._write(json.dumps(plain(record)) + "\n", "a")

    def _keep(self, done: int) -> None:
        """Remove the lines of epochs after ``done``, and one that was broken off."""
        assert self.path is not None
        try:
            before = self.path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{self.path}: the log cannot be read: {error.strerror or error}") from error
        kept = b"".join(line.rstrip(b"\n") + b"\n" for line in before.splitlines(keepends=True) if _stays(line, done))
        if kept != before:
            write_atomically(self.path, kept)

    def _write(self, text: str, mode: str) -> None:
        assert self.path is not None
        try:
            with open(self.path, mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise CheckpointError(f"{self.path}: the log cannot be written: {error.strerror or error}") from error


def plain(value: Any) -> Any:
    """A record as JSON has it, which knows neither NaN nor infinity: null stands for them."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stays(line: bytes, done: int) -> bool:
    """Whether a line is of one of the first ``done`` epochs, or whole and none of ours."""
    try:
        record = json.loads(line)
    except ValueError:
        return line.endswith(b"\n")
    epoch = record.get("epoch") if isinstance(record, dict) else None
    return not isinstance(epoch, (int, float)) or epoch <= done
