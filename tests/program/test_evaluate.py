"""The evaluator against a point-by-point interpreter of the loop language, and against hand-computed kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import InputError, ProgramError
from glowtrain.loops import (
    FUNCTIONS,
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
    Tensor,
    call,
    cast,
    indices_of,
    reduce,
    select,
)
from glowtrain.program import evaluate as evaluator
from glowtrain.program import scalar
from glowtrain.program.evaluate import evaluate
from glowtrain.program.memory import Memory
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.verify import verify
from glowtrain.types import DTYPES, Array, bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u32

RANDOM = np.random.default_rng(7)


def program(*kernels: Any, inputs: Sequence[Buffer] = (), outputs: Sequence[Buffer] = (), **fields: Any) -> Program:
    instructions = tuple(k if isinstance(k, (Kernel, Repeat)) else Kernel("k", tuple(k)) for k in kernels)
    return Program(
        "p",
        {b.name: b for b in inputs},
        {b.name: b for b in outputs},
        fields.pop("variables", {}),
        instructions,
        **fields,
    )


# ---- a point at a time


class Points:
    """The loop language as its grammar says: one point after another, one element after another."""

    def __init__(self, arrays: dict[Buffer, Array]) -> None:
        self.arrays = arrays

    def body(self, body: Sequence[Statement], env: dict[Any, Any]) -> None:
        env = dict(env)
        for statement in body:
            match statement:
                case For(indices=indices, body=inner):
                    for point in itertools.product(*(range(i.extent) for i in indices)):
                        self.body(inner, {**env, **dict(zip(indices, point, strict=True))})
                case Let(ref=ref, value=value):
                    env[ref] = self.value(value, env)
                case Store(buffer=buffer, index=index, value=value):
                    self.arrays[buffer][self.place(index, env)] = self.value(value, env)
                case Accumulate(op=op, buffer=buffer, index=index, value=value):
                    place = self.place(index, env)
                    if all(0 <= i < extent for i, extent in zip(place, buffer.shape, strict=True)):
                        array = self.arrays[buffer]
                        array[place] = scalar.UFUNCS[op](array[place], self.value(value, env))

    def place(self, index: Sequence[Expr], env: dict[Any, Any]) -> tuple[int, ...]:
        return tuple(int(self.value(i, env)) for i in index)

    def value(self, expr: Expr, env: dict[Any, Any]) -> Any:
        match expr:
            case Const(value=value, dtype=dtype):
                return scalar.number(value, dtype)
            case Index():
                return np.asarray(env[expr], np.int64)
            case Ref():
                return env[expr]
            case Load(buffer=buffer, index=index, fill=fill):
                place = self.place(index, env)
                if all(0 <= i < extent for i, extent in zip(place, buffer.shape, strict=True)):
                    return np.asarray(self.arrays[buffer][place])
                assert fill is not None
                return scalar.number(fill, buffer.dtype)
            case Apply(function=function, arguments=arguments):
                return scalar.apply(function, [self.value(a, env) for a in arguments])
            case Cast(value=value, dtype=dtype):
                return scalar.convert(self.value(value, env), dtype)
            case Reduce(op=op, indices=indices, body=body):
                total = scalar.identity(op, body.dtype)
                for point in itertools.product(*(range(i.extent) for i in indices)):
                    total = scalar.UFUNCS[op](
                        total, self.value(body, {**env, **dict(zip(indices, point, strict=True))})
                    )
                return total
        raise AssertionError(expr)


def pointwise_outputs(p: Program, inputs: dict[str, Array]) -> dict[str, Array]:
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in p.buffers}
    arrays |= {p.inputs[name]: array for name, array in inputs.items()}
    with np.errstate(all="ignore"):
        for kernel in p.instructions:
            assert isinstance(kernel, Kernel)
            Points(arrays).body(kernel.body, {})
    return {name: arrays[b] for name, b in p.outputs.items()}


# ---- random nests


class Nests:
    """Draws nests of loops over a float, an integer and an index buffer."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.x = Buffer("x", f64[self.extents(3, 1, 4)], "input", self.permutation(3))
        self.n = Buffer("n", i32[self.extents(2, 1, 4)], "input")
        self.at = Buffer("at", i64[self.integer(1, 4),], "input")
        self.shared: list[Expr] = []

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def extents(self, rank: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.integer(low, high) for _ in range(rank))

    def permutation(self, rank: int) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(rank))))

    def subscript(self, scope: Sequence[Index], gather: bool = True) -> Expr:
        """Affine, split by a quotient or remainder, or gathered."""
        kind = self.integer(0 if gather else 1, 9)
        if kind == 0:
            return Load(self.at, (self.subscript(scope, gather=False),), fill=self.integer(-1, 2))
        total: Expr = Const(self.integer(-1, 1), i64)
        for index in scope:
            if self.integer(0, 2):
                total = total + index * self.integer(-1, 2)
        if kind == 1:
            return call("mod", total, self.integer(1, 3))
        return call("div", total, self.integer(1, 3)) if kind == 2 else total

    def load(self, buffer: Buffer, scope: Sequence[Index]) -> Expr:
        index = tuple(self.subscript(scope) for _ in buffer.shape)
        return Load(buffer, index, fill=self.integer(-2, 2))

    def expr(self, scope: Sequence[Index], depth: int) -> Expr:
        """A float expression."""
        if depth == 0:
            return self.load(self.x, scope)
        match self.integer(0, 7):
            case 0 | 1:
                return call(
                    self.draw(st.sampled_from(["add", "sub", "mul", "max", "min"])),
                    self.expr(scope, depth - 1),
                    self.leaf(scope),
                )
            case 2:
                condition = call(
                    self.draw(st.sampled_from(["lt", "ge", "eq"])), self.leaf(scope), self.expr(scope, depth - 1)
                )
                return select(condition, self.leaf(scope), self.expr(scope, depth - 1))
            case 3:
                return cast(self.load(self.n, scope) + 1, f64)
            case 4:
                part = self.expr(scope, depth - 1)
                return part * part + call("abs", part)
            case _:
                op = self.draw(st.sampled_from(["add", "add", "mul", "max", "min"]))
                inner = indices_of(self.extents(self.integer(1, 2), 0, 3), "r")
                if op == "add" and self.integer(0, 1):
                    return Reduce(op, inner, self.leaf((*scope, *inner)) * self.leaf((*scope, *inner)))
                return Reduce(op, inner, self.expr((*scope, *inner), depth - 1))

    def leaf(self, scope: Sequence[Index]) -> Expr:
        return self.load(self.x, scope) if self.integer(0, 3) else cast(self.subscript(scope), f64)

    def nest(self) -> Program:
        outer, inner = indices_of(self.extents(2, 1, 4)), indices_of((self.integer(1, 4),), "k")
        shape = tuple(i.extent for i in (*outer, *inner))
        t = Buffer("t", f64[shape], "activation", self.permutation(3))
        y, sums = Buffer("y", f64[shape], "output", self.permutation(3)), Buffer("sums", f64[3, 4], "output")
        name = Ref(f64, "name")
        row: list[Statement] = [Let(name, self.expr(outer, 2))]
        value = self.expr((*outer, *inner), 2) + name
        row.append(For(inner, (Store(t, (*outer, *inner), value),), serial=bool(self.integer(0, 1))))
        zero = indices_of((3, 4))
        clear = For(zero, (Store(sums, zero, Const(0, f64)),))
        again = indices_of(shape)
        scatter = For(
            again,
            (
                Store(y, again, Load(t, again) * 2 + self.expr(again, 1)),
                Accumulate(
                    self.draw(st.sampled_from(["add", "max"])),
                    sums,
                    (self.subscript(again), self.subscript(again)),
                    Load(t, again),
                ),
            ),
            serial=bool(self.integer(0, 1)),
        )
        first = For(outer, tuple(row), serial=bool(self.integer(0, 1)))
        return program([first], [clear, scatter], inputs=[self.x, self.n, self.at], outputs=[y, sums])


@given(st.data())
def test_random_nests_equal_a_point_by_point_interpreter(data: st.DataObject) -> None:
    p = Nests(data.draw).nest()
    verify(p)
    x, n, at = (b.shape for b in p.inputs.values())
    inputs = {
        "x": RANDOM.integers(-3, 4, x) / 4,
        "n": RANDOM.integers(-3, 4, n).astype(np.int32),
        "at": RANDOM.integers(-1, 4, at),
    }
    expected = pointwise_outputs(p, inputs)
    outputs, _ = evaluate(p, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-9, atol=1e-9, err_msg=str(p))


@given(st.data())
def test_cutting_a_box_changes_nothing(data: st.DataObject) -> None:
    p = Nests(data.draw).nest()
    x, n, at = (b.shape for b in p.inputs.values())
    inputs = {
        "x": RANDOM.normal(size=x),
        "n": RANDOM.integers(-3, 4, n).astype(np.int32),
        "at": RANDOM.integers(-1, 4, at),
    }
    whole, _ = evaluate(p, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "MAX_POINTS", 5)
        cut, _ = evaluate(p, inputs)
    for name, array in whole.items():
        np.testing.assert_allclose(cut[name], array, rtol=1e-12, atol=1e-12)


# ---- kernels by hand


def test_contractions_of_every_shape() -> None:
    """Batches, rows, columns and sums in any order, by one matrix product."""
    a, b = Buffer("a", f32[3, 4, 5, 2], "input"), Buffer("b", f32[5, 3, 6, 2], "input")
    c = Buffer("c", f32[4, 3, 6], "output")
    m, k, n = indices_of(c.shape)
    value = reduce("add", (5, 2), lambda r, s: Load(a, (k, m, r, s)) * Load(b, (r, k, n, s)))
    p = program([For((m, k, n), (Store(c, (m, k, n), value),))], inputs=[a, b], outputs=[c])
    arrays = {"a": RANDOM.normal(size=a.shape).astype(np.float32), "b": RANDOM.normal(size=b.shape).astype(np.float32)}
    outputs, _ = evaluate(p, arrays)
    np.testing.assert_allclose(
        outputs["c"], np.einsum("kmrs,rkns->mkn", arrays["a"], arrays["b"]), rtol=1e-5, atol=1e-5
    )


def test_a_padded_convolution() -> None:
    x, w, y = (
        Buffer("x", f64[2, 3, 7], "input"),
        Buffer("w", f64[4, 3, 3], "input"),
        Buffer("y", f64[2, 4, 4], "output"),
    )
    n, o, i = indices_of(y.shape)
    value = reduce("add", (3, 3), lambda c, r: Load(x, (n, c, i * 2 + r - 1), 0) * Load(w, (o, c, r)))
    p = program([For((n, o, i), (Store(y, (n, o, i), value),))], inputs=[x, w], outputs=[y])
    arrays = {"x": RANDOM.normal(size=x.shape), "w": RANDOM.normal(size=w.shape)}
    padded = np.pad(arrays["x"], [(0, 0), (0, 0), (1, 1)])
    expected = [
        [[(padded[a, :, 2 * j : 2 * j + 3] * arrays["w"][b]).sum() for j in range(4)] for b in range(4)]
        for a in range(2)
    ]
    np.testing.assert_allclose(evaluate(p, arrays)[0]["y"], expected)


def test_a_sum_over_an_index_that_does_not_occur_counts_its_extent() -> None:
    x, y = Buffer("x", f64[3], "input"), Buffer("y", f64[3, 2], "output")
    (i,) = indices_of((3,))
    product, plain = (
        reduce("add", (5,), body) for body in (lambda r: Load(x, (i,)) * Load(x, (i,)), lambda r: Load(x, (i,)))
    )
    p = program(
        [For((i,), (Store(y, (i, Const(0, i64)), product), Store(y, (i, Const(1, i64)), plain)))],
        inputs=[x],
        outputs=[y],
    )
    outputs, _ = evaluate(p, {"x": np.array([1.0, 2.0, 3.0])})
    np.testing.assert_array_equal(outputs["y"], [[5, 5], [20, 10], [45, 15]])


@pytest.mark.parametrize(("op", "expected"), [("add", 0), ("mul", 1), ("max", -math.inf), ("min", math.inf)])
def test_a_reduction_of_nothing_gives_the_identity(op: str, expected: float) -> None:
    x, y = Buffer("x", f32[0], "input"), Buffer("y", f32[()], "output")
    p = program([Store(y, (), reduce(op, (0,), lambda r: Load(x, (r,))))], inputs=[x], outputs=[y])
    assert evaluate(p, {"x": np.zeros(0, np.float32)})[0]["y"] == expected


def test_a_let_keeps_the_value_from_before_a_store() -> None:
    """An update in place whose old value is used afterwards, as in a merged optimizer kernel."""
    v, y = Buffer("v", f32[4], "variable", initial=np.arange(4, dtype=np.float32)), Buffer("y", f32[4], "output")
    (i,) = indices_of((4,))
    old = Ref(f32, "old")
    body = (Let(old, Load(v, (i,))), Store(v, (i,), old * 2 + 1), Store(y, (i,), old))
    p = program([For((i,), body)], outputs=[y], variables={"v": v}, updates=("v",))
    outputs, state = evaluate(p, {})
    np.testing.assert_array_equal(outputs["y"], [0, 1, 2, 3])
    np.testing.assert_array_equal(state["v"], [1, 3, 5, 7])
    np.testing.assert_array_equal(v.initial, [0, 1, 2, 3])
    _, state = evaluate(p, {}, state)
    np.testing.assert_array_equal(state["v"], [3, 7, 11, 15])


def test_accumulation_counts_repeats_and_drops_places_outside() -> None:
    at, y = Buffer("at", i64[5], "input"), Buffer("y", f32[3], "output")
    (z,), (i,) = indices_of((3,)), indices_of((5,))
    body = [
        For((z,), (Store(y, (z,), Const(0, f32)),)),
        For((i,), (Accumulate("add", y, (Load(at, (i,)),), Const(1.0, f32)),)),
    ]
    outputs, _ = evaluate(program(body, inputs=[at], outputs=[y]), {"at": np.array([2, 0, 2, 3, -1])})
    np.testing.assert_array_equal(outputs["y"], [1, 0, 2])


def test_serial_loops_see_their_own_stores() -> None:
    y = Buffer("y", i64[8], "output")
    (i,) = indices_of((8,))
    value = Load(y, (i - 1,), 1) + Load(y, (i - 2,), 0)
    outputs, _ = evaluate(program([For((i,), (Store(y, (i,), value),), serial=True)], outputs=[y]), {})
    np.testing.assert_array_equal(outputs["y"], [1, 1, 2, 3, 5, 8, 13, 21])


def test_a_repeat_carries_buffers_from_step_to_step() -> None:
    """Running sums: two slots of a state, as Scan is lowered."""
    x, state, y = Buffer("x", f64[4, 2], "input"), Buffer("state", f64[2, 2]), Buffer("y", f64[4, 2], "output")
    t, (z,), (i,) = Index(4, "t"), indices_of((2,)), indices_of((2,))
    start = Kernel("start", (For((z,), (Store(state, (Const(0, i64), z), Const(0, f64)),)),))
    total = Load(state, (t % 2, i)) + Load(x, (t, i))
    step = Kernel(
        "step", (For((i,), (Store(state, ((t + 1) % 2, i), total), Store(y, (t, i), Load(state, ((t + 1) % 2, i))))),)
    )
    p = program(start, Repeat("scan", t, (step,)), inputs=[x], outputs=[y])
    verify(p)
    array = RANDOM.normal(size=(4, 2))
    np.testing.assert_allclose(evaluate(p, {"x": array})[0]["y"], np.cumsum(array, axis=0))


def test_layouts_do_not_change_results_but_the_memory() -> None:
    x, t, y = (
        Buffer("x", f32[2, 3, 4], "input"),
        Buffer("t", f32[2, 3, 4], layout=(0, 2, 1)),
        Buffer("y", f32[2, 3, 4], "output"),
    )
    i, j = indices_of(t.shape), indices_of(t.shape)
    p = program([For(i, (Store(t, i, Load(x, i)),))], [For(j, (Store(y, j, Load(t, j)),))], inputs=[x], outputs=[y])
    array = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(p, {"x": array})[0]["y"], array)
    assert Memory(p, {"x": array}, {}, None)[t].strides == (48, 4, 12)


def test_half_precision_is_rounded_after_every_operation() -> None:
    for dtype in (f16, bf16):
        x, y = Buffer("x", dtype[1], "input"), Buffer("y", dtype[1], "output")
        (i,) = indices_of((1,))
        p = program([For((i,), (Store(y, (i,), Load(x, (i,)) * 3 + 1 - Load(x, (i,)) * 3),))], inputs=[x], outputs=[y])
        array = np.asarray([1365.0 if dtype is f16 else 341.0]).astype(dtype.numpy)
        three = (array.astype(np.float32) * 3).astype(dtype.numpy).astype(np.float32)
        expected = ((three + 1).astype(dtype.numpy).astype(np.float32) - three).astype(dtype.numpy)
        got = evaluate(p, {"x": array})[0]["y"]
        assert got.dtype == dtype.numpy
        assert got == expected
        assert float(got[0]) != 1.0


def apply(function: str, *arguments: Any, dtype: Any = i32) -> list[Any]:
    with np.errstate(all="ignore"):
        result = scalar.apply(function, [np.asarray(a).astype(dtype.numpy) for a in arguments])
    return list(result.tolist())


def test_integer_arithmetic() -> None:
    a, b = [7, -7, 7, -7, 5], [2, 2, -2, -2, 0]
    assert apply("div", a, b) == [3, -3, -3, 3, 0]
    assert apply("mod", a, b) == [1, 1, -1, -1, 0]
    assert apply("fmod", a, b) == [1, -1, 1, -1, 0]
    assert apply("div", [-128], [-1], dtype=i8) == [-128]
    assert apply("pow", [2, -1, 1, 3, 2], [10, -3, -5, -1, 33]) == [1024, -1, 1, 0, 0]
    assert apply("shift_left", [1, 1], [31, 40]) == [-(1 << 31), 0]
    assert apply("shift_right", [-8, 8, -8], [1, 40, 40]) == [-4, 0, -1]
    assert apply("mulhi_u32", [0xFFFFFFFF], [0xFFFFFFFF], dtype=u32) == [0xFFFFFFFE]
    assert apply("add", [250], [10], dtype=u8) == [4]
    assert apply("not", [True, False], dtype=boolean) == [False, True]
    assert apply("not", [0, 5], dtype=u8) == [255, 250]


def test_float_functions_against_the_mathematical_ones() -> None:
    x = np.array([-3.0, -0.5, 0.25, 4.0])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(scalar.apply("sigmoid", [x]), 1 / (1 + np.exp(-x)))
        np.testing.assert_allclose(scalar.apply("softplus", [x]), np.log(1 + np.exp(x)))
        np.testing.assert_allclose(scalar.apply("erf", [x]), [math.erf(v) for v in x])
        np.testing.assert_array_equal(scalar.apply("round", [np.array([0.5, 1.5, -2.5])]), [0, 2, -2])
        np.testing.assert_array_equal(scalar.apply("mod", [np.array([-7.0, 7.0]), np.array([3.0, -3.0])]), [2, -2])
        np.testing.assert_array_equal(scalar.apply("fmod", [np.array([-7.0, 7.0]), np.array([3.0, -3.0])]), [-1, 1])
        assert np.isnan(scalar.apply("max", [np.array([np.nan]), np.array([1.0])]))
        assert np.isnan(scalar.apply("sigmoid", [np.array([np.nan])]))
        assert scalar.apply("sigmoid", [np.array([-800.0])]) == 0.0


def test_every_function_of_the_loop_language_is_there() -> None:
    missing = [name for name in FUNCTIONS if not any(scalar.has(name, dtype) for dtype in DTYPES.values())]
    assert not missing


def test_accesses_outside_are_errors() -> None:
    x, at, y = Buffer("x", f32[3], "input"), Buffer("at", i64[2], "input"), Buffer("y", f32[2], "output")
    (i,) = indices_of((2,))
    arrays = {"x": np.zeros(3, np.float32), "at": np.array([0, 3])}
    gathered = program([For((i,), (Store(y, (i,), Load(x, (Load(at, (i,)),))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"input x \(f32\[3\]\) is read outside"):
        evaluate(gathered, arrays)
    affine = program([For((i,), (Store(y, (i,), Load(x, (i + 2,))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"input x \(f32\[3\]\) is read outside"):
        evaluate(affine, arrays)
    stored = program([For((i,), (Store(y, (i + 1,), Load(x, (i,))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"output y \(f32\[2\]\) is written outside"):
        evaluate(stored, arrays)


def test_what_is_never_written_shows_as_poison() -> None:
    y, n = Buffer("y", f32[2], "output"), Buffer("n", i32[1], "output")
    p = program([Store(y, (Const(0, i64),), Const(1.0, f32))], outputs=[y, n])
    outputs, _ = evaluate(p, {})
    assert outputs["y"][0] == 1
    assert np.isnan(outputs["y"][1])
    assert outputs["n"].view(np.uint32)[0] == 0xAAAAAAAA


def test_wrong_inputs_are_named() -> None:
    x, y = Buffer("x", f32[3], "input"), Buffer("y", f32[3], "output")
    p = program([For((i := indices_of((3,))), (Store(y, i, Load(x, i)),))], inputs=[x], outputs=[y])
    with pytest.raises(InputError, match=r"input 'x' \(f32\[3\]\) has no value"):
        evaluate(p, {})
    with pytest.raises(InputError, match=r"input 'x' must be f32\[3\], not float64\[3\]"):
        evaluate(p, {"x": np.zeros(3)})


def test_tensors_address_slices() -> None:
    """A prefix, as in a step of a Scan."""
    x, y = Buffer("x", f32[4, 3], "input"), Buffer("y", f32[3], "output")
    (i,) = indices_of((3,))
    p = program([For((i,), (Tensor(y).store((i,), Tensor(x, (Const(2, i64),))[i,]),))], inputs=[x], outputs=[y])
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(evaluate(p, {"x": array})[0]["y"], array[2])
