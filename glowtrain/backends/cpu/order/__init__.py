"""In which order floats are summed: a fact of programs, the same for every target (ADR 19)."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glowtrain.backends.cpu.order import kernel as kernel

_LATER = ("kernel",)


def __getattr__(name: str) -> ModuleType:
    """Orders of sums are asked for by passes: a process that finds its code runs none."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
