"""Elementwise functions, reductions and functions of rows."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from counterparts import TORCH_NAMES, axes_of, counterpart, plain, when
from torch import Tensor
from torch.nn import functional

from glowtrain.graph import Sample
from glowtrain.types import f64

PLAIN = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Log", "Neg", "Reciprocal",
    "Relu", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
]  # fmt: skip
for _name in PLAIN:
    plain(_name, getattr(torch, _name.lower()))

plain("Add", torch.add)
plain("Sub", torch.sub)
plain("Mul", torch.mul)
plain("Div", lambda x, y: torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc"))
plain("MatMul", torch.matmul)
plain("Where", torch.where)
plain("Identity", torch.clone)
plain("Pow", lambda x, y: torch.pow(x, y if x.is_floating_point() else y.to(x.dtype)))
plain("Max", lambda *x: functools.reduce(torch.maximum, x))
plain("Min", lambda *x: functools.reduce(torch.minimum, x))
plain("Sum", lambda *x: functools.reduce(torch.add, x))
plain("Mean", lambda *x: torch.stack(torch.broadcast_tensors(*x)).mean(0))
plain("PRelu", lambda x, slope: functional.relu(x) - slope * functional.relu(-x))
plain("glowtrain.FusedMultiplyAdd", lambda x, y, z: torch.addcmul(z, x, y))
plain("HardSwish", functional.hardswish)
plain("Mish", functional.mish)
plain("Softsign", functional.softsign)
plain("Softplus", functional.softplus)
plain("Det", torch.linalg.det)
plain("glowtrain.Inverse", torch.linalg.inv)
plain("com.microsoft.BiasGelu", lambda x, bias: functional.gelu(x + bias))
plain("com.microsoft.Gelu", functional.gelu)
plain("com.microsoft.FastGelu", lambda x, bias=0: functional.gelu(x + bias, approximate="tanh"))


@counterpart("Mod")
def mod(op: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x, y) if op.fmod else torch.remainder(x, y)


@counterpart("Clip")
def clip(op: Any, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x.clone() if low is None and high is None else torch.clamp(x, low, high)


def _alpha_in_f32(sample: Sample) -> Sample:
    """celu's gradient rounds alpha to f32, its value does not."""
    op: Any = sample.operator
    return Sample(op.replace(alpha=float(np.float32(op.alpha))), sample.inputs)


@counterpart("Celu", fitted=_alpha_in_f32)
def celu(op: Any, x: Tensor) -> Tensor:
    return functional.celu(x, op.alpha)


@counterpart("Elu")
def elu(op: Any, x: Tensor) -> Tensor:
    return functional.elu(x, op.alpha)


@counterpart("Selu")
def selu(op: Any, x: Tensor) -> Tensor:
    """PyTorch's with its two constants; Elu, scaled, with others."""
    return op.gamma * functional.elu(x, op.alpha)


@counterpart("Gelu")
def gelu(op: Any, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=op.approximate)


@counterpart("LeakyRelu")
def leaky_relu(op: Any, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, op.alpha)


@counterpart("ThresholdedRelu")
def thresholded_relu(op: Any, x: Tensor) -> Tensor:
    return functional.threshold(x, op.alpha, 0.0)


@counterpart("Shrink")
def shrink(op: Any, x: Tensor) -> Tensor:
    """Hardshrink, moved by the bias."""
    kept = functional.hardshrink(x, op.lambd)
    return kept - op.bias * torch.sign(kept)


@counterpart("HardSigmoid")
def hard_sigmoid(op: Any, x: Tensor) -> Tensor:
    return functional.hardtanh(op.alpha * x + op.beta, 0.0, 1.0)


@counterpart("Swish", "com.microsoft.QuickGelu")
def swish(op: Any, x: Tensor) -> Tensor:
    return x * torch.sigmoid(op.alpha * x)


@counterpart("SwiGLU")
def swiglu(op: Any, gate: Tensor, value: Tensor) -> Tensor:
    return functional.silu(op.alpha * gate) / op.alpha * value


@counterpart("Dropout", "glowtrain.TrainingDropout")
def dropout(op: Any, x: Tensor, ratio: Tensor | None = None, *random: Tensor) -> Any:
    """The mask is the operator's: two generators cannot agree."""
    if not getattr(op, "training_mode", True):
        return functional.dropout(x, training=False), torch.ones_like(x, dtype=torch.bool)
    operands = [None if t is None else t.detach().numpy() for t in (x, ratio, *random)]
    mask = torch.from_numpy(np.asarray(op.reference(*operands)[1]))
    return x * mask / (1 - (0.5 if ratio is None else ratio.reshape(()))), mask


TYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}


def _castable(sample: Sample) -> Sample | None:
    """To a float type of PyTorch's, for f64 where the drawn one is none; only that one has gradients to compare."""
    op: Any = sample.operator
    if np.asarray(sample.inputs[0]).dtype.name not in TORCH_NAMES:
        return None
    return Sample(op.replace(to=op.to if op.to.name in TYPES else f64), sample.inputs)


@counterpart("Cast", fitted=_castable)
def cast(op: Any, x: Tensor) -> Tensor:
    return x.to(TYPES[op.to.name])


def _like_f64(sample: Sample) -> Sample | None:
    x = np.asarray(sample.inputs[0])
    return Sample(sample.operator, (x, np.zeros(2))) if x.dtype.name in TORCH_NAMES else None


@counterpart("CastLike", fitted=_like_f64)
def cast_like(op: Any, x: Tensor, like: Tensor) -> Tensor:
    return x.type_as(like)


# --- reductions ------------------------------------------------------------------------------------------------------


def reduced(op: Any, x: Tensor) -> tuple[int, ...]:
    """The axes that are reduced."""
    return axes_of(x, op.axes) if op.axes else () if op.noop_with_empty_axes else axes_of(x, None)


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


REDUCTIONS = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keep),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: torch.linalg.vector_norm(x, 1, axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "ReduceLogSumExp": torch.logsumexp,
}


def _reduce(key: str) -> None:
    @counterpart(key)
    def function(op: Any, x: Tensor) -> Tensor:
        """Over no axes: over a new one, for PyTorch would take all."""
        axes = reduced(op, x)
        return REDUCTIONS[key](x, axes, op.keepdims) if axes else REDUCTIONS[key](x[..., None], (-1,), False)


for _name in REDUCTIONS:
    _reduce(_name)


@counterpart("CumSum")
def cumulative_sum(op: Any, x: Tensor) -> Tensor:
    turned = x.flip(op.axis) if op.reverse else x
    sums = torch.cumsum(turned, op.axis)
    sums = sums - turned if op.exclusive else sums
    return sums.flip(op.axis) if op.reverse else sums


@counterpart("CumProd")
def cumulative_product(op: Any, x: Tensor) -> Tensor:
    turned = (x.flip(op.axis) if op.reverse else x).movedim(op.axis, 0)
    if op.exclusive:
        turned = torch.cat([torch.ones_like(turned[:1]), turned[:-1]])
    products = torch.cumprod(turned, 0).movedim(0, op.axis)
    return products.flip(op.axis) if op.reverse else products


@counterpart("glowtrain.LinearRecurrence")
def linear_recurrence(op: Any, a: Tensor, b: Tensor) -> Tensor:
    factors, terms = (x.movedim(op.axis, 0) for x in (a, b))
    places = range(len(terms))[::-1] if op.reverse else range(len(terms))
    rows, last = {}, torch.zeros_like(terms[0])
    for place in places:
        rows[place] = last = torch.addcmul(terms[place], factors[place], last)
    return torch.stack([rows[place] for place in range(len(terms))]).movedim(0, op.axis)


@counterpart("Softmax")
def softmax(op: Any, x: Tensor) -> Tensor:
    return functional.softmax(x, op.axis)


@counterpart("LogSoftmax")
def log_softmax(op: Any, x: Tensor) -> Tensor:
    return functional.log_softmax(x, op.axis)


@counterpart("com.microsoft.BiasSoftmax")
def bias_softmax(op: Any, x: Tensor, bias: Tensor) -> Tensor:
    axis = op.axis % x.ndim
    return functional.softmax((x + bias).flatten(axis), -1).reshape(x.shape)


@counterpart("LpNormalization")
def lp_normalization(op: Any, x: Tensor) -> Tensor:
    return functional.normalize(x, op.p, op.axis, eps=0.0)


# --- products --------------------------------------------------------------------------------------------------------


@counterpart("Gemm")
def gemm(op: Any, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    left, right = (x.T if turned else x for x, turned in ((a, op.transA), (b, op.transB)))
    if c is None:
        return op.alpha * torch.mm(left, right)
    return torch.addmm(c, left, right, beta=op.beta, alpha=op.alpha)


def activated(x: Tensor, name: str, parameters: tuple[float, ...]) -> Tensor:
    if name == "Elu":
        return functional.elu(x, *parameters)
    if name == "HardSigmoid":
        alpha, beta = (*parameters, *(0.2, 0.5)[len(parameters) :])
        return functional.hardtanh(alpha * x + beta, 0.0, 1.0)
    return {"": torch.clone, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid}[name](x)


@counterpart("com.microsoft.FusedGemm")
def fused_gemm(op: Any, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    given = [parameter for parameter in (op.activation_alpha, op.activation_beta) if parameter is not None]
    return activated(gemm(op, a, b, c), op.activation, tuple(given))


def _swapped(x: Tensor, wanted: bool) -> Tensor:
    return x.transpose(-1, -2) if wanted and x.ndim > 1 else x


@counterpart("com.microsoft.FusedMatMul")
def fused_matmul(op: Any, a: Tensor, b: Tensor) -> Tensor:
    def arranged(x: Tensor, swap: bool, batch: bool) -> Tensor:
        return _swapped(x.movedim(0, -2) if batch and x.ndim > 2 else x, swap)

    return op.alpha * torch.matmul(arranged(a, op.transA, op.transBatchA), arranged(b, op.transB, op.transBatchB))


@counterpart("com.microsoft.TransposeMatMul")
def transpose_matmul(op: Any, a: Tensor, b: Tensor) -> Tensor:
    left, right = (
        x.transpose(-1, -2) if turned and x.ndim > 1 else x for x, turned in ((a, op.transA), (b, op.transB))
    )
    return op.alpha * torch.matmul(left, right)


@counterpart("Einsum")
def einsum(op: Any, *operands: Tensor) -> Tensor:
    return torch.einsum(op.equation, *operands)


@counterpart("glowtrain.FourierStep")
def fourier_step(op: Any, x: Tensor, table: Tensor) -> Tensor:
    m, r, c, s = x.shape
    a = table.shape[1]
    split = x.reshape(m, a, r // a, c, s)
    y = torch.einsum("mhjci,jhcdk->mjdki", split, table.expand(r // a, *table.shape[1:]))
    return y.reshape(m, r // a, table.shape[3], -1)


# --- transforms ------------------------------------------------------------------------------------------------------


def _complex(x: Tensor) -> Tensor:
    return x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


@counterpart("DFT")
def dft(op: Any, x: Tensor) -> Tensor:
    axis, z = op.axis % x.ndim, _complex(x)
    if op.onesided and op.inverse:
        return torch.fft.irfft(z, op.dft_length or 2 * (x.shape[axis] - 1), axis)[..., None]
    transform = torch.fft.rfft if op.onesided else torch.fft.ifft if op.inverse else torch.fft.fft
    return torch.view_as_real(transform(z, op.dft_length, axis).resolve_conj())


@counterpart("STFT")
def stft(op: Any, signal: Tensor, window: Tensor | None = None) -> Tensor:
    length = op.frame_length or (signal.shape[1] if window is None else window.shape[0])
    found = torch.stft(
        _complex(signal), length, op.frame_step, length, window, center=False, onesided=op.onesided, return_complex=True
    )
    return torch.view_as_real(found.transpose(1, 2))


@counterpart("glowtrain.Frames")
def frames(op: Any, x: Tensor) -> Tensor:
    return x.unfold(1, op.length, op.step).transpose(2, 3)


@counterpart("glowtrain.OverlapAdd")
def overlap_add(op: Any, g: Tensor) -> Tensor:
    b, count, length, c = g.shape
    columns = g.permute(0, 3, 2, 1).reshape(b, c * length, count)
    covered = (count - 1) * op.step + length if count else 0
    if not covered:
        return torch.zeros(b, op.places, c, dtype=g.dtype)
    y = functional.fold(columns, (1, covered), (1, length), stride=(1, op.step))[:, :, 0]
    return functional.pad(y, (0, op.places - covered)).transpose(1, 2)


# --- tables (ai.onnx.ml) ---------------------------------------------------------------------------------------------

ML = "ai.onnx.ml."


def _row(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@counterpart(ML + "Scaler")
def scaler(op: Any, x: Tensor) -> Tensor:
    return (x - _row(op.offset or 0.0)) * _row(op.scale or 1.0)


@counterpart(ML + "Normalizer")
def normalizer(op: Any, x: Tensor) -> Tensor:
    if op.norm == "MAX":
        return x / x.amax(-1, keepdim=True)
    return functional.normalize(x, {"L1": 1, "L2": 2}[op.norm], -1)


@counterpart(ML + "FeatureVectorizer")
def feature_vectorizer(op: Any, *tables: Tensor) -> Tensor:
    return torch.cat([torch.atleast_2d(x if x.is_floating_point() else x.float()) for x in tables], 1)


@counterpart(ML + "ArrayFeatureExtractor")
def array_feature_extractor(op: Any, x: Tensor, indices: Tensor) -> Tensor:
    return torch.index_select(torch.atleast_2d(x), -1, indices.reshape(-1))


@counterpart(ML + "Imputer", fitted=when(lambda op, inputs: inputs[0].dtype == np.float64))
def imputer(op: Any, x: Tensor) -> Tensor:
    value = op.replaced_value_float
    return torch.where(torch.isnan(x) if math.isnan(value) else x == value, _row(op.imputed_value_floats), x)


TRANSFORMS = {"NONE": torch.clone, "LOGISTIC": torch.sigmoid, "SOFTMAX": lambda x: functional.softmax(x, -1)}
known_transform = when(lambda op, inputs: op.post_transform in TRANSFORMS)


@counterpart(ML + "LinearRegressor", fitted=known_transform)
def linear_regressor(op: Any, x: Tensor) -> Tensor:
    weight = _row(op.coefficients).reshape(op.targets, -1)
    y = functional.linear(torch.atleast_2d(x).double(), weight, _row(op.intercepts) if op.intercepts else None)
    return TRANSFORMS[op.post_transform](y)


def _several(sample: Sample) -> Sample | None:
    op: Any = sample.operator
    rows = len(op.coefficients) // np.asarray(sample.inputs[0]).shape[-1]
    return sample if rows > 1 and op.post_transform in TRANSFORMS else None


@counterpart(ML + "LinearClassifier", fitted=_several)
def linear_classifier(op: Any, x: Tensor) -> Any:
    weight = _row(op.coefficients).reshape(-1, x.shape[-1])
    y = functional.linear(torch.atleast_2d(x).double(), weight, _row(op.intercepts) if op.intercepts else None)
    return None, TRANSFORMS[op.post_transform](y)


@counterpart(ML + "SVMRegressor", fitted=known_transform)
def svm_regressor(op: Any, x: Tensor) -> Tensor:
    table, weights = torch.atleast_2d(x).double(), _row(op.coefficients)
    if not op.n_supports:
        scores = functional.linear(table, weights[None])
    else:
        vectors = _row(op.support_vectors).reshape(op.n_supports, -1)
        gamma, offset, degree = op.kernel_params
        products = table @ vectors.T
        kernels = {
            "LINEAR": lambda: products,
            "POLY": lambda: (gamma * products + offset) ** degree,
            "SIGMOID": lambda: torch.tanh(gamma * products + offset),
            "RBF": lambda: torch.exp(-gamma * (table[:, None] - vectors).square().sum(-1)),
        }
        scores = kernels[op.kernel_type]() @ weights[:, None]
    scores = scores + op.rho[0]
    return TRANSFORMS[op.post_transform](torch.where(scores > 0, 1.0, -1.0).double() if op.one_class else scores)
