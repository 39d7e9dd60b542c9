"""Every operator, by family: ``gt.ops.Conv``. A module is imported when an operator of it is asked for."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from glowtrain.graph import Operator, registered

_NAME = re.compile(rb"\n(?:class (\w+)\(|    onnx: ClassVar\[str\] = \"(\w+)\")")
"""Where an operator's name stands. The line's end before it, which can be searched for fast, comes after something in
every module: the docstring."""


def import_homes(name: str) -> None:
    """Import the modules of the operators of a name, in any domain. Without their sources, all are imported."""
    if not homes():
        import_all()
    for module in homes().get(name, ()):
        import_module(module)


def import_all() -> None:
    """Import every operator."""
    for module in _modules():
        import_module(module)


@cache
def _modules() -> tuple[str, ...]:
    return tuple(module.name for module in walk_packages(__path__, f"{__name__}."))


@cache
def homes() -> dict[str, list[str]]:
    """The modules of the operators of each name, by their sources: to read them all takes a twentieth of the time that
    it takes to import them."""
    found: dict[str, list[str]] = {}
    for folder in map(Path, __path__):
        for path in sorted(folder.rglob("*.py")):
            module = ".".join((__name__, *path.relative_to(folder).with_suffix("").parts))
            for class_name, name in _NAME.findall(path.read_bytes()):
                found.setdefault((class_name or name).decode(), []).append(module)
    return found


@cache
def _classes() -> dict[str, type[Operator]]:
    return {cls.__name__: cls for cls in registered() if cls.__module__.startswith(f"{__name__}.")}


def __getattr__(name: str) -> type[Operator]:
    if name.startswith("_") or name not in _classes():
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    return _classes()[name]


def __dir__() -> list[str]:
    return sorted(_classes())
