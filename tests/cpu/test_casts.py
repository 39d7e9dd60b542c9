"""Floats as integers, those too that fit no integer: one answer from every engine on every target."""

from __future__ import annotations

import math

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target, target_names
from glowtrain.graph import Graph, Input
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.optimize.pipeline import optimize
from glowtrain.types import DTYPES, SMALL_INTEGERS, Array, DType, TensorType, dtype_of, f32, f64, i32, i64, u8, u32, u64
from tests.cpu.cpu_kernels import runnable

FLOATS = [dtype for dtype in DTYPES.values() if dtype.is_float]
INTEGERS = [*(dtype for dtype in DTYPES.values() if dtype.kind in ("int", "uint")), *SMALL_INTEGERS]
ENGINES = ["interpreter", *(Cpu(target) for target in [Target.host(), *runnable(*target_names())])]


def awkward(dtype: DType) -> Array:
    """NaN, infinities, the ends of every integer type and what lies around them; not a multiple of any vector."""
    ends = [
        s * 2.0**e * f for e in (0, 2, 4, 7, 8, 15, 16, 31, 32, 63, 64, 100) for s in (1, -1) for f in (0.9, 1, 1.1)
    ]
    near = [s * (2.0**e + d) for e in (7, 8, 15, 16, 31, 32) for s in (1, -1) for d in (-1, -0.5, 0.5, 1)]
    with np.errstate(over="ignore"):
        return np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, *ends, *near]).astype(dtype.numpy)


def expected(value: float, to: DType) -> int:
    """The rule of Cast in Python integers, cut to the size of ``to``."""
    size = 64 if to in (u32, i64, u64) else 32
    whole = math.trunc(value) if math.isfinite(value) else None
    if to == u64 and value >= 2**64:
        return 0
    high = 2**64 if to == u64 else 1 << (size - 1)
    least = -(1 << (size - 1))
    return whole if whole is not None and least <= whole < high else least


def wrapped(numbers: list[int], to: DType) -> list[int]:
    bits = {"4": 4, "2": 2}.get(to.name[1:], 8 * to.size)
    low = -(1 << (bits - 1)) if to.name.startswith("i") else 0
    return [(number - low) % (1 << bits) + low for number in numbers]


@pytest.mark.spread(4)
@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_every_engine_gives_the_same_integers(source: DType, to: DType) -> None:
    x = awkward(source)
    wanted = wrapped([expected(float(value), to) for value in x], to)
    graph = Graph((value := Input(TensorType(source, x.shape), "x"),), {"y": Cast(to)(value)})
    assert Cast(to).reference(x).astype(np.int64 if to != u64 else np.uint64).tolist() == wanted
    for engine in ENGINES:
        y = gt.compile(graph, engine)({"x": x})["y"]
        assert dtype_of(y.dtype) == to
        assert y.astype(np.int64 if to != u64 else np.uint64).tolist() == wanted, engine


@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [i32, u32], ids=str)
def test_integers_on_the_way_through_floats_give_the_same_integers(source: DType, to: DType) -> None:
    """Simplified or not: as floats they may fit no integer."""
    x = np.array([0, 1, 100, 200, 40000, 2**31 - 1, -1, -100, -40000, -(2**31)], np.int32).view(source.numpy)
    value = Input(TensorType(source, x.shape), "x")
    graph = Graph((value,), {"y": Cast(to)(Cast(f64)(value))})
    wanted = Cast(to).reference(x.astype(np.float64))
    for engine in ENGINES[:2]:
        np.testing.assert_array_equal(gt.compile(graph, engine)({"x": x})["y"], wanted)


def test_casts_through_floats_are_one_where_nothing_depends_on_it() -> None:
    value = Input(u32[3], "x")
    for to, count in ((u8, 2), (i32, 2), (u64, 1), (f32, 1)):
        assert len(optimize(Graph((value,), {"y": Cast(to)(Cast(f64)(value))})).nodes) == count
