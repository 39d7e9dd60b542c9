"""Measure a model with its loss and metrics, and predict with it: over arrays, and over batches of any source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.compiler import Function, compile
from glowtrain.data import Dataset
from glowtrain.datasets.hugging_face import is_foreign
from glowtrain.datasets.stored import StoredArray
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.memory.precision import Precision
from glowtrain.trainer.feed import Data, comes_in_batches, held_out, named, native, sources
from glowtrain.trainer.fleets import TrainerFleet
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.predict import Predictor
from glowtrain.trainer.signature import BatchSignature
from glowtrain.trainer.sources.cut import ArraySource
from glowtrain.trainer.sources.loader import loader_of
from glowtrain.trainer.sources.results import means, measured, predict_arrays, predictions
from glowtrain.trainer.sources.source import BatchSource
from glowtrain.trainer.sources.tensors import is_array
from glowtrain.types import Array


class ModelEvaluator:
    """The inference form of a model with its loss and metrics, compiled when it is first needed, over one state."""

    fleet: TrainerFleet | None = None
    """Its place among the processes that train it together, if it is in a fleet."""

    def __init__(
        self, graphs: TrainerGraphs, backend: str | Backend, step: Graph | None = None, state: State | None = None,
        precision: Precision = None,
    ) -> None:  # fmt: skip
        """``step``: the training step of the example, whose variables the ``state`` has, too; ``precision``: that of
        the step, whose layers the person's patterns are of."""
        self._precision = graphs.spec.precision if step is None else precision
        self.graphs, self.backend, self.loss = graphs, backend, graphs.loss
        self.signature = BatchSignature(graphs, graphs.inference_example if step is None else step)
        self.state = State(graphs.inference_example.initial_values) if state is None else state

    def evaluate(
        self, examples: Data, *others: Any, batch_size: int | None = None, drop_last: bool = False,
        prefetch: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Means over examples of the loss and its metrics (``accuracy``), and the listed ``metrics``, by the inference
        form: floats, and nested lists of what is no single number.

        Of a :class:`~glowtrain.data.Dataset` the validation part is measured, if it has one: ``dataset.train`` is the
        other. ``drop_last`` leaves out a last, short batch that a model with a fixed batch cannot take. Batches of a
        loader, and ``prefetch``, are as in :meth:`Trainer.fit`.
        """
        if others:
            raise InputError("evaluate: inputs and targets are one argument, a tuple: evaluate((x, y))")
        examples = native(examples)
        if comes_in_batches(examples):
            drops = drop_last and self.signature.fixed_batch is not None
            return self.measure(loader_of(examples, self.signature, batch_size, prefetch=prefetch, drop_last=drops))
        arrays = self.signature.named(held_out(examples))
        size = self.signature.batch_size(batch_size)
        self.signature.check_all(arrays, size, drop_last=drop_last)
        if drop_last:
            arrays = self.signature.whole_batches(arrays, size)
        return self.measure(ArraySource(arrays, size))

    def measure(self, source: BatchSource) -> dict[str, Any]:
        """What :meth:`evaluate` gives, of a source."""
        measures = self.graphs.measures
        gatherer = measures.gatherer()

        def evaluate(batch: Mapping[str, Any]) -> dict[str, Any]:
            arrays = self._checked(batch)
            return gatherer.take(self._evaluate(arrays), arrays)

        mass = self.loss.mass
        if self.fleet is not None and self.fleet.spreads:
            return measures.results(means(self.fleet.measured(evaluate, source, mass, gatherer)), gatherer)
        return measures.results(means(measured(evaluate, source, mass)), gatherer)

    def predict(
        self, inputs: Data | Array, *, batch_size: int | None = None, prefetch: int | None = None
    ) -> dict[str, Array]:
        """The outputs of the inference form with the present parameters. An array stands for the only input; of a
        loader's batches (see :meth:`Trainer.fit`) the first arrays, or those of the inputs' names, are taken, of a
        :class:`~glowtrain.data.Dataset` the part to train on.

        More than ``batch_size`` examples (64, or what the model is fixed to) are run in batches of that size, where the
        outputs are one for each example and do not depend on the others; see :mod:`glowtrain.trainer.predict`.
        """
        if is_foreign(inputs) or isinstance(inputs, Dataset):
            part, names = native(inputs).train, tuple(self.graphs.specs)
            found = sources(part, names, () if "y" in names else ("y",))
            inputs = {name: part[found[name]] for name in names if name in found}
        if comes_in_batches(inputs):
            source = loader_of(inputs, self.signature, batch_size, prefetch=prefetch, inputs_only=True)
            return predictions(self._predict, source)
        if is_array(inputs):
            names = tuple(self.graphs.specs)
            if len(names) != 1:
                raise InputError(f"the model has {len(names)} inputs ({', '.join(names)}): pass a dict")
            inputs = {names[0]: inputs}
        if isinstance(inputs, Mapping) and any(isinstance(value, StoredArray) for value in inputs.values()):
            return predict_arrays(self._predict, named(inputs, tuple(self.graphs.specs), ()), batch_size)
        return self._predict(self.signature.arrays(inputs, tuple(self.graphs.specs)), batch_size)

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """A batch as arrays. Raises :class:`InputError` for one that does not fit, and where the weights of classes are
        to follow from labels that nobody has counted."""
        for name in self.loss.balanced:
            if np.isnan(self.state.read(name)).any():
                raise InputError("class_weight='balanced': no labels have been counted: fit does it, or balance")
        return self.signature.checked(inputs)

    @cached_property
    def _evaluate(self) -> Function:
        return self._compiled(self.graphs.evaluation())

    @cached_property
    def _predict(self) -> Predictor:
        return Predictor(self._compiled(self.graphs.prediction()))

    def _compiled(self, model: Graph | Template) -> Function:
        spec = self.graphs.spec
        return compile(model, self.backend, self.state, fixed_point=spec.fixed_point, precision=self._precision)
