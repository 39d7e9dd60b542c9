"""From what a person passes as data to arrays by the names of inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.data import Dataset, check_examples
from glowtrain.errors import InputError
from glowtrain.types import Array

Data = Dataset | Mapping[str, Any] | Sequence[Any]


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


def named(data: Data, inputs: Sequence[str], targets: Sequence[str]) -> dict[str, Array]:
    """Arrays by the names of a model's inputs and its loss's targets.

    A mapping goes by its names, and ``x`` and ``y`` to an only input and an only target. A tuple goes by place: inputs,
    then targets. Of a data set the part to train on is taken: by names, without what nothing takes, else by place.
    Raises :class:`InputError` and :class:`DataError`.
    """
    part = _of_dataset(data.train, inputs, targets) if isinstance(data, Dataset) else data
    arrays = _by_name(part, inputs, targets) if isinstance(part, Mapping) else _by_place(part, (*inputs, *targets))
    check_examples(arrays, "data")
    return arrays


def validation_of(
    data: Data, validation: Data | None, inputs: Sequence[str], targets: Sequence[str]
) -> dict[str, Array] | None:
    """The arrays to validate on: those given, else the data set's own validation part, else None."""
    if validation is None:
        validation = data if isinstance(data, Dataset) and data.valid else None
    return None if validation is None else named(held_out(validation), inputs, targets)


def held_out(data: Data) -> Data:
    """A data set's validation part alone, if it has one; anything else as it is."""
    return Dataset(data.name, data.valid) if isinstance(data, Dataset) and data.valid else data


def _of_dataset(part: Mapping[str, Any], inputs: Sequence[str], targets: Sequence[str]) -> Any:
    """What of a data set's arrays is taken: those that have a meaning, else all of them by place."""
    found = sources(part, inputs, targets)
    if all(name in found for name in (*inputs, *targets)):
        return {name: part[source] for name, source in found.items()}
    return list(part.values()) if len(part) == len(inputs) + len(targets) else part


def _by_name(data: Mapping[str, Any], inputs: Sequence[str], targets: Sequence[str]) -> dict[str, Array]:
    names = (*inputs, *targets)
    found = sources(data, inputs, targets)
    if any(name not in found for name in names) or any(name not in found.values() for name in data):
        raise InputError(_mismatch(f"data has {', '.join(map(repr, data)) or 'nothing'}", names))
    return {name: np.asarray(data[found[name]]) for name in names}


def _by_place(data: Any, names: Sequence[str]) -> dict[str, Array]:
    if not isinstance(data, (tuple, list)):
        raise InputError(_mismatch(f"data is a {type(data).__name__}", names) + _streamed(data))
    if len(data) != len(names):
        raise InputError(_mismatch(f"data has {len(data)} arrays", names))
    return {name: np.asarray(array) for name, array in zip(names, data, strict=True)}


def _streamed(data: Any) -> str:
    """What to do with data that come batch by batch."""
    if (not hasattr(data, "__iter__") and not hasattr(data, "__getitem__")) or isinstance(data, (str, np.ndarray)):
        return ""
    return "; for batches that are made on the way (a generator, a DataLoader), loop over them and call trainer.step"


def _mismatch(found: str, names: Sequence[str]) -> str:
    wanted = ", ".join(map(repr, names))
    return f"{found}, but the model and its loss take {wanted}: pass a tuple in this order or a dict with these names"
