"""General nests as native code against the evaluator, on every kind of target, with guards around every buffer."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.backends.cpu.step import generate
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.backends.target import Target
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.strategies import HypothesisDraw
from glowtrain.loops import (
    Accumulate,
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Ref,
    Store,
    call,
    cast,
    indices_of,
    reduce,
    select,
)
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.types import DTYPES, DType, TensorType, bf16, boolean, f32, f64, i32, i64, u8
from tests.cpu.native_program import Native, Pages, spread
from tests.cpu.nests import TARGETS, check, feeds_of, program
from tests.cpu.random_nests import Programs

ELSEWHERE = ("avx512", "neon", "generic", "riscv64")


# ---- random programs


@given(st.data(), st.sampled_from(sorted(TARGETS)))
def test_random_programs(data: st.DataObject, target: str) -> None:
    programs = Programs(HypothesisDraw(data.draw))
    p = programs.program()
    check(p, programs.feeds(p), TARGETS[target])


@pytest.mark.spread(1)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_random_programs_of_many_kinds(target: str) -> None:
    """Evenly distributed choices reach further than what hypothesis tries first."""
    for seed in range(14):
        programs = Programs(ChoiceDraw(seed + 100 * sorted(TARGETS).index(target)))
        p = programs.program()
        check(p, programs.feeds(p), TARGETS[target])


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_random_programs_compile_for_other_processors(name: str) -> None:
    for seed in range(12):
        p = Programs(ChoiceDraw(seed)).program()
        target = Target.named(name)
        assert compile_text(generate(spread(p), target).text, target)


def read_at_the_edge_of_pages() -> None:
    """Every buffer ends, then begins, at memory that must not be touched. Run in a process of its own."""
    for seed in range(25):
        programs = Programs(ChoiceDraw(1000 + seed))
        p = programs.program()
        feeds = programs.feeds(p)
        expected, _ = evaluate(p, feeds)
        native = Native(p, list(TARGETS.values())[seed % len(TARGETS)])
        for at_end in (True, False):
            outputs, _ = native.run(feeds, memory=Pages(native.sizes, at_end))
            for name, array in expected.items():
                np.testing.assert_array_equal(outputs[name], array)


def read_half_of_the_lanes() -> None:
    """Wide elements for as few points as half of the lanes, behind a condition that is the same on all of them."""
    for target in TARGETS.values():
        count = max(target.width("f32") // 2, 1)
        for dtype in (i64, f64):
            x = Buffer("x", TensorType(dtype, (3, count)), "input")
            y = Buffer("y", TensorType(f32, (3, count)), "output")
            i, j = indices_of((3, count))
            p = program([For((i, j), (Store(y, (i, j), cast(Load(x, (i + 1, j), 1), f32)),))])
            native, feeds = Native(p, target), feeds_of(np.random.default_rng(count), p)
            expected, _ = evaluate(p, feeds)
            for at_end in (True, False):
                outputs, _ = native.run(feeds, memory=Pages(native.sizes, at_end))
                np.testing.assert_array_equal(outputs["y"], expected["y"])


def touch_a_guard() -> None:
    """Shows that the guards work: the first byte after a piece."""
    piece = Pages([8]).pieces[0]
    ctypes.memset(piece.ctypes.data + 8, 0, 1)


def in_a_process(function: str) -> subprocess.CompletedProcess[str]:
    code = f"from tests.cpu import test_nest; test_nest.{function}()"
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("dtype", [u8, i32, f32, bf16], ids=str)
def test_a_lane_alone_is_stored_as_a_number(dtype: DType) -> None:
    """LLVM 22 stores the wider number of a masked lane 0 on AVX-512 where the value was cut from it."""
    x, y = Buffer("x", f32[17], "input"), Buffer("y", TensorType(dtype, (17,)), "output")
    (i,) = indices_of((17,))
    p = program([For((i,), (Store(y, (i,), cast(Load(x, (i,)) + 1.0, dtype)),))])
    lines = generate(spread(p), Target.named("avx512")).text.splitlines()
    assert not [line for line in lines if "masked.store" in line and line.count("i1 true") == 1]
    check(p, {"x": np.arange(17, dtype=np.float32)}, Target.host())


@pytest.mark.exhaustive
def test_nothing_is_touched_outside_of_buffers() -> None:
    assert in_a_process("touch_a_guard").returncode < 0
    for function in ("read_at_the_edge_of_pages", "read_half_of_the_lanes"):
        done = in_a_process(function)
        assert done.returncode == 0, (function, done.stderr)


# ---- subscripts


def copy_of(subscript: Callable[[Expr], Expr], extent: int, source: int, fill: int | None = None) -> Program:
    x, y = Buffer("x", f32[source], "input"), Buffer("y", f32[extent], "output")
    (i,) = indices_of((extent,))
    return program([For((i,), (Store(y, (i,), Load(x, (subscript(i),), fill)),))])


SUBSCRIPTS: list[tuple[Callable[[Expr], Expr], int | None]] = [
    (lambda i: call("div", 120 - i * 3, 4), None),
    (lambda i: call("div", 123 - i * 3, 5) + 1, None),
    (lambda i: (i * 5 - 7) % 31, None),
    (lambda i: call("div", i - 9, 4) + 3, None),
    (lambda i: 40 - i, None),
    (lambda i: i * 3 - 5, 7),
    (lambda i: call("div", i - 9, 4), 7),
    (lambda i: (i % 7) * 6 + call("div", i, 7), None),
    (lambda i: call("min", i, 40 - i) - 2, -1),
]


@pytest.mark.parametrize("number", range(len(SUBSCRIPTS)))
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_subscripts(number: int, target: str, random: np.random.Generator) -> None:
    subscript, fill = SUBSCRIPTS[number]
    p = copy_of(subscript, 41, 42, fill)
    check(p, feeds_of(random, p), TARGETS[target])


@pytest.mark.spread(8)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_fills_and_bounds_of_every_type(target: str, dtype: DType, random: np.random.Generator) -> None:
    """Bounds that lanes agree on and that they do not, at extents around the width of f32 and of the type."""
    for extent in sorted({1, 3, 7, 8, 9, 17, TARGETS[target].width(dtype.name) + 1}):
        x = Buffer("x", TensorType(dtype, (4, extent)), "input", (1, 0))
        y = Buffer("y", TensorType(dtype, (4, extent)), "output", (1, 0))
        i, j = indices_of((4, extent))
        both, here = Load(x, (i - 1, j + 1), 1), Load(x, (i, j))
        wide = f32 if dtype.is_stored else dtype
        same = call("eq", cast(both, wide), cast(here, wide))
        p = program([For((i, j), (Store(y, (i, j), select(same, both, Load(x, (3 - i, j)))),))])
        feeds = {"x": random.integers(0, 2, x.shape).astype(dtype.numpy)}
        check(p, feeds, TARGETS[target])


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_position_on_lanes_in_a_reductions_subscripts(target: str, random: np.random.Generator) -> None:
    """x[at[j], r] with at[j] named: each lane sums a row of its own."""
    x, at, y = Buffer("x", f64[6, 9], "input"), Buffer("at", i64[21], "input"), Buffer("y", f64[21], "output")
    (j,) = indices_of((21,))
    name = Ref(i64, "row")
    for body in (
        reduce("add", (9,), lambda r: Load(x, (name, r))),
        reduce("add", (9,), lambda r: Load(x, (name, (r + name) % 9)) * cast(name, f64)),
        reduce("max", (9,), lambda r: Load(x, (name, r + name - 4), 0)),
    ):
        p = program([For((j,), (Let(name, Load(at, (j,))), Store(y, (j,), body)))])
        feeds = {"x": random.integers(-9, 9, x.shape).astype(np.float64), "at": random.integers(0, 6, 21)}
        check(p, feeds, TARGETS[target])


# ---- order and independence of statements


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("swapped", [False, True])
def test_accumulation_keeps_the_order_of_the_program(target: str, swapped: bool, random: np.random.Generator) -> None:
    """y[i + j] takes each of its terms in the order of the loops: the bits are those of one addition after another."""
    x, y = Buffer("x", f32[40, 19], "input"), Buffer("y", f32[58], "output")
    (z,), (i, j) = indices_of((58,), "z"), indices_of((40, 19))
    grow = For((j, i) if swapped else (i, j), (Accumulate("add", y, (i + j,), Load(x, (i, j))),))
    p = program([For((z,), (Store(y, (z,), Const(0.0, f32)),)), grow])
    array = random.normal(size=x.shape).astype(np.float32)
    expected = np.zeros(58, np.float32)
    for a, b in np.ndindex(19, 40) if swapped else np.ndindex(40, 19):
        point = (b, a) if swapped else (a, b)
        expected[sum(point)] += array[point]
    np.testing.assert_array_equal(Native(p, TARGETS[target]).run({"x": array})[0]["y"], expected)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_accumulation_at_a_named_position_that_the_lanes_do_not_share(target: str, random: np.random.Generator) -> None:
    x, at, y = Buffer("x", i32[5, 20], "input"), Buffer("at", i64[20], "input"), Buffer("y", i32[4, 20], "output")
    z, (i, j) = indices_of((4, 20), "z"), indices_of((5, 20))
    name = Ref(i64, "row")
    grow = For((i, j), (Let(name, Load(at, (j,))), Accumulate("add", y, (name, j), Load(x, (i, j)))))
    p = program([For(z, (Store(y, z, Const(0, i32)),)), grow])
    feeds = {"x": random.integers(-9, 9, x.shape).astype(np.int32), "at": random.integers(-1, 5, 20)}
    check(p, feeds, TARGETS[target])


def read_through_what_was_stored() -> None:
    """x[at[t[i, 4]], k] after t was written. Before that t holds -1, and nothing lies in front of ``at``."""
    x, at, t = Buffer("x", f32[7, 11], "input"), Buffer("at", i64[7], "input"), Buffer("t", i64[3, 11])
    y, (i,) = Buffer("y", f32[3, 11], "output"), indices_of((3,))
    (j,), (k,) = indices_of((11,), "j"), indices_of((11,), "k")
    first = For((j,), (Store(t, (i, j), (i + j * 5) % 7),))
    row, other = (Load(at, (Load(t, (i, place)),)) for place in (Const(4, i64), 10 - k))
    second = For((k,), (Store(y, (i, k), Load(x, (row, k)) + Load(x, (other, k))),))
    p, random = program([For((i,), (first, second))]), np.random.default_rng(0)
    feeds = {"x": random.normal(size=x.shape).astype(np.float32), "at": random.permutation(7)}
    for target in TARGETS.values():
        native = Native(p, target)
        outputs, _ = native.run(feeds, memory=Pages(native.sizes, at_end=False))
        np.testing.assert_array_equal(outputs["y"], evaluate(p, feeds)[0]["y"])


@pytest.mark.exhaustive
def test_loads_follow_stores_to_the_same_buffer() -> None:
    """Nothing that the kernel writes is read early, not even to form an address."""
    done = in_a_process("read_through_what_was_stored")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_loops_without_trips_do_nothing(target: str, random: np.random.Generator) -> None:
    """Their loads may be out of bounds, so nothing of them may be computed outside either."""
    x, y, t = Buffer("x", f32[4], "input"), Buffer("y", f32[4], "output"), Index(0, "t")
    (i,), (k,) = indices_of((4,)), indices_of((0,), "k")
    far = Const(1 << 40, i64)
    never = For((k,), (Store(y, (i,), Load(x, (far + i,))),))
    nothing = reduce("add", (0,), lambda r: Load(x, (far + i,)) + reduce("add", (3,), lambda q: Load(x, (far + q,))))
    once = For((i,), (Store(y, (i,), Load(x, (i,)) + nothing), never))
    p = program([once], Repeat("steps", t, (Kernel("never", (For((i,), (Store(y, (i,), Const(7.0, f32)),)),)),)))
    array = random.normal(size=4).astype(np.float32)
    np.testing.assert_array_equal(Native(p, TARGETS[target]).run({"x": array})[0]["y"], array)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("width", [5, 8, 33])
def test_slots_of_a_state_by_parity(target: str, width: int, random: np.random.Generator) -> None:
    x, state, y = (
        Buffer("x", f32[5, width], "input"),
        Buffer("state", f32[2, width]),
        Buffer("y", f32[5, width], "output"),
    )
    t, (z,), (i,), (j,) = Index(5, "t"), *(indices_of((width,), name) for name in "zij")
    start = Kernel("start", (For((z,), (Store(state, (Const(0, i64), z), Const(0.0, f32)),)),))
    step = (For((i,), (Store(state, ((t + 1) % 2, i), Load(state, (t % 2, i)) + Load(x, (t, i))),)),)
    after = (For((j,), (Store(y, (t, j), Load(state, ((t + 1) % 2, j))),)),)
    p = program(start, Repeat("steps", t, (Kernel("step", step), Kernel("after", after))))
    check(p, feeds_of(random, p), TARGETS[target])


def test_the_widths_of_vectors_are_all_covered() -> None:
    """Where a target does not run, its width at least does."""
    assert {target.vector_bits for target in TARGETS.values()} >= {0, 128, 512}


def test_narrow_integers_fill_vectors() -> None:
    """Subscripts are i64, but a plain copy needs none on lanes."""
    x, y = Buffer("x", i32[64], "input"), Buffer("y", i32[64], "output")
    (i,) = indices_of((64,))
    p = program([For((i,), (Store(y, (i,), Load(x, (i,)) + 1),))])
    assert "load <8 x i32>" in generate(spread(p), Target.named("avx2")).text


@pytest.mark.spread(6)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("dtype", [u8, f32, i64, boolean], ids=str)
def test_planes_become_neighbours(target: str, dtype: DType, random: np.random.Generator) -> None:
    """Whole vectors and rests; more planes than are shuffled; a name that all share; planes before other loops."""
    for planes in (2, 3, 4, 5):
        for length in (3, 16, 37):
            x = Buffer("x", f32[2, planes, length], "input")
            y = Buffer("y", TensorType(dtype, (2, planes, length)), "output", (0, 2, 1))
            b, c, w = indices_of((2, planes, length))
            name = Ref(f32, "name")
            body = (Let(name, Load(x, (b, c, w)) * 3.0 + 20.0), Store(y, (b, c, w), cast(call("round", name), dtype)))
            p = program([For((b, c, w), body)])
            check(p, feeds_of(random, p), TARGETS[target])


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_planes_in_a_row_that_has_a_name(target: str, random: np.random.Generator) -> None:
    x, at, row = Buffer("x", f32[2, 3, 37], "input"), Buffer("at", i64[2], "input"), Ref(i64, "row")
    y = Buffer("y", u8[4, 3, 37], "output", (0, 2, 1))
    z, (b, c, w) = indices_of((4, 3, 37), "z"), indices_of((2, 3, 37))
    body = Let(row, Load(at, (b,))), Store(y, (row % 4, c, w), cast(Load(x, (b, c, w)), u8))
    p = program([For(z, (Store(y, z, Const(0, u8)),)), For((b, c, w), body)])
    check(p, {"x": 9 * random.random(x.shape, np.float32), "at": np.array([3, 1])}, TARGETS[target])


def test_planes_are_stored_at_once_and_strided_lanes_at_constant_distances() -> None:
    """No extraction of addresses: three planes are shuffled, seven are stored lane by lane."""
    for planes, stored in ((3, "store <24 x i8>"), (7, "store i8")):
        x, y = Buffer("x", f32[planes, 64], "input"), Buffer("y", u8[planes, 64], "output", (1, 0))
        c, w = indices_of((planes, 64))
        p = program([For((c, w), (Store(y, (c, w), cast(Load(x, (c, w)), u8)),))])
        text = generate(spread(p), Target.named("avx2")).text
        assert stored in text
        assert "x i64>" not in text


@pytest.mark.parametrize("channels", [8, 24])
def test_channels_of_a_tensor_in_place_are_vectors_of_their_own_length(channels: int) -> None:
    """Stored channels last. A whole vector that is read next to lanes that were stored would wait for them."""
    x = Buffer("x", f32[5, channels, 7], "variable", (0, 2, 1))
    scale = Buffer("scale", f32[channels], "input")
    i, c, j = indices_of((5, channels, 7))
    p = program([For((i, c, j), (Store(x, (i, c, j), call("max", Load(x, (i, c, j)) * Load(scale, (c,)), 0.5)),))])
    text = generate(spread(p), Target.named("avx512")).text
    assert "store <8 x float>" in text
    assert "masked" not in text
    assert "insertelement" not in text
