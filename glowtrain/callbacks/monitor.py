"""A column of the history that a callback goes by."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.errors import InputError
from glowtrain.metrics.base import Direction
from glowtrain.presentation.messages import unknown
from glowtrain.trainer.steps import Steps


@dataclass(frozen=True)
class Monitor:
    """``name``: a column such as ``val_f1``, None for the validation loss, without validation the training loss.
    ``mode``: whether ``"min"`` or ``"max"`` is better, by default as the metric says. ``min_delta``: what counts."""

    name: str | None = None
    mode: Direction | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in (None, "min", "max"):
            raise InputError(f"mode {self.mode!r}: choose min or max")

    def epochs_without_progress(self, trainer: Steps) -> int:
        """Epochs since the best one. Raises :class:`InputError` for a column that there is not, or without a
        direction."""
        return trainer.history.epochs_without_progress(self.min_delta, self.name, self._direction(trainer))

    def _direction(self, trainer: Steps) -> Direction:
        if self.name is None:
            return "min"
        columns = [name for name in trainer.history.last if name != "epoch"]
        if problem := unknown([self.name], columns, "column"):
            raise InputError(f"monitor: the records have {problem}")
        graphs = trainer.graphs
        known = graphs.measures.entries(graphs.inference_example, training=True, validation=True).get(self.name)
        if (direction := self.mode or known) is None:
            raise InputError(f"monitor: nothing says whether more of {self.name!r} is better: mode='min' or 'max'")
        return direction
