"""Modules that a command imports first, because they register operators."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from glowtrain.graph.plugins import import_operators


def import_modules(modules: Sequence[str]) -> None:
    """Import modules by name, from the working directory or as installed, or by the path of a ``.py`` file.

    Their folders stay on the path of imports, where processes that share the work find them. Raises
    :class:`PluginError`.
    """
    for module in modules:
        path = Path(module)
        folder = (path.parent if path.suffix == ".py" else Path()).resolve()
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        import_operators(path.stem if path.suffix == ".py" else module)
