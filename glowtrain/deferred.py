"""Modules that are imported when something of theirs is first used.

What only compiling needs must not cost a process anything that finds its code compiled on disk. The plain import
stands beside, for type checkers and the import linter::

    if TYPE_CHECKING:
        from glowtrain.compiler import walk
    else:
        walk = Deferred("glowtrain.compiler.walk")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Deferred:
    """Stands for a module, and imports it at the first look at one of its attributes."""

    def __init__(self, name: str) -> None:
        self.__module = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__module), attribute)

    def __repr__(self) -> str:
        return f"<{self.__module}, when it is used>"
