"""Transpositions in nests: tiles of rows that are loaded whole, on every kind of target."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from glowtrain.backends.cpu.loop_nest.transpose_tiles import transpose_tiles
from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.target import Target
from glowtrain.loops import Buffer, Expr, For, Let, Load, Ref, Statement, Store, indices_of, reduce
from glowtrain.program.memory.plan import plan
from glowtrain.program.program import Program
from glowtrain.types import DType, Shape, TensorType, f16, f32, f64, i32, i64
from tests.cpu.in_pieces import InPieces, shuffled
from tests.cpu.native_program import Native
from tests.cpu.nests import TARGETS, check, feeds_of, program

Body = Callable[..., list[Statement]]


def turned(rows: int, columns: int, dtype: DType = f32, outer: int = 1) -> Program:
    """y[o, i, j] = x[o, j, i] and z[o, i, j] = x[o, j, i] * w[i, j]."""
    x, w = Buffer("x", TensorType(dtype, (outer, columns, rows)), "input"), Buffer("w", dtype[rows, columns], "input")
    y, z = (Buffer(name, TensorType(dtype, (outer, rows, columns)), "output") for name in "yz")
    o, i, j = at = indices_of((outer, rows, columns))
    ref = Ref(dtype, "t")
    stores = [Store(y, at, ref), Store(z, at, ref * Load(w, (i, j)))]
    return program([For(at, (Let(ref, Load(x, (o, j, i))), *stores))])


@pytest.mark.spread(50)
@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, f16], ids=str)
@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (33, 50), (17, 16), (40, 8), (5, 70)])
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_transpositions(target: str, shape: Shape, dtype: DType) -> None:
    p = turned(*shape, dtype, outer=3)
    check(p, feeds_of(np.random.default_rng(sum(shape)), p), TARGETS[target])


def copied(rows: int, columns: int, dtype: DType = f32, outer: int = 1) -> Program:
    """y[o, i, j] = x[o, j, i] in a kernel of its own, and with shifts of i by 1 and 2 in one of both."""
    x = Buffer("x", TensorType(dtype, (outer, columns, rows + 2)), "input")
    o, i, j = at = indices_of((outer, rows, columns))
    y, z, w = (Buffer(name, TensorType(dtype, (outer, rows, columns)), "output") for name in "yzw")
    plain, *shifted = [Store(target, at, Load(x, (o, j, i + by))) for by, target in enumerate((y, z, w))]
    return program([For(at, (plain,))], [For(at, tuple(shifted))])


@pytest.mark.spread(26)
@pytest.mark.parametrize("dtype", [f32, f64, i32, i64], ids=str)
@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (33, 50), (40, 8)])
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_copies(target: str, shape: Shape, dtype: DType) -> None:
    p = copied(*shape, dtype, outer=3)
    check(p, feeds_of(np.random.default_rng(sum(shape)), p), TARGETS[target])


def test_copies_share_a_function() -> None:
    text = generate(plan(copied(64, 32)), Target.named("avx512")).text
    assert text.count(".square0(ptr noalias %target") == 1
    assert len(re.findall(r"call void @\w+\.square0", text)) == 3


@pytest.mark.parametrize("shape", [(64, 32, 1), (70, 35, 1), (33, 50, 3)])
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_ranges_of_tasks_give_the_same(target: str, shape: tuple[int, int, int]) -> None:
    rows, columns, outer = shape
    p = turned(rows, columns, outer=outer)
    random = np.random.default_rng(rows)
    feeds = feeds_of(random, p)
    whole, _ = Native(p, TARGETS[target]).run(feeds)
    pieces = InPieces(p, TARGETS[target])
    for count in (2, 3, 5):
        got, _ = pieces.tell(shuffled(count, random)).run(feeds)
        for name, array in whole.items():
            np.testing.assert_array_equal(got[name], array)


def test_no_lane_is_loaded_alone() -> None:
    text = generate(plan(turned(64, 32)), Target.named("avx512")).text
    assert "load <16 x float>" in text
    assert "insertelement <16 x float>" not in text
    assert "load float" not in text


X, Y, N = Buffer("x", f32[64, 64], "input"), Buffer("y", f32[64, 64], "output"), Buffer("n", i64[64], "input")


def found(*body: Statement, at: tuple[Expr, ...], width: int = 16) -> tuple[Expr, Expr] | None:
    tiles = transpose_tiles(For(at, body), width, Free())  # type: ignore[arg-type]
    return None if tiles is None else (tiles.lane, tiles.across)


def test_what_is_written_in_tiles() -> None:
    i, j = at = indices_of((64, 64))
    back = Load(X, (j, i))
    assert found(Store(Y, (i, j), back), at=at) == (j, i)
    assert found(Store(Y, (j, i), Load(X, (i, j))), at=at) == (i, j)
    assert found(Store(Y, (i, j), back + Load(X, (i, j))), at=at) == (j, i), "others may lie along the lanes"
    assert found(Store(Y, (i, j), Load(X, (i, j))), at=at) is None, "all lies along the lanes"
    assert found(Store(Y, (i, j), back), at=at, width=1) is None
    assert found(Store(Y, (i, j), back), at=at, width=128) is None, "fewer than a vector"
    assert found(Store(Y, (i, j), Load(X, (j - 1, i), 0)), at=at) is None, "may be outside"
    assert found(Store(Y, (i, j), Load(X, (Load(N, (j,)), i))), at=at) is None, "rows from anywhere"
    assert found(Store(Y, (i, j), Load(Y, (j, i))), at=at) is None, "what the kernel writes"
    assert found(Store(Y, (i, j), reduce("add", (64,), lambda k: Load(X, (j, k)) * Load(X, (k, i)))), at=at) is None
    assert found(Store(Y, (i, j), Load(X, (j, 63 - i))), at=at) is None, "neighbours in the other direction"
