"""The verifier of programs and plans where text cannot say what is wrong; else see texts/verify.gtp and plans.gtp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glowtrain.errors import ProgramError
from glowtrain.loops import (
    Accumulate,
    Apply,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    indices_of,
    reduce,
    select,
)
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.verify import verify
from glowtrain.types import boolean, f32, i64

X = Buffer("x", f32[4, 3], "input")
AT = Buffer("at", i64[4], "input")
Y = Buffer("y", f32[4, 3], "output")
P, Q = indices_of((4, 3))


def copied(value: Expr, *before: Statement, serial: bool = False) -> Program:
    """``y[i, j] = value`` everywhere, after ``before`` in the same loop."""
    return program(For((P, Q), (*before, Store(Y, (P, Q), value)), serial))


def program(*body: Statement, **fields: Any) -> Program:
    inputs = fields.pop("inputs", {"x": X, "at": AT})
    return Program(
        "p", inputs, fields.pop("outputs", {"y": Y}), fields.pop("variables", {}), (Kernel("k", body),), **fields
    )


def problems(p: Program) -> tuple[str, ...]:
    with pytest.raises(ProgramError) as caught:
        verify(p)
    return caught.value.problems


def only(p: Program) -> str:
    """The one problem of a program."""
    (problem,) = problems(p)
    return problem


GOOD = copied(Load(X, (P, Q)))


def test_a_good_program_passes() -> None:
    verify(GOOD)
    verify(
        copied(Load(X, (Load(AT, (P,)), Q), fill=0) + reduce("add", (3,), lambda r: Load(X, (P, r)) * Load(X, (P, Q))))
    )


# ---- buffers


def test_names_differ() -> None:
    t = Buffer("x", f32[4, 3])
    p = program(For((P, Q), (Store(t, (P, Q), Load(X, (P, Q))), Store(Y, (P, Q), Load(X, (P, Q))))))
    assert only(p) == "2 buffers are called 'x'"


def test_buffers_are_listed_under_their_kind() -> None:
    assert "input x (f32[4,3]) is not listed among the program's inputs" in problems(replace(GOOD, inputs={}))
    assert (
        only(replace(GOOD, inputs={"x": X, "at": Buffer("at", i64[4])}))
        == "activation at (i64[4]) is listed as input 'at'"
    )
    assert only(replace(GOOD, constants=(Buffer("c", i64[4]),))) == "activation c (i64[4]) is listed as a constant"


def test_constants_and_variables_hold_their_type() -> None:
    empty, wrong = Buffer("c", f32[2], "constant"), Buffer("d", f32[2], "constant", initial=np.zeros(2))
    assert problems(replace(GOOD, constants=(empty, wrong))) == (
        "constant c (f32[2]) has no contents",
        "constant d (f32[2]) holds float64[2]",
    )


# ---- statements


def test_operations_are_known() -> None:
    zero = For(ij := indices_of((4, 3)), (Store(Y, ij, Const(0.0, f32)),))
    grow = For((P, Q), (Accumulate("xor", Y, (P, Q), Const(1.0, f32)),))
    assert only(program(zero, grow)).endswith("there is no accumulation by 'xor'")
    assert only(copied(reduce("sub", (3,), lambda r: Load(X, (P, r))))).endswith("there is no reduction by 'sub'")
    for partials, extents in ((3, (3,)), (-2, (3,)), (8, (3, 2))):
        indices = indices_of(extents, "r")
        said = only(copied(Reduce("add", indices, Load(X, (P, indices[0])), partials)))
        assert said.endswith(f"{partials} partial sums over {len(extents)} indices; a power of two goes with one index")
    assert only(copied(reduce("and", (3,), lambda r: Load(X, (P, r))))).endswith(
        "a reduction by 'and' of f32; it takes bool"
    )


def test_functions_and_their_operands() -> None:
    x, n = Load(X, (P, Q)), Load(AT, (P,))
    assert only(copied(Apply("cube", (x,), f32))).endswith("cube is no function of the loop language")
    assert only(copied(Apply("add", (x,), f32))).endswith("add takes 2 operands, not 1")
    assert only(copied(Apply("add", (x, n), f32))).endswith("add of f32 and i64; its operands must have one type")
    assert only(copied(Apply("select", (n, x, x), f32))).endswith("the condition of a select is i64, not bool")
    assert only(copied(Cast(Apply("lt", (x, x), f32), f32))).endswith("lt of f32 gives bool, not f32")
    assert only(copied(Cast(Apply("exp", (n,), i64), f32))).endswith("exp is not defined for i64")
    verify(copied(select(Apply("lt", (x, x), boolean), x, x)))


def test_indices_are_bound_once() -> None:
    stray = Index(3, "k")
    assert "kernel k: y[i0, i1] = x[i0, k?]: index k is used outside of its loop" in problems(
        copied(Load(X, (P, stray)))
    )
    twice = For((P, Q), (For((Q,), (Store(Y, (P, Q), Load(X, (P, Q))),)),))
    assert any("index i1 is bound already" in problem for problem in problems(program(twice)))
    assert any("index i1 is bound more than once" in p for p in problems(copied(Reduce("add", (Q,), Load(X, (P, Q))))))
    inner = Reduce("add", (stray,), Load(X, (P, stray)))
    assert any("index k is bound more than once" in p for p in problems(copied(Reduce("add", (stray,), inner))))
    repeat = Repeat("r", P, GOOD.instructions)
    assert any("index i0 is bound already" in problem for problem in problems(replace(GOOD, instructions=(repeat,))))


def test_refs_are_defined_before_they_are_used_once_and_in_type() -> None:
    name = Ref(f32, "name")
    verify(copied(name, Let(name, Load(X, (P, Q)))))
    assert only(copied(name)).endswith("name is used before it is defined")
    assert only(copied(name, Let(name, Load(X, (P, Q))), Let(name, Load(X, (P, Q))))).endswith(
        "name is defined more than once"
    )
    assert only(copied(name, Let(name, Const(0, i64)))).endswith("a value of type i64 for a ref of type f32")
    inside = For((k := Index(2, "k"),), (Let(name, Load(X, (P, k))),))
    assert only(copied(name, inside)).endswith("name is used before it is defined")


T = Buffer("t", f32[4, 3])


# ---- plans


def chain() -> Program:
    """x -> a -> b -> c -> y, so that a and c can share memory, b with neither."""
    names = [Buffer(name, f32[4, 3]) for name in "abc"]
    kernels = []
    for source, target in zip([X, *names], [*names, Y], strict=True):
        i = indices_of((4, 3))
        kernels.append(Kernel(f"to_{target.name}", (For(i, (Store(target, i, Load(source, i) + 1),)),)))
    return Program("chain", {"x": X}, {"y": Y}, {}, tuple(kernels))


def plan_problems(changed: Plan) -> tuple[str, ...]:
    with pytest.raises(ProgramError) as caught:
        verify_plan(changed)
    return caught.value.problems


def test_a_good_plan_passes_and_shares_memory() -> None:
    good = plan(chain())
    verify_plan(good)
    assert good.arena == 128


def test_only_activations_of_the_program_have_a_place() -> None:
    good = plan(chain())
    assert plan_problems(replace(good, offsets={**good.offsets, T: 64})) == (
        "activation t (f32[4,3]) has a place but is not an activation of the program",
    )
