"""compile(): from any graph to a function. The stages between stand in :mod:`glowtrain.compiler.walk`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from glowtrain.compiler.function import Function, compile, compile_artifact
from glowtrain.compiler.memory_use import MemoryUse
from glowtrain.compiler.specialisation import Specialisation

if TYPE_CHECKING:
    from glowtrain.compiler import outline as outline
    from glowtrain.compiler import walk as walk

__all__ = ["Function", "MemoryUse", "Specialisation", "compile", "compile_artifact"]
_LATER = ("outline", "walk")


def __getattr__(name: str) -> ModuleType:
    """The stages are imported when the first graph is compiled: a process that finds its code needs none."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
