"""Every scalar function of the loop language on every element type against NumPy; casts, loads and stores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.small_formats import STORED
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import LlvmValue, pointer, vector
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError
from glowtrain.loops.functions import FUNCTIONS, fused_multiply_add
from glowtrain.types import DTYPES
from tests.cpu import cpu_kernels
from tests.cpu.test_vector_math import EXACT, REFERENCE

Array = NDArray[Any]
HOST = Target.host()
COMPUTED = [dtype for dtype in scalar.DTYPES if dtype not in STORED]  # for the others see test_small.py
PAIRS = [(name, dtype) for name in FUNCTIONS for dtype in COMPUTED if scalar.supports(name, dtype)]


def _divide(a: Array, b: Array) -> Array:
    """Towards zero in Python integers, 0 for division by zero, wrapped to the type."""
    return _wrapped([0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in _pairs(a, b)], a)


def _remainder(a: Array, b: Array) -> Array:
    return _wrapped([0 if y == 0 else int(math.copysign(1, x)) * (abs(x) % abs(y)) for x, y in _pairs(a, b)], a)


def _modulo(a: Array, b: Array) -> Array:
    return _wrapped([0 if y == 0 else x % y for x, y in _pairs(a, b)], a)


def _power(a: Array, b: Array) -> Array:
    bits = 8 * a.itemsize
    cut = {1: (1, 1), -1: (1, -1)}
    powers = [pow(x, y, 1 << bits) if y >= 0 else cut.get(x, (0, 0))[y % 2] for x, y in _pairs(a, b)]
    return _wrapped(powers, a)


def _shifted(a: Array, b: Array, right: bool) -> Array:
    bits = 8 * a.itemsize

    def one(x: int, y: int) -> int:
        if 0 <= y < bits:
            return x >> y if right else x << y
        return -1 if right and x < 0 else 0

    return _wrapped([one(x, y) for x, y in _pairs(a, b)], a)


def _pairs(a: Array, b: Array) -> list[tuple[int, int]]:
    return list(zip(a.tolist(), b.tolist(), strict=True))


def _wrapped(values: list[int], like: Array) -> Array:
    bits = 8 * like.itemsize
    unsigned = np.array([value % (1 << bits) for value in values], f"u{like.itemsize}")
    return unsigned.view(like.dtype)


COMMON: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "select": np.where,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
FLOAT: dict[str, Callable[..., Array]] = {
    **REFERENCE, **COMMON, "div": np.divide, "isnan": np.isnan, "isinf": np.isinf,
    "fma": lambda a, b, c: fused_multiply_add(a, b, c) if a.dtype == np.float32 else a * b + c,
}  # fmt: skip
INTEGER: dict[str, Callable[..., Array]] = {
    **COMMON, "div": _divide, "fmod": _remainder, "mod": _modulo, "pow": _power,
    "neg": lambda a: (0 - a).astype(a.dtype),
    "abs": np.abs, "sign": np.sign, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shift_left": lambda a, b: _shifted(a, b, False), "shift_right": lambda a, b: _shifted(a, b, True),
    "mulhi_u32": lambda a, b: (a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
}  # fmt: skip
LOOSE = {"f16": 1.0, "bf16": 1.0, "f32": 3.5, "f64": 4.0}
"""Units in the last place: the half types are rounded from f32, so they may only fall to the other neighbour."""


def _values(dtype: str, seed: int) -> Array:
    rng, numpy_type = np.random.default_rng(seed), DTYPES[dtype].numpy
    if dtype == "bool":
        return rng.integers(0, 2, 64).astype(bool)
    if dtype in scalar.FLOATS:
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, math.inf, -math.inf, math.nan, 6e-8, 1e-5, 60000.0, 3.0, -3.0]
        common = np.concatenate([rng.uniform(-4, 4, 100), rng.uniform(-300, 300, 60), rng.integers(-9, 9, 40)])
        return rng.permutation(np.concatenate([special, common, special])).astype(numpy_type)
    info = np.iinfo(numpy_type)
    special = [info.min, info.max, 0, 1, 2, 3, 7, 31, 32, 63, 64, info.max - 1, *([-1, -2] if info.min else [])]
    wide = rng.integers(info.min, info.max, 80, numpy_type, endpoint=True)
    small = rng.integers(-9 if info.min else 0, 9, 80).astype(numpy_type)
    return rng.permutation(np.concatenate([np.array(special, numpy_type), wide, small, np.array(special, numpy_type)]))


def _arguments(name: str, dtype: str) -> list[Array]:
    args = [_values(dtype, seed) for seed in range(FUNCTIONS[name].arity)]
    if name == "select":
        args[0] = np.random.default_rng(9).integers(0, 2, len(args[1])).astype(bool)
    if name == "pow" and dtype not in scalar.FLOATS:
        args[1] = np.where(args[1].astype(np.float64) > 40, args[1] % 41, args[1]).astype(args[1].dtype)
    return args


def _expected(name: str, dtype: str, args: list[Array]) -> Array:
    if dtype not in scalar.FLOATS:
        return INTEGER[name](*args)
    higher = np.longdouble if dtype == "f64" and name not in EXACT else np.float64
    return FLOAT[name](*(a if a.dtype == bool else a.astype(higher) for a in args))


def _close(got: Array, wanted: Array, dtype: str, ulps: float) -> Array:
    """Whether each result is within ``ulps`` of its own unit in the last place, or the same special value."""
    rounded = wanted.astype(got.dtype)
    a, b = got.astype(np.float64), rounded.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    mantissa, least = {"f64": (52, -1074), "f32": (23, -149), "f16": (10, -24), "bf16": (7, -133)}[dtype]
    _, exponent = np.frexp(np.where(np.isfinite(b), b, 1))
    unit = np.ldexp(1.0, np.maximum(exponent - 1 - mantissa, least))
    return np.asarray(equal | (np.abs(a - b) <= ulps * unit))


def test_every_function_has_a_reference() -> None:
    assert set(FUNCTIONS) - {"bitcast"} == set(FLOAT) | set(INTEGER)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_of_the_language_is_native_on_its_types(name: str) -> None:
    """A bitcast is a conversion for the code generator, see :func:`scalar.bitcast`."""
    types = {dtype.name for dtype in FUNCTIONS[name].types} & set(COMPUTED)
    assert name == "bitcast" or types == {dtype for dtype in types if scalar.supports(name, dtype)}


@pytest.mark.spread(136)
@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_against_numpy(name: str, dtype: str) -> None:
    args = _arguments(name, dtype)
    got = cpu_kernels.apply(name, args, dtype, 8, HOST)
    with np.errstate(all="ignore"):
        wanted = _expected(name, dtype, args)
        if scalar.result_dtype(name, dtype) == "bool" or dtype not in scalar.FLOATS:
            good = got == wanted
        else:
            exact = name in EXACT or name in ("add", "sub", "mul", "div", "sqrt", "reciprocal", "select")
            good = _close(got, wanted, dtype, 0 if exact else LOOSE[dtype])
    assert good.all(), f"{[a[~good][:4] for a in args]}: {got[~good][:4]}, wanted {wanted[~good][:4]}"


@pytest.mark.spread(45)
@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_same_bits_in_single_lanes(name: str, dtype: str) -> None:
    args = [a[:33] for a in _arguments(name, dtype)]
    assert cpu_kernels.same(
        cpu_kernels.apply(name, args, dtype, 1, HOST), cpu_kernels.apply(name, args, dtype, 16, HOST)
    ).all()


@pytest.mark.parametrize("target", cpu_kernels.runnable("sse4", "scalar", "avx512"), ids=lambda target: target.name)
@pytest.mark.parametrize("name", ["add", "mul", "div", "select", "sub", "lt"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_types_on_other_targets(dtype: str, name: str, target: Target) -> None:
    """Targets without conversion instructions round with integers, to the same bits."""
    args = _arguments(name, dtype)
    host, other = (cpu_kernels.apply(name, args, dtype, t.width(dtype), t) for t in (HOST, target))
    assert cpu_kernels.same(host, other).all()


def _cast_inputs(source: str) -> Array:
    values = _values(source, 3)
    if source not in scalar.FLOATS:
        return values
    edges = [
        s * 2.0**e + d for e in (7, 8, 15, 16, 31, 32, 53, 62, 63, 64) for s in (1, -1) for d in (-1, -0.5, 0, 0.5, 1)
    ]
    # just beside the middle between two neighbours of f16 and bf16, where rounding to f32 first would go wrong
    edges += [
        s * (1 + half + d)
        for s in (1, -1)
        for half in (2.0**-11, 3 * 2.0**-11, 2.0**-8)
        for d in (2.0**-40, -(2.0**-40))
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([values, np.array(edges).astype(values.dtype)])


def _cast_expected(x: Array, to: str) -> Array:
    """What :func:`scalar.cast` promises, in Python integers where floats become integers."""
    numpy_type = DTYPES[to].numpy
    if to in scalar.FLOATS or to == "bool" or x.dtype.kind in "iub":
        return x.astype(numpy_type)
    bits = 64 if to in ("i64", "u32", "u64") else 32

    def one(value: float) -> int:
        low, high = -(1 << (bits - 1)), 1 << (bits - 1)
        whole = int(value) if math.isfinite(value) else low
        if to == "u64" and value >= high:
            return whole if math.isfinite(value) and whole < 2 * high else 0
        return whole if low <= whole < high else low

    return _wrapped([one(float(value)) for value in x], np.zeros(0, numpy_type))


NARROW = replace(HOST, name="32 bits", pointer_bits=32)
"""This processor as if it divided and converted integers of 32 bits at most."""


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("name", ["div", "mod", "fmod"])
@pytest.mark.parametrize("dtype", ["i64", "u64"])
def test_division_of_long_integers_without_instructions(dtype: str, name: str, width: int) -> None:
    long = np.random.default_rng(0).integers(0, 2**64, 400, np.uint64)
    long >>= np.arange(400, dtype=np.uint64) % np.uint64(64)
    edges = np.array([0, 1, 2, 3, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    values = np.concatenate([long, edges]).view(DTYPES[dtype].numpy)
    pairs = [values, np.random.default_rng(1).permutation(values)]
    native, written = (cpu_kernels.apply(name, pairs, dtype, width, target) for target in (HOST, NARROW))
    assert np.array_equal(native, written)


@pytest.mark.spread(56)
@pytest.mark.parametrize("target", [HOST, NARROW, *cpu_kernels.runnable("generic")], ids=lambda target: target.name)
@pytest.mark.parametrize("to", COMPUTED)
@pytest.mark.parametrize("source", COMPUTED)
def test_cast(source: str, to: str, target: Target) -> None:
    x = _cast_inputs(source)
    width = max(4, target.width(source))
    got = cpu_kernels.run(lambda f, args: scalar.cast(f, args[0], source, to, target), [x], [source], to, width, target)
    with np.errstate(all="ignore"):
        wanted = _cast_expected(x, to)
        good = cpu_kernels.same(got, wanted)
        if source in ("i64", "u64", "i32", "u32") and to in ("f16", "bf16"):
            good = _close(got, wanted, to, 1.0)
    assert good.all(), f"{x[~good][:4]}: {got[~good][:4]}, wanted {wanted[~good][:4]}"


@pytest.mark.parametrize("dtype", [*COMPUTED, "f8e4m3fn", "i4"])
@pytest.mark.parametrize("width", [1, 8])
def test_masked_load_and_store(dtype: str, width: int) -> None:
    """Lanes outside the mask read as 0 and leave memory alone."""
    target, numpy_type = HOST, DTYPES[dtype].numpy
    f = LlvmFunction(
        "kernel", [("ptr noalias", "x"), ("ptr noalias", "mask"), ("ptr noalias", "kept"), ("ptr noalias", "read")]
    )
    mask = scalar.load(f, pointer("%mask"), "bool", width, target)
    value = scalar.load(f, pointer("%x"), dtype, width, target, mask)
    scalar.store(f, value, pointer("%kept"), dtype, target, mask)
    scalar.store(f, value, pointer("%read"), dtype, target)
    x, kept, read = (
        np.arange(1, width + 1).astype(numpy_type),
        np.full(width, 1, numpy_type),
        np.full(width, 1, numpy_type),
    )
    kernel = build(f.finish(), target, ["kernel"]).function("kernel", 4)
    for flags in (np.arange(width) % 3 == 0, np.arange(width) % 3 != 0):
        kept[:] = 1
        kernel(x.ctypes.data, flags.ctypes.data, kept.ctypes.data, read.ctypes.data)
        assert np.array_equal(kept, np.where(flags, x, numpy_type.type(1)))
        assert np.array_equal(read, np.where(flags, x, numpy_type.type(0)))


@pytest.mark.parametrize("dtype", [*COMPUTED, "f8e4m3fn", "i4"])
def test_constants_and_splats(dtype: str) -> None:
    value = 1 if dtype == "bool" else 3
    f = LlvmFunction("kernel", [("ptr noalias", "out")])
    out_pointer = pointer("%out")
    scalar.store(f, scalar.constant(value, dtype, 4), out_pointer, dtype, HOST)
    one = scalar.load(f, out_pointer, dtype, 1, HOST)
    scalar.store(f, f.splat(one, 4), f.address(out_pointer, 4, scalar.SIZE[dtype]), dtype, HOST)
    out = np.zeros(8, DTYPES[dtype].numpy)
    build(f.finish(), HOST, ["kernel"]).function("kernel", 1)(out.ctypes.data)
    assert out.tolist() == [value] * 8


def test_undefined_functions_are_refused() -> None:
    f = LlvmFunction("kernel", [])
    with pytest.raises(CodegenError, match=r"kernel.*'exp'.*i32"):
        scalar.apply(f, "exp", [LlvmValue("%x", vector("i32", 8))], "i32", HOST)
    with pytest.raises(CodegenError, match=r"'add' with 1 arguments"):
        scalar.apply(f, "add", [LlvmValue("%x", vector("float", 8))], "f32", HOST)
