"""The verifier of programs and plans: a good program passes, and every broken invariant is reported, all at once."""

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
    call,
    indices_of,
    reduce,
    select,
)
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.verify import verify
from glowtrain.types import boolean, f32, f64, i32, i64

X = Buffer("x", f32[4, 3], "input")
AT = Buffer("at", i64[4], "input")
Y = Buffer("y", f32[4, 3], "output")
P, Q = indices_of((4, 3))
ZERO = Const(0, i64)
FILL = For(indices_of((4, 3)), ())


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


def test_layouts_are_permutations() -> None:
    t = Buffer("t", f32[4, 3], layout=(0, 0))
    p = program(For((P, Q), (Store(t, (P, Q), Load(X, (P, Q))), Store(Y, (P, Q), Load(X, (P, Q))))))
    assert only(p) == "activation t (f32[4,3]): layout [0, 0] is no permutation of its axes"


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


def test_inputs_and_constants_are_not_written() -> None:
    c = Buffer("c", f32[4, 3], "constant", initial=np.zeros((4, 3), np.float32))
    body = For((P, Q), (Store(c, (P, Q), Load(Y, (P, Q))), Store(X, (P, Q), Const(0.0, f32))))
    assert problems(program(*GOOD.instructions[0].body, body, constants=(c,))) == (  # type: ignore[union-attr]
        "input x (f32[4,3]) is written",
        "constant c (f32[4,3]) is written",
    )


def test_variables_are_written_if_and_only_if_they_are_updated() -> None:
    v = Buffer("v", f32[4, 3], "variable", initial=np.zeros((4, 3), np.float32))
    store = For((P, Q), (Store(v, (P, Q), Load(X, (P, Q))), Store(Y, (P, Q), Load(X, (P, Q)))))
    verify(program(store, variables={"v": v}, updates=("v",)))
    assert (
        only(program(store, variables={"v": v})) == "variable v (f32[4,3]) is written but not listed among the updates"
    )
    unwritten = replace(GOOD, variables={"v": v}, updates=("v",))
    assert only(unwritten) == "variable v (f32[4,3]) is listed among the updates but never written"
    assert only(replace(GOOD, updates=("w",))) == "update of 'w', which is no variable"


def test_activations_are_written_before_they_are_read() -> None:
    t = Buffer("t", f32[4, 3])
    late = For(ij := indices_of((4, 3)), (Store(t, ij, Const(1.0, f32)),))
    loop = For((P, Q), (Store(Y, (P, Q), Load(t, (P, Q))),))
    verify(program(late, loop))
    assert only(program(loop, late)) == "kernel k: activation t (f32[4,3]) is read before it is written"
    grown = For((P, Q), (Accumulate("add", Y, (P, Q), Const(1.0, f32)),))
    assert "kernel k: output y (f32[4,3]) is read before it is written" in problems(program(grown))


def test_a_serial_loop_may_read_its_earlier_trips_with_a_fill() -> None:
    verify(copied(Load(Y, (P - 1, Q), fill=0) + 1, serial=True))
    assert any(
        "is read before it is written" in problem for problem in problems(copied(Load(Y, (ZERO, Q)) + 1, serial=True))
    )


def test_outputs_are_written_fully() -> None:
    half = For((P, Q), (Store(Y, (call("div", P, 2), Q), Load(X, (P, Q))),), serial=True)
    assert only(program(half)) == "output y (f32[4,3]): 6 of 12 elements are never written"
    top, rest = indices_of((1, 3)), indices_of((3, 3))
    parts = For(top, (Store(Y, top, Const(0.0, f32)),)), For(rest, (Store(Y, (rest[0] + 1, rest[1]), Const(0.0, f32)),))
    verify(program(*parts))
    assert only(program(parts[1])) == "output y (f32[4,3]): 3 of 12 elements are never written"


def test_the_steps_of_a_repeat_write_an_output_together() -> None:
    t, (j,) = Index(4, "t"), indices_of((3,))
    body = Kernel("k", (For((j,), (Store(Y, (t, j), Load(X, (t, j))),)),))
    p = Program("p", {"x": X}, {"y": Y}, {}, (Repeat("r", t, (body,)),))
    verify(p)
    short = Index(3, "t")
    body = Kernel("k", (For((j,), (Store(Y, (short, j), Load(X, (short, j))),)),))
    assert (
        only(replace(p, instructions=(Repeat("r", short, (body,)),)))
        == "output y (f32[4,3]): 3 of 12 elements are never written"
    )


# ---- statements


def test_subscripts_match_the_rank() -> None:
    assert only(copied(Load(X, (P,)))) == "kernel k: y[i0, i1] = x[i0]: 1 subscripts for input x (f32[4,3])"
    assert "2 subscripts for input at" in only(copied(Cast(Load(AT, (P, Q)), f32)))
    assert any(
        "1 subscripts for output y" in problem
        for problem in problems(program(For((P, Q), (Store(Y, (P,), Const(0.0, f32)),))))
    )


def test_subscripts_are_i64() -> None:
    narrow = Cast(P, i32)
    assert only(copied(Load(X, (narrow, Q), fill=0))).endswith("subscript i32(i0) of x is i32, not i64")


def test_loads_stay_inside() -> None:
    verify(copied(Load(X, (P - 1, Q), fill=0)))
    verify(copied(Load(X, ((P * 3 + Q) // 3, (P * 3 + Q) % 3))))
    assert only(copied(Load(X, (P - 1, Q)))) == (
        "kernel k: y[i0, i1] = x[i0 - 1, i1]: input x (f32[4,3]) is read at i0 - 1 on axis 0, "
        "which reaches -1..2, outside of [0, 4)"
    )
    beyond = reduce("add", (4,), lambda r: Load(X, (P, r)))
    assert "is read at r0 on axis 1, which reaches 0..3, outside of [0, 3)" in only(copied(beyond))


def test_ranges_that_the_affine_analysis_does_not_find_are_computed() -> None:
    """i - 2 divided by 2 truncates towards zero: -1..0, plus 1."""
    verify(copied(Load(X, (call("div", P - 2, 2) + 1, Q))))
    assert "which reaches -1..0" in only(copied(Load(X, (call("div", P - 2, 2), Q))))


def test_gathered_loads_are_exempt_but_not_gathered_stores() -> None:
    verify(copied(Load(X, (Load(AT, (P,)), Q))))
    scatter = For((P, Q), (Store(Y, (Load(AT, (P,)), Q), Load(X, (P, Q))),), serial=True)
    assert (
        "output y (f32[4,3]) is written at at[i0] on axis 0, which is not provably inside [0, 4)"
        in problems(program(scatter))[0]
    )
    near = call("max", call("min", Load(AT, (P,)), 3), 0)
    verify(program(For((P, Q), (Store(Y, (near, Q), Load(X, (P, Q))),), serial=True)))


def test_stores_stay_inside_and_accumulations_need_not() -> None:
    assert any(
        "is written at i0 + 1 on axis 0" in p
        for p in problems(program(For((P, Q), (Store(Y, (P + 1, Q), Const(0.0, f32)),))))
    )
    again = indices_of((4, 3))
    grow = For(again, (Accumulate("add", Y, (again[0] + 1, again[1]), Const(1.0, f32)),))
    verify(program(For((P, Q), (Store(Y, (P, Q), Const(0.0, f32)),)), grow))


def test_values_have_the_element_type_of_the_buffer() -> None:
    assert only(copied(Const(0.0, f64))).endswith("a value of type f64 for output y (f32[4,3])")
    wrong = Accumulate("add", Y, (P, Q), Const(1, i64))
    zero = For(ij := indices_of((4, 3)), (Store(Y, ij, Const(0.0, f32)),))
    assert only(program(zero, For((P, Q), (wrong,)))).endswith("a value of type i64 for output y (f32[4,3])")


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


# ---- independent points


def test_stores_depend_on_every_parallel_index() -> None:
    last = For((P, Q), (Store(Y, (P, ZERO), Load(X, (P, Q))),))
    assert "every point of the parallel loop over i1 writes the same element" in problems(program(FILL, last))[0]
    clear = For(ij := indices_of((4, 3)), (Store(Y, ij, Const(0.0, f32)),))
    verify(program(clear, For((P, Q), last.body, serial=True)))


def test_parallel_points_do_not_read_each_others_stores() -> None:
    v = Buffer("v", f32[4, 3], "variable", initial=np.zeros((4, 3), np.float32))

    def update(value: Expr) -> Program:
        return program(
            For((P, Q), (Store(v, (P, Q), value), Store(Y, (P, Q), value))), variables={"v": v}, updates=("v",)
        )

    verify(update(Load(v, (P, Q)) * 2))
    message = "kernel k: for i0<4, i1<3: v[-i0 + 3, i1] may read what another point of the loop writes"
    assert message in problems(update(Load(v, (Const(3, i64) - P, Q))))
    assert any("may read" in p for p in problems(update(reduce("add", (3,), lambda r: Load(v, (P, r))))))


def test_rows_may_read_what_they_wrote_themselves() -> None:
    (k,), (again,) = indices_of((3,), "k"), indices_of((3,), "k")
    rows = (
        For((k,), (Store(Y, (P, k), Load(X, (P, k))),)),
        For((again,), (Store(T, (P, again), Load(Y, (P, Const(2, i64) - again))),)),
    )
    verify(program(For((P,), rows)))
    crossed = (rows[0], For((again,), (Store(T, (P, again), Load(Y, (Const(3, i64) - P, again))),)))
    assert "y[-i0 + 3, k0] may read what another point" in only(program(For((P,), crossed)))


T = Buffer("t", f32[4, 3])


def test_two_slots_of_a_state_do_not_meet() -> None:
    state, t, (i,) = Buffer("state", f32[2, 3]), Index(4, "t"), indices_of((3,))
    start = Kernel("start", (For(ij := indices_of((2, 3)), (Store(state, ij, Const(0.0, f32)),)),))
    value = reduce("add", (3,), lambda r: Load(state, (t % 2, r))) + Load(X, (t, i))
    step = Kernel("step", (For((i,), (Store(state, ((t + 1) % 2, i), value), Store(Y, (t, i), value))),))
    verify(Program("p", {"x": X}, {"y": Y}, {}, (start, Repeat("r", t, (step,)))))
    wrong = Kernel("step", (For((i,), (Store(state, (t % 2, i), value), Store(Y, (t, i), value))),))
    assert "may read what another point" in only(
        Program("p", {"x": X}, {"y": Y}, {}, (start, Repeat("r", t, (wrong,))))
    )


def test_all_problems_are_reported_at_once() -> None:
    p = copied(Load(X, (P - 1, Q)) + Ref(f32, "lost"))
    assert len(problems(replace(p, updates=("w",)))) == 3


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


def test_buffers_alive_together_do_not_share_memory() -> None:
    good = plan(chain())
    a, b, c = sorted(good.offsets, key=lambda buffer: buffer.name)
    wrong = replace(good, offsets={a: 0, b: 0, c: 64})
    assert plan_problems(wrong) == (
        "activation a (f32[4,3]) and activation b (f32[4,3]) share memory but both are alive in kernel to_b",
    )


def test_places_are_aligned_inside_of_the_arena_and_complete() -> None:
    good = plan(chain())
    a, b, c = sorted(good.offsets, key=lambda buffer: buffer.name)
    assert plan_problems(replace(good, offsets={a: 0, b: 72, c: 0})) == (
        "activation b (f32[4,3]) is at 72, which is no multiple of 64",
    )
    assert plan_problems(replace(good, offsets={a: 0, b: 128, c: 0})) == (
        "activation b (f32[4,3]) ends at 176, outside of the arena of 128",
    )
    assert plan_problems(replace(good, offsets={a: 0, b: 64})) == ("activation c (f32[4,3]) has no place",)
    assert plan_problems(replace(good, offsets={a: 0, b: 64, c: 0, T: 64})) == (
        "activation t (f32[4,3]) has a place but is not an activation of the program",
    )


def test_what_a_repeat_carries_keeps_its_memory_through_all_steps() -> None:
    """``local`` is written and read within a step, ``state`` lives from step to step: they must not share."""
    state, local, t = Buffer("state", f32[3]), Buffer("local", f32[3]), Index(4, "t")
    (z,), (i,), (j,), (o,) = (indices_of((3,)) for _ in range(4))
    start = Kernel("start", (For((z,), (Store(state, (z,), Const(0.0, f32)),)),))
    first = Kernel("first", (For((i,), (Store(local, (i,), Load(X, (t, i)) * 2),)),))
    second = Kernel("second", (For((j,), (Store(state, (j,), Load(state, (j,)) + Load(local, (j,))),)),))
    y = Buffer("y", f32[3], "output")
    finish = Kernel("finish", (For((o,), (Store(y, (o,), Load(state, (o,))),)),))
    p = Program("p", {"x": X}, {"y": y}, {}, (start, Repeat("r", t, (first, second)), finish))
    good = plan(p)
    verify_plan(good)
    shared = replace(good, offsets={state: 0, local: 0})
    assert "share memory but both are alive in kernel first" in plan_problems(shared)[0]
