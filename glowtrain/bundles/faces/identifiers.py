"""Choose identifiers in other languages that clash with nothing."""

from __future__ import annotations

from collections.abc import Set


def named(name: str, reserved: Set[str]) -> str:
    """The name itself, or with ``_`` behind it where it means something else: two names stay two."""
    stem = name.rstrip("_")
    lengths = [len(word) for word in reserved if word.rstrip("_") == stem]
    return name + "_" * (max(lengths) - len(stem) + 1) if lengths else name


def unused(name: str, reserved: Set[str]) -> str:
    """The name itself, or with as many ``_`` behind it as it needs to be another than those that are taken."""
    while name in reserved:
        name = f"{name}_"
    return name


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
