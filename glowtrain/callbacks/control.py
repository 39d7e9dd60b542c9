"""Callbacks that change what training does, keep what was best, or measure gradients."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np

from glowtrain.callbacks.monitor import Monitor
from glowtrain.errors import InputError
from glowtrain.metrics.base import Direction
from glowtrain.trainer.fitting.moments import Moment


class BestCheckpoint:
    """Writes a checkpoint to ``path`` after each epoch that is the best so far by ``monitor``, a column of the records
    (the validation loss): :meth:`Trainer.restore` takes it. Raises :class:`InputError` for a column that there is not,
    :class:`CheckpointError` where it cannot be written."""

    writes = True

    def __init__(self, path: str | Path, monitor: str | None = None, mode: Direction | None = None) -> None:
        self.path = Path(path)
        self.monitor = Monitor(monitor, mode)

    def on_epoch_end(self, moment: Moment) -> None:
        """Write it where the epoch was the best."""
        if self.monitor.epochs_without_progress(moment.trainer) == 0:
            moment.trainer.save(self.path)


class ReduceOnPlateau:
    """Multiplies the learning rate by ``factor`` after ``patience`` epochs without progress by ``monitor``, but not to
    less than ``least``. It follows from the history alone, so a run that is resumed goes on as if it had not stopped.
    """

    def __init__(
        self, monitor: str | None = None, mode: Direction | None = None, *, factor: float = 0.1, patience: int = 10,
        min_delta: float = 0.0, least: float = 0.0,
    ) -> None:  # fmt: skip
        if not 0 < factor < 1:
            raise InputError(f"factor must be between 0 and 1, not {factor!r}")
        if patience < 1:
            raise InputError(f"patience must be a whole number of at least 1, not {patience!r}")
        self.monitor = Monitor(monitor, mode, min_delta)
        self.factor, self.patience, self.least = factor, patience, least

    def on_epoch_end(self, moment: Moment) -> None:
        """Reduce the rate where it is time to."""
        since = self.monitor.epochs_without_progress(moment.trainer)
        if since and since % self.patience == 0:
            moment.trainer.lr = max(self.least, moment.trainer.lr * self.factor)


class TimeLimit:
    """Ends training after so many ``seconds`` of ``fit``, between two batches; with ``checkpoint=`` it can go on."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise InputError(f"a time limit is a positive number of seconds, not {seconds!r}")
        self.seconds = seconds
        self._end = math.inf

    def on_train_begin(self, moment: Moment) -> None:
        """The time runs from here."""
        self._end = time.monotonic() + self.seconds

    def on_batch_end(self, moment: Moment) -> None:
        """Stop where it is over."""
        if time.monotonic() >= self._end:
            moment.stop(f"the time limit of {self.seconds:g} s is over")


class GradientNorms:
    """Adds ``grad_norm`` to the records: the mean norm of all gradients together, of an epoch's first batch and every
    ``every``-th behind it, at the parameters after its step. ``last`` has that of each parameter by name. It costs a
    second forward and backward pass of these batches."""

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise InputError(f"every must be a whole number of at least 1, not {every!r}")
        self.every = every
        self.last: dict[str, float] = {}
        self._norms: list[float] = []

    def on_train_begin(self, moment: Moment) -> None:
        """Forget what an interrupted call has left."""
        self._norms.clear()

    def on_batch_end(self, moment: Moment) -> None:
        """Measure, where it is the batch's turn."""
        if (moment.batch - 1) % self.every == 0:
            gradients = moment.trainer.gradients(moment.inputs)
            self.last = {name: float(np.linalg.norm(array.astype(np.float64))) for name, array in gradients.items()}
            self._norms.append(math.hypot(*self.last.values()))

    def on_epoch_end(self, moment: Moment) -> None:
        """Add the mean to the record."""
        if moment.record is not None and self._norms:
            moment.record["grad_norm"] = float(np.mean(self._norms))
        self._norms.clear()
