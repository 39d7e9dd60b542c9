"""From what a person passes as data to arrays by the names of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.data import Dataset, check_examples
from glowtrain.errors import InputError
from glowtrain.types import Array

Data = Dataset | Mapping[str, Any] | Sequence[Any]


def named(data: Data, names: Sequence[str]) -> dict[str, Array]:
    """Arrays by input name.

    A mapping goes by its names. A tuple goes by place: the model's inputs, then the targets of the loss. A data set
    goes by its names if it has all of the inputs', else by place. Raises :class:`InputError` and :class:`DataError`.
    """
    arrays = _named(data.train if isinstance(data, Dataset) else data, names, by_place=isinstance(data, Dataset))
    check_examples(arrays, "data")
    return arrays


def validation_of(data: Data, validation: Data | None, names: Sequence[str]) -> dict[str, Array] | None:
    """The arrays to validate on: those given, else the data set's own validation part, else None."""
    if validation is None:
        if not isinstance(data, Dataset) or not data.valid:
            return None
        return _named(data.valid, names, by_place=True)
    if isinstance(validation, Dataset) and validation.valid:
        return _named(validation.valid, names, by_place=True)
    return named(validation, names)


def _named(data: Mapping[str, Any] | Sequence[Any], names: Sequence[str], *, by_place: bool) -> dict[str, Array]:
    if isinstance(data, Mapping):
        missing = [name for name in names if name not in data]
        if not missing and by_place:
            return {name: np.asarray(data[name]) for name in names}
        unknown = [name for name in data if name not in names]
        if not missing and not unknown:
            return {name: np.asarray(data[name]) for name in names}
        if not by_place or len(data) != len(names):
            raise InputError(_mismatch(f"data has {', '.join(map(repr, data)) or 'nothing'}", names))
        data = list(data.values())
    if not isinstance(data, (tuple, list)):
        raise InputError(_mismatch(f"data is a {type(data).__name__}", names))
    if len(data) != len(names):
        raise InputError(_mismatch(f"data has {len(data)} arrays", names))
    return {name: np.asarray(array) for name, array in zip(names, data, strict=True)}


def _mismatch(found: str, names: Sequence[str]) -> str:
    wanted = ", ".join(map(repr, names))
    return f"{found}, but the model and its loss take {wanted}: pass a tuple in this order or a dict with these names"
