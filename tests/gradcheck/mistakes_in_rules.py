"""Mistakes in gradient rules, decompositions and references of operators."""

from __future__ import annotations

import test_laws as laws
from planting import Mistake, edit, operator, rule, suite

from glowtrain.graph import reverse
from glowtrain.ops import scan_gradient
from glowtrain.ops.convolution import convolution
from glowtrain.ops.indexing import arg_extrema as along_axis
from glowtrain.ops.normalize import batch_and_layer as normalization
from glowtrain.ops.objective import loss
from glowtrain.ops.random import philox as random
from glowtrain.ops.sequence import recurrent

RULES = [
    Mistake("sign", rule("Tanh", "(g * (1.0", "(-g * (1.0"), operator("Tanh")),
    Mistake("factor near 1", rule("Tanh", "1.0 - y", "1.0001 - y"), operator("Tanh")),
    Mistake("input for output", rule("Sigmoid", "g * y * (1.0 - y)", "g * x * (1.0 - x)"), operator("Sigmoid")),
    Mistake("dropped factor", rule("Exp", "g * y", "g"), operator("Exp")),
    Mistake("missing half", rule("Sqrt", "g * 0.5 / y", "g / y"), operator("Sqrt")),
    Mistake(
        "swapped arguments", rule("Div", "return first, -(first * y)", "return -(first * y), first"), operator("Div")
    ),
    Mistake("sign of the second operand", rule("Sub", "g, -g", "g, g"), operator("Sub")),
    Mistake(
        "gradient of an operand lost", rule("Pow", "Cast(exponent.dtype)(g * y * _log(base))", "None"), operator("Pow")
    ),
    Mistake("missing mask", rule("Relu", "Where()(y > 0.0, g, 0.0)", "g"), operator("Relu")),
    Mistake("inverted mask", rule("LeakyRelu", "x > 0.0", "x < 0.0"), operator("LeakyRelu")),
    Mistake("attribute ignored", rule("Elu", "y + self.alpha", "y + 1.0"), operator("Elu")),
    Mistake("wrong mode", rule("Gelu", '== "none"', '!= "none"'), operator("Gelu")),
    Mistake(
        "swapped branches",
        rule(
            "Where",
            "self(condition, g, 0.0), self(condition, 0.0, g)",
            "self(condition, 0.0, g), self(condition, g, 0.0)",
        ),
        operator("Where"),
    ),
    Mistake("slope without its input", rule("PRelu", "g * x)", "g)"), operator("PRelu")),
    Mistake(
        "gradient outside of the bounds",
        rule("Clip", "Where()((x >= low) & (x <= high), g, 0.0)", "g"),
        operator("Clip"),
    ),
    Mistake(
        "whole gradient to every operand",
        rule("Max", "Where()(c, share, 0.0) for c in chosen", "g for c in chosen"),
        operator("Max"),
    ),
    Mistake("derivative of abs without sign", rule("Abs", "g * Sign()(x)", "g"), operator("Abs")),
    Mistake(
        "upstream gradient ignored",
        rule("Softmax", "weighted = g * y", "weighted = (g * 0.0 + 1.0) * y"),
        operator("Softmax"),
    ),
    Mistake("wrong axis", rule("Softmax", "axes=(self.axis,)", "axes=(0,)"), operator("Softmax")),
    Mistake(
        "dropped term",
        rule("LogSoftmax", "g - Exp()(y) * ReduceSum(axes=(self.axis,))(g)", "g"),
        operator("LogSoftmax"),
    ),
    Mistake(
        "constant for second order",
        rule("Tanh", "y * y", "__import__('glowtrain').stop_gradient(y) * y"),
        operator("Tanh", "second order"),
    ),
    Mistake(
        "detached in the second order",
        rule("Exp", "g * y", "g * __import__('glowtrain').stop_gradient(y)"),
        operator("Exp", "second order"),
    ),
]

SHAPES = [
    Mistake("missing 1/n", rule("ReduceMean", " / self.count(x.type)", ""), operator("ReduceMean")),
    Mistake("norm without division", rule("ReduceL2", "g / Where()(zero, 1.0, y)", "g"), operator("ReduceL2")),
    Mistake(
        "log-sum-exp without weights",
        rule("ReduceLogSumExp", " * Exp()(x - self.kept(y, x))", " + 0.0 * x"),
        operator("ReduceLogSumExp"),
    ),
    Mistake(
        "every element counts as the maximum",
        rule("ReduceMax", "chosen * (self", "(chosen * 0.0 + 1.0) * (self"),
        operator("ReduceMax"),
    ),
    Mistake("wrong scan direction", rule("CumSum", "not self.reverse", "self.reverse"), operator("CumSum")),
    Mistake(
        "exclusive flag lost",
        edit(along_axis.CumSum, "vjp", ("reverse=not", "exclusive=False, reverse=not")),
        operator("CumSum"),
    ),
    Mistake(
        "permutation not inverted",
        rule("Transpose", "tuple(order.index(axis) for axis in range(x.rank))", "tuple(order)"),
        operator("Transpose"),
    ),
    Mistake(
        "pieces in the wrong order",
        rule("Concat", "return parts", "return parts[::-1] if len(set(sizes)) == 1 else parts"),
        operator("Concat"),
    ),
    Mistake("backward steps taken forwards", rule("Slice", "reverse(g, backward)", "g"), operator("Slice")),
    Mistake(
        "margins of a reflection dropped",
        rule("Pad", "for run in runs(positions)]", "for run in runs(positions)][:1]", "_fold"),
        operator("Pad"),
    ),
    Mistake(
        "constant of the padding has no gradient",
        rule("Pad", "self._value_gradient(g, x, v)", "0.0 * v"),
        operator("Pad"),
    ),
    Mistake(
        "repeated index overwrites",
        rule("glowtrain.ScatterAdd", "np.add.at(result, where, updates)", "result[where] = updates", "reference"),
        operator("Gather"),
    ),
    Mistake(
        "update without its gradient",
        rule("ScatterElements", "return g, None, self.gather(g, indices)", "return g, None, None"),
        operator("ScatterElements"),
    ),
    Mistake(
        "overwritten places keep their gradient",
        rule("ScatterElements", 'self.onto(g, indices, zeros, "none"), None', "g, None"),
        operator("ScatterElements"),
    ),
    Mistake(
        "gradient of the chosen k in order of rank",
        rule(
            "TopK",
            "y[1], g[0])",
            "y[1] * 0 + __import__('glowtrain').constant(__import__('numpy').indices(y[1].shape)[self.axis]), g[0])",
        ),
        operator("TopK"),
    ),
    Mistake(
        "broadcast sum keeps one element", edit(reverse, "unbroadcast", ("ReduceSum", "ReduceMax")), operator("Add")
    ),
    Mistake("broadcast sum is a mean", edit(reverse, "unbroadcast", ("ReduceSum", "ReduceMean")), operator("Mul")),
    Mistake(
        "broadcast sum over the leading axes only",
        edit(reverse, "unbroadcast", ("axes = (*range(extra), *stretched)", "axes = (*range(extra),)")),
        operator("Add"),
    ),
]

CONTRACTIONS = [
    Mistake(
        "transposed factor",
        rule("MatMul", "g @ swapped(right)", "g @ (right if right.shape[-1] == right.shape[-2] else swapped(right))"),
        operator("MatMul"),
    ),
    Mistake(
        "transposition flag ignored",
        rule("Gemm", "transA=self.transB, transB=True", "transA=False, transB=True"),
        operator("Gemm"),
    ),
    Mistake(
        "alpha dropped",
        rule("Gemm", "da = Gemm(alpha=self.alpha, transB=not", "da = Gemm(transB=not"),
        operator("Gemm"),
    ),
    Mistake("beta dropped", rule("Gemm", "dc if self.beta == 1 else dc * self.beta", "dc"), operator("Gemm")),
    Mistake(
        "dilations ignored",
        edit(convolution, "_weight_gradient", ("geometry.dilations", "(1,) * len(geometry.kernel)")),
        operator("Conv"),
    ),
    Mistake(
        "padding at the wrong end",
        edit(
            convolution,
            "_input_gradient",
            ("geometry.pads", "geometry.pads[len(geometry.kernel):] + geometry.pads[: len(geometry.kernel)]"),
        ),
        operator("Conv"),
    ),
    Mistake(
        "bias gradient of one example",
        edit(
            convolution,
            "_bias_gradients",
            ("ReduceSum(axes=axes, keepdims=False)(g)", "ReduceSum(axes=axes, keepdims=False)(g) / g.shape[0]"),
        ),
        operator("Conv"),
    ),
    Mistake(
        "winner of a window ignored",
        rule(
            "glowtrain.MaxPoolGradient",
            "np.add.at(flat, indices.reshape(-1)",
            "np.add.at(flat, np.sort(indices.reshape(-1))",
            "reference",
        ),
        operator("MaxPool"),
    ),
    Mistake(
        "overlapping windows overwrite",
        rule(
            "glowtrain.MaxPoolGradient",
            "np.add.at(flat, indices.reshape(-1), widened(g).reshape(-1))",
            "flat[indices.reshape(-1)] = widened(g).reshape(-1)",
            "reference",
        ),
        operator("MaxPool"),
    ),
    Mistake(
        "padding counted in the mean",
        rule(
            "AveragePool", "self.counts(geometry)", "self.replace(count_include_pad=True).counts(geometry)", "decompose"
        ),
        operator("AveragePool"),
    ),
]

LAYERS = [
    Mistake(
        "mean held constant",
        rule("LayerNormalization", "scaled - mean_of(scaled) - normal", "scaled - normal"),
        operator("LayerNormalization"),
    ),
    Mistake(
        "deviation held constant",
        rule("RMSNormalization", "scaled - normal * ReduceMean(axes=self.rows(x))(scaled * normal)", "scaled"),
        operator("RMSNormalization"),
    ),
    Mistake(
        "scale missing",
        rule("RMSNormalization", "g_wide * as_dtype(scale, wide.dtype)", "g_wide"),
        operator("RMSNormalization"),
    ),
    Mistake(
        "stale statistics in the gradient",
        edit(
            normalization.BatchNormalization,
            "_training_vjp",
            ("g_wide - along_bias / n - normal * (along_scale / n)", "g_wide"),
        ),
        operator("BatchNormalization"),
    ),
    Mistake(
        "momentum of the statistics reversed",
        edit(
            normalization.BatchNormalization,
            "_blend",
            (
                "wide * self.momentum + batch * (1 - self.momentum)",
                "wide * (1 - self.momentum) + batch * self.momentum",
            ),
        ),
        operator("BatchNormalization", "evaluator"),
    ),
    Mistake(
        "stale statistics in the result",
        edit(normalization.BatchNormalization, "decompose", ("self._blend(mean, batch_mean)", "mean")),
        operator("BatchNormalization", "evaluator"),
    ),
    Mistake(
        "mask of dropout missing",
        edit(
            random, "_dropout_grads", ("Where()(y[1], g / as_dtype(kept, x.dtype), 0.0)", "g / as_dtype(kept, x.dtype)")
        ),
        operator("Dropout"),
    ),
    Mistake(
        "scale of dropout missing",
        edit(random, "_dropout_grads", ("g / as_dtype(kept, x.dtype)", "g")),
        operator("Dropout"),
    ),
    Mistake(
        "ignored labels count",
        edit(
            loss.NegativeLogLikelihoodLoss, "pull_weights", ("each = Where()(self._ignored(labels), 0.0, each)", "pass")
        ),
        operator("NegativeLogLikelihoodLoss", examples=60),
    ),
    Mistake(
        "mean over the batch and not the weights",
        edit(
            loss.SoftmaxCrossEntropyLoss,
            "pull",
            ("each / self._together(labels, counts)", "each / float(labels.type.size)"),
        ),
        operator("SoftmaxCrossEntropyLoss"),
    ),
    Mistake(
        "label not subtracted",
        rule("SoftmaxCrossEntropyLoss", " - as_dtype(is_label(labels, scores.shape[1]), each.dtype)", ""),
        operator("SoftmaxCrossEntropyLoss"),
    ),
    Mistake(
        "scale of attention missing",
        rule("Attention", "as_dtype(q, wide) *", "as_dtype(q, wide) + 0.0 *", "decompose"),
        operator("Attention", "decomposition"),
    ),
    Mistake(
        "mask of attention missing",
        rule("Attention", "biased = hidden.apply(capped)", "biased = capped", "decompose"),
        operator("Attention", "decomposition"),
    ),
    Mistake(
        "gates in the wrong order",
        edit(recurrent.LSTM, "cell", ("i, o, forget, new =", "i, forget, o, new =")),
        suite(laws.test_lstm_follows_onnx),
    ),
    Mistake(
        "update gate inverted",
        edit(recurrent.GRU, "cell", ("(1 - z) * new + z * h", "z * new + (1 - z) * h")),
        suite(laws.test_gru_follows_onnx),
    ),
    Mistake(
        "reversed direction runs forwards",
        edit(recurrent.Recurrent, "_direction", ('self.direction == "reverse" or place == 1', "False")),
        operator("RNN", "decomposition"),
    ),
    Mistake(
        "slices of a scan read in the wrong direction",
        edit(
            scan_gradient.ScanGradient, "_direction", ("self.scan.input_directions[", "1 - self.scan.input_directions[")
        ),
        operator("Scan"),
    ),
    Mistake(
        "final cotangent of a state lost",
        edit(scan_gradient.ScanGradient, "_final", ("if cotangent is None", "if True")),
        operator("Scan"),
    ),
    Mistake(
        "sum over time lost",
        edit(
            scan_gradient.ScanGradient,
            "gradients",
            ("[total + self._step_gradient(value) for", "[self._step_gradient(value) + 0.0 * total for"),
        ),
        operator("GRU", examples=12),
    ),
]

IN_RULES = [*RULES, *SHAPES, *CONTRACTIONS, *LAYERS]
