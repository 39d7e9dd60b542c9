"""Modules that are imported when they are first used.

What only compiling needs must not cost a process anything that finds its code compiled on disk. The plain import
stands beside, for type checkers and the import linter::

    if TYPE_CHECKING:
        from glowtrain.compiler import walk
    else:
        walk = Deferred("glowtrain.compiler.walk")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class Deferred:
    """Stands for a module, and imports it at the first look at one of its attributes."""

    def __init__(self, name: str) -> None:
        self.__name = name
        self.__module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self.__module is None:
            self.__module = import_module(self.__name)
        return getattr(self.__module, attribute)

    def __repr__(self) -> str:
        return f"<{self.__name}, when it is used>"
