"""What training options mean: a loss, an optimizer with its schedule, and data by the names of inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain import losses, optim
from glowtrain.data import Dataset
from glowtrain.errors import DataError, InputError
from glowtrain.losses import Loss
from glowtrain.ops.reduce.reduction import accumulator
from glowtrain.optim import OPTIMIZERS, Optimizer, Schedule
from glowtrain.types import Array, Spec, f32

SCHEDULES = ("constant", "cosine", "step", "exponential")
FINAL_FACTOR = 0.01
"""Where an exponential schedule ends, as a factor on the learning rate."""


def loss_of(name: str, output: str | None = None) -> Loss:
    """A loss by its name, or the scalar output of the model that is called so."""
    if name in losses.NAMED:
        return losses.NAMED[name](output=output)
    return losses.ModelOutput(name)


def optimizer_of(name: str, schedule: Schedule | None = None, **settings: Any) -> Optimizer:
    """An optimizer by its name; settings that are None keep their defaults.

    Raises :class:`InputError` for an unknown optimizer, and for a setting that it does not have.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; choose from {', '.join(OPTIMIZERS)}")
    given = {key: value for key, value in settings.items() if value is not None}
    known = [field.name for field in dataclasses.fields(OPTIMIZERS[name])]
    unknown = [f"--{key.replace('_', '-')}" for key in given if key not in known]
    if unknown:
        raise InputError(f"{name} has no {', '.join(unknown)}; it has {', '.join(known)}")
    return OPTIMIZERS[name](schedule=schedule, **given)


def schedule_of(name: str, updates: int, warmup: int) -> Schedule | None:
    """A schedule over ``updates`` updates, the first ``warmup`` of them with a rising rate; None if it is constant.

    ``step`` divides the rate by 10 after each third; ``exponential`` ends at 1 % of it. Raises :class:`InputError`.
    """
    if name not in SCHEDULES:
        raise InputError(f"there is no schedule {name!r}; choose from {', '.join(SCHEDULES)}")
    if warmup >= updates and warmup:
        raise InputError(f"--warmup {warmup} is not shorter than the run of {updates} updates")
    rest = updates - warmup
    after: dict[str, Schedule] = {
        "constant": optim.Constant(),
        "cosine": optim.Cosine(rest),
        "step": optim.Step(every=max(1, math.ceil(rest / 3))),
        "exponential": optim.Exponential(gamma=FINAL_FACTOR ** (1 / max(1, rest))),
    }
    if warmup:
        return optim.Warmup(warmup).then(after[name])
    return None if name == "constant" else after[name]


@dataclasses.dataclass(frozen=True)
class Feed:
    """Which array of a data set goes to which input; made once for both parts."""

    specs: Mapping[str, Spec]
    targets: Sequence[str]
    labels: str | None = None

    def arrays(self, part: Mapping[str, Array], title: str) -> dict[str, Array]:
        """The arrays of one part by input name, in the inputs' element types. Raises :class:`DataError`."""
        taken = {target: self._source(target, part) for target in self.targets}
        result = {}
        for name, spec in self.specs.items():
            source = name if name in part else self._only_left(part, set(taken.values()))
            if source is None:
                raise DataError(f"{title} has {_listed(part)}, but no array for the model's input {name!r} ({spec})")
            result[name] = fitted(part[source], spec)
        for target, source in taken.items():
            if source not in part:
                raise DataError(f"{title} has {_listed(part)}, but no {source!r} for the loss; name it with --labels")
            result[target] = self.target(part[source])
        return result

    def present(self, part: Mapping[str, Array]) -> dict[str, Array]:
        """Those arrays that there are, by the names of inputs and targets; what is neither keeps its name."""
        meant = {self._source(target, part): target for target in self.targets}
        if len(self.specs) == 1 and not self.specs.keys() & part.keys():
            meant["x"] = next(iter(self.specs))
        named = {source if source in self.specs else meant.get(source, source): a for source, a in part.items()}
        return {n: fitted(a, self.specs[n]) if n in self.specs else self.target(a) for n, a in named.items()}

    def _source(self, target: str, part: Mapping[str, Array]) -> str:
        if self.labels is not None:
            return self.labels
        return target if target in part else "y"

    def _only_left(self, part: Mapping[str, Array], taken: set[str]) -> str | None:
        """The array for a model's only input, whatever it is called."""
        left = [name for name in part if name not in taken]
        if len(self.specs) > 1 or not left:
            return None
        return "x" if "x" in left else left[0] if len(left) == 1 else None

    def target(self, array: Array) -> Array:
        """A loss's target in the type that losses take: floats as wide as outputs are summed, integers as i64."""
        floats = [accumulator(spec.dtype) for spec in self.specs.values() if spec.dtype.is_float]
        return array.astype((floats or [f32])[0].numpy if array.dtype.kind == "f" else np.int64, copy=False)


def fitted(array: Array, spec: Spec) -> Array:
    """An array in the input's kind of numbers, each example in its shape if it has as many elements."""
    same_kind = {"float": "f", "int": "iu", "uint": "iu", "bool": "b"}[spec.dtype.kind]
    if array.dtype.kind in same_kind:
        array = array.astype(spec.dtype.numpy, copy=False)
    example = spec.shape[1:]
    if array.ndim and all(isinstance(extent, int) for extent in example):
        extents = tuple(int(extent) for extent in example)
        if extents != array.shape[1:] and math.prod(extents) == math.prod(array.shape[1:]):
            array = array.reshape(len(array), *extents)
    return array


def feed(
    dataset: Dataset, specs: Mapping[str, Spec], loss: Loss | None, labels: str | None
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """The training and validation arrays of a data set for a model and its loss, if there is one."""
    by_name = Feed(specs, loss.targets if loss else (), labels)
    valid = by_name.arrays(dataset.valid, f"{dataset.name} (validation)") if dataset.valid else None
    return by_name.arrays(dataset.train, dataset.name), valid


def _listed(part: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in part.items())
