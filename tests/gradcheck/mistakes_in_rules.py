"""Mistakes in gradient rules, decompositions and references of operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import test_laws as laws
from changes import (
    Change,
    always,
    around,
    constant,
    flip,
    instead,
    keep,
    negate,
    never,
    off_by_one,
    result,
    rewrite,
    scale,
    swap,
    wrap,
)
from planting import Mistake, ones, operator, suite

import glowtrain as gt
from glowtrain.grad import stop_gradient
from glowtrain.grad.scan import ScanGradient
from glowtrain.graph import Value
from glowtrain.ops.attention.attention import Attention
from glowtrain.ops.contraction.linear_algebra import Det
from glowtrain.ops.contraction.products import Gemm, MatMul, swapped
from glowtrain.ops.convolution import convolution
from glowtrain.ops.elementwise import arithmetic
from glowtrain.ops.elementwise.activation import Elu, Gelu, LeakyRelu, PRelu, Relu, Sigmoid
from glowtrain.ops.elementwise.arithmetic import Abs, Div, Mul, Pow, Sqrt, Sub
from glowtrain.ops.elementwise.extrema import Clip, Max
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Exp, Tanh
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.ops.indexing.scatter import Scatter, ScatterAdd, ScatterElements
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization, LayerNormalization, RMSNormalization
from glowtrain.ops.objective.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.pooling.max_pool import MaxPoolGradient
from glowtrain.ops.pooling.pooling import AveragePool
from glowtrain.ops.random import philox
from glowtrain.ops.reduce import reduction
from glowtrain.ops.reduce.reduction import ReduceL2, ReduceLogSumExp, ReduceMax, ReduceMean
from glowtrain.ops.reduce.softmax import LogSoftmax, Softmax
from glowtrain.ops.sequence.recurrent import GRU, LSTM, Recurrent
from glowtrain.ops.tensor.move import Concat, Slice, Transpose, reshape
from glowtrain.ops.tensor.pad import Pad
from glowtrain.ops.tensor.split import Split
from glowtrain.types import Shape

OVERWRITE = rewrite("np.add.at(A, B, C)", "A.__setitem__(B, C)")


def second_half_first(pads: tuple[int, ...]) -> tuple[int, ...]:
    return pads[len(pads) // 2 :] + pads[: len(pads) // 2]


def last_first(parts: tuple[Value, ...]) -> tuple[Value, ...]:
    """The first and the last in each other's places, where types allow it."""
    if len(parts) == 1 or parts[0].type != parts[-1].type:
        return parts
    return (parts[-1], *parts[1:-1], parts[0])


def square_as_it_was(right: Value) -> Value:
    """Not transposed, where shapes allow it."""
    return swapped(right) if right.shape[-1] == right.shape[-2] else right


def in_order_of_rank(vjp: Any, self: TopK, g: Any, y: Any, x: Value) -> Any:
    """The rank of each chosen element for its index."""
    ranks = np.indices(y[1].shape)[self.axis]
    return vjp(self, g, (y[0], y[1] * 0 + gt.constant(ranks)), x)


def without_updates(vjp: Any, self: ScatterElements, *args: Value) -> Any:
    """No gradient for what is added."""
    gradients = vjp(self, *args)
    return (*gradients[:2], None) if self.reduction == "add" else gradients


def broadcast_undone_by(reduction: Any) -> Change:
    """Another reduction than the sum."""

    def unbroadcast(gradient: Value, shape: Shape) -> Value:
        extra = gradient.rank - len(shape)
        axes = tuple(a for a, n in enumerate(gradient.shape) if a < extra or n != shape[a - extra])
        return reshape(reduction(axes=axes)(gradient), shape) if axes else gradient

    return instead(unbroadcast)


RULES = [
    Mistake("sign", Tanh.vjp, negate("_ * (1.0 - _)"), operator("Tanh")),
    Mistake("factor near 1", Tanh.vjp, scale("X - _", 1.0001), operator("Tanh")),
    Mistake("input for output", Sigmoid.vjp, instead(lambda _, g, y, x: (g * x * (1.0 - x),)), operator("Sigmoid")),
    Mistake("dropped factor", Exp.vjp, keep("X * _"), operator("Exp")),
    Mistake("missing half", Sqrt.vjp, keep("X * 0.5"), operator("Sqrt")),
    Mistake("factors swapped", Mul.vjp, swap("X, Y"), operator("Mul")),
    Mistake("swapped arguments", Div.vjp, swap("X, Y"), operator("Div")),
    Mistake("sign of the second operand", Sub.vjp, keep("-X"), operator("Sub")),
    Mistake("gradient of an operand lost", Pow.vjp, result(lambda grads: (grads[0], None)), operator("Pow")),
    Mistake("missing mask", Relu.vjp, keep("Where()(_, X, 0.0)"), operator("Relu")),
    Mistake("inverted mask", LeakyRelu.vjp, flip("_ > 0.0"), operator("LeakyRelu")),
    Mistake("attribute ignored", Elu.vjp, constant("self.alpha", 1.0), operator("Elu")),
    Mistake("wrong mode", Gelu.vjp, flip("self.approximate == _"), operator("Gelu")),
    Mistake("swapped branches", Where.vjp, swap("None, X, Y"), operator("Where")),
    Mistake(
        "slope without its input", PRelu.vjp, rewrite("Where()(A, 0.0, B * _)", "Where()(A, 0.0, B)"), operator("PRelu")
    ),
    Mistake("gradient outside of the bounds", Clip.vjp, keep("Where()((_ >= _) & (_ <= _), X, 0.0)"), operator("Clip")),
    Mistake(
        "whole gradient to every operand",
        Max.vjp,
        instead(lambda _, g, y, *inputs: (g,) * len(inputs)),
        operator("Max"),
    ),
    Mistake("derivative of abs without sign", Abs.vjp, keep("X * Sign()(_)"), operator("Abs")),
    Mistake(
        "upstream gradient ignored",
        Softmax.vjp,
        around(lambda vjp, self, g, y, x: vjp(self, ones(g), y, x)),
        operator("Softmax"),
    ),
    Mistake("wrong axis", Softmax.vjp, constant("self.axis", 0), operator("Softmax")),
    Mistake("dropped term", LogSoftmax.vjp, keep("X - _"), operator("LogSoftmax")),
    Mistake("constant for second order", Tanh.vjp, wrap("_ - X * _", stop_gradient), operator("Tanh", "second order")),
    Mistake("detached in the second order", Exp.vjp, wrap("_ * X", stop_gradient), operator("Exp", "second order")),
]

SHAPES = [
    Mistake("missing 1/n", ReduceMean.vjp, keep("X / self.count(_)"), operator("ReduceMean")),
    Mistake("norm without division", ReduceL2.vjp, keep("X / Where()(_, 1.0, _)"), operator("ReduceL2")),
    Mistake("log-sum-exp without weights", ReduceLogSumExp.vjp, wrap("Exp()(_)", ones), operator("ReduceLogSumExp")),
    Mistake("every element counts as the maximum", ReduceMax.vjp, wrap("X * (_ / _)", ones), operator("ReduceMax")),
    Mistake("wrong scan direction", CumSum.vjp, keep("not X"), operator("CumSum")),
    Mistake(
        "exclusive flag lost",
        CumSum.vjp,
        rewrite("self.replace(reverse=A)", "self.replace(exclusive=False, reverse=A)"),
        operator("CumSum"),
    ),
    Mistake(
        "permutation not inverted", Transpose.vjp, instead(lambda self, g, y, x: (self(g),)), operator("Transpose")
    ),
    Mistake("pieces in the wrong order", Concat.vjp, result(last_first), operator("Concat")),
    Mistake("backward steps taken forwards", Slice.vjp, keep("reverse(X, _)"), operator("Slice")),
    Mistake(
        "margins of a reflection dropped",
        Pad,
        wrap("functools.reduce(lambda _, _: _ + _, X)", lambda pieces: pieces[:1]),
        operator("Pad"),
    ),
    Mistake(
        "constant of the padding has no gradient", Pad.vjp, scale("None if _ is None else X", 0.0), operator("Pad")
    ),
    Mistake("repeated index overwrites", ScatterAdd.reference, OVERWRITE, operator("Gather")),
    Mistake("update without its gradient", ScatterElements.vjp, around(without_updates), operator("ScatterElements")),
    Mistake(
        "overwritten places keep their gradient",
        ScatterElements.vjp,
        keep('self.onto(X, _, _, "none")'),
        operator("ScatterElements"),
    ),
    Mistake("gradient of the chosen k in order of rank", TopK.vjp, around(in_order_of_rank), operator("TopK")),
    Mistake("broadcast sum keeps one element", reduction.unbroadcast, broadcast_undone_by(ReduceMax), operator("Add")),
    Mistake("broadcast sum is a mean", reduction.unbroadcast, broadcast_undone_by(ReduceMean), operator("Mul")),
    Mistake(
        "broadcast sum over the leading axes only",
        reduction.unbroadcast,
        constant("(*range(_), *X)", ()),
        operator("Add"),
    ),
]

CONTRACTIONS = [
    Mistake("transposed factor", MatMul.vjp, wrap("_ @ X", square_as_it_was), operator("MatMul")),
    Mistake(
        "transposition flag ignored", Gemm.vjp, constant("Gemm(..., transA=X, transB=True)", False), operator("Gemm")
    ),
    Mistake("alpha dropped", Gemm.vjp, constant("Gemm(alpha=X, transB=not _)", 1.0), operator("Gemm")),
    Mistake("beta dropped", Gemm.vjp, keep("X * self.beta"), operator("Gemm")),
    Mistake(
        "dilations ignored",
        convolution._weight_gradient,
        wrap("_.dilations", lambda each: (1,) * len(each)),
        operator("Conv"),
    ),
    Mistake(
        "padding at the wrong end", convolution._input_gradient, wrap("_.pads", second_half_first), operator("Conv")
    ),
    Mistake(
        "bias gradient of one example",
        convolution,
        rewrite("ReduceSum(axes=A, keepdims=False)(B)", "ReduceSum(axes=A, keepdims=False)(B) / B.shape[0]"),
        operator("Conv"),
    ),
    Mistake(
        "winner of a window ignored",
        MaxPoolGradient.reference,
        wrap("np.add.at(_, X, _)", np.sort),
        operator("MaxPool"),
    ),
    Mistake("overlapping windows overwrite", MaxPoolGradient.reference, OVERWRITE, operator("MaxPool")),
    Mistake(
        "padding counted in the mean",
        AveragePool.decompose,
        rewrite("self.counts(A)", "self.replace(count_include_pad=True).counts(A)"),
        operator("AveragePool"),
    ),
]

LAYERS = [
    Mistake("mean held constant", LayerNormalization.vjp, keep("X - _(X)"), operator("LayerNormalization")),
    Mistake(
        "deviation held constant",
        RMSNormalization.vjp,
        keep("X - _ * ReduceMean(...)(_)"),
        operator("RMSNormalization"),
    ),
    Mistake("scale missing", RMSNormalization.vjp, keep("X * as_dtype(_, _)"), operator("RMSNormalization")),
    Mistake(
        "stale statistics in the gradient",
        BatchNormalization,
        keep("X - _ / _ - _ * (_ / _)"),
        operator("BatchNormalization"),
    ),
    Mistake(
        "momentum of the statistics reversed",
        BatchNormalization._blend,
        swap("X * self.momentum + Y * (1 - self.momentum)"),
        operator("BatchNormalization", "evaluator"),
    ),
    Mistake(
        "stale statistics in the result",
        BatchNormalization.decompose,
        rewrite("A, self._blend(B, _), C", "A, B, C"),
        operator("BatchNormalization", "evaluator"),
    ),
    Mistake("mask of dropout missing", philox._dropout_grads, keep("Where()(_, X, 0.0)"), operator("Dropout")),
    Mistake("scale of dropout missing", philox._dropout_grads, keep("X / as_dtype(_, _)"), operator("Dropout")),
    Mistake(
        "ignored labels count",
        NegativeLogLikelihoodLoss.pull_weights,
        keep("Where()(self._ignored(_), 0.0, X)"),
        operator("NegativeLogLikelihoodLoss", examples=60),
    ),
    Mistake(
        "mean over the batch and not the weights",
        SoftmaxCrossEntropyLoss.pull,
        rewrite("A / self._together(B, _)", "A / float(B.type.size)"),
        operator("SoftmaxCrossEntropyLoss"),
    ),
    Mistake(
        "label not subtracted",
        SoftmaxCrossEntropyLoss.vjp,
        keep("X - as_dtype(is_label(...), _)"),
        operator("SoftmaxCrossEntropyLoss"),
    ),
    Mistake(
        "scale of attention missing",
        Attention.decompose,
        keep("X * score_scale(...)"),
        operator("Attention", "decomposition"),
    ),
    Mistake(
        "mask of attention missing", Attention.decompose, keep("_.apply(X)"), operator("Attention", "decomposition")
    ),
    Mistake(
        "gates in the wrong order",
        LSTM.cell,
        wrap("_pieces(_, 4)", lambda p: (p[0], p[2], p[1], p[3])),
        suite(laws.test_lstm_follows_onnx),
    ),
    Mistake("update gate inverted", GRU.cell, swap("(1 - A) * X + A * Y"), suite(laws.test_gru_follows_onnx)),
    Mistake(
        "reversed direction runs forwards",
        Recurrent._direction,
        never('self.direction == "reverse" or _ == 1'),
        operator("RNN", "decomposition"),
    ),
    Mistake(
        "slices of a scan read in the wrong direction",
        ScanGradient,
        wrap("_.input_directions[_]", lambda direction: 1 - direction),
        operator("Scan"),
    ),
    Mistake(
        "final cotangent of a state lost", ScanGradient._final, always("filled(0.0, _) if X else _"), operator("Scan")
    ),
    Mistake(
        "sum over time lost",
        ScanGradient.gradients,
        scale("X + self._step_gradient(_)", 0.0),
        operator("Scan", examples=12),
    ),
]

RARE = [
    Mistake(
        "upper bound has no gradient", Clip.vjp, rewrite("(A > B) | (C > B)", "C > B"), operator("Clip", examples=10)
    ),
    Mistake("unread piece taken for ones", Split.vjp, wrap("zeros(_)", ones), operator("Split")),
    Mistake("known exponent counts half", arithmetic, keep("X * 2.0"), operator("Pow")),
    Mistake("inverse of a large matrix not transposed", Det.vjp, keep("swapped(X)"), operator("Det", examples=10)),
    Mistake("equal values take each other's gradient", Scatter.vjp, never('_ == "none"'), operator("ScatterND")),
    Mistake(
        "gradient for an operand that is not there",
        NegativeLogLikelihoodLoss.vjp,
        off_by_one("_[: X + len(_)]"),
        operator("NegativeLogLikelihoodLoss"),
    ),
]

IN_RULES = [*RULES, *SHAPES, *CONTRACTIONS, *LAYERS, *RARE]
