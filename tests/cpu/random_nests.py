"""Random loop-language programs whose results are exact, so that native code must equal the evaluator bit for bit.

All numbers are small integers (also in floats), products and sums are cut to [-8, 8]: no operation rounds, in whatever
order it is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glowtrain.graph import Draw
from glowtrain.loops import (
    Accumulate,
    Buffer,
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
    flatten,
    indices_of,
    select,
    unflatten,
)
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.types import Array, DType, Shape, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8

Scope = tuple[tuple[Expr, int], ...]
"""What subscripts are made of: i64 expressions with values in [0, extent)."""

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 31, 33, 49, 67)
MAX_POINTS = 300
FLOATS = (f32, f32, f32, f64, f16, bf16)
DTYPES = (*FLOATS, i64, i32, i8, u8, boolean)


def clamp(value: Expr, bound: int = 8) -> Expr:
    if value.dtype == boolean:
        return value
    return call("min", call("max", value, -bound if value.dtype != u8 else 0), bound)


class Programs:
    """Draws programs of a few kernels over inputs made on demand."""

    def __init__(self, draw: Draw) -> None:
        self.integer, self.choice = draw.integer, draw.choice
        self.inputs: dict[str, Buffer] = {}
        self.outputs: dict[str, Buffer] = {}
        self.variables: dict[str, Buffer] = {}
        self.limits: dict[Buffer, tuple[int, int]] = {}
        self.written: list[Buffer] = []
        self.pool: list[tuple[Expr, Scope]] = []
        self.count = 0
        self.random = np.random.default_rng(draw.integer(0, 1 << 16))

    def extents(self, count: int, room: int = MAX_POINTS, zero: bool = False) -> Shape:
        found: list[int] = []
        for _ in range(count):
            options = [extent for extent in ((0,) if zero else ()) + EXTENTS if extent <= room]
            found.append(self.choice(options))
            room = max(1, room // max(found[-1], 1))
        return tuple(found)

    def order(self, count: int) -> tuple[int, ...]:
        left = list(range(count))
        return tuple(left.pop(self.integer(0, len(left) - 1)) for _ in range(count))

    # ---- buffers

    def input(self, dtype: DType, shape: Shape, limits: tuple[int, int] = (-3, 3)) -> Buffer:
        name = f"x{len(self.inputs)}"
        buffer = Buffer(name, TensorType(dtype, shape), "input", self.order(len(shape)))
        self.inputs[name], self.limits[buffer] = buffer, limits
        return buffer

    def result(self, dtype: DType, shape: Shape, kind: Any = None) -> Buffer:
        """An output, or an activation that later kernels read."""
        kind = kind or self.choice(["output", "activation"])
        name = f"{kind[0]}{self.count}"
        self.count += 1
        buffer = Buffer(name, TensorType(dtype, shape), kind, self.order(len(shape)))
        if kind == "output":
            self.outputs[name] = buffer
        return buffer

    def array(self, buffer: Buffer) -> Array:
        low, high = self.limits.get(buffer, (-3, 3))
        low = max(low, 0) if buffer.dtype in (u8, boolean) else low
        return self.random.integers(low, high + 1, buffer.shape).astype(buffer.dtype.numpy)

    # ---- subscripts and loads

    def subscript(self, scope: Scope) -> tuple[Expr, int, bool]:
        """A subscript, the extent that it needs, and whether the load needs a fill."""
        if not scope:
            return Const(self.integer(0, 1), i64), 2, False
        (i, n), (j, m) = self.choice(scope), self.choice(scope)
        inside: list[Callable[[], tuple[Expr, int]]] = [
            lambda: (i + 1, n + 1),
            lambda: ((n - 1) - i, n),
            lambda: (i * 2 + self.integer(0, 1), 2 * n),
            lambda: (call("div", i, 2), (n + 1) // 2),
            lambda: ((i - 2) % 3, 3),
            lambda: (call("div", 3 * (n - 1) - i * 3, 4), max(1, (3 * n + 1) // 4)),
            lambda: (i * m + j, n * m),
            lambda: (Load(self.input(i64, (n,), (0, 4)), (i,)), 5),
            *[lambda: (i, n)] * 4,
        ]
        outside: list[Callable[[], tuple[Expr, int]]] = [
            lambda: (i + self.integer(-2, 2), n),
            lambda: ((i - 1) * 2, n),
            lambda: (Load(self.input(i64, (n,), (-1, 5)), (i,)), 4),
            lambda: (call("div", i - 2, 2), n),
            lambda: (call("min", i, j) - call("div", j, 3), n),
        ]
        filled = self.integer(0, 3) == 0
        place, extent = self.choice(outside if filled else inside)()
        return place, extent, filled

    def load(self, dtype: DType, scope: Scope) -> Expr:
        known = [b for b in self.written if b.dtype == dtype and b.type.size]
        if known and self.integer(0, 2) == 0:
            buffer = self.choice(known)
            whole = [self.choice(scope)[0] if scope else Const(1, i64) for _ in buffer.shape]
            return Load(buffer, tuple(i % extent for i, extent in zip(whole, buffer.shape, strict=True)))
        if len(scope) > 1 and self.integer(0, 6) == 0:
            (i, n), (j, m) = self.choice(scope), self.choice(scope)
            shape = (-(-n * m // 3), 3)
            return Load(self.input(dtype, shape), tuple(unflatten(flatten((i, j), (n, m)), shape)))
        parts = [self.subscript(scope) for _ in range(self.integer(1, 3))]
        while math.prod(extent for _, extent, _ in parts) > 4000:
            parts.pop()
        fill = self.integer(0, 2) if any(filled for _, _, filled in parts) else None
        return Load(self.input(dtype, tuple(extent for _, extent, _ in parts)), tuple(i for i, _, _ in parts), fill)

    def rows(self, dtype: DType, scope: Scope) -> Expr:
        """A load with one index for each axis, the most usual kind."""
        picked = [scope[k] for k in self.order(len(scope))[: self.integer(1, 3)]]
        while math.prod(n for _, n in picked) > 4000:
            picked.pop()
        return Load(self.input(dtype, tuple(n for _, n in picked)), tuple(i for i, _ in picked))

    # ---- expressions

    def leaf(self, dtype: DType, scope: Scope) -> Expr:
        kind = self.integer(0, 9)
        if kind == 0 and scope and dtype not in (u8, boolean):
            return cast(call("mod", self.choice(scope)[0], 5), dtype)
        if kind == 1:
            return Const(self.integer(0, 2), dtype)
        names = {id(i) for i, _ in scope}
        shared = [e for e, used in self.pool if e.dtype == dtype and all(id(i) in names for i, _ in used)]
        if kind < 4 and shared:
            return self.choice(shared)  # type: ignore[no-any-return]
        found = self.rows(dtype, scope) if kind < 7 and scope else self.load(dtype, scope)
        self.pool.append((found, scope))
        return found

    def expr(self, dtype: DType, scope: Scope, depth: int = 2) -> Expr:
        if depth == 0:
            return self.leaf(dtype, scope)
        match self.integer(0, 7):
            case 0 | 1:
                return self.binary(dtype, self.expr(dtype, scope, depth - 1), self.leaf(dtype, scope))
            case 2:
                other = self.choice(DTYPES)
                condition = call(self.choice(["lt", "ge", "eq"]), self.leaf(other, scope), self.leaf(other, scope))
                return select(condition, self.leaf(dtype, scope), self.expr(dtype, scope, depth - 1))
            case 3:
                other = self.choice(DTYPES)
                return self.converted(self.expr(other, scope, depth - 1), dtype)
            case 4:
                part = self.expr(dtype, scope, depth - 1)
                return self.binary(dtype, part, part)
            case _:
                found = self.reduction(dtype, scope, depth)
                self.pool.append((found, scope))
                return found

    def binary(self, dtype: DType, a: Expr, b: Expr) -> Expr:
        if dtype == boolean:
            return call(self.choice(["and", "or", "xor"]), a, b)
        return clamp(call(self.choice(["add", "sub", "mul", "mul", "max", "min"]), a, b))

    def converted(self, value: Expr, dtype: DType) -> Expr:
        """A negative float has no unsigned value."""
        if dtype == u8 and value.dtype.is_float:
            value = call("abs", value)
        return cast(value, dtype)

    def reduction(self, dtype: DType, scope: Scope, depth: int) -> Expr:
        if dtype in (f16, bf16):
            return cast(self.reduction(f32, scope, depth), dtype)
        op = self.choice(
            ["and", "or", "max", "min"] if dtype == boolean else ["add", "add", "add", "mul", "max", "min"]
        )
        boxes = [self.extents(1, 70, True), self.extents(2, 70, True), (16,), (5, 17), (3,)]
        inner = indices_of(self.choice(boxes), "r")
        both = (*scope, *((i, i.extent) for i in inner if i.extent))
        if op == "add" and self.integer(0, 1):
            body: Expr = self.leaf(dtype, both) * self.leaf(dtype, both)
        else:
            body = self.expr(dtype, both, depth - 1)
        partials = self.choice([0, 4, 8]) if len(inner) == 1 else 0
        return clamp(Reduce(op, inner, clamp(body, 2) if op == "mul" else body, partials))

    # ---- kernels

    def lets(self, scope: Scope) -> tuple[list[Statement], Scope]:
        """Sometimes a position or a number with a name."""
        body: list[Statement] = []
        if self.integer(0, 2) == 0:
            name = Ref(i64, "at")
            i, n = self.choice(scope)
            source = self.input(i64, (n,), (0, 6))
            body.append(Let(name, Load(source, (i,)) if self.integer(0, 1) else (i * 3) % 7))
            scope = (*scope, (name, 7))
        if self.integer(0, 2) == 0:
            value = self.expr(self.choice(DTYPES), scope, 1)
            number = Ref(value.dtype, "number")
            body.append(Let(number, value))
            self.pool.append((number, scope))
        return body, scope

    def place(self, indices: Sequence[Index]) -> tuple[Shape, tuple[Expr, ...]]:
        """A shape, and subscripts that reach each element once."""
        picked = [indices[k] for k in self.order(len(indices))]
        if self.integer(0, 4) == 0 and len(picked) > 1:
            shape = tuple(i.extent for i in picked)
            return (math.prod(shape),), (flatten(picked, shape),)
        turned = [(i.extent - 1) - i if self.integer(0, 4) == 0 else i for i in picked]
        return tuple(i.extent for i in picked), tuple(turned)

    def flat(self) -> list[Statement]:
        indices = indices_of(self.extents(self.integer(1, 3)))
        body, scope = self.lets(tuple((i, i.extent) for i in indices))
        made = []
        for _ in range(self.integer(1, 2)):
            value = self.expr(self.choice(DTYPES), scope)
            shape, at = self.place(indices)
            buffer = self.result(value.dtype, shape)
            body.append(Store(buffer, at, value))
            made.append(buffer)
        self.written += made
        return [For(indices, tuple(body))]

    def apart(self) -> list[Statement]:
        """Every other element."""
        (i,) = indices_of(self.extents(1))
        value = self.expr(self.choice(DTYPES), ((i, i.extent),))
        y = self.result(value.dtype, (2 * i.extent,))
        loop = For((i,), (Store(y, (i * 2 + self.integer(0, 1),), value),))
        body = [self.clear(y), loop]
        self.written.append(y)
        return body

    def clear(self, buffer: Buffer) -> For:
        indices = indices_of(buffer.shape, "z")
        return For(indices, (Store(buffer, indices, Const(0, buffer.dtype)),))

    def row(self) -> list[Statement]:
        """Loops in a loop: a row is written, reduced, and read in another order."""
        dtype = self.choice([f32, f64, i32, i64])
        outer, (width,) = indices_of(self.extents(self.integer(1, 2), 12)), self.extents(1, 40)
        (k,), (again,), (r,) = (indices_of((width,), name) for name in "kar")
        body, scope = self.lets(tuple((i, i.extent) for i in outer))
        t, y = (self.result(dtype, tuple(i.extent for i in (*outer, k)), kind) for kind in ("activation", "output"))
        lets, inner = self.lets((*scope, (k, width)))
        body.append(For((k,), (*lets, Store(t, (*outer, k), self.expr(dtype, inner))), bool(self.integer(0, 3) == 0)))
        total = Ref(dtype, "total")
        op = self.choice(["add", "max"])
        body.append(
            Let(
                total,
                clamp(Reduce(op, (r,), Load(t, (*outer, (width - 1) - r)) * self.leaf(dtype, (*scope, (r, width))))),
            )
        )
        turned = Load(t, (*outer, (width - 1) - again if self.integer(0, 1) else again))
        value = clamp(turned + total) + self.expr(dtype, (*scope, (again, width)), 1)
        body.append(For((again,), (Store(y, (*outer, again), value),)))
        self.written += [t, y]
        return [For(outer, tuple(body), bool(self.integer(0, 3) == 0))]

    def serial(self) -> list[Statement]:
        """Each trip reads what the one before wrote."""
        (t,), (j,) = indices_of(self.extents(1, 9), "t"), indices_of(self.extents(1, 40), "j")
        dtype = self.choice(DTYPES)
        y = self.result(dtype, (t.extent, j.extent), "output")
        value = self.binary(dtype, Load(y, (t - 1, j), 1), self.expr(dtype, ((t, t.extent), (j, j.extent)), 1))
        if self.integer(0, 1):
            return [For((t,), (For((j,), (Store(y, (t, j), value),)),), True)]
        return [For((t, j), (Store(y, (t, j), value),), True)]

    def scatter(self) -> list[Statement]:
        """Accumulation at places that repeat, some outside."""
        indices = indices_of(self.extents(self.integer(1, 3), 200))
        body, scope = self.lets(tuple((i, i.extent) for i in indices))
        dtype = self.choice(DTYPES)
        at, shape = [], []
        for _ in range(self.integer(1, 2)):
            place, extent, _ = self.subscript(scope)
            at.append(place)
            shape.append(max(1, extent - self.integer(0, 1)))
        y = self.result(dtype, tuple(shape))
        value = self.expr(dtype, scope, 1)
        op = self.choice(["or", "and"] if dtype == boolean else ["add", "add", "max", "min"])
        body.append(Accumulate(op, y, tuple(at), value))
        statements: list[Statement] = [self.clear(y), For(indices, tuple(body), bool(self.integer(0, 2) == 0))]
        self.written.append(y)
        return statements

    def update(self) -> list[Statement]:
        """A variable in place, whose old value is used after the store, and the new one too."""
        indices = indices_of(self.extents(self.integer(1, 2)))
        dtype = self.choice(FLOATS)
        shape = tuple(i.extent for i in indices)
        name = f"v{len(self.variables)}"
        v = Buffer(name, TensorType(dtype, shape), "variable", self.order(len(shape)))
        v = replace(v, initial=self.array(v))
        self.variables[name] = v
        y, z = self.result(dtype, shape, "output"), self.result(dtype, shape, "output")
        body, scope = self.lets(tuple((i, i.extent) for i in indices))
        old = Ref(dtype, "old")
        element = Load(v, indices)
        body += [
            Let(old, element),
            Store(z, indices, element * 2),
            Store(v, indices, clamp(old + self.expr(dtype, scope))),
        ]
        body.append(Store(y, indices, old - element))
        return [For(indices, tuple(body))]

    def steps(self) -> list[Instruction]:
        """A repeat over two slots of a state, as Scan is lowered."""
        t, (width,) = Index(self.integer(1, 4), "t"), self.extents(1, 40)
        dtype = self.choice([f32, f64, i32])
        state, y = self.result(dtype, (2, width), "activation"), self.result(dtype, (t.extent, width), "output")
        (z,), (i,), (j,), (r,) = (indices_of((width,), name) for name in "zijr")
        zero = Const(0, i64)
        start = Kernel("start", (For((z,), (Store(state, (zero, z), self.expr(dtype, ((z, width),), 1)),)),))
        x = self.input(dtype, (t.extent, width))
        before = clamp(Reduce("add", (r,), Load(state, (t % 2, r)) * self.leaf(dtype, ((i, width), (r, width)))))
        value = self.binary(dtype, before, Load(x, (t, i)))
        body = (For((i,), (Store(state, ((t + 1) % 2, i), value),)),)
        after = (For((j,), (Store(y, (t, j), Load(state, ((t + 1) % 2, (width - 1) - j))),)),)
        return [start, Repeat("steps", t, (Kernel("step", body), Kernel("out", after)))]

    def kinds(self) -> list[Callable[[], Any]]:
        """What to draw kernels from: each gives statements, or instructions."""
        kinds: list[Callable[[], Any]] = [self.flat] * 4
        kinds += [self.row, self.row, self.scatter, self.scatter, self.serial, self.update, self.steps, self.apart]
        return kinds

    def program(self, kernels: int = 3) -> Program:
        kinds = self.kinds()
        instructions: list[Instruction] = []
        for number in range(self.integer(1, kernels)):
            made = self.choice(kinds)()
            if isinstance(made[0], (Kernel, Repeat)):
                instructions += made
            else:
                instructions.append(Kernel(f"kernel{number}", tuple(made)))
            self.pool.clear()
        used = {b for instruction in instructions for b in instruction.operands}
        return Program(
            "random",
            {name: b for name, b in self.inputs.items() if b in used},
            self.outputs,
            self.variables,
            tuple(instructions),
            tuple(self.variables),
        )

    def feeds(self, program: Program) -> dict[str, Array]:
        return {name: self.array(buffer) for name, buffer in program.inputs.items()}
