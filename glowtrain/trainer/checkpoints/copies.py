"""Copy trainers: what a copy, or a pickle, is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from glowtrain.graph import Binding
from glowtrain.pickling import check_pickles
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.history import History
from glowtrain.types import Array

Settings = Mapping[str, Any]
"""The arguments that a trainer was made with."""


@dataclass(frozen=True)
class Progress:
    """What steps have changed in a trainer: all that a copy needs beside its settings."""

    variables: dict[str, Array]
    hyper: dict[str, float]
    began: dict[str, float]
    history: History
    position: Position
    best: dict[str, Array]
    binding: Binding | None
    whole: bool


class Taking(Protocol):
    """What can be set to where another one is."""

    def take(self, progress: Progress) -> None: ...


def rebuild(make: Callable[..., Taking], settings: Settings, progress: Progress) -> Taking:
    """A trainer of a class with the settings and the progress of another."""
    trainer = make(**settings)
    trainer.take(progress)
    return trainer


def check_settings(settings: Settings) -> None:
    """Raise :class:`UnpicklableError` for a model, loss or optimizer that has no name at the top of a module."""
    for name, part in settings.items():
        check_pickles(part, f"the trainer's {name}", "make the trainer anew and restore a checkpoint")
