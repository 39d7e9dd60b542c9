"""Accuracy in units in the last place, special values, and the same bits whatever the width and the target."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import glowtrain as gt
from glowtrain.backends.llvm import vector_math
from glowtrain.backends.llvm.toolchain import assembly
from glowtrain.backends.llvm.values import LlvmValue, number, vector
from glowtrain.backends.target import Target, target_names
from glowtrain.graph import Graph, Input
from glowtrain.ops.elementwise.transcendental import Exp
from tests.cpu import cpu_kernels

Array = NDArray[Any]
FUNCTIONS = [*vector_math.UNARY, *vector_math.BINARY]
WIDE = np.finfo(np.longdouble).nmant > 52
SOFT = re.compile(r"__[a-z]+[sd]f(?:[sd]f|si)?[23]?|__float(?:un)?si[sd]f|__aeabi_\w+")
"""Routines for arithmetic that a processor has no instructions for."""
RUN_TARGETS = cpu_kernels.runnable("host", "avx2", "sse4", "generic")


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, x.dtype.type(1), e) / (1 + e))


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _erf(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x], x.dtype)


REFERENCE: dict[str, Callable[..., Array]] = {
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sigmoid": _sigmoid, "softplus": _softplus, "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "min": np.minimum, "max": np.maximum, "fmod": np.fmod,
    "mod": np.mod, "pow": np.power,
}  # fmt: skip

EXACT = {"abs", "neg", "sign", "floor", "ceil", "trunc", "round", "min", "max", "fmod", "mod"}
ROUNDED_ONCE = {"sqrt", "reciprocal"}
BOUND = {
    "tan": 4.0,
    "sigmoid": 2.7,
    "sin": 2.7,
    "cos": 2.7,
    "tanh": 2.7,
    "sinh": 2.7,
    "pow": 1.5,
    "exp": 1.1,
    "log": 1.0,
}
"""Largest error in units in the last place; 2 where a function is not named."""


def _specials(dtype: type) -> Array:
    info = np.finfo(dtype)
    positive = [
        0,
        math.inf,
        info.tiny,
        info.smallest_subnormal,
        info.max,
        1,
        2,
        3,
        0.5,
        info.eps,
        1 + info.eps,
        1 - info.epsneg,
    ]
    values: Array = np.array(positive, dtype)
    return np.concatenate([values, -values, np.array([math.nan], dtype)])


def _samples(dtype: type, seed: int, count: int = 1500) -> Array:
    """All magnitudes (random bits), the usual ranges, around 1, integers and halves, and special values."""
    rng = np.random.default_rng(seed)
    raw = np.uint32 if dtype is np.float32 else np.uint64
    parts: list[Array] = [rng.integers(0, np.iinfo(raw).max, count, raw, endpoint=True).view(dtype)]
    parts += [rng.uniform(-size, size, count).astype(dtype) for size in (1, 10, 100, 800, 1e5)]
    parts.append(rng.uniform(0.7, 1.4, count).astype(dtype))
    parts.append((np.exp(rng.uniform(-40, 5, count)) * rng.choice([-1, 1], count)).astype(dtype))
    parts += [np.arange(-64, 64).astype(dtype), (np.arange(-64, 64) / 2).astype(dtype), _specials(dtype)]
    return np.concatenate(parts)


def _arguments(name: str, dtype: type) -> list[Array]:
    x = _samples(dtype, 1)
    if name in vector_math.UNARY:
        return [x]
    y = np.random.default_rng(2).permutation(x)
    crossed = [v.ravel() for v in np.meshgrid(_specials(dtype), _specials(dtype))]
    if name == "pow":
        return [np.concatenate([x, np.abs(x), crossed[0]]), np.concatenate([y, np.clip(y, -5, 5), crossed[1]])]
    return [np.concatenate([x, crossed[0]]), np.concatenate([y, crossed[1]])]


def _ulps(got: Array, wanted: Array) -> Array:
    """Distance in units of ``got``'s last place at ``wanted``; inf where only one of them is finite or NaN."""
    info = np.finfo(got.dtype)
    size = np.abs(wanted)
    exponent = np.floor(np.log2(np.where((size > 0) & np.isfinite(size), size, 1)))
    unit = np.ldexp(np.ones_like(wanted), np.maximum(exponent, info.minexp).astype(int) - info.nmant)
    rounded = wanted.astype(got.dtype)
    equal = (np.isnan(got) & np.isnan(wanted)) | (got == rounded)
    special = ~equal & ~(np.isfinite(got) & np.isfinite(rounded))
    distance = np.abs(got.astype(wanted.dtype) - wanted) / unit
    return np.where(special, np.inf, np.where(equal & ~np.isfinite(rounded), 0, distance))


def _wanted(name: str, args: list[Array]) -> Array:
    if name in EXACT:
        return REFERENCE[name](*args)
    higher = np.float64 if args[0].dtype == np.float32 else np.longdouble
    return REFERENCE[name](*(a.astype(higher) for a in args))


def test_every_recipe_has_a_reference() -> None:
    assert set(REFERENCE) == set(FUNCTIONS)


@pytest.mark.parametrize("dtype", ["f32", "f64"] if WIDE else ["f32"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("target", RUN_TARGETS, ids=lambda target: target.name)
def test_accuracy(target: Target, name: str, dtype: str) -> None:
    args = _arguments(name, np.float32 if dtype == "f32" else np.float64)
    got = cpu_kernels.apply(name, args, dtype, target.width(dtype), target)
    with np.errstate(all="ignore"):
        wanted = _wanted(name, args)
        distance = _ulps(got, wanted)
    worst = int(np.argmax(np.where(np.isnan(distance), np.inf, distance)))
    bound = 0 if name in EXACT else 0.5001 if name in ROUNDED_ONCE else BOUND.get(name, 2.0)
    assert distance[worst] <= bound, f"{name}({[a[worst] for a in args]}) = {got[worst]!r}, wanted {wanted[worst]!r}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    "name", ["erf", "expm1", "log1p", "tanh", "sinh", "asinh", "atanh", "sin", "tan", "asin", "atan", "round"]
)
def test_odd_functions_keep_the_sign_of_zero(name: str, dtype: str) -> None:
    target = Target.host()
    zeros = np.array([-0.0, 0.0], np.float32 if dtype == "f32" else np.float64)
    got = cpu_kernels.apply(name, [zeros], dtype, 2, target)
    assert got.tolist() == [0, 0]
    assert np.signbit(got).tolist() == [True, False]


@pytest.mark.parametrize(("dtype", "size"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_bits_at_every_width_and_target(name: str, dtype: str, size: type) -> None:
    """Whatever the neighbouring lanes hold: common and special values are mixed."""
    args = [np.concatenate([_samples(size, 3, 60), _samples(size, 4, 60)])]
    if name in vector_math.BINARY:
        args.append(np.random.default_rng(5).permutation(args[0]))
    first = cpu_kernels.apply(name, args, dtype, 1, Target.host())
    fused = [
        target for target in cpu_kernels.runnable("avx512", "avx2", "scalar") if target.has_fma == Target.host().has_fma
    ]
    for target, width in [(Target.host(), 4), (Target.host(), 16), *((t, 8) for t in fused)]:
        got = cpu_kernels.apply(name, args, dtype, width, target)
        different = ~cpu_kernels.same(got, first)
        assert not different.any(), f"{target.name}, {width} lanes: {[a[different][:3] for a in args]}"


@pytest.mark.parametrize("size", [np.float32, np.float64])
def test_square_roots_in_integers_are_those_of_the_processor(size: type) -> None:
    """As they are taken where a processor has no arithmetic for the type."""
    dtype = np.dtype(size).name.replace("float", "f")
    soft = replace(Target.host(), soft=("f32", "f64"))
    bits = np.random.default_rng(0).integers(
        0, np.iinfo(f"u{np.dtype(size).itemsize}").max, 20_000, f"u{np.dtype(size).itemsize}"
    )
    x = np.concatenate([_samples(size, 0, 500), bits.view(size)])
    native, written = (cpu_kernels.apply("sqrt", [x], dtype, 1, target) for target in (Target.host(), soft))
    assert cpu_kernels.same(native, written).all()


@pytest.mark.skipif(not Target.host().has_fma, reason="this processor has no fused multiply-add to compare with")
@pytest.mark.parametrize("size", [np.float32, np.float64])
def test_products_that_must_not_be_rounded_are_fused_everywhere(size: type) -> None:
    """Sums that end beside the middle of two numbers, where rounding twice goes wrong, and ones of every size."""
    dtype, random = np.dtype(size).name.replace("float", "f"), np.random.default_rng(0)
    a, b, c = (size(1) * random.uniform(-4, 4, 20_000).astype(size) for _ in range(3))
    c *= np.exp2(random.integers(-80, 10, c.shape)).astype(size)
    middle = (97.0, 172961.0, 2.0**-30) if size is np.float32 else (2.0**27 + 1, 2.0**27 - 1, 2.0**-60)
    args = [np.append(values, size(value)) for values, value in zip((a, b, c), middle, strict=True)]
    without = replace(Target.host(), has_fma=False)
    native, written = (cpu_kernels.apply("fma", args, dtype, 4, target) for target in (Target.host(), without))
    assert cpu_kernels.same(native, written).all()


@pytest.mark.parametrize(("dtype", "size"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_bits_without_fused_arithmetic(name: str, dtype: str, size: type) -> None:
    """Whether or not a processor has instructions for it."""
    args = [np.concatenate([_samples(size, 3, 60), _samples(size, 4, 60)])]
    if name in vector_math.BINARY:
        args.append(np.random.default_rng(5).permutation(args[0]))
    targets = [replace(target, fused=False) for target in cpu_kernels.runnable("generic", "sse4", "scalar", "avx2")]
    first, *others = (cpu_kernels.apply(name, args, dtype, 4, target) for target in targets)
    for target, got in zip(targets[1:], others, strict=True):
        different = ~cpu_kernels.same(got, first)
        assert not different.any(), f"{target.name}: {[a[different][:3] for a in args]}"


@pytest.mark.parametrize(("dtype", "size"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_arithmetic_without_instructions(name: str, dtype: str, size: type) -> None:
    """The emulation is exact for what the recipes compute."""
    args = [_samples(size, 3, 60)]
    if name in vector_math.BINARY:
        args.append(np.random.default_rng(5).permutation(args[0]))
    with_instructions, *without = cpu_kernels.runnable("scalar", "generic", "sse4")
    expected = cpu_kernels.apply(name, args, dtype, 4, with_instructions)
    for target in without:
        got = cpu_kernels.apply(name, args, dtype, 4, replace(target, fused=True))
        different = ~cpu_kernels.same(got, expected)
        assert not different.any(), f"{target.name}: {[a[different][:3] for a in args]}"


@pytest.mark.parametrize(("dtype", "size"), [("f32", np.float32), ("f64", np.float64)])
def test_fused_multiply_add_without_instructions_is_exact(dtype: str, size: type) -> None:
    """Also where nearly everything cancels, and in f32 over the whole range."""
    random, low = np.random.default_rng(0), -140 if dtype == "f32" else -400
    a, b = (np.ldexp(random.normal(size=5000), random.integers(low, 120, 5000)).astype(size) for _ in range(2))
    with np.errstate(over="ignore"):
        near = (-a * b * (1 + random.integers(-4, 5, 5000) * np.finfo(size).eps)).astype(size)
    far = np.ldexp(random.normal(size=5000), random.integers(low, 120, 5000)).astype(size)
    own, *others = cpu_kernels.runnable("scalar", "generic", "sse4")

    def fused(target: Target, *operands: Any) -> Any:
        def body(f: Any, args: list[LlvmValue]) -> LlvmValue:
            return vector_math.FloatLanes(f, args[0].type, target).fused(*args)

        return cpu_kernels.run(body, operands, [dtype] * 3, dtype, 4, target)

    for c in (near, far):
        for target in others:
            same = cpu_kernels.same(fused(replace(target, fused=True), a, b, c), fused(own, a, b, c))
            assert same.all()


@pytest.mark.spread
@pytest.mark.parametrize("target_name", target_names())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiles_for_every_target_without_calls(target_name: str, name: str) -> None:
    """No recipe may need a library: neither the C maths functions nor the compiler's runtime."""
    target = Target.named(target_name)
    width = target.width("f32")

    def body(f: Any, args: list[LlvmValue]) -> LlvmValue:
        return vector_math.emit(f, name, args, target)

    inputs = ["f32"] * (1 if name in vector_math.UNARY else 2)
    text = assembly(cpu_kernels.elementwise_text(body, inputs, "f32", width, target), target)
    called = re.findall(r"^\s+(?:callq?|bl|blx|tail|call)\s+(.*)", text, re.MULTILINE)
    assert not [call for call in called if not (target.soft and SOFT.fullmatch(call))]


@pytest.mark.parametrize("constant", [0.0, math.nan, -math.nan])
@pytest.mark.parametrize("name", ["min", "max"])
def test_a_constant_operand_of_min_and_max_keeps_nan(name: str, constant: float) -> None:
    """The one-instruction form for constants must propagate NaN like the general one, whichever side it is on."""
    x = np.array([1, -1, math.nan, math.inf], np.float32)
    operand = number(constant, vector("float", 4))
    target = Target.host()
    for args in (lambda x: [x, operand], lambda x: [operand, x]):

        def body(f: Any, values: list[LlvmValue], args: Callable[[LlvmValue], list[LlvmValue]] = args) -> LlvmValue:
            return vector_math.emit(f, name, args(values[0]), target)

        got = cpu_kernels.run(body, [x], ["f32"], "f32", 4, target)
        assert np.array_equal(got, REFERENCE[name](x, np.float32(constant)), equal_nan=True)


@pytest.mark.skipif(ctypes.util.find_library("m") is None, reason="there is no C library for mathematics")
@pytest.mark.parametrize("dtype", [gt.f32, gt.f64])
def test_exp_of_what_gives_zero_does_not_underflow(dtype: gt.DType) -> None:
    """Products that underflow take some processors 100 cycles and more, as each masked score of a softmax would."""
    x = Input(dtype[64], "x")
    exp = gt.compile(Graph((x,), {"y": Exp()(x)}))
    flag = {"x86_64": 16, "aarch64": 8}[Target.host().triple.split("-")[0]]
    masked = np.concatenate([np.full(32, -np.finfo(dtype.numpy).max), np.linspace(-1e4, -750, 32)]).astype(dtype.numpy)
    exp({"x": masked})
    status = ctypes.CDLL(ctypes.util.find_library("m"))
    status.feclearexcept(flag)
    y = exp({"x": masked})["y"]
    assert not status.fetestexcept(flag)
    assert not y.any()
    exp({"x": np.full(64, -100 if dtype == gt.f32 else -740, dtype.numpy)})
    assert status.fetestexcept(flag), "a denormal result is rounded"


@pytest.mark.parametrize(
    ("dtype", "size", "low", "high"), [("f32", np.float32, -106, -18), ("f64", np.float64, -748, -38)]
)
def test_sigmoid_far_below_zero_is_exp(dtype: str, size: type, low: float, high: float) -> None:
    """To the last bit, also where that is denormal or underflows: 1 + exp(x) is 1 there."""
    x = np.linspace(low, high, 40_000).astype(size)
    sigmoid, exp = (cpu_kernels.apply(name, [x], dtype, 4, Target.host()) for name in ("sigmoid", "exp"))
    assert sigmoid.tobytes() == exp.tobytes()
    assert sigmoid[0] == 0 < sigmoid[np.flatnonzero(sigmoid)[0]] < np.finfo(size).smallest_normal


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "erf", "exp"])
def test_not_a_number_stays_one_whatever_its_bits(name: str) -> None:
    """Powers of two are made of low bits of a sum, in which NaN has any."""
    bits = np.random.default_rng(0).integers(0x7F800001, 0x80000000, 4096, np.uint32)
    x = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    assert np.isnan(cpu_kernels.apply(name, [x], "f32", 4, Target.host())).all()
