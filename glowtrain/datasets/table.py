"""Tables as arrays: columns of numbers as features, and one column as labels or numbers to learn. Files are read by
pandas (the extra ``table``)."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.datasets.parts import check_classes
from glowtrain.errors import DataError, check_extra
from glowtrain.presentation.messages import listed, unknown
from glowtrain.types import Array

READERS = {".csv": "read_csv", ".parquet": "read_parquet"}
"""Functions of pandas, by the endings of files."""


def read_table(
    path: Path,
    target: str | None,
    drop: Collection[str] = (),
    weight: str | None = None,
    classes: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> tuple[dict[str, Array], tuple[str, ...], tuple[str, ...]]:
    """The arrays of a table, the names of its features, and its classes, of which there are none for numbers.

    ``x`` has the ``columns`` of a model in their order, by default all but ``target``, ``weight`` and those of
    ``drop``, as f32; ``y`` the target: numbers as they are, texts and truth values as numbers of their classes, in
    order, or of ``classes``; ``sample_weight`` the weights, as f32. Columns that are none of these are not looked at.
    Raises :class:`DataError` for files that cannot be read, columns that there are not, missing values,
    features that are no numbers, and labels that are none of the ``classes``; :class:`MissingExtraError` without
    pandas.
    """
    frame = _frame(path)
    special = [name for name in (target, weight) if name is not None]
    if problem := unknown([*special, *drop], [*frame.columns], "column"):
        raise DataError(f"{path} has {problem}")
    if problem := unknown(columns, [*frame.columns], "column"):
        raise DataError(f"{path} has {problem}; the model was trained on {listed(columns)}")
    frame = frame[[*columns, *special]] if columns else frame.drop(columns=[*drop])
    _check_values(path, frame)
    features = frame.drop(columns=special)
    weights = frame[[] if weight is None else [weight]]
    words = [name for name in (*features.columns, *weights.columns) if frame[name].dtype.kind not in "iufb"]
    if words or not len(features.columns):
        raise DataError(
            f"{path}: columns {listed(words)} are no numbers: make numbers of them (pandas.get_dummies), leave them "
            "out (drop=, --drop), or name the one to learn (target=, --labels)"
        )
    arrays = {"x": np.ascontiguousarray(features.to_numpy(np.float32))}
    names: tuple[str, ...] = ()
    if target is not None:
        arrays["y"], names = _labels(path, frame[target], classes)
    if weight is not None:
        arrays["sample_weight"] = frame[weight].to_numpy(np.float32)
    return arrays, tuple(features.columns), names


def _frame(path: Path) -> Any:
    check_extra(f"reading {path.name}", "pandas", "pandas", "table")
    pandas = importlib.import_module("pandas")
    try:
        return getattr(pandas, READERS[path.suffix])(path).rename(columns=str)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (ValueError, OSError, ImportError) as error:  # parsers' errors are ValueErrors
        raise DataError(f"{path}: cannot be read as a table: {error}") from error


def _check_values(path: Path, frame: Any) -> None:
    """Raise :class:`DataError` for a table without rows, and for missing values."""
    if not len(frame):
        raise DataError(f"{path}: the table has no rows")
    missing = {name: int(count) for name, count in frame.isna().sum().items() if count}
    if missing:
        counts = ", ".join(f"{name} ({count})" for name, count in missing.items())
        raise DataError(f"{path}: values are missing in {counts} of {len(frame):,} rows: fill them, or leave them out")


def _labels(path: Path, column: Any, classes: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    """A column to learn: integers and floats as they are, all else as numbers of ``classes``, or of those there are."""
    if classes:
        texts = column.astype(str)
        check_classes(texts.unique(), path, classes)
        return texts.map({name: number for number, name in enumerate(classes)}).to_numpy(np.int64), tuple(classes)
    if column.dtype.kind in "iu":
        return column.to_numpy(np.int64), ()
    if column.dtype.kind == "f":
        return column.to_numpy(np.float32), ()
    names, numbers = np.unique(column.astype(str).to_numpy(str), return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, names))
