"""Predictions for any number of examples in a bounded memory: batches of one size, which are compiled once.

All batches are of that size, so what an example gets does not depend on how many there are (with another batch size a
sum may be taken in another order).

Batches are allowed where what a model says about an example does not depend on its batch. Most models are so, but the
first axis can also be time, and a model may take a mean over it: :mod:`glowtrain.compiler.batch_dependence` tries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.compiler import Function, compile
from glowtrain.compiler.batch_dependence import batch_dependence
from glowtrain.errors import BindingError, InputError, ShapeError, UnknownValueError
from glowtrain.graph import Graph
from glowtrain.graph.specialise.template import example_of
from glowtrain.trainer.graphs import DEFAULT_BATCH, fixed_batch, specs_of
from glowtrain.types import Array

Arrays = Mapping[str, Array]


class Predictor:
    """A compiled model for any number of examples."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.specs = specs_of(function.model)
        self.fixed = fixed_batch(self.specs)
        self._obstacle: str | None = None

    def __call__(self, inputs: Arrays, batch_size: int | None = None) -> dict[str, Any]:
        """Outputs by name, for all examples.

        A model with a fixed batch gets batches of that size. Others get the examples at once if they are no more than
        ``batch_size`` (:data:`~glowtrain.trainer.graphs.DEFAULT_BATCH`) or depend on each other. Raises
        :class:`InputError` for batches that are asked for, or needed, where examples depend on each other.
        """
        size, count = self._size(batch_size), self._examples(inputs)
        if not self._divides(count, size):
            return self.function(inputs)
        assert count is not None
        if why := self.obstacle(inputs, size):
            self._refuse(batch_size, count, why)
            return self.function(inputs)
        return _joined([self.function(batch) for batch in _batches(inputs, count, size)], count)

    def prepare(self, inputs: Arrays, batch_size: int | None = None) -> None:
        """Compile now what the same call would compile, and try what it would try."""
        size, count = self._size(batch_size), self._examples(inputs)
        divided = self._divides(count, size) and not self.obstacle(inputs, size)
        self.function.specialised(next(_batches(inputs, count or 0, size)) if divided else inputs)

    def _divides(self, count: int | None, size: int) -> bool:
        """Whether so many examples are to be run in batches of ``size``."""
        return count is not None and (count != size if self.fixed is not None else count > size)

    def _size(self, batch_size: int | None) -> int:
        self._check_size(batch_size)
        if self.fixed is not None:
            return self.fixed
        return DEFAULT_BATCH if batch_size is None else batch_size

    def _check_size(self, batch_size: Any) -> None:
        if batch_size is not None and (not isinstance(batch_size, (int, np.integer)) or batch_size < 1):
            raise InputError(f"predict: batch_size must be a whole number of at least 1, not {batch_size!r}")
        if batch_size is not None and self.fixed is not None and batch_size != self.fixed:
            raise InputError(f"the model's batch is fixed at {self.fixed}: it cannot be {batch_size}")

    def _refuse(self, batch_size: int | None, count: int, why: str) -> None:
        if self.fixed is not None:
            raise InputError(f"the model's batch is fixed at {self.fixed}, so it does not take {count} examples: {why}")
        if batch_size is not None:
            raise InputError(f"the model cannot run in batches of {batch_size}: {why}; leave the batch size out")

    def _examples(self, inputs: Arrays) -> int | None:
        """How many examples there are; None where the inputs have no axis of examples in common."""
        shapes = [np.shape(inputs[name]) for name in self.specs if name in inputs]
        first = {spec.shape[:1] for spec in self.specs.values()}
        alike = len(first) == 1 and first != {()} and all(shape[:1] == shapes[0][:1] != () for shape in shapes)
        return shapes[0][0] if alike and shapes and inputs.keys() == self.specs.keys() else None

    def obstacle(self, inputs: Arrays, size: int) -> str:
        """Why such inputs cannot be divided into batches of ``size``, tried once; empty where they can."""
        if self._obstacle is None:
            each = self._gives_one_each()
            self._obstacle = self._dependence(inputs, size) if each else "its outputs are not one for each example"
        return self._obstacle

    def _gives_one_each(self) -> bool:
        """Whether the first extent of every output is that of the inputs, and nothing is updated."""
        example = self._example
        if example is None or example.results is not None or example.updates:
            return False
        extent = example.inputs[0].shape[0]
        return all(value.shape[:1] == (extent,) for value in example.outputs.values())

    @cached_property
    def _example(self) -> Graph | None:
        """The model at some batch size; None if it takes more than dimensions to bind it."""
        model = self.function.model
        if isinstance(model, Graph):
            return model
        try:
            return example_of(model)
        except (BindingError, ShapeError, UnknownValueError):
            return None

    def _dependence(self, inputs: Arrays, size: int) -> str:
        """What an example depends on. A single one runs in NumPy, where nothing need be compiled for it."""
        functions = {self.fixed or max(size, 2): self.function}
        if self.fixed is None:
            functions[1] = compile(self.function.model, "interpreter", self.function.state)
        few = {extent: {name: array[:extent] for name, array in inputs.items()} for extent in functions}

        def run(extent: int, arrays: Arrays) -> Arrays:
            try:
                return functions[extent](arrays)
            except ShapeError:  # NumPy refuses an index out of range, of which compiled code makes NaN
                return self.function(arrays)

        try:
            graphs = {extent: function.specialised(few[extent]).graph for extent, function in functions.items()}
            return batch_dependence(graphs, run) or ""
        except (BindingError, ShapeError) as error:
            return f"whether its examples depend on each other cannot be tried: {error}"


def _batches(inputs: Arrays, count: int, size: int) -> Iterator[dict[str, Array]]:
    """All examples in batches of ``size``; the last is filled up with copies of the last example."""
    for start in range(0, count, size):
        places = np.minimum(np.arange(start, start + size), count - 1)
        yield {name: np.take(array, places, axis=0) for name, array in inputs.items()}


def _joined(parts: list[dict[str, Array]], count: int) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}
