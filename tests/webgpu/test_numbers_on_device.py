"""Arithmetic that adapters do not have: the bits that the CPU computes, on numbers with every kind of neighbour."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Value
from glowtrain.ops.elementwise.activation import Sigmoid, Softplus
from glowtrain.ops.elementwise.arithmetic import Div, Mul
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Equal, Greater, LessOrEqual
from glowtrain.ops.elementwise.transcendental import Acos, Asin, Atan, Cos, Erf, Exp, Log, Sin, Tan, Tanh
from glowtrain.types import (
    Array,
    DType,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    type_of,
    u8,
    u16,
    u32,
    u64,
)

FUNCTIONS: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": Mul(),
    "div": Div(),
    "min": Min(),
    "max": Max(),
    "equal": Equal(),
    "greater": Greater(),
    "less or equal": LessOrEqual(),
}


def numbers(dtype: DType, count: int) -> Array:
    """Bits drawn at random, numbers near one another, and zeros, infinities, denormals, NaN, largest numbers."""
    random = np.random.default_rng(count)
    bits = random.bit_generator.random_raw(count).astype(f"u{dtype.size}")
    if not dtype.is_float:
        half = 1 << (8 * dtype.size - 1)
        edges = np.array([0, 1, 7, half - 1, half, 2 * half - 1], np.uint64).astype(bits.dtype)
        return np.concatenate([bits, edges]).view(dtype.numpy)
    near = (1 + random.normal(size=count) * 1e-3).astype(dtype.numpy)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 5e-324, 2.0**31, -(2.0**63), 2.0**64, 0.1])
    with np.errstate(over="ignore"):
        return np.concatenate([bits.view(dtype.numpy), near, edges.astype(dtype.numpy)])


def check(build: dict[str, Callable[..., Value]], *arrays: Array) -> None:
    """Each function gives the CPU's bits, and NaN where there is NaN, whichever."""
    inputs = tuple(gt.Input(type_of(array), f"x{k}") for k, array in enumerate(arrays))
    graph = gt.Graph(inputs, {name: function(*inputs) for name, function in build.items()})
    feeds = {f"x{k}": array for k, array in enumerate(arrays)}
    found, wanted = (gt.compile(graph, backend=each)(feeds) for each in ("webgpu", gt.Cpu(fused=False)))
    for name in build:
        wrong = differing(found[name], wanted[name])[:4]
        assert not wrong.size, (name, [(*(x[k] for x in arrays), found[name][k], wanted[name][k]) for k in wrong])


def differing(found: Array, wanted: Array) -> Array:
    """Where the elements of two arrays have other bits, unless both are NaN."""
    assert found.dtype == wanted.dtype
    bits = f"u{found.itemsize}"
    differ = found.view(bits) != wanted.view(bits)
    if dtype_of(found.dtype).is_float:
        with np.errstate(invalid="ignore"):
            differ &= ~(np.isnan(found) & np.isnan(wanted))
    return np.flatnonzero(differ)


@pytest.mark.parametrize("dtype", [f64, f32, i64, u64], ids=str)
def test_arithmetic(dtype: DType) -> None:
    array = numbers(dtype, 60)
    x, y = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(array, array[array != 0]))
    check(FUNCTIONS, x, y)


@pytest.mark.parametrize("source", [f64, f32, f16, bf16, i64, u64, i32, u32], ids=str)
def test_casts(source: DType) -> None:
    targets = f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean
    check({str(dtype): Cast(dtype) for dtype in targets}, numbers(source, 500))


def test_functions_of_floats() -> None:
    """By the recipes of the CPU, in operations that are exact."""
    random = np.random.default_rng(0)
    usual = np.concatenate([random.normal(size=500) * scale for scale in (1.0, 30.0, 1e7, 1e38)]).astype(np.float32)
    nodes = Sin, Cos, Tan, Asin, Acos, Atan, Exp, Log, Tanh, Erf, Sigmoid, Softplus
    check({node.__name__: node() for node in nodes}, np.concatenate([numbers(f32, 500), usual]))
