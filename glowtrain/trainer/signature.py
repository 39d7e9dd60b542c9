"""What batches a training step takes: the arrays for a model's inputs and a loss's targets, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain import data
from glowtrain.datasets.stored import ExampleArray, sample_of, select
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.graph.specialise.index_ranges import index_problems
from glowtrain.losses.base import OutputLoss, output_name
from glowtrain.metrics.base import compared_loss
from glowtrain.presentation.messages import page
from glowtrain.trainer.arrays import converted, mismatch, one_hot, unit_axes, with_unit_axes
from glowtrain.trainer.feed import Data, named
from glowtrain.trainer.graphs import TrainerGraphs, default_batch, fixed_batch
from glowtrain.trainer.sources.tensors import array_of
from glowtrain.types import Array, Spec


class BatchSignature:
    """The inputs and targets of a model with its loss; ``step`` is a training step of it, at any binding."""

    def __init__(self, graphs: TrainerGraphs, step: Graph) -> None:
        self.graphs = graphs
        self.step = step

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the model's inputs, and of the loss's targets."""
        return tuple(self.graphs.specs), self.graphs.loss.targets

    def named(self, data: Data) -> dict[str, ExampleArray]:
        """Data as arrays by the names of inputs and targets. Raises :class:`InputError`, :class:`DataError`."""
        return named(data, *self.names, self.graphs.optional)

    @property
    def targets(self) -> dict[str, Spec]:
        """The types of the targets, with symbolic extents where a binding decides them."""
        return self.graphs.targets

    @cached_property
    def fixed_batch(self) -> int | None:
        """The batch size that the model is bound to for good, if it is."""
        return fixed_batch(self.graphs.specs)

    def batch_size(self, wanted: int | None) -> int:
        """The wanted batch size, or the one where nobody says any."""
        return default_batch(self.graphs.model) if wanted is None else wanted

    def checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """A batch as arrays, with plausible targets. Raises :class:`InputError`."""
        arrays = self.arrays(inputs, self.graphs.names)
        self.graphs.loss.check(self.graphs.example, arrays)
        return arrays

    def arrays(self, inputs: Any, names: Sequence[str]) -> dict[str, Array]:
        """Values for all of ``names``, and nothing else, as arrays. Raises :class:`InputError`."""
        if isinstance(inputs, dict) and self._fits(inputs, names):
            return dict(inputs)
        if not isinstance(inputs, Mapping):
            raise InputError(f"a batch must be a dict with arrays for {list(names)}, not a {type(inputs).__name__}")
        problems = [f"{name!r} is missing" for name in names if name not in inputs]
        problems += [f"{name!r} is not an input" for name in inputs if name not in names]
        if problems:
            raise InputError(f"{'; '.join(problems)}: the inputs are {', '.join(map(repr, names))}")
        arrays = {name: self._array(name, inputs[name]) for name in names}
        for name, spec in self.graphs.specs.items():
            if name in arrays and unit_axes(arrays[name].shape, spec):
                raise InputError(mismatch(name, arrays[name], spec))
        return arrays

    def _fits(self, inputs: dict[str, Any], names: Sequence[str]) -> bool:
        """Whether values are such arrays already, as they mostly are: nothing else is looked at then."""
        if len(inputs) != len(names):
            return False
        for name in names:
            array, (dtype, rank) = inputs.get(name), self._kinds[name]
            if type(array) is not np.ndarray or array.ndim != rank or array.dtype != dtype:
                return False
        return True

    @cached_property
    def _kinds(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """The element type and the rank of what inputs and targets take as it is, by name."""
        specs = {**self.graphs.specs, **self.targets}
        return {name: (spec.dtype.numpy, len(spec.shape)) for name, spec in specs.items()}

    def _array(self, name: str, value: Any) -> Array:
        """A value as an input takes it (:mod:`glowtrain.trainer.arrays`)."""
        targets = self.targets
        spec = targets[name] if name in targets else self.graphs.specs[name]
        if isinstance(value, (list, tuple, int, float)) and name not in targets:
            return np.asarray(value, spec.dtype.numpy)
        array = array_of(name, value)
        if name in targets:
            array = self.target(name, array)
        return converted(name, array, spec.dtype)

    def target(self, name: str, array: Array) -> Array:
        """A target as its loss compares it: with unit axes, and a vector in place of a label where the loss says so."""
        spec, losses = self.targets[name], (compared_loss(loss) for _, loss in self.graphs.loss.terms)
        labels = any(loss.takes_labels and loss.target == name for loss in losses if loss is not None)
        if labels and array.dtype.kind in "iu" and array.ndim == len(spec.shape) - 1:
            return one_hot(name, array, spec)
        return with_unit_axes(array, spec)

    def of_size(self, size: object) -> dict[str, Array]:
        """A batch of a size: zeros that take no memory. Raises :class:`InputError` for a size that the model does not
        take, and where other extents than the batch are open."""
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
            raise InputError(f"a batch has a whole number of examples, of at least 1, not {size!r}")
        self._check_batches(int(size), int(size), drop_last=True)
        specs = {**self.graphs.specs, **self.targets}
        dims = {axis: int(size) for spec in specs.values() for axis in spec.shape[:1] if isinstance(axis, str)}
        if others := {symbol for spec in specs.values() for symbol in spec.symbols} - set(dims):
            raise InputError(f"a batch size leaves {', '.join(sorted(others))} open: give a batch of arrays instead")
        types = {name: spec.bind(dims) for name, spec in specs.items()}
        return {name: np.broadcast_to(np.zeros((), t.dtype.numpy), t.shape) for name, t in types.items()}

    def check_all(self, examples: Mapping[str, ExampleArray], size: int, *, drop_last: bool = False) -> None:
        """Check a whole data set before anything runs: types, labels, and that the last batch fits. What is not in
        memory is checked by its type.

        Raises :class:`InputError`.
        """
        arrays = {name: sample_of(array) for name, array in examples.items()}
        self.graphs.loss.check(self.graphs.example, arrays)
        problems = [mismatch(name, arrays[name], spec) for name, spec in self.graphs.specs.items()]
        problems += [self._target_problem(name, arrays[name], spec) for name, spec in self.targets.items()]
        if any(problems):
            raise InputError("; ".join(filter(None, problems)))
        problems = index_problems(self.step, arrays, fixed=True)
        if problems:
            raise InputError("; ".join(problems))
        self._check_batches(data.count_examples(examples), size, drop_last=drop_last)

    def _target_problem(self, name: str, array: Array, spec: Spec) -> str:
        """What is wrong with a target, and which output it is compared with; empty if nothing."""
        fitting, loss = self.target(name, array[:1]), self.graphs.loss
        problem = mismatch(name, np.broadcast_to(fitting, (len(array), *fitting.shape[1:])), spec)
        if not problem or not isinstance(loss, OutputLoss):
            return problem
        output = output_name(self.graphs.example, loss.output)
        shape = self.graphs.example.output_types[output].shape
        deeper = len(shape) > 2 and len(spec.shape) > max(array.ndim, 1)
        missing = ", which may lack a gt.nn.flatten before its layer" if deeper else ""
        shown = Spec(self.graphs.example.output_types[output].dtype, (*spec.shape[:1], *shape[1:]))
        return f"{problem}; the loss compares it with output {output!r}, {shown}{missing}"

    def _check_batches(self, examples: int, size: int, *, drop_last: bool) -> None:
        """Raise :class:`InputError` for batches that a model with a fixed one cannot take."""
        rest = examples % size
        if self.fixed_batch is not None and (size != self.fixed_batch or (rest and not drop_last)):
            what, instead = f"a last batch of {rest}", "leave it out (drop_last=True, --drop-last)"
            if size != self.fixed_batch:
                what, instead = f"batch_size={size}", f"train with a batch size of {self.fixed_batch}"
            raise InputError(
                f"the model's batch is fixed at {self.fixed_batch} and cannot take {what}: {instead}, "
                "or give it a symbolic batch dimension: gt.load(..., open_batch=True) and --open-batch open that of a "
                f"file ({page('exporting.md')})"
            )

    def whole_batches(self, arrays: dict[str, ExampleArray], size: int) -> dict[str, ExampleArray]:
        """The examples that fill batches, where the model takes no others. Raises :class:`InputError` for none."""
        count = data.count_examples(arrays)
        if self.fixed_batch is None:
            return arrays
        if count < size:
            raise InputError(f"{count} examples do not fill one batch of {size}, which is what the model takes")
        return {name: select(array, slice(0, count - count % size)) for name, array in arrays.items()}
