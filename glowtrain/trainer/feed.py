"""Convert what a person passes as data to arrays by the names of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.data import Dataset, check_examples, hugging_face
from glowtrain.datasets.hugging_face import is_foreign
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import InputError
from glowtrain.trainer.sources.tensors import array_of, is_array
from glowtrain.types import Array

Data = Dataset | Mapping[str, Any] | Sequence[Any] | Iterable[Any] | Callable[..., Iterable[Any]]
"""Arrays, or what gives batches: a loader, an iterable or a list of them, a function that returns one."""


def native(data: Any) -> Any:
    """Data as they are, but for those of Hugging Face's library, which become a :class:`Dataset`."""
    return hugging_face(data) if is_foreign(data) else data


def comes_in_batches(data: Any) -> bool:
    """Whether data are batches, one after the other, and not arrays.

    A tuple, and a list of arrays, are arrays by place. A list is one of batches if it begins with a dict, or a tuple
    that has an array, or if all its elements are lists of arrays.
    """
    if isinstance(data, (Dataset, Mapping, str, bytes, tuple, type)) or is_array(data):
        return False
    if isinstance(data, list):
        return bool(data) and (_begins(data[0]) or all(map(_is_batch, data)))
    return hasattr(data, "__iter__") or callable(data)


def _begins(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, tuple) and any(map(is_array, value)))


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_array, value))


def sources(
    have: Collection[str], inputs: Sequence[str], targets: Sequence[str], labels: str | None = None
) -> dict[str, str]:
    """Which of the arrays ``have`` goes to which input and target; one that none goes to is left out.

    An array goes to the input of its name. ``y`` (or ``labels``) is for the loss's only target, and for a model's only
    input ``x``, or the only array that is left.
    """
    found = {name: name for name in (*inputs, *targets) if name in have}
    if len(targets) == 1 and (labels is not None or targets[0] not in found):
        found.pop(targets[0], None)
        source = "y" if labels is None else labels
        found |= {targets[0]: source} if source in have and (labels or source not in inputs) else {}
    left = [name for name in have if name not in found.values()]
    if len(inputs) == 1 and inputs[0] not in found and ("x" in left or len(left) == 1):
        found[inputs[0]] = "x" if "x" in left else left[0]
    return found


def named(
    data: Data, inputs: Sequence[str], targets: Sequence[str], optional: str | None = None
) -> dict[str, ExampleArray]:
    """Arrays by the names of a model's inputs and its loss's targets.

    A mapping goes by its names, and ``x`` and ``y`` to an only input and an only target. A tuple goes by place: inputs,
    then targets. Of a data set the part to train on is taken: by names, without what nothing takes, else by place.
    An ``optional`` last target is 1 for each example where data have none. Raises :class:`InputError` and
    :class:`DataError`.
    """
    if optional is not None:
        return _with_optional(data, inputs, targets, optional)
    part = _of_dataset(data.train, inputs, targets) if isinstance(data, Dataset) else data
    by_keys = NamesByKeys(inputs, targets)
    values = by_keys(part) if isinstance(part, Mapping) else by_position(part, (*inputs, *targets))
    arrays: dict[str, ExampleArray] = {
        name: value if isinstance(value, StoredArray) else array_of(name, value) for name, value in values.items()
    }
    check_examples(arrays, "data")
    return arrays


def _with_optional(data: Data, inputs: Sequence[str], targets: Sequence[str], optional: str) -> dict[str, ExampleArray]:
    others = [target for target in targets if target != optional]
    rest, weights = without(data, optional, len(inputs) + len(others))
    arrays = named(rest, inputs, others)
    arrays[optional] = ones_for(arrays) if weights is None else array_of(optional, weights)
    check_examples(arrays, "data")
    return arrays


def ones_for(arrays: Mapping[str, Any]) -> Array:
    """1 for each example of some arrays."""
    return np.ones(len(next(iter(arrays.values()))), np.float32)


def without(data: Any, name: str, others: int) -> tuple[Any, Any]:
    """Data without the array of a name, which in a tuple or list stands behind so many others, and that array; None
    where they have none."""
    if isinstance(data, Dataset):
        part, array = without(data.train, name, others)
        return (data, None) if array is None else (Dataset(data.name, part), array)
    if isinstance(data, Mapping):
        return {key: value for key, value in data.items() if key != name}, data.get(name)
    if isinstance(data, (tuple, list)) and len(data) == others + 1:
        return data[:-1], data[-1]
    return data, None


def validation_of(
    data: Data, validation: Data | None, inputs: Sequence[str], targets: Sequence[str], optional: str | None = None
) -> dict[str, ExampleArray] | None:
    """The arrays to validate on: those given, else the data set's own validation part, else None."""
    if validation is None:
        validation = data if isinstance(data, Dataset) and data.valid else None
    return None if validation is None else named(held_out(validation), inputs, targets, optional)


def held_out(data: Data) -> Data:
    """A data set's validation part alone, if it has one; anything else as it is."""
    return Dataset(data.name, data.valid) if isinstance(data, Dataset) and data.valid else data


def _of_dataset(part: Mapping[str, Any], inputs: Sequence[str], targets: Sequence[str]) -> Any:
    """What of a data set's arrays is taken: those that have a meaning, else all of them by place."""
    found = sources(part, inputs, targets)
    if all(name in found for name in (*inputs, *targets)):
        return {name: part[source] for name, source in found.items()}
    return list(part.values()) if len(part) == len(inputs) + len(targets) else part


class NamesByKeys:
    """Gives the values of mappings to inputs and targets, by :func:`sources`; ``inputs_only``: to inputs alone.

    Raises :class:`InputError` for names that are missing, or that nothing takes.
    """

    def __init__(self, inputs: Sequence[str], targets: Sequence[str], *, inputs_only: bool = False) -> None:
        self.inputs = inputs
        self.targets = targets
        self.names = (*inputs,) if inputs_only else (*inputs, *targets)
        self._learnt: tuple[tuple[str, ...], dict[str, str]] = ((), {})

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        keys, found = self._learnt
        if tuple(values) != keys or not keys:
            found = self._sources(values)
            self._learnt = tuple(values), found
        return {name: values[found[name]] for name in self.names}

    def _sources(self, values: Mapping[str, Any]) -> dict[str, str]:
        found = sources(values, self.inputs, self.targets)
        if any(name not in found for name in self.names) or any(name not in found.values() for name in values):
            raise InputError(_mismatch(f"data has {', '.join(map(repr, values)) or 'nothing'}", self.names))
        return found


def by_position(data: Any, names: Sequence[str], what: str = "data") -> dict[str, Any]:
    """The values of a tuple or list by names in their order. Raises :class:`InputError` unless there are as many."""
    if not isinstance(data, (tuple, list)):
        raise InputError(_mismatch(f"{what} is a {type(data).__name__}", names) + _examples_alone(data))
    if len(data) != len(names):
        weights = "; weights of examples go with gt.Trainer(..., sample_weight=True)"
        hint = weights if len(data) == len(names) + 1 and what == "data" else ""
        raise InputError(_mismatch(f"{what} has {len(data)} arrays", names) + hint)
    return dict(zip(names, data, strict=True))


def _examples_alone(data: Any) -> str:
    """What to do with a data set that gives examples one by one."""
    if hasattr(data, "__iter__") or not hasattr(data, "__getitem__"):
        return ""
    return "; if it gives examples by number, as PyTorch's data sets do, pass a DataLoader of it"


def _mismatch(found: str, names: Sequence[str]) -> str:
    wanted = ", ".join(map(repr, names))
    return f"{found}, but the model and its loss take {wanted}: pass a tuple in this order or a dict with these names"
