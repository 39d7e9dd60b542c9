"""The cpu backend: planned programs as native code through LLVM."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glowtrain.backends.cpu import emit as emit
    from glowtrain.backends.cpu import limits as limits

_LATER = ("emit", "limits")


def __getattr__(name: str) -> ModuleType:
    """What writes code, or measures, is imported when it is used: a process that finds its code does neither."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
