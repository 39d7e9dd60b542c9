"""Which of stored arrays and folders are to train on, and which for validation, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from glowtrain.errors import DataError
from glowtrain.presentation.messages import listed

Value = TypeVar("Value")

SUFFIXES = {"_valid": True, "_val": True, "_test": True, "_train": False}

FOLDERS = ("valid", "val", "test")
"""Beside a folder ``train``: what is for validation, the first that there is."""


def split_name(stored_name: str) -> tuple[str, bool]:
    """The name of an array and whether it belongs to the validation part."""
    for suffix, is_valid in SUFFIXES.items():
        if stored_name.endswith(suffix) and stored_name != suffix:
            return stored_name.removesuffix(suffix), is_valid
    return stored_name, False


def parts_of(stored: Mapping[str, Value], where: str | Path) -> tuple[dict[str, Value], dict[str, Value]]:
    """What is stored under each name, by the arrays' own names: to train on, and for validation."""
    parts: tuple[dict[str, Value], dict[str, Value]] = ({}, {})
    for stored_name, value in stored.items():
        name, is_valid = split_name(stored_name)
        if name in parts[is_valid]:
            raise DataError(f"{where}: {stored_name!r} is a second array for {name!r}; remove or rename one")
        parts[is_valid][name] = value
    return parts


def folders_of(directory: Path) -> tuple[Path, Path | None]:
    """The folder to train on and the one for validation: ``train`` and another, where there is such, else itself."""
    if not (directory / "train").is_dir():
        return directory, None
    return directory / "train", next((directory / name for name in FOLDERS if (directory / name).is_dir()), None)


def check_classes(labels: Iterable[str], where: Path, classes: Sequence[str]) -> None:
    """Raise :class:`DataError` for classes of labels that are not among those that are trained on."""
    if strange := sorted({*labels} - {*classes}):
        raise DataError(f"{where}: {listed(strange)} is none of the classes that are trained on: {listed(classes)}")
