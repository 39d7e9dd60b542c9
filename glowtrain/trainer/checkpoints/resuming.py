"""Resume a run from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glowtrain.errors import CheckpointError, InputError
from glowtrain.graph import Binding
from glowtrain.optim import Optimizer
from glowtrain.trainer.checkpoints.checkpoint import Checkpoint
from glowtrain.trainer.checkpoints.copies import Progress
from glowtrain.trainer.history import History


def resumed(checkpoint: Checkpoint, optimizer: Optimizer, binding: Binding | None, path: Path) -> Progress:
    """The progress that a checkpoint at ``path`` holds. Hyperparameters that ``optimizer`` was given take effect where
    the run began with others; the history says so.

    Raises :class:`CheckpointError` for hyperparameters that the optimizer does not take.
    """
    _check_hyper(checkpoint.hyper, optimizer, path)
    began = checkpoint.began
    changed = {name: value for name, value in optimizer.chosen().items() if value != began.get(name)}
    history = History(checkpoint.history, resumed=_going_on(checkpoint, changed))
    return Progress(
        checkpoint.variables, {**checkpoint.hyper, **changed}, {**began, **changed}, history, checkpoint.position,
        checkpoint.best, binding, whole=True,
    )  # fmt: skip


def _check_hyper(hyper: Mapping[str, float], optimizer: Optimizer, path: Path) -> None:
    try:
        for name, value in hyper.items():
            optimizer.check(name, value)
    except InputError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _going_on(checkpoint: Checkpoint, changed: Mapping[str, float]) -> str:
    """Where a run goes on with other hyperparameters than it had; empty if there are none."""
    position = checkpoint.position
    where = f"going on in epoch {position.epoch + 1}" + (f" after batch {position.batch}" if position.batch else "")
    changes = [f"{name} {value:g} instead of {checkpoint.hyper[name]:g}" for name, value in changed.items()]
    return f"{where} with {', '.join(changes)}" if changes else ""
