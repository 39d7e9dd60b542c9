"""The optimizer's hyperparameters as they are now; the next step uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import InputError
from glowtrain.graph import Graph, constant
from glowtrain.optim import HYPER, Optimizer, Schedule
from glowtrain.types import Array, DType, f64


class Hyper(MutableMapping[str, float]):
    """A mapping whose names are fixed: ``hyper["lr"] = 1e-4`` takes effect in the next step."""

    def __init__(self, optimizer: Optimizer, step: Graph) -> None:
        self._optimizer = optimizer
        self._types = {name: type_.dtype for name, type_ in step.input_types.items()}
        self._values = optimizer.hyper()
        self.inputs: dict[str, Array] = {}
        """The values as inputs of the step."""
        for name, value in self._values.items():
            self[name] = value

    def __getitem__(self, name: str) -> float:
        self._check_name(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._check_name(name)
        if isinstance(value, str):
            raise InputError(f"hyperparameter {name!r} must be a number, not {value!r}")
        self.inputs[HYPER + name] = as_input(self._optimizer, name, value, self._types[HYPER + name])
        self._values[name] = float(value)

    def __delitem__(self, name: str) -> None:
        raise InputError(f"hyperparameter {name!r} cannot be removed: it is an input of the compiled step")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Hyper({self._values})"

    def _check_name(self, name: str) -> None:
        if name not in self._values:
            known = ", ".join(self._values)
            raise InputError(f"{self._optimizer.name} has no hyperparameter {name!r} in this step; it has: {known}")


def as_input(optimizer: Optimizer, name: str, value: float, dtype: DType) -> Array:
    """A hyperparameter as an input of the step. Raises :class:`InputError` for one that the optimizer cannot have, or
    could not have once it is rounded to its type: 0.99999999 is 1 in f32."""
    optimizer.check(name, float(value))
    with np.errstate(over="ignore"):
        found = np.asarray(value, dtype.numpy)
    try:
        optimizer.check(name, float(found))
    except InputError as error:
        raise InputError(f"{error}: {name} is {dtype} in this step, which does not hold {float(value)!r}") from None
    return found


def schedule_factor(schedule: Schedule, updates: int, hyper: Mapping[str, float]) -> float:
    """A schedule's factor on the learning rate after so many updates, with the present hyperparameters."""
    numbers = {name: constant(value, f64) for name, value in hyper.items()}
    factor = schedule.value(constant(updates, f64), numbers)
    return float(evaluate(Graph((), {"factor": factor}), {})[factor])
