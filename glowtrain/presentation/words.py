"""What messages are made of: counts with their nouns, kinds of values, unknown names and the nearest ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from glowtrain.deferred import Deferred

if TYPE_CHECKING:
    import difflib
else:
    difflib = Deferred("difflib")

LISTED = 8
"""Names that a message lists before it counts the rest."""


def page(name: str) -> str:
    """Where a page of the documentation is: the path of a checkout's; an installed package comes without."""
    path = Path(__file__).resolve().parents[2] / "docs" / name
    return str(path) if path.exists() else f"docs/{name} in Glowtrain's source repository"


def plural(count: int, noun: str) -> str:
    """``1 node``, ``1,234 nodes``"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def kind_of(value: object) -> str:
    """What a value is, for a person who gave it: ``'a.onnx' (str)``, ``the class Adam itself``, ``Trainer``."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return f"{value!r} ({type(value).__name__})" if isinstance(value, (str, int, float)) else type(value).__name__


def listed(names: Collection[str]) -> str:
    """``'a', 'b'``; of many names the first few, and how many more there are."""
    shown = ", ".join(map(repr, list(names)[:LISTED])) or "none"
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED:,} more"


def unknown(names: Iterable[str], known: Collection[str], noun: str, rest: str = "it has") -> str:
    """``no variable 'w.bais' (the nearest is 'w.bias')``: the names that are not known; empty if all are.

    Where one of them resembles no known name, the known ones follow, after ``rest``.
    """
    strange = [name for name in names if name not in known]
    if not strange:
        return ""
    near = {name: difflib.get_close_matches(name, known, 1) for name in strange}
    told = [f"{name!r} (the nearest is {near[name][0]!r})" if near[name] else repr(name) for name in strange]
    more = f" and {len(told) - LISTED:,} more" if len(told) > LISTED else ""
    others = "" if all(near.values()) else f"; {rest} {listed(known)}"
    return f"no {noun} {', '.join(told[:LISTED])}{more}{others}"
