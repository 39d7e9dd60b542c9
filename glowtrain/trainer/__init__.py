"""Training: one compiled step, run over data, with checkpoints that resume to the bit."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from glowtrain.trainer.history import History
from glowtrain.trainer.trainer import Trainer

if TYPE_CHECKING:
    from glowtrain.trainer import progress as progress

__all__ = ["History", "Trainer"]
_LATER = ("progress",)


def __getattr__(name: str) -> ModuleType:
    """What shows progress is imported by the first ``fit``: it brings rich along."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
