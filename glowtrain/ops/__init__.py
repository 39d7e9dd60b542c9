"""Every operator, by family: ``gt.ops.Conv``. All are imported when one is asked for by its name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from glowtrain.graph import Operator, registered


@cache
def import_all() -> None:
    """Import every operator."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)


@cache
def _classes() -> dict[str, type[Operator]]:
    return {cls.__name__: cls for cls in registered() if cls.__module__.startswith(f"{__name__}.")}


def __getattr__(name: str) -> type[Operator]:
    if name.startswith("_") or name not in _classes():
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    return _classes()[name]


def __dir__() -> list[str]:
    return sorted(_classes())
