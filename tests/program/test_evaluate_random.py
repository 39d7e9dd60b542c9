"""The evaluator against a point-by-point interpreter of the loop language, on random nests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    cast,
    indices_of,
    select,
)
from glowtrain.program.interpret import evaluate as evaluator
from glowtrain.program.interpret import functions
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Kernel, Program
from glowtrain.program.verify import verify
from glowtrain.types import Array, f64, i32, i64
from tests.program.programs import program


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
                        array[place] = functions.UFUNCS[op](array[place], self.value(value, env))

    def place(self, index: Sequence[Expr], env: dict[Any, Any]) -> tuple[int, ...]:
        return tuple(int(self.value(i, env)) for i in index)

    def value(self, expr: Expr, env: dict[Any, Any]) -> Any:
        match expr:
            case Const(value=value, dtype=dtype):
                return functions.number(value, dtype)
            case Index():
                return np.asarray(env[expr], np.int64)
            case Ref():
                return env[expr]
            case Load(buffer=buffer, index=index, fill=fill):
                place = self.place(index, env)
                if all(0 <= i < extent for i, extent in zip(place, buffer.shape, strict=True)):
                    return np.asarray(self.arrays[buffer][place])
                assert fill is not None
                return functions.number(fill, buffer.dtype)
            case Apply(function=function, arguments=arguments):
                return functions.apply(function, [self.value(a, env) for a in arguments])
            case Cast(value=value, dtype=dtype):
                return functions.convert(self.value(value, env), dtype)
            case Reduce(op=op, indices=indices, body=body):
                total = functions.identity(op, body.dtype)
                for point in itertools.product(*(range(i.extent) for i in indices)):
                    total = functions.UFUNCS[op](
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
    p, random = Nests(data.draw).nest(), np.random.default_rng(data.draw(st.integers(0, 999)))
    verify(p)
    x, n, at = (b.shape for b in p.inputs.values())
    inputs: dict[str, Array] = {
        "x": random.integers(-3, 4, x) / 4,
        "n": random.integers(-3, 4, n).astype(np.int32),
        "at": random.integers(-1, 4, at),
    }
    expected = pointwise_outputs(p, inputs)
    outputs, _ = evaluate(p, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, rtol=1e-9, atol=1e-9, err_msg=str(p))


@given(st.data())
def test_cutting_a_box_changes_nothing(data: st.DataObject) -> None:
    p, random = Nests(data.draw).nest(), np.random.default_rng(data.draw(st.integers(0, 999)))
    x, n, at = (b.shape for b in p.inputs.values())
    inputs: dict[str, Array] = {
        "x": random.normal(size=x),
        "n": random.integers(-3, 4, n).astype(np.int32),
        "at": random.integers(-1, 4, at),
    }
    whole, _ = evaluate(p, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "MAX_POINTS", 5)
        cut, _ = evaluate(p, inputs)
    for name, array in whole.items():
        np.testing.assert_allclose(cut[name], array, rtol=1e-12, atol=1e-12)
