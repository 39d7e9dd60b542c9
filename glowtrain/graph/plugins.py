"""Operators from other packages: entry points of the group ``glowtrain.operators``, named like the operators' domain.

A package says in its ``pyproject.toml``::

    [project.entry-points."glowtrain.operators"]
    "acme.ops" = "acme_glowtrain"

and its module ``acme_glowtrain`` registers operators of the domain ``acme.ops`` when it is imported, which happens when
an operator of that domain is met for the first time.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata

from glowtrain.errors import GlowtrainError, PluginError

GROUP = "glowtrain.operators"
"""The group of entry points."""

FAILURES = (
    GlowtrainError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a module may raise when it is imported."""


@cache
def load_domain(domain: str) -> None:
    """Import what packages offer for a domain, once. Raises :class:`PluginError` naming the package that fails."""
    for entry in metadata.entry_points(group=GROUP, name=domain):
        _load(entry)


def _load(entry: metadata.EntryPoint) -> None:
    try:
        entry.load()
    except FAILURES as error:
        raise PluginError(
            f"the operators of {entry.name!r} cannot be loaded: importing {entry.value!r} of {package_of(entry)} "
            f"failed with {type(error).__name__}: {error}"
        ) from error


def package_of(entry: metadata.EntryPoint) -> str:
    """The package that offers an entry point, with its version."""
    return "an unnamed package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def import_operators(module: str) -> None:
    """Import a module that registers operators. Raises :class:`PluginError` saying why it cannot be imported."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise PluginError(f"importing {module!r} failed: {error}") from error
        raise PluginError(
            f"there is no module {module!r}, neither installed nor beside the command; "
            "give a module's name as Python imports it, or the path of its .py file"
        ) from error
    except FAILURES as error:
        raise PluginError(f"importing {module!r} failed with {type(error).__name__}: {error}") from error
