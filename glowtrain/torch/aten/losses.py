"""Losses. ``reduction`` is ATen's number: 0 for all losses, 1 for their mean, 2 for their sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.activation import Relu, Softplus
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.extrema import Clip, Max
from glowtrain.ops.elementwise.logic import Equal, Less, Where
from glowtrain.ops.elementwise.transcendental import Exp, Log
from glowtrain.ops.indexing.gather import GatherElements
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMean, ReduceMin, ReduceSum
from glowtrain.ops.reduce.softmax import LogSoftmax
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.elementwise.transcendental import xlogy
from glowtrain.torch.aten.table import AtenCall, accumulated, as_type, aten
from glowtrain.types import Shape

REDUCTIONS = ("none", "mean", "sum")
NONE, MEAN, SUM = range(3)
LEAST_VARIANCE = 1e-12
"""By which PyTorch divides the gradient of a binary cross entropy at least."""


def reduced(loss: Value, reduction: int) -> Value:
    """All losses, their mean or their sum."""
    if reduction == NONE:
        return loss
    result: Value = (ReduceMean if reduction == MEAN else ReduceSum)(axes=None, keepdims=False)(loss)
    return result


@aten("cross_entropy_loss.default")
def cross_entropy_loss(
    call: AtenCall, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Of classes by number, or by probability."""
    if target.dtype.is_float:
        return _of_probabilities(x, target, weight, reduction, label_smoothing)
    if label_smoothing:
        return _smoothed(x, target, weight, reduction, ignore_index, label_smoothing)
    return _of_classes(SoftmaxCrossEntropyLoss, x, target, weight, reduction, ignore_index)


@aten("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def nll_loss(
    call: AtenCall,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Any:
    return _of_classes(NegativeLogLikelihoodLoss, x, target, weight, reduction, ignore_index)


def _of_classes(
    operator: Any, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> Value:
    """A single row of scores is a batch of one."""
    rows, labels = (x, target) if x.rank > 1 else (reshape(x, (1, *x.shape)), reshape(target, (1,)))
    operands = (rows, labels) if weight is None else (rows, labels, weight)
    result = operator(reduction=REDUCTIONS[reduction], ignore_index=ignore_index)(*operands)
    loss: Value = result[0] if isinstance(result, tuple) else result
    return loss if x.rank > 1 or reduction else reshape(loss, ())


def _class_axis(x: Value) -> int:
    return min(1, x.rank - 1)


def _along_classes(x: Value, weight: Value | None) -> Value | None:
    """Weights of classes, as they broadcast."""
    axis = _class_axis(x)
    shape: Shape = (x.shape[axis], *[1] * (x.rank - axis - 1))
    return None if weight is None else reshape(weight, shape)


def _of_probabilities(x: Value, target: Value, weight: Value | None, reduction: int, smoothing: float) -> Value:
    axis = _class_axis(x)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[axis]
    factors = _along_classes(x, weight)
    weighted = target if factors is None else target * factors
    losses = -ReduceSum(axes=(axis,), keepdims=False)(LogSoftmax(axis=axis)(x) * weighted)
    return reduced(losses, reduction)


def _smoothed(
    x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int, smoothing: float
) -> Value:
    """(1 - s) times the class's loss, and s times the mean loss over classes; both means divide by the same weights."""
    axis, classes = _class_axis(x), x.shape[_class_axis(x)]
    log_probabilities, factors = LogSoftmax(axis=axis)(x), _along_classes(x, weight)
    spread = log_probabilities if factors is None else log_probabilities * factors
    counted = ~Equal()(target, constant(ignore_index, target.dtype))
    uniform = Where()(counted, -ReduceSum(axes=(axis,), keepdims=False)(spread), constant(0.0, x.dtype))
    own = _of_classes(SoftmaxCrossEntropyLoss, x, target, weight, NONE, ignore_index)
    losses = own * (1 - smoothing) + uniform * (smoothing / classes)
    if reduction != MEAN:
        return reduced(losses, reduction)
    total = reduced(_label_weights(x, target, weight, counted, ignore_index), SUM)
    return reduced(losses, SUM) / total


def _label_weights(x: Value, target: Value, weight: Value | None, counted: Value, ignore_index: int) -> Value:
    """What each sample counts in a mean: the weight of its class (the loss of log-probabilities of -1), or 1."""
    if weight is None:
        return as_type(counted, x.dtype)
    ones = x * 0.0 - 1.0
    return _of_classes(NegativeLogLikelihoodLoss, ones, target, weight, NONE, ignore_index)


@aten("mse_loss.default")
def mse_loss(call: AtenCall, x: Value, target: Value, reduction: int = MEAN) -> Any:
    difference = call.cast(x) - call.cast(target)
    return reduced(difference * difference, reduction)


@aten("l1_loss.default")
def l1_loss(call: AtenCall, x: Value, target: Value, reduction: int = MEAN) -> Any:
    return reduced(Abs()(call.cast(x) - call.cast(target)), reduction)


@aten("smooth_l1_loss.default")
def smooth_l1_loss(call: AtenCall, x: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Any:
    if beta == 0:
        return l1_loss(call, x, target, reduction)
    return reduced(_bent(x - target, beta) * (1 / beta), reduction)


@aten("huber_loss.default")
def huber_loss(call: AtenCall, x: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Any:
    return reduced(_bent(x - target, delta), reduction)


def _bent(difference: Value, knee: float) -> Value:
    """d²/2 up to the knee, a straight line beyond, of slope 1 at infinity, too."""
    size = Abs()(difference)
    inside = Less()(size, knee)
    near = Where()(inside, difference, constant(0.0, difference.dtype))
    result: Value = Where()(inside, near * near * 0.5, size * knee - 0.5 * knee * knee)
    return result


@aten("binary_cross_entropy.default")
def binary_cross_entropy(
    call: AtenCall, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Any:
    """Logarithms are at least -100, as PyTorch's, and the slope is (x - target) / max(x (1 - x), 1e-12): that of a
    logarithm has no end where a sigmoid is 0 or 1. Halves, which do not hold these numbers, in f32."""
    x, target = accumulated(x), accumulated(target)
    here = StopGradient()(x)
    saturated = here * (1.0 - here) < LEAST_VARIANCE
    half, least = constant(0.5, x.dtype), constant(-100.0, x.dtype)
    within = _cross_entropy(target, *(Log()(Where()(saturated, half, each)) for each in (x, 1.0 - x)))
    beyond = _cross_entropy(target, *(Max()(Log()(each), least) for each in (here, 1.0 - here)))
    slope = StopGradient()((here - target) * (1 / LEAST_VARIANCE))
    losses = Where()(saturated, beyond + slope * (x - here), within)
    return call.cast(reduced(losses if weight is None else losses * accumulated(weight), reduction))


def _cross_entropy(target: Value, log: Value, other: Value) -> Value:
    """``log`` of a probability, ``other`` of what is left to 1."""
    return -(target * log + (1.0 - target) * other)


@aten("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    call: AtenCall, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    """(1 - y) x + (1 + (p - 1) y) softplus(-x)"""
    soft = Softplus()(-x)
    rising = soft if pos_weight is None else soft * (1.0 + (pos_weight - 1.0) * target)
    losses = (1.0 - target) * x + rising
    return reduced(losses if weight is None else losses * weight, reduction)


@aten("multilabel_margin_loss_forward.default")
def multilabel_margin_loss(call: AtenCall, x: Value, target: Value, reduction: int = MEAN) -> Any:
    """By how much each label's score does not exceed each other class's by 1, over the classes; and nothing for what
    only PyTorch's own gradient reads. Labels are those before the first -1."""
    classes = x.shape[-1]
    scores, labels = (reshape(each, (each.type.size // classes, classes)) for each in (x, target))
    places = constant(np.arange(classes))
    ends = Where()(Less()(labels, constant(0)), places, constant(classes))
    valid = Less()(places, ReduceMin(axes=(1,), keepdims=True)(ends))
    named = Where()(valid, labels, constant(-1))
    own = GatherElements(axis=1)(scores, Where()(valid, labels, constant(0)))
    is_label = Equal()(named[:, :, None], places)
    labelled = ReduceMax(axes=(1,), keepdims=True)(as_type(is_label, x.dtype))
    short = Relu()(1.0 - own[:, :, None] + scores[:, None, :])
    counted = as_type(valid, x.dtype)[:, :, None] * (1.0 - labelled)
    losses = ReduceSum(axes=(1, 2), keepdims=False)(short * counted) * (1 / classes)
    return reshape(reduced(losses, reduction), call.shape), None


@aten("kl_div.default")
def kl_div(call: AtenCall, x: Value, target: Value, reduction: int = MEAN, log_target: bool = False) -> Any:
    if log_target:
        return reduced(Exp()(target) * (target - x), reduction)
    return reduced(xlogy(call, target, target) - target * x, reduction)


@aten("hinge_embedding_loss.default")
def hinge_embedding_loss(call: AtenCall, x: Value, target: Value, margin: float = 1.0, reduction: int = MEAN) -> Any:
    apart = Clip()(margin - x, call.cast(0))
    similar, other = (Equal()(target, call.cast(sign)) for sign in (1, -1))  # what is neither counts as both
    return reduced(Where()(similar, call.cast(0), apart) + Where()(other, call.cast(0), x), reduction)


@aten("margin_ranking_loss.default")
def margin_ranking_loss(
    call: AtenCall, first: Value, second: Value, target: Value, margin: float = 0.0, reduction: int = MEAN
) -> Any:
    return reduced(Clip()(margin - target * (first - second), call.cast(0)), reduction)
