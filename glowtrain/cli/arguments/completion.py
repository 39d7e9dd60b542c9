"""What a shell offers for the value of an argument or option: names that are known, and files of the right kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Complete = Callable[[str], list[str]]


def names(candidates: Iterable[str]) -> Complete:
    """Offers names."""
    listed = sorted(candidates)

    def complete(incomplete: str) -> list[str]:
        return [name for name in listed if name.startswith(incomplete)]

    return complete


def names_or_files(candidates: Iterable[str], suffix: str) -> Complete:
    """Offers names, files with a suffix, and folders, which end in a slash."""
    by_name = names(candidates)

    def complete(incomplete: str) -> list[str]:
        return by_name(incomplete) + files(incomplete, suffix)

    return complete


def files(incomplete: str, suffix: str) -> list[str]:
    """Files with a suffix, and folders, whose path begins as given."""
    given, _, beginning = incomplete.rpartition("/")
    folder = Path(f"{given}/" if "/" in incomplete else ".")
    prefix = f"{given}/" if "/" in incomplete else ""
    if not folder.is_dir():
        return []
    found = (entry for entry in sorted(folder.iterdir()) if entry.name.startswith(beginning))
    hidden = beginning.startswith(".")
    chosen = [entry for entry in found if hidden or not entry.name.startswith(".")]
    folders = [f"{prefix}{entry.name}/" for entry in chosen if entry.is_dir()]
    return [f"{prefix}{entry.name}" for entry in chosen if entry.suffix == suffix and entry.is_file()] + folders
