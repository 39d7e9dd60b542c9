"""Samples: arithmetic, comparisons, activations, choices, conversions, reductions, made and random tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from aten_samples import exactly, function, normal, positive, real, truth, whole

aten = torch.ops.aten


def _without(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        first = x * y
        with torch.enable_grad():
            second = x * y + first
        with torch.no_grad():
            third = x.sin()[0]
        fourth = y.exp()
    return first * 2 + second * 3 + third * x + fourth * y


def _set(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 1
    z[1] = y
    z[:, 1:3] += 1
    z[..., 0] = 0.5
    z[::2] *= 2
    return z


for name in (
    "abs",
    "asinh",
    "atan",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "neg",
    "relu",
    "sigmoid",
    "sin",
    "sinh",
    "square",
    "tanh",
    "positive",
    "deg2rad",
    "rad2deg",
    "sinc",
    "frac",
):
    function(name, getattr(torch, name), real(3, 4))
for name in ("ceil", "floor", "round", "sign", "trunc", "fix", "sgn"):
    function(name, getattr(torch, name), real(3, 4), gradient=False)
for name in ("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"):
    function(name, getattr(torch, name), positive(3, 4))
function("acosh", torch.acosh, real(3, 4, low=1.2, high=3))
function("small expm1 and log1p", lambda x: (torch.expm1(x), torch.log1p(x)), real(9, low=-1e-4, high=1e-4))
for name in ("abs", "neg", "sign", "relu", "square"):
    function(f"{name} of integers", getattr(torch, name), whole(3, 4, low=-3))
for name in ("sqrt", "exp", "sigmoid", "sin", "reciprocal"):
    function(f"{name} of integers becomes float", getattr(torch, name), whole(3, 4, low=1))
function("sinc at 0", torch.sinc, exactly(0.0, -0.0, 0.5, 2.0))
function(
    "nan and infinite", lambda x: (x.isnan(), x.isinf(), x.isfinite()), exactly(1.0, math.nan, math.inf, -math.inf)
)
function("isposinf isneginf", lambda x: (torch.isposinf(x), torch.isneginf(x)), exactly(1.0, math.inf, -math.inf))
function(
    "nan_to_num", lambda x: x.nan_to_num(0.5, 9.0, -9.0), exactly(1.0, math.nan, math.inf, -math.inf), gradient=False
)

for name in ("add", "sub", "mul"):
    operate = getattr(torch, name)
    function(f"{name} broadcasts", operate, real(2, 1, 4), real(3, 1))
    function(f"{name} of integers", operate, whole(2, 3), whole(3))
    function(f"{name} promotes", operate, whole(2, 3), real(3))
    function(f"{name} of a scalar", lambda x, operate=operate: operate(x, 1.5), real(2, 3))
    function(f"{name} of integers and a float", lambda x, operate=operate: operate(x, 1.5), whole(2, 3))
    function(f"{name} of float64 of no axes and float32", operate, real(dtype=torch.float64), real(3))
    function(f"{name} in float64", operate, real(2, 3, dtype=torch.float64), real(3))
function("a scalar on the left", lambda x: (2.5 + x, 2.5 - x, 2.5 * x, 2.5 / x), positive(2, 3))
function(
    "alpha",
    lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=0.5), torch.rsub(x, y, alpha=3)),
    real(2, 3),
    real(3),
)
function("rsub of a scalar", lambda x: torch.rsub(x, 2.0, alpha=2), real(2, 3))
function(
    "scalar overloads",
    lambda x: (
        aten.add.Scalar(x, 2, 3),
        aten.sub.Scalar(x, 2),
        aten.mul.Scalar(x, 2),
        aten.div.Scalar(x, 2),
        aten.rsub.Scalar(x, 2),
    ),
    real(3),
)
function(
    "scalar division with a mode",
    lambda x: (aten.div.Scalar_mode(x, 2, rounding_mode="floor"), aten.div.Scalar_mode(x, 2, rounding_mode=None)),
    real(3),
)
function("div of integers becomes float", torch.div, whole(2, 3), whole(3, low=1))
function(
    "div modes",
    lambda x, y: [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc", None)],
    real(4, 3),
    positive(3),
)
function(
    "div modes of integers",
    lambda x, y: [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")],
    whole(4, 5, low=-9, below=9),
    whole(5, low=1),
)
function(
    "div modes of negative integers",
    lambda x, y: [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")],
    whole(4, 5, low=-9, below=9),
    whole(5, low=-4, below=0),
)
function(
    "floor_divide", lambda x, y: (x // y, x // 0.7, torch.floor_divide(x, y)), real(4, 3), positive(3), gradient=False
)
function(
    "floor_divide of integers", lambda x, y: (x // y, x // 3, x // -3), whole(4, 5, low=-9, below=9), whole(5, low=1)
)
function("floor_divide by a scalar's overload", lambda x: aten.floor_divide.Scalar(x, 2), whole(4, low=-9))
function("remainder", lambda x, y: (x % y, x % 0.7, torch.remainder(x, -0.7)), real(4, 3), positive(3))
function(
    "remainder of integers",
    lambda x, y: (x % y, x % 3, torch.remainder(x, -3)),
    whole(4, 5, low=-9, below=9),
    whole(5, low=1),
)
function("remainder of a scalar", lambda x: 5.0 % x, positive(3), gradient=False)
function("fmod", lambda x, y: (torch.fmod(x, y), torch.fmod(x, 0.7)), real(4, 3), positive(3))
function(
    "fmod of integers", lambda x, y: (torch.fmod(x, y), torch.fmod(x, 3)), whole(4, 5, low=-9, below=9), whole(5, low=1)
)
function("pow of small exponents", lambda x: [x**e for e in (0, 1, 2, 3, 4, -1, -2)], positive(2, 3))
function("pow of negative bases", lambda x: [x**e for e in (2, 3, 4, 2.0, 3.0)], real(2, 3))
function("pow of halves", lambda x: [x**e for e in (0.5, -0.5, 1.5, 2.5)], positive(2, 3))
function("pow of a scalar", lambda x: (2**x, 0.5**x), real(2, 3))
function("pow of integers", lambda x, y: (x**2, x**3, x**y, x**0), whole(4, 5, low=-4), whole(5, below=4))
function("pow of integers by a float", lambda x: (x**0.5, x**2.0), whole(4, low=1))
function("float_power", lambda x: torch.float_power(x, 2), positive(3))
function(
    "atan2 on axes", torch.atan2, exactly(0.0, 0.0, 1.0, -1.0, 0.0), exactly(1.0, -1.0, 0.0, 0.0, 0.0), gradient=False
)
function("copysign", lambda x, y: (torch.copysign(x, y), torch.copysign(x, -1.0)), real(4), real(4), constants=(1,))
function("copysign of zeros", torch.copysign, exactly(1.0, 2.0), exactly(-0.0, 0.0), gradient=False)
function(
    "fmax of nan",
    lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)),
    exactly(1.0, math.nan, 2.0),
    exactly(math.nan, 1.0, 1.0),
    gradient=False,
)
function("maximum of integers and floats", torch.maximum, whole(4), real(4))
for name in ("eq", "ne", "gt", "ge", "lt", "le"):
    compare = getattr(torch, name)
    function(f"{name}", compare, whole(3, 4), whole(4))
    function(f"{name} of floats", compare, real(3, 4), real(4))
    function(f"{name} of integers and floats", compare, whole(3, 4), real(4))
    function(f"{name} of a scalar", lambda x, compare=compare: compare(x, 2), whole(3, 4))
    function(f"{name} of integers and a fraction", lambda x, compare=compare: compare(x, 1.5), whole(3, 4))
    function(f"{name} of floats and a scalar", lambda x, compare=compare: compare(x, 0), real(3, 4))
function("eq of booleans", lambda x, y: (x == y, x != y), truth(3, 4), truth(4))
for name in ("and", "or", "xor"):
    function(f"logical_{name}", getattr(torch, f"logical_{name}"), truth(3, 4), truth(4))
    function(f"logical_{name} of numbers", getattr(torch, f"logical_{name}"), whole(3, 4, below=2), real(4))
    function(f"bitwise_{name}", getattr(torch, f"bitwise_{name}"), truth(3, 4), truth(4))
    function(f"bitwise_{name} of integers", getattr(torch, f"bitwise_{name}"), whole(3, 4, below=99), whole(4))
    function(
        f"bitwise_{name} of a scalar",
        lambda x, name=name: getattr(torch, f"bitwise_{name}")(x, 6),
        whole(3, 4, below=99),
    )
    function(
        f"bitwise_{name} of a scalar's overload",
        lambda x, name=name: getattr(aten, f"bitwise_{name}").Scalar(x, 6),
        whole(3, below=99),
    )
function("not", lambda x, y: (~x, ~y, torch.logical_not(x), torch.logical_not(y)), truth(3), whole(3, below=3))
function("logical_not of floats", torch.logical_not, exactly(0.0, 1.0, -2.0))
function("shifts", lambda x: (x << 2, x >> 1), whole(5, below=99))
function("shifts of negative numbers", lambda x, y: (x << y, x >> y), whole(5, low=-99), whole(5, below=4))
function(
    "shifts by name", lambda x, y: (x.bitwise_left_shift(y), x.bitwise_right_shift(y)), whole(5), whole(5, below=4)
)
function("shifts by a number", lambda x: (x.bitwise_left_shift(2), x.bitwise_right_shift(1)), whole(5, low=-9))

for name in (
    "celu",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu6",
    "selu",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "tanhshrink",
):
    function(f"F.{name}", getattr(F, name), normal(4, 5, scale=3))
function("F.logsigmoid far", F.logsigmoid, real(9, low=-60, high=60))
function("F.softplus far", F.softplus, real(9, low=-60, high=60))
function("F.softplus with beta", lambda x: F.softplus(x, beta=2, threshold=5), real(9))
function("F.gelu tanh", lambda x: F.gelu(x, approximate="tanh"), normal(4, 5))
function("F.elu with alpha", lambda x: F.elu(x, alpha=0.5), normal(4, 5))
function("elu scaled", lambda x: aten.elu(x, 1.5, 1.1, 0.9), normal(4, 5))
function("F.celu with alpha", lambda x: F.celu(x, alpha=0.5), normal(4, 5))
function("F.leaky_relu with slope", lambda x: F.leaky_relu(x, 0.2), normal(4, 5))
function("F.hardtanh and relu6 at their bounds", lambda x: F.hardtanh(x * 0 + 1) * x + F.relu6(x * 0) * x, real(5))
function("std of equal numbers", lambda x: (x * 0 + 2).std(0) + x.sum(0) * 0.5, real(4, 3))
function("F.softplus beyond a small threshold", lambda x: F.softplus(x, beta=2.0, threshold=1.0), real(9))
function("F.threshold", lambda x: F.threshold(x, 0.3, -7.0), normal(4, 5))
function("F.hardshrink with lambda", lambda x: F.hardshrink(x, 1.0), normal(4, 5))
function("F.softshrink with lambda", lambda x: F.softshrink(x, 1.0), normal(4, 5))
function("F.glu", lambda x: (F.glu(x), F.glu(x, 0), F.glu(x, -2)), normal(4, 6))
function("F.rrelu", F.rrelu, normal(4, 5))
function("in place", lambda x: x.clone().add_(1).mul_(2).sub_(0.1).div_(3).tanh_(), real(3, 4))
function("in place of a part", _set, real(3, 4), real(4))
function("_prelu_kernel", aten._prelu_kernel, normal(3, 4), positive(1, 4))
function("log_sigmoid_forward", lambda x: aten.log_sigmoid_forward(x)[0], normal(4))


function("clamp", lambda x: (x.clamp(-0.5, 0.7), x.clamp(min=0.1), x.clamp(max=0.1), torch.clip(x, 0, 1)), real(4, 5))
function("clamp of integers", lambda x: (x.clamp(1, 3), x.clamp(min=2)), whole(4, 5))
function("clamp of integers by floats", lambda x: x.clamp(0.5, 2.5), whole(4, 5))
function(
    "clamp by tensors",
    lambda x, y: (x.clamp(y), x.clamp(y, y + 0.5), x.clamp(max=y), torch.clip(x, y)),
    real(4, 5),
    real(5),
)
function(
    "clamp_min and clamp_max",
    lambda x, y: (torch.clamp_min(x, 0.2), torch.clamp_max(x, 0.2), torch.clamp_min(x, y), torch.clamp_max(x, y)),
    real(4, 5),
    real(5),
)
function(
    "where of scalars",
    lambda c, x: (torch.where(c, x, 0.5), torch.where(c, 2.0, x), torch.where(c, 1.0, 2.0)),
    truth(3, 4),
    real(4),
)
function("where of integers", lambda c, x: (torch.where(c, x, 2), torch.where(c, x, 2.5)), truth(3, 4), whole(4))
function(
    "where's scalar overloads",
    lambda c, x: (aten.where.ScalarOther(c, x, 2), aten.where.ScalarSelf(c, 2, x), aten.where.Scalar(c, 1, 2)),
    truth(3),
    real(3),
)
function("masked_fill broadcasts", lambda x, m: x.masked_fill(m, 2), real(3, 4), truth(4))
function("masked_fill widens", lambda x, m: torch.masked_fill(x, m, 2), real(4), truth(3, 4))
function("masked_fill by a tensor", lambda x, m, v: x.masked_fill(m, v), real(3, 4), truth(3, 4), real())
function("lerp broadcasts", lambda x, y: torch.lerp(x, y, 0.3), real(3, 1), real(4))
function(
    "addcmul and addcdiv",
    lambda x, y, z: (torch.addcmul(x, y, z), torch.addcdiv(x, y, z, value=0.5), torch.addcmul(x, y, z, value=2)),
    real(3, 4),
    real(3, 4),
    positive(4),
)
function(
    "conversions",
    lambda x: (x.double(), x.half(), x.long(), x.int(), x.bool(), x.to(torch.float64), x.bfloat16(), x.to(torch.uint8)),
    positive(3, 4),
    gradient=False,
)
function(
    "conversions of integers", lambda x: (x.float(), x.double(), x.bool(), x.int(), x.short(), x.char()), whole(3, 4)
)
function("to another's type", lambda x, y: (x.to(y), x.type_as(y), x.to("cpu")), whole(3, 4), real(3))
function("gradients through conversions", lambda x: (x.double() * 2).float(), real(3, 4))
function(
    "conversion operators",
    lambda x: (aten._to_copy(x, dtype=torch.float64), torch.ops.prims.convert_element_type(x, torch.float64)),
    real(3),
    gradient=False,
)
function("clone, contiguous, detach", lambda x: (x.clone(), x.t().contiguous(), x.detach() * x), real(3, 4))
function("no_grad", _without, real(3, 4), real(3, 4))
function("no_grad as a decorator", lambda x: torch.no_grad()(torch.sin)(x) * x, real(3, 4))
function("identities", lambda x: (aten.alias(x), aten.lift_fresh_copy(x)), real(3))
function("copy", lambda x, y: x.clone().copy_(y), real(3, 4), real(4))
function("copy converts", aten.copy, real(3), whole(3), gradient=False)
function(
    "half precision", lambda x, y: x * y + 1, real(3, dtype=torch.float16), real(3, dtype=torch.float16), tolerance=2e-3
)
function(
    "brain floats", lambda x, y: x * y + 1, real(3, dtype=torch.bfloat16), real(3, dtype=torch.bfloat16), tolerance=2e-2
)
function("scalars of no axes", lambda x, y: (x + y, x * 2, x.exp(), x.sum(), x.mean(), x.reshape(1, 1)), real(), real())

DIMS = (None, 0, -1, (0, 2), (-1, -2), (0, 1, 2))
for name in ("sum", "mean"):
    reduce = getattr(torch, name)
    function(name, lambda x, reduce=reduce: reduce(x), real(2, 3, 4))
    function(f"{name} along dims", lambda x, reduce=reduce: [reduce(x, d) for d in DIMS], real(2, 3, 4))
    function(f"{name} keeps dims", lambda x, reduce=reduce: [reduce(x, d, keepdim=True) for d in DIMS], real(2, 3, 4))
    function(
        f"{name} to float64",
        lambda x, reduce=reduce: (reduce(x, dtype=torch.float64), reduce(x, 1, dtype=torch.float64)),
        real(2, 3),
    )
function(
    "sum of integers and booleans",
    lambda x, y: (x.sum(), x.sum(0), y.sum(), y.sum(-1, dtype=torch.float32)),
    whole(2, 3),
    truth(2, 3),
)
function(
    "amax and amin",
    lambda x: [f(x, d, keepdim=k) for f in (torch.amax, torch.amin) for d in ((), 0, (-1, 0)) for k in (False, True)],
    real(2, 3, 4),
)
function(
    "max of equal elements along an axis",
    lambda x: (*x.max(1), *x.min(0), *x.max(0, keepdim=True)),
    exactly([1.0, 3.0, 3.0], [1.0, -2.0, 3.0]),
)
function("max along no axis", lambda x: (*x.max(0), *x.min(-1)), real())
function("amax of equal elements", lambda x: (x.amax(), x.amax(0), x.max(), x.min()), exactly(2.0, 1.0, 2.0))
function("max and min", lambda x: (x.max(), x.min()), real(2, 3))
function("max of integers", lambda x: (x.max(), x.min()), whole(2, 3))
function(
    "max along a dim",
    lambda x: [f(x, d, keepdim=k) for f in (torch.max, torch.min) for d in (0, -1) for k in (False, True)],
    real(2, 3, 4),
)
function(
    "argmax and argmin",
    lambda x: [f(x, d, keepdim=k) for f in (torch.argmax, torch.argmin) for d in (0, -1) for k in (False, True)],
    real(2, 3, 4),
)
function("argmax of all", lambda x: (x.argmax(), x.argmin(), x.argmax(keepdim=True)), real(2, 3, 4))
function("prod", lambda x: (x.prod(), x.prod(0), x.prod(-1, keepdim=True)), positive(2, 3, 4))
function("prod of integers", lambda x: (x.prod(), x.prod(0)), whole(2, 3))
function(
    "any and all",
    lambda x: (x.any(), x.all(), x.any(0), x.all(-1, keepdim=True), torch.any(x, (0, 1)), torch.all(x, (0, 1))),
    truth(2, 3, 4),
)
function(
    "any and all of numbers", lambda x, y: (x.any(), x.all(), y.any(1), y.all(1)), whole(2, 3, below=2), real(2, 3)
)
function(
    "var and std",
    lambda x: (x.var(), x.std(), x.var(0), x.std(-1, keepdim=True), x.var((0, 2)), torch.var(x, 1, correction=0)),
    real(2, 3, 4),
)
function(
    "var and std unbiased or not",
    lambda x: (x.var(unbiased=False), x.std(unbiased=False), x.var(1, unbiased=True), x.std((0, 1), unbiased=False)),
    real(2, 3, 4),
)
function(
    "var_mean and std_mean",
    lambda x: (
        torch.var_mean(x),
        torch.var_mean(x, 1, keepdim=True),
        torch.var_mean(x, (0, 1), correction=0),
        torch.std_mean(x, 1),
    ),
    real(2, 3, 4),
)
function(
    "older overloads of var and std",
    lambda x: (
        aten.var.default(x),
        aten.var.dim(x, [1], False),
        aten.std.default(x, False),
        aten.std.dim(x, [1], True, True),
        aten.var.correction(x, [0], correction=2),
    ),
    real(4, 3),
)
function("logsumexp", lambda x: (x.logsumexp(0), x.logsumexp((0, -1)), x.logsumexp(1, keepdim=True)), real(2, 3, 4))
function(
    "norms",
    lambda x: [torch.linalg.vector_norm(x, p, d) for p in (1, 2, 3, math.inf, -math.inf) for d in (None, 0, (0, 1))],
    real(3, 4),
)
function("norm of p 0", lambda x: torch.linalg.vector_norm(x, 0), exactly(0.0, 1.0, 2.0), gradient=False)
function(
    "older norms",
    lambda x: (x.norm(), x.norm(p=1), x.norm(dim=1), x.norm(p=3, dim=0, keepdim=True), aten.norm.Scalar(x, 2)),
    real(3, 4),
)
function("norm to float64", lambda x: torch.linalg.vector_norm(x, dtype=torch.float64), real(3, 4))
function(
    "older norms by dims",
    lambda x: (aten.norm.ScalarOpt_dim(x, 2, [1]), aten.norm.ScalarOpt_dim(x, None, [0], True)),
    real(3, 4),
)
function("matrix norm", torch.linalg.matrix_norm, real(3, 4))
function("cumsum of integers", lambda x: (x.cumsum(0), x.cumsum(0, dtype=torch.float32)), whole(3, 4))
function(
    "cummax and cummin",
    lambda x: (*x.cummax(0), *x.cummax(-1), *x.cummin(1)),
    exactly([1.0, 3.0, 3.0, 2.0], [0.0, 3.0, -1.0, 4.0]),
)
function("cummax of integers and of no axes", lambda x, y: (*x.cummax(1), *y.cummin(0)), whole(3, 4), real())
function("cumsum of no axes", lambda x: (x.cumsum(0), x.cumprod(0)), real())
function(
    "softmax",
    lambda x: (x.softmax(0), x.softmax(-1), F.softmax(x, 1, dtype=torch.float64), F.softmin(x, 1)),
    real(3, 4),
)
function(
    "log_softmax", lambda x: (x.log_softmax(0), x.log_softmax(-1), F.log_softmax(x, 1, dtype=torch.float64)), real(3, 4)
)
function("softmax's own operators", lambda x: (aten._softmax(x, 1, False), aten._log_softmax(x, 1, False)), real(3, 4))
function("softmax of no axes", lambda x: (x.softmax(0), x.log_softmax(0)), real())
function("median", lambda x: (x.median(), x.median(1)), real(3, 5))
function("nansum", lambda x: (x.nansum(), x.nanmean()), exactly(1.0, math.nan, 3.0))
function("count_nonzero", lambda x: (x.count_nonzero(), x.count_nonzero(0)), whole(3, 4, below=2))
function("cdist", lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, p=1)), real(3, 4), real(5, 4))
function("F.pdist", F.pdist, real(4, 3))

function(
    "zeros, ones, full",
    lambda x: (torch.zeros(2, 3) + x, torch.ones(3) * x, torch.full((3,), 2.5) + x, torch.full((2,), 3)),
    real(3),
    reference=None,
)
function(
    "likes",
    lambda x: (
        torch.zeros_like(x),
        torch.ones_like(x) * x,
        torch.full_like(x, 2.0),
        torch.empty_like(x) * 0,
        torch.ones_like(x, dtype=torch.int64),
    ),
    real(3),
)
function(
    "new ones",
    lambda x: (
        x.new_zeros(2),
        x.new_ones(2, 3),
        x.new_full((2,), 3),
        x.new_empty(2) * 0,
        torch.empty(2) * 0,
        x.new_empty_strided((2, 3), (1, 2)) * 0,
        torch.empty_strided((2, 3), (1, 2)) * 0,
        torch.empty_permuted((2, 3), (1, 0)) * 0,
        x.new_tensor([1.0, 2.0]),
    ),
    real(3),
    reference=None,
)
function(
    "arange",
    lambda x: (
        torch.arange(5),
        torch.arange(1, 4),
        torch.arange(1, 9, 3),
        torch.arange(0, 1, 0.25),
        torch.arange(3.0) + x,
    ),
    real(3),
    reference=None,
)
function(
    "linspace",
    lambda x: (torch.linspace(0, 1, 3) * x, torch.linspace(1, -1, 5), torch.linspace(0, 1, 1)),
    real(3),
    reference=None,
)
function("logspace", lambda x: torch.logspace(0, 2, 3) * x, real(3), reference=None)
function("eye", lambda x: (torch.eye(3) @ x, torch.eye(2, 3) @ x), real(3), reference=None)
function(
    "scalar_tensor",
    lambda x: (torch.scalar_tensor(2.0) * x, torch.tensor(3.0) + x, torch.tensor([1.0, 2.0, 3.0]) * x),
    real(3),
    reference=None,
)
function(
    "fill",
    lambda x, v: (x.clone().fill_(2.0), aten.fill.Scalar(x, 2), aten.fill.Tensor(x, v), x.clone().zero_()),
    real(3),
    real(),
)
function("tril and triu", lambda x: [f(x, k) for f in (torch.tril, torch.triu) for k in (0, 1, -1)], real(2, 3, 4))
function("tril of integers and booleans", lambda x, y: (x.tril(), y.triu(1)), whole(3, 3, low=1), truth(3, 3))
function("tril of made ones", lambda x: x + torch.tril(torch.ones(3, 3)), real(3, 3), reference=None)
function("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), real(3), real(2))
function("triu_indices", lambda x: torch.triu_indices(3, 4, 1) + x.long(), real(1))
function("tril_indices", lambda x: x[torch.tril_indices(3, 3)[0], torch.tril_indices(3, 3)[1]], real(3, 3))

function("dropout", lambda x: F.dropout(x, 0.3, training=True), real(100, 200), random=True)
function("native_dropout", lambda x: aten.native_dropout(x, 0.3, True)[0], real(100, 200), random=True)
function("dropout of nothing and of all", lambda x: (F.dropout(x, 0.0), F.dropout(x, 1.0)), real(3, 4))
for rank in (1, 2, 3):
    drop = getattr(F, f"dropout{rank}d")
    function(f"dropout{rank}d", lambda x, drop=drop: drop(x, 0.3), real(100, 100, *[2] * rank, low=1), random=True)
function(
    "rand and randn",
    lambda x: (
        torch.rand(400, 100) + x,
        torch.randn(400, 100) * x,
        torch.rand_like(torch.ones(100, 200)),
        torch.randn_like(torch.ones(100, 200)),
    ),
    real(100),
    random=True,
)
function(
    "uniform, normal, bernoulli in place",
    lambda x: (
        torch.empty(100, 200).uniform_(-1, 3) + x,
        torch.empty(100, 200).normal_(2.0, 0.5) + x,
        torch.empty(100, 200).bernoulli_(0.3) + x,
    ),
    real(1),
    random=True,
)
function(
    "normal and bernoulli",
    lambda x: (torch.normal(2.0, 3.0, (100, 200)) + x, torch.bernoulli(torch.full((100, 200), 0.25)) + x),
    real(1),
    random=True,
)
function(
    "randint",
    lambda x: (
        torch.randint(2, 9, (100, 200)),
        torch.randint(5, (100, 200)) + x,
        torch.randint_like(torch.ones(100, 200), 9),
        torch.randint_like(torch.ones(100, 200), 2, 9),
    ),
    real(1),
    random=True,
)
function("exponential", lambda x: torch.empty(100, 200).exponential_(2.0) + x, real(1), random=True)
function("alpha_dropout", lambda x: F.alpha_dropout(x, 0.3, training=True), normal(100, 200), random=True)
function(
    "feature_alpha_dropout", lambda x: F.feature_alpha_dropout(x, 0.3, training=True), normal(100, 200, 2), random=True
)
function(
    "gumbel_softmax", lambda x: (F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True)), normal(5000, 4), random=True
)
function("rrelu in training", lambda x: F.rrelu(x, training=True), normal(100, 200), random=True)
function("randperm", lambda x: torch.randperm(100) + x.long(), real(1), random=True)
function("log1p of what is large", torch.log1p, exactly(1e8, 1e30, 3.0, -0.3))
for special in ("digamma", "i0", "i0e", "i1", "i1e", "modified_bessel_i0", "modified_bessel_i1"):
    function(f"special.{special}", getattr(torch.special, special), real(40, low=-9.3, high=20))
function("lgamma", torch.lgamma, real(40, low=-9.3, high=20))
function("lgamma of a scalar", torch.lgamma, exactly(1e5, 0.1, 1, 2, 8, 1e30))
for order in range(4):
    function(f"polygamma {order}", lambda x, n=order: torch.polygamma(n, x), real(40, low=-3.4, high=20))
function("erfinv at the ends", torch.erfinv, exactly(-0.9999, 0.0, 0.99999), tolerance=1e-4)
function("signbit", torch.signbit, exactly(-0.0, 0.0, -2.0, 3.0, -torch.inf), gradient=False)
function("signbit of others", lambda x, y: (x.signbit(), y.signbit()), whole(5, low=-3), truth(3), gradient=False)
function("round to decimals", lambda x: (x.round(decimals=2) * x, x.round(decimals=-1) * x), real(9, low=-99, high=99))
function("log_normal", lambda x: torch.empty(100, 200).log_normal_(0.5, 0.3) + x, real(1), random=True)
function("geometric", lambda x: torch.empty(100, 200).geometric_(0.3) + x, real(1), random=True)
function("cauchy", lambda x: torch.empty(100, 200).cauchy_(1, 2).atan() + x, real(1), random=True)
function(
    "normal of tensors",
    lambda x: (
        torch.normal(x.expand(100, 200), 2 * torch.ones(100, 200)),
        torch.normal(x.expand(100, 200), 2.0),
        torch.normal(0.5, torch.full((100, 200), 3.0)),
    ),
    real(1),
    random=True,
)
function("erfcx", torch.special.erfcx, exactly(-5.0, -1.5, -0.3, 0.0, 0.2, 1.9, 2.1, 30.0, 1e10))
function("log_ndtr", torch.special.log_ndtr, exactly(-60.0, -9.0, -1.5, -0.9, 0.0, 1.0, 6.0, 100.0))
function("ndtri", torch.special.ndtri, exactly(1e-30, 1e-5, 0.3, 0.5, 0.7, 0.9999))
function("ndtri of what is no probability", torch.special.ndtri, exactly(-0.5, 0.0, 1.0, 2.0), gradient=False)
function(
    "frexp and nextafter at the ends of the range",
    lambda x, y: (*torch.frexp(x), torch.nextafter(x, y)),
    exactly(1e-45, -1e-40, 3.4028234e38, 0.0, -1.0, float("inf")),
    exactly(0.0, -1.0, float("inf"), -1.0, -1.0, 0.0),
    gradient=False,
    reference=None,
)
function(
    "multinomial",
    lambda w: (
        torch.multinomial(w.expand(300, 4), 200, replacement=True).double(),
        torch.multinomial(w.expand(30000, 4), 1).double(),
        torch.multinomial(w.expand(30000, 4), 2)[:, 1].double(),
    ),
    exactly(0.5, 0.0, 0.2, 0.1),
    random=True,
    gradient=False,
)
