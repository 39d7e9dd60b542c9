"""Losses of vectors, along the last axis: angles and distances between outputs, or to targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.losses.base import ElementLoss, Elements, Loss, OutputLoss, first_wrong
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.types import Array, TensorType

SQUARE_EPS, DISTANCE_EPS = 1e-12, 1e-6
"""Added to squared lengths, and to differences, as PyTorch does: gradients stay finite at 0."""


@dataclass(frozen=True)
class CosineDistance(OutputLoss):
    """1 - cos(prediction, target) for vectors along the last axis."""

    def each(self, prediction: Value, target: Value) -> Value:
        return 1.0 - cosine_similarity(prediction, target)


@dataclass(frozen=True)
class CosineEmbedding(ElementLoss):
    """1 - cos(first, second) where the target is 1, max(0, cos - margin) where it is -1, for two outputs of a model.

    Source: torch.nn.CosineEmbeddingLoss.
    """

    first: str = "first"
    second: str = "second"
    target: str = "target"
    margin: float = 0.0
    reduction: str = "mean"

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def elements(self, model: Graph) -> Elements:
        first, second = vectors_of(self, model, self.first, self.second)
        target = self.new_input(model, self.target, first.type.with_shape(first.shape[:-1]))
        similarity = cosine_similarity(first, second)
        return Elements((target,), Where()(target > 0.0, 1.0 - similarity, Relu()(similarity - self.margin)))

    def check(self, model: Graph, arrays: Mapping[str, Array]) -> None:
        target = np.asarray(arrays[self.target])
        wrong = (target != 1) & (target != -1)
        if wrong.any():
            place, value = first_wrong(target, wrong)
            raise InputError(f"{self.target!r} must be 1 (alike) or -1 (not), but is {value} at {place}")


@dataclass(frozen=True)
class Triplet(ElementLoss):
    """max(0, |anchor - positive| - |anchor - negative| + margin) for three outputs of a model, without targets.

    Source: Balntas et al., Learning local feature descriptors with triplets (BMVC 2016), as
    torch.nn.TripletMarginLoss.
    """

    anchor: str = "anchor"
    positive: str = "positive"
    negative: str = "negative"
    margin: float = 1.0
    reduction: str = "mean"

    @property
    def targets(self) -> tuple[str, ...]:
        return ()

    def elements(self, model: Graph) -> Elements:
        anchor, positive, negative = vectors_of(self, model, self.anchor, self.positive, self.negative)
        return Elements((), Relu()(distance(anchor, positive) - distance(anchor, negative) + self.margin))


def vectors_of(loss: ElementLoss, model: Graph, *names: str) -> list[Value]:
    """Outputs of a model that have one shape. Raises :class:`InputError`."""
    outputs = [loss.float_output(model, name) for name in names]
    types: list[TensorType] = [output.type for output in outputs]
    if len(set(types)) > 1 or not types[0].rank:
        shown = ", ".join(f"{name!r} is {type_}" for name, type_ in zip(names, types, strict=True))
        raise InputError(f"{type(loss).__name__} compares vectors of one type, but {shown}")
    return outputs


def cosine_similarity(a: Value, b: Value) -> Value:
    """The cosine of the angle between vectors along the last axis."""
    total = ReduceSum(axes=(-1,), keepdims=False)
    result: Value = total(a * b) / Sqrt()((total(a * a) + SQUARE_EPS) * (total(b * b) + SQUARE_EPS))
    return result


def distance(a: Value, b: Value) -> Value:
    """The Euclidean distance between vectors along the last axis."""
    difference = a - b + DISTANCE_EPS
    result: Value = Sqrt()(ReduceSum(axes=(-1,), keepdims=False)(difference * difference))
    return result


def cosine(target: str = "target", output: str | None = None, *, reduction: str = "mean") -> Loss:
    """1 - the cosine of the angle between the output's vectors and the targets, along the last axis."""
    return CosineDistance(target, output, reduction)


def cosine_embedding(
    first: str = "first",
    second: str = "second",
    target: str = "target",
    *,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Loss:
    """Two outputs are to point one way where the target is 1, and not where it is -1. See :class:`CosineEmbedding`."""
    return CosineEmbedding(first, second, target, margin, reduction)


def triplet(
    anchor: str = "anchor",
    positive: str = "positive",
    negative: str = "negative",
    *,
    margin: float = 1.0,
    reduction: str = "mean",
) -> Loss:
    """One output is to be nearer to a second than to a third, by a margin. See :class:`Triplet`."""
    return Triplet(anchor, positive, negative, margin, reduction)
