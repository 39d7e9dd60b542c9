"""A column of the history that a callback goes by, and when it is better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from glowtrain.errors import InputError
from glowtrain.presentation.messages import unknown
from glowtrain.trainer.history import History

LOWER = ("loss", "mae", "mse", "rmse", "perplexity", "error")
"""Ends of names of what had better be low."""


@dataclass(frozen=True)
class Monitor:
    """``name``: a column such as ``val_loss``, None for the validation loss, without validation the training loss.
    ``mode``: whether ``"min"`` or ``"max"`` is better, by default as the name says. ``min_delta``: what counts."""

    name: str | None = None
    mode: Literal["min", "max"] | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in (None, "min", "max"):
            raise InputError(f"mode {self.mode!r}: choose min or max")

    def values(self, history: History) -> list[float]:
        """The column, such that lower is better. Raises :class:`InputError` where no epoch has it."""
        if self.name is None:
            return history.watched()
        if len(history) and not history[self.name]:
            columns = [name for name in history.last if name != "epoch"]
            raise InputError(f"monitor: the records have {unknown([self.name], columns, 'column')}")
        lower = self.mode == "min" if self.mode else self.name.endswith(LOWER)
        return [value if lower else -value for value in history[self.name]]

    def since_best(self, history: History) -> Iterator[int]:
        """After each epoch, how many have passed since the best."""
        best, since = math.inf, 0
        for value in self.values(history):
            better = value < best - self.min_delta
            best, since = (value, 0) if better else (best, since + 1)
            yield since
