"""The parts of messages: counts with their nouns, kinds of values, unknown names and the nearest ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

OTHER_NAMES = {
    "learning_rate": ("lr", "optimizer"), "lr": ("optimizer",), "betas": ("beta1",), "dense": ("linear",),
    "fc": ("linear",), "verbose": ("progress",), "acc": ("accuracy",), "map": ("average_precision",),
    "validation_split": ("validation",), "kernel_regularizer": ("regularize",), "kernel_constraint": ("constraints",),
}  # fmt: skip
"""What other libraries call things that no letters lead to, and what they are called here, or what has them."""
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


def unknown(names: Iterable[str], choices: Collection[str], noun: str, rest: str = "it has") -> str:
    """``no variable 'w.bais' (the nearest is 'w.bias')``: the names that are not known; empty if all are.

    Where one of them resembles no known name, the known ones follow, after ``rest``.
    """
    strange = [name for name in names if name not in choices]
    if not strange:
        return ""
    near = {name: nearest(name, choices) for name in strange}
    shown = [f"{name!r} (the nearest is {near[name]!r})" if near[name] else repr(name) for name in strange]
    more = f" and {len(shown) - LISTED:,} more" if len(shown) > LISTED else ""
    others = "" if all(near.values()) else f"; {rest} {listed(choices)}"
    return f"no {noun} {', '.join(shown[:LISTED])}{more}{others}"


def nearest(name: str, choices: Collection[str]) -> str:
    """The known name that somebody may have meant, empty if there is none."""
    others = [other for other in OTHER_NAMES.get(name.lower(), ()) if other in choices]
    return next(iter(others or difflib.get_close_matches(name.lower(), choices, 1)), "")


def check_keywords(what: str, settings: Iterable[str], choices: Collection[str]) -> None:
    """Raise ``TypeError``, as Python does but with the nearest name, for arguments that nothing takes."""
    if problem := unknown(settings, choices, "argument", "there are"):
        raise TypeError(f"{what} takes {problem}")
