"""A training step in shards of its batch, whose gradients somebody else adds up.

    step ::= gradients of each shard; their sum over all shards; update

A shard has some of the batch's examples. Its loss is weighted by its share of them, so that the sum of the gradients is
that of the batch, however they lie in shards. Where shards are computed, and where they meet, says
:mod:`glowtrain.fleet`; what is added, and in which order running statistics take shards in, stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.errors import DifferentiationError
from glowtrain.grad.data_parallel import GRADIENT, StepParts
from glowtrain.grad.gradients import check_scalar, reached
from glowtrain.grad.parts import WHOLE, Parts
from glowtrain.grad.training import LOSS, Optimize, guarded
from glowtrain.graph import Graph, Input, Value, Variable, rebuild
from glowtrain.ops.reduce.reduction import ReduceSum, accumulator, as_dtype
from glowtrain.types import DType, TensorType, f32, f64

WEIGHT, COUNTER = "shard.weight", "shard.counter."
"""Inputs of a shard: its part of the batch's examples, and the model's counters as the shards before it leave them."""
MASS = "shard.mass"
"""An output of a shard whose examples have weights: their sum."""


@dataclass(frozen=True)
class ShardedStep:
    """The graphs of a step in shards: ``split`` is what shards have in common, ``weight`` the input for a shard's part
    of the examples, ``trained`` the parts of parameters that are trained alone. Gradients that are f32 are added up as
    ``summed`` is."""

    split: StepParts
    inputs: tuple[Input, ...]
    weight: Input
    optimize: Optimize
    trained: Parts
    summed: DType = f32

    @property
    def parameters(self) -> tuple[Variable, ...]:
        """What is trained."""
        return tuple(self.split.gradients)

    @property
    def gradients(self) -> dict[str, TensorType]:
        """The types of a shard's gradients and of their sums, by their outputs' names."""
        return {name: t.with_dtype(self.summed) if t.dtype == f32 else t for name, t in self.updated.items()}

    @property
    def updated(self) -> dict[str, TensorType]:
        """The types in which parameters are updated, by their gradients' names."""
        return {GRADIENT + p.name: p.type.with_dtype(accumulator(p.dtype)) for p in self.parameters}

    @cached_property
    def shard(self) -> Graph:
        """A shard's weighted loss, metrics and gradients, and what it contributes to running statistics."""
        types = self.gradients
        found = {GRADIENT + p.name: gradient for p, gradient in self.split.gradients.items()}
        summed = {name: as_dtype(gradient, types[name].dtype) for name, gradient in found.items()}
        outputs = {**self.split.measured, **summed, **self.split.contributed}
        counters = [Input(counter.type, COUNTER + counter.name) for counter in self.split.counters]
        values = rebuild(list(outputs.values()), dict(zip(self.split.counters, counters, strict=True)))
        inputs = (*self.inputs, self.weight, *counters)
        return Graph(inputs, dict(zip(outputs, values, strict=True)), {}, f"{self.split.name}.shard")

    def counters(self, shards: int) -> Graph:
        """The model's counters at the beginning of each of so many shards: ``shard.counter.NAME.NUMBER``."""
        present: dict[Value, Value] = {counter: counter for counter in self.split.counters}
        outputs: dict[str, Value] = {}
        for number in range(shards):
            outputs |= {f"{COUNTER}{counter.name}.{number}": present[counter] for counter in self.split.counters}
            fresh = rebuild([self.split.fresh[counter] for counter in self.split.counters], present)
            present = dict(zip(self.split.counters, fresh, strict=True))
        return Graph((), outputs, {}, f"{self.split.name}.counters")

    def update(self, shards: int) -> Graph:
        """New values of all variables from the sums over so many shards, and from what each contributed."""
        made = self.values(shards)
        return self.finished(made.inputs, {}, self.trained.updates(made.fresh), "update")

    def values(self, shards: int) -> NewValues:
        """What the update is made of, over inputs of its own."""
        gradients = {p: Input(self.gradients[GRADIENT + p.name], GRADIENT + p.name) for p in self.parameters}
        loss = Input(self.split.measured[LOSS].type, LOSS)
        given = [
            {name: Input(value.type, f"{name}.{number}") for name, value in self.split.contributed.items()}
            for number in range(shards)
        ]
        optimizer = self.optimize({p: as_dtype(g, accumulator(p.dtype)) for p, g in gradients.items()})
        fresh = guarded({**self.split.state_after(given), **optimizer.values}, loss)
        others = (loss, *(each for own in given for each in own.values()), *optimizer.inputs)
        return NewValues(gradients, others, fresh)

    def finished(
        self, inputs: Sequence[Input], outputs: dict[str, Value], updates: dict[Variable, Value], name: str
    ) -> Graph:
        """A graph whose parts of parameters are read from the whole ones."""
        return self.trained.read_from_whole(Graph(tuple(inputs), outputs, updates, f"{self.split.name}.{name}"))


@dataclass(frozen=True)
class NewValues:
    """``fresh`` values of the model's state, of what is trained, and of what the optimizer keeps, over inputs:
    ``gradients`` and ``others``."""

    gradients: Mapping[Variable, Input]
    others: tuple[Input, ...]
    fresh: Mapping[Variable, Value]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs."""
        return *self.gradients.values(), *self.others


def sharded_step(
    model: Graph, loss: Value, targets: Sequence[Input], parameters: Sequence[Variable], optimize: Optimize,
    metrics: Mapping[str, Value] | None = None, trained: Parts = WHOLE, *, sums: bool = False,
    weights: Input | None = None, summed: DType = f32,
) -> ShardedStep:  # fmt: skip
    """A training step of a shard's examples, and of all shards together; of the parameters in ``trained``, their parts
    alone. The loss is a mean over examples, or with ``sums`` their sum; the ``metrics`` are means. ``weights``: the
    input that has those of examples. ``summed``: what gradients of f32 are added up as.

    Raises :class:`DifferentiationError` if nothing is left to train, and for a model whose loss reads what each batch
    updates otherwise than by itself.
    """
    check_scalar(loss)
    weight = Input(loss.type, WEIGHT)
    weighted = loss if sums else loss * weight
    gradients = reached(weighted, parameters)
    if not gradients:
        raise DifferentiationError(f"the loss does not depend on any trainable parameter of {model.name}")
    shares = {name: value * as_dtype(weight, value.dtype) for name, value in (metrics or {}).items()}
    mass = {} if weights is None else {MASS: ReduceSum(axes=None, keepdims=False)(as_dtype(weights, f64))}
    split = StepParts(model, {LOSS: weighted, **shares, **mass}, trained.trained(gradients))
    return ShardedStep(split, (*model.inputs, *targets), weight, optimize, trained, summed)
