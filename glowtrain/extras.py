"""Packages that only a part of Glowtrain needs: its extras."""

from __future__ import annotations

import importlib.util

from glowtrain.errors import MissingExtraError


def check_extra(what: str, name: str, package: str, extra: str) -> None:
    """Raise :class:`MissingExtraError`, which says what to install, if a package is not there."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"{what} needs {name}: pip install 'glowtrain[{extra}]'")
