"""Recurrences along a loop: the element before stays in a register; chains of neighbouring points run in lanes."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.cpu.loop_nest.recurrences import carried, recurrence
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.target import Target
from glowtrain.loops import Buffer, Const, Expr, For, Index, Let, Load, Ref, Statement, Store, Tensor
from glowtrain.ops.indexing.arg_extrema import running
from glowtrain.program.memory.plan import plan
from glowtrain.program.program import Program
from glowtrain.types import DType, Shape, TensorType, bf16, f16, f32, f64, i32
from tests.cpu.nests import TARGETS, check, feeds_of, program


def chains(shape: Shape, axis: int, reverse: bool, dtype: DType = f32) -> Program:
    """y[k] = x[k] * y[k - 1] + x[k]."""
    x, y = Buffer("x", TensorType(dtype, shape), "input"), Buffer("y", TensorType(dtype, shape), "output")

    def step(here: list[Expr], before: list[Expr]) -> Statement:
        term = Load(x, tuple(here))
        return Store(y, tuple(here), term * Load(y, tuple(before), 1) + term)

    return program(running(Tensor(y), axis, reverse, step))


@pytest.mark.spread(83)
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i32], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7, 37), 0), ((7, 37), 1), ((3, 5, 19), 1), ((40,), 0), ((1, 5), 0)])
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_recurrences(target: str, shape: Shape, axis: int, reverse: bool, dtype: DType) -> None:
    p = chains(shape, axis, reverse, dtype)
    check(p, feeds_of(np.random.default_rng(0), p), TARGETS[target])


def text_of(p: Program) -> str:
    return generate(plan(p), Target.named("avx512")).text


def test_neighbouring_chains_run_in_lanes() -> None:
    assert "fmul <16 x float>" in text_of(chains((7, 32), 0, reverse=False))
    assert "fmul <16 x float>" not in text_of(chains((7, 32), 1, reverse=False)), "elements of lanes lie apart"


def test_what_was_stored_is_not_loaded() -> None:
    def loads(p: Program) -> int:
        return sum(" load float" in line for line in text_of(p).splitlines())

    assert loads(chains((5, 33), 1, reverse=True)) == 1


def test_what_is_no_chain() -> None:
    y, k = Buffer("y", f32[9], "output"), Index(9, "k")
    ref = Ref(f32, "t")

    def loop(value: Expr, *lets: Let, serial: bool = True) -> For:
        return For((k,), (*lets, Store(y, (k,), value)), serial)

    before = Load(y, (k - 1,), 0)
    assert carried(loop(before * 2)) is before
    assert carried(loop(ref * 2, Let(ref, before))) is before
    assert carried(loop(Load(y, (k - 2,), 0) * 2)) is None, "two trips before"
    assert carried(loop(before + Load(y, (k - 2,), 0))) is None
    assert carried(loop(before * 2, serial=False)) is None
    assert carried(loop(Const(1.0, f32))) is None
    half = Buffer("y", f32[10], "output")
    assert carried(For((k,), (Store(half, (k + 1,), Load(half, (k,), 0)),), True)) is None, "the first trip loads"


def test_recurrences_at_positions_that_depend_on_data_stay_in_order() -> None:
    y, at, n, k = Buffer("y", f32[8, 9], "output"), Buffer("at", i32[9], "input"), Index(8, "n"), Index(9, "k")
    store = Store(y, (n, Load(at, (k,))), Load(y, (n, k - 1), 0))
    assert recurrence(For((n,), (For((k,), (store,), True),))) is None
