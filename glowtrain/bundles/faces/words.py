"""Names in other languages."""

from __future__ import annotations

from collections.abc import Set


def named(name: str, taken: Set[str]) -> str:
    """The name itself, or with ``_`` behind it where it means something else."""
    while name in taken:
        name = f"{name}_"
    return name


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
