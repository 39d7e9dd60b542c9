"""A learning-rate range test: the loss while the rate rises from step to step, until training diverges.

Source: Smith, Cyclical Learning Rates for Training Neural Networks (2017), section 3.3; the rate rises by a constant
factor, and the suggestion is where the smoothed loss falls fastest, as Gugger proposed (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.data import Dataset
from glowtrain.errors import InputError, NonFiniteError
from glowtrain.presentation import figures
from glowtrain.presentation.messages import kind_of, plural
from glowtrain.settings import values_of
from glowtrain.trainer.checkpoints.files import write_atomically
from glowtrain.trainer.curves import file_format_of
from glowtrain.trainer.feed import Data
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.history import check_plot
from glowtrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING = 0.9
"""The decay of the mean over losses by which divergence is found while they come."""
WIDTH = 3.0
"""The standard deviation, in batches, of the window by which losses are smoothed afterwards: on both sides, as means of
the past alone would show what happens at later rates than it does."""
DIVERGED = 4.0
"""How many times its smallest value the smoothed loss rises to before the test ends."""
BURN_IN = 10
"""Losses before which nothing counts as divergence."""


@dataclass(frozen=True)
class RateRange:
    """The loss of each batch at its rate, which rises. ``smoothed``: the losses without most of their noise;
    ``suggestion``: the rate at which these fall fastest, None where they do not; ``stopped``: why the test ended."""

    rates: list[float]
    losses: list[float]
    stopped: str
    smoothed: list[float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothed", smooth(self.losses))

    @property
    def suggestion(self) -> float | None:
        lowest = int(np.argmin(self.smoothed)) if self.smoothed else 0
        if lowest < 2:
            return None
        falls = np.diff(self.smoothed[: lowest + 1])
        return self.rates[int(np.argmin(falls))] if falls.min() < 0 else None

    def __repr__(self) -> str:
        """``<RateRange: 87 rates from 1e-06 to 0.53, the loss diverged; suggested: 0.011>``"""
        said = "none suggested" if self.suggestion is None else f"suggested: {self.suggestion:.2g}"
        ends = f" from {self.rates[0]:.2g} to {self.rates[-1]:.2g}" if self.rates else ""
        return f"<RateRange: {plural(len(self.rates), 'rate')}{ends}, {self.stopped}; {said}>"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the losses over the rates; with a ``path`` into that file, too: ``.png`` or ``.svg``. The figure is
        matplotlib's (the extra ``plot``), and a notebook shows it.

        Raises :class:`InputError` where no rate was tried, without matplotlib and for another suffix, and
        :class:`CheckpointError` for what cannot be written.
        """
        if not self.rates:
            raise InputError(f"no rate was tried, so there is nothing to draw: {self.stopped}")
        if path is not None:
            check_plot(Path(path))
        drawn = figures.figure(self._draw, 6.4, 3.6)
        if path is not None:
            write_atomically(Path(path), figures.saved(drawn, file_format_of(Path(path))))
        return drawn

    def _draw(self, figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="C0", alpha=0.35, linewidth=1, label="each batch")
        axes.plot(self.rates, self.smoothed, color="C0", label="smoothed")
        if (rate := self.suggestion) is not None:
            axes.axvline(rate, color=figures.LIMIT, linestyle="--", linewidth=1, label=f"suggested: {rate:.2g}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        low, high = min(*self.losses, *self.smoothed), max(self.smoothed)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.legend()


def smooth(losses: list[float]) -> list[float]:
    """Means of losses and their neighbours in a Gaussian window; what has diverged counts as :data:`DIVERGED` times
    the first loss."""
    if not losses:
        return []
    bounded = np.minimum(losses, DIVERGED * losses[0]) if losses[0] > 0 else np.array(losses)
    reach = min(int(3 * WIDTH), (len(losses) - 1) // 2)
    window = np.exp(-((np.arange(-reach, reach + 1) / WIDTH) ** 2) / 2)
    sums, weights = (np.convolve(each, window, "same") for each in (bounded, np.ones(len(losses))))
    smoothed: list[float] = (sums / weights).tolist()
    return smoothed


def find_learning_rate(
    trainer: Trainer,
    examples: Data,
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    updates: int = 100,
    batch_size: int | None = None,
) -> RateRange:
    """How the loss goes while the learning rate rises from ``lowest`` to ``highest`` in so many ``updates``, beginning
    with the present state; it ends where the loss diverges. A copy of the trainer is trained, without its schedule: the
    trainer stays as it is.

    Data are those of :meth:`Trainer.fit`. Raises :class:`InputError`, :class:`DataError`, :class:`BatchError`.
    """
    if not isinstance(trainer, Trainer):
        raise InputError(f"find_learning_rate takes a gt.Trainer(model, loss, optimizer), not {kind_of(trainer)}")
    if not (0 < lowest < highest < math.inf):
        raise InputError(f"find_learning_rate: rates rise from above 0, not from {lowest} to {highest}")
    if isinstance(updates, bool) or updates != int(updates) or updates < 2:
        raise InputError(f"find_learning_rate: updates must be a whole number of at least 2, not {updates!r}")
    rule = trainer.optimizer
    copy = Trainer(**{**values_of(trainer.spec), "optimizer": replace(rule, schedule=None)})
    copy.set_variables(trainer.variables())
    copy.hyper.update({name: trainer.hyper[name] for name in copy.hyper})
    rise = _Rise(lowest, (highest / lowest) ** (1 / (updates - 1)), updates, rule.accumulate)
    part = Dataset(examples.name, examples.train) if isinstance(examples, Dataset) else examples
    batches = updates * rule.accumulate
    epochs, steps = (1, batches) if hasattr(examples, "__next__") else (batches, None)
    try:
        copy.fit(part, epochs, batch_size, steps_per_epoch=steps, callbacks=[rise], progress=False)
    except NonFiniteError:
        rise.stopped = "the loss is NaN or infinite"
    return RateRange(rise.rates, rise.losses, rise.stopped)


@dataclass
class _Rise:
    """The callback that raises the rate and takes the losses down."""

    lowest: float
    factor: float
    updates: int
    accumulate: int
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped: str = "all rates were tried"
    mean: float = 0.0
    least: float = math.inf

    @property
    def rate(self) -> float:
        """The rate of the next batch."""
        return self.lowest * self.factor ** (len(self.rates) // self.accumulate)

    def on_train_begin(self, moment: Moment) -> None:
        """Set the first rate."""
        moment.trainer.lr = self.rate

    def on_batch_end(self, moment: Moment) -> None:
        """Take the loss down, and set the next rate."""
        self.rates.append(self.rate)
        self.losses.append(moment.loss)
        self.mean = SMOOTHING * self.mean + (1 - SMOOTHING) * moment.loss
        smoothed = self.mean / (1 - SMOOTHING ** len(self.losses))
        self.least = min(self.least, smoothed)
        if len(self.losses) > BURN_IN and smoothed > DIVERGED * self.least > 0:
            self.stopped = "the loss diverged"
            moment.stop(self.stopped)
        elif len(self.rates) == self.updates * self.accumulate:
            moment.stop(self.stopped)
        else:
            moment.trainer.lr = self.rate
