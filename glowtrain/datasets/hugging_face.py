"""Data sets of Hugging Face's library ``datasets`` as arrays. Whoever has such a data set has imported the library."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import DataError
from glowtrain.presentation.messages import unknown
from glowtrain.types import Array

LABELS = ("y", "label", "labels", "target")
"""What columns of labels are called, where no column has classes."""

VALIDATION = ("validation", "valid", "val", "test")
"""What the part for validation is called, the first that there is."""


def is_foreign(data: Any) -> bool:
    """Whether data are of that library: examples by number, or several parts of such."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(data, (library.Dataset, library.DatasetDict))


def read_columns(dataset: Any, columns: Mapping[str, str]) -> tuple[dict[str, ExampleArray], tuple[str, ...]]:
    """The columns of a data set by the names that ``columns`` gives to them, and the names of the classes of ``y``.

    Without ``columns`` all that hold numbers, by their own names but for that of labels, which is ``y``. Columns of one
    number for each example are read whole, others when they are needed. Images are f32[channels, height, width] in
    [0, 1]. Raises :class:`DataError` for columns that there are not, that hold no numbers, and for missing values.
    """
    if problem := unknown(columns.values(), dataset.column_names, "column"):
        raise DataError(f"the data set has {problem}")
    if not len(dataset):
        raise DataError("the data set has no examples")
    features = dataset.features
    chosen = columns or _all(dataset)
    found = {name: _column(dataset, column) for name, column in chosen.items()}
    return found, tuple(getattr(features[chosen["y"]], "names", ())) if "y" in chosen else ()


def _all(dataset: Any) -> dict[str, str]:
    """The columns that hold numbers, by the names of arrays."""
    features, first = dataset.features, dataset.with_format("numpy")[0]
    names = [name for name in dataset.column_names if np.asarray(first[name]).dtype.kind in "iufb"]
    labels = [name for name in names if _kind(features[name]) == "ClassLabel"]
    labels = labels if len(labels) == 1 else [name for name in LABELS if name in names][:1]
    return {"y" if name in labels else name: name for name in names}


def _kind(feature: Any) -> str:
    return type(feature).__name__


def _column(dataset: Any, name: str) -> ExampleArray:
    column = DatasetColumn(dataset, name, image=_kind(dataset.features[name]) == "Image")
    return column if column.ndim > 1 else column.read(np.arange(len(column)))


class DatasetColumn(StoredArray):
    """A column, whose examples the library reads, and decodes where they are images."""

    sequential = True

    def __init__(self, dataset: Any, name: str, *, image: bool) -> None:
        self.dataset = dataset.select_columns([name]).with_format("numpy")
        self.name = name
        self.image = image
        value = np.asarray(self.dataset[0][name])
        self.stored_shape = value.shape
        first = self._array(value[None], 0)
        self.dtype, self.shape = first.dtype, (len(dataset), *first.shape[1:])

    def read(self, numbers: Array) -> Array:
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(cuts if len(numbers) else []):
            first = int(numbers[begin])
            values = self._values(first, int(numbers[end - 1]) + 1)
            found[begin:end] = self._array(values, first)
        return found

    def _values(self, begin: int, end: int) -> Array:
        try:
            return np.asarray(self.dataset[begin:end][self.name])
        except Exception as error:  # whatever a decoder raises for a broken file
            raise DataError(
                f"column {self.name!r}: examples {begin} to {end - 1} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _array(self, values: Array, begin: int) -> Array:
        """Values as numbers; images with channels first, in [0, 1]. Raises :class:`DataError` for no numbers."""
        if values.dtype == object or values.shape[1:] != self.stored_shape:
            shapes = [np.shape(value) for value in values]
            other = next((number for number, shape in enumerate(shapes) if shape != self.stored_shape), 0)
            raise self._error(begin + other, list(shapes[other]))
        if values.dtype.kind not in "iufb":
            raise DataError(f"column {self.name!r} holds {values.dtype}, which is no number")
        if values.dtype.kind == "f" and values.ndim == 1 and np.isnan(values).any():
            raise DataError(
                f"column {self.name!r}: the value of example {begin + int(np.isnan(values).argmax())} is missing"
            )
        if not self.image:
            return values
        pixels = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
        return pixels.astype(np.float32) / np.float32(np.iinfo(values.dtype).max)

    def _error(self, number: int, shape: list[int]) -> DataError:
        advice = "resize them with dataset.map" if self.image else "pad them with dataset.map"
        return DataError(
            f"column {self.name!r}: example {number} has the shape {shape}, and the first {list(self.stored_shape)}: "
            f"all examples must have one; {advice}"
        )
