"""Classification losses: negative log-likelihood, and softmax cross entropy with its gradient softmax - one-hot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.logic import Equal, Less, Where
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.indexing.gather import Gather, GatherElements
from glowtrain.ops.indexing.scatter import ScatterAdd
from glowtrain.ops.reduce.reduction import ReduceSum, accumulator, as_dtype, widened
from glowtrain.ops.reduce.softmax import LogSoftmax
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType, i32, i64

MODES = ("none", "mean", "sum")


@dataclass(frozen=True)
class ClassLossOperator(Operator):
    """What the losses share. Classes are on axis 1 of f[n, classes, ...]; labels are [n, ...]; weights are [classes].

    A sample counts weights[label] (1 without weights), or 0 where its label is ``ignore_index``. ``reduction``: "none"
    gives a loss for each sample, "sum" adds them up, "mean" divides that by what the samples count together (NaN where
    that is 0).
    A label that is no class is an error in the reference; compiled code gives NaN.
    """

    reduction: str = "mean"
    ignore_index: int | None = None

    def check(self, *inputs: TensorType | None) -> TensorType:
        """Check types and shapes; the type of the loss."""
        if len(inputs) not in (2, 3) or inputs[0] is None or inputs[1] is None:
            raise self.fail("takes scores, labels and optional weights", *inputs)
        scores, labels = inputs[0], inputs[1]
        if self.reduction not in MODES:
            raise self.fail(f"reduction must be one of {', '.join(MODES)}", *inputs)
        if not scores.dtype.is_float or labels.dtype not in (i32, i64):
            raise self.fail("scores must be float and labels i32 or i64", *inputs)
        if scores.rank < 2 or labels.shape != (scores.shape[0], *scores.shape[2:]):
            raise self.fail("labels must have the shape of scores without axis 1, the classes", *inputs)
        weights = inputs[2] if len(inputs) == 3 else None
        if weights is not None and weights != TensorType(scores.dtype, (scores.shape[1],)):
            raise self.fail(f"weights must be {scores.dtype}[{scores.shape[1]}]: one for each class", *inputs)
        return scores.with_shape(labels.shape if self.reduction == "none" else ())

    def index_ranges(self, *inputs: Any) -> dict[int, IndexRange]:
        return {1: IndexRange(0, inputs[0].shape[1] - 1, self.ignore_index)}

    def loss_of_arrays(self, log_prob: Array, labels: Array, weights: Array | None) -> Array:
        """The loss in NumPy. Raises :class:`ShapeError` for a label that is no class."""
        classes, wide = log_prob.shape[1], widened(log_prob)
        ignored = np.zeros(labels.shape, bool) if self.ignore_index is None else labels == self.ignore_index
        wrong = ~ignored & ((labels < 0) | (labels >= classes))
        if wrong.any():
            position = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise self.fail(
                f"label {labels[position]} at {list(position)} is not a class: those are 0 to {classes - 1}"
            )
        safe = np.where(ignored, 0, labels)
        counts = np.where(ignored, 0, 1 if weights is None else widened(weights)[safe]).astype(wide.dtype)
        picked = np.take_along_axis(wide, np.expand_dims(safe, 1), 1).squeeze(1)
        losses = np.where(ignored, 0, -picked * counts).astype(wide.dtype)
        if self.reduction == "none":
            return losses.astype(log_prob.dtype)
        loss = losses.sum() if self.reduction == "sum" else losses.sum() / counts.sum()
        return np.asarray(loss, log_prob.dtype)

    def loss_of_values(self, log_prob: Value, labels: Value, weights: Value | None) -> Value:
        """The loss as graph code."""
        dtype = accumulator(log_prob.dtype)
        losses = -self._picked(log_prob, labels)
        counts = self.counts(log_prob, labels, weights)
        if counts is not None:
            losses = losses * counts
        if self.ignore_index is not None:
            losses = Where()(self._ignored(labels), 0.0, losses)
        if self.reduction != "none":
            losses = ReduceSum(keepdims=False)(losses)
        if self.reduction == "mean":
            losses = losses / self._together(labels, counts)
        assert losses.dtype == dtype
        return as_dtype(losses, log_prob.dtype)

    def _ignored(self, labels: Value) -> Value:
        result: Value = Equal()(labels, self.ignore_index)
        return result

    def _safe(self, labels: Value, classes: int) -> Value:
        """Labels as indices: 0 where ignored, one too large where negative (which would count from the end)."""
        result: Value = Where()(Less()(labels, 0), classes, labels)
        return result if self.ignore_index is None else Where()(self._ignored(labels), 0, result)

    def _picked(self, log_prob: Value, labels: Value) -> Value:
        """Each sample's log-probability of its label."""
        position = beside_classes(self._safe(labels, log_prob.shape[1]))
        picked = reshape(GatherElements(axis=1)(log_prob, position), labels.shape)
        return as_dtype(picked, accumulator(log_prob.dtype))

    def counts(self, log_prob: Value, labels: Value, weights: Value | None) -> Value | None:
        """What each sample counts; None where all count 1."""
        dtype = accumulator(log_prob.dtype)
        if weights is None:
            return None if self.ignore_index is None else 1 - as_dtype(self._ignored(labels), dtype)
        counts = as_dtype(Gather()(weights, self._safe(labels, log_prob.shape[1])), dtype)
        return counts if self.ignore_index is None else Where()(self._ignored(labels), 0.0, counts)

    def _together(self, labels: Value, counts: Value | None) -> Value | int:
        """What all samples count."""
        if counts is None:
            return labels.type.size
        result: Value = ReduceSum(keepdims=False)(counts)
        return result

    def pull(self, g: Value, log_prob: Value, labels: Value, weights: Value | None) -> Value:
        """The cotangent of each sample's -log_prob[label], shaped to broadcast over the classes."""
        counts = self.counts(log_prob, labels, weights)
        each = as_dtype(g, accumulator(log_prob.dtype))
        if self.reduction == "mean":
            each = each / self._together(labels, counts)
        each = each if counts is None else each * counts
        if self.ignore_index is not None:  # also where all are, and together count nothing
            each = Where()(self._ignored(labels), 0.0, each)
        return beside_classes(each) if each.shape else each

    def pull_weights(self, g: Value, loss: Value, log_prob: Value, labels: Value, weights: Value) -> Value:
        """The cotangent of the weights: the losses of each class's samples, for "mean" less the mean, added up."""
        each = -self._picked(log_prob, labels)
        if self.reduction == "mean":
            together = self._together(labels, self.counts(log_prob, labels, weights))
            each = (each - as_dtype(loss, each.dtype)) / together
        each = each * as_dtype(g, each.dtype)
        if self.ignore_index is not None:
            each = Where()(self._ignored(labels), 0.0, each)
        return as_dtype(ScatterAdd(shape=weights.shape)(self._safe(labels, log_prob.shape[1]), each), weights.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        n, classes, positions = draw.integer(1, 4), draw.integer(1, 5), draw.shape(max_rank=2, max_extent=3)
        labels = draw.integers((n, *positions), 0, classes - 1)
        ignored = draw.choice((None, -1, int(labels.flat[-1])))
        if ignored is not None:
            labels = np.where(draw.booleans(labels.shape), ignored, labels)
            labels.flat[0] = 0 if ignored != 0 else classes - 1
        weights = draw.floats((classes,), 0.2, 2.0) if draw.boolean() else None
        if ignored == labels.flat[0]:
            ignored = None
        return Sample(cls(draw.choice(MODES), ignored), (draw.floats((n, classes, *positions)), labels, weights))


def beside_classes(each: Value) -> Value:
    """A value for each sample, [n, ...], with an axis of extent 1 for the classes."""
    return reshape(each, (each.shape[0], 1, *each.shape[1:]))


def is_label(labels: Value, classes: int) -> Value:
    """bool[n, classes, ...]: whether each class is the sample's label."""
    numbers = np.arange(classes, dtype=labels.dtype.numpy).reshape([-1] + [1] * (labels.rank - 1))
    result: Value = Equal()(constant(numbers), beside_classes(labels))
    return result


@operator
@dataclass(frozen=True)
class NegativeLogLikelihoodLoss(ClassLossOperator):
    """The loss of log-probabilities; see :class:`ClassLossOperator`."""

    def infer(self, *inputs: TensorType | None) -> TensorType:
        return self.check(*inputs)

    def reference(self, log_prob: Array, labels: Array, weights: Array | None = None) -> Array:
        return self.loss_of_arrays(log_prob, labels, weights)

    def decompose(self, log_prob: Value, labels: Value, weights: Value | None = None) -> Value:
        return self.loss_of_values(log_prob, labels, weights)

    def vjp(self, g: Value, y: Value, log_prob: Value, labels: Value, *rest: Value | None) -> Grads:
        weights = rest[0] if rest else None
        each = self.pull(g, log_prob, labels, weights)
        d_log_prob = as_dtype(Where()(is_label(labels, log_prob.shape[1]), -each, 0.0), log_prob.dtype)
        d_weights = None if weights is None else self.pull_weights(g, y, log_prob, labels, weights)
        return (d_log_prob, None, d_weights)[: 2 + len(rest)]


@operator
@dataclass(frozen=True)
class SoftmaxCrossEntropyLoss(ClassLossOperator):
    """The loss of unscaled scores, and their log-softmax; see :class:`ClassLossOperator`."""

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        loss = self.check(*inputs)
        assert inputs[0] is not None
        return loss, inputs[0]

    def reference(self, scores: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Array]:
        log_prob = LogSoftmax(axis=1).reference(scores)
        return self.loss_of_arrays(log_prob, labels, weights), log_prob

    def decompose(self, scores: Value, labels: Value, weights: Value | None = None) -> tuple[Value, Value]:
        log_prob = LogSoftmax(axis=1)(scores)
        return self.loss_of_values(log_prob, labels, weights), log_prob

    def vjp(self, g: Any, y: Any, scores: Value, labels: Value, *rest: Value | None) -> Grads:
        (g_loss, g_log_prob), (loss, log_prob) = g, y
        weights = rest[0] if rest else None
        parts: list[Value] = []
        d_weights = None
        if g_loss is not None:
            each = self.pull(g_loss, log_prob, labels, weights)
            wide = as_dtype(log_prob, each.dtype)
            parts.append(each * (Exp()(wide) - as_dtype(is_label(labels, scores.shape[1]), each.dtype)))
            d_weights = None if weights is None else self.pull_weights(g_loss, loss, log_prob, labels, weights)
        if g_log_prob is not None:
            parts.append(g_log_prob - Exp()(log_prob) * ReduceSum(axes=(1,))(g_log_prob))
        parts = [as_dtype(part, scores.dtype) for part in parts]
        d_scores = sum(parts[1:], parts[0]) if parts else None
        return (d_scores, None, d_weights)[: 2 + len(rest)]
