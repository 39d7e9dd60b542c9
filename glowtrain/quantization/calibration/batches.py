"""Calibration data: arrays or batches, as what a model's inputs take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.data import Dataset
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template
from glowtrain.quantization.checks import check_count, check_model
from glowtrain.types import Array

Data = Any
"""A mapping from input names to arrays of examples, an array (for models with one input), a :class:`Dataset`, or an
iterable of batches."""

Batch = dict[str, Array]


def batches(model: Graph | Template, data: Data, batch_size: int, limit: int | None = None) -> list[Batch]:
    """Calibration data as batches for a model's inputs, at most ``limit`` examples.

    Arrays of examples are cut along their first axis; what does not fill a batch is one of its own, if the model has a
    symbolic batch dimension, else it is left out. Raises :class:`QuantizationError` for no data, missing inputs,
    batches without examples and data of no known form.
    """
    check_model(model)
    for name, count in (("batch_size", batch_size), ("examples", 1 if limit is None else limit)):
        check_count(name, count)
        if count < 1:
            raise QuantizationError(f"calibration takes at least one example: {name} is {count}")
    names, fixed = _inputs(model)
    if isinstance(data, Dataset):
        data = data.train
    if not isinstance(data, Mapping) and hasattr(data, "shape"):
        data = {_only(names): data}
    if isinstance(data, Mapping):
        found = list(_cut({name: _array(data, name) for name in names}, fixed or batch_size, fixed, limit))
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        found = [_batch(batch, names, number) for number, batch in enumerate(data)]
    else:
        rule = "arrays by input name, one array, a gt.data.Dataset or an iterable of batches"
        raise QuantizationError(f"calibration data are {rule}, not {type(data).__name__}")
    if not found:
        few = f": the model takes batches of exactly {fixed}" if fixed else ""
        raise QuantizationError(f"there are no calibration data{few}; give at least one batch of typical inputs")
    return found


def _inputs(model: Graph | Template) -> tuple[Sequence[str], int | None]:
    """The names of the inputs, and the number of examples in a batch if the model fixes it."""
    if isinstance(model, Template):
        fixed = [spec.shape[0] for spec in model.inputs.values() if spec.shape]
        names: Sequence[str] = list(model.inputs)
    else:
        fixed = [value.shape[0] for value in model.inputs if value.shape]
        names = [value.name for value in model.inputs]
    extents = {extent for extent in fixed if isinstance(extent, int)}
    return names, extents.pop() if len(extents) == 1 and len(fixed) == len(names) else None


def _only(names: Sequence[str]) -> str:
    if len(names) != 1:
        raise QuantizationError(f"the model has the inputs {', '.join(names)}: give arrays by name")
    return names[0]


def _array(data: Mapping[str, Any], name: str) -> ExampleArray:
    if name not in data:
        given = ", ".join(data) or "nothing"
        raise QuantizationError(f"the calibration data have no array for the input {name!r}; they have {given}")
    value = data[name]
    try:
        return value if isinstance(value, StoredArray) else np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise QuantizationError(f"the calibration data of the input {name!r} are no array: {error}") from None


def _batch(batch: Any, names: Sequence[str], number: int) -> Batch:
    if isinstance(batch, (tuple, list)) and any(hasattr(part, "shape") for part in batch):
        wanted = ", ".join(f"{name!r}: array" for name in names)
        raise QuantizationError(
            f"batch {number} of the calibration data is a {type(batch).__name__} of {len(batch)}: give arrays by input "
            f"name, {{{wanted}}}"
        )
    if not isinstance(batch, Mapping):
        batch = {_only(names): batch}
    arrays = {name: np.asarray(_array(batch, name)) for name in names}
    for name, array in arrays.items():
        if array.ndim and not len(array):
            raise QuantizationError(
                f"batch {number} of the calibration data has no examples: {name} {list(array.shape)}"
            )
    return arrays


def _cut(arrays: Mapping[str, ExampleArray], size: int, fixed: int | None, limit: int | None) -> Iterator[Batch]:
    single = [name for name, array in arrays.items() if not array.ndim]
    if single:
        raise QuantizationError(f"{single[0]} is one number, not an array of examples; give batches in a list instead")
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1:
        listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise QuantizationError(f"the calibration arrays have different numbers of examples: {listed}")
    count = min(counts.pop(), limit if limit is not None else 1 << 62)
    for start in range(0, count, size):
        end = min(start + size, count)
        if fixed is None or end - start == fixed:
            yield {name: array[start:end] for name, array in arrays.items()}
