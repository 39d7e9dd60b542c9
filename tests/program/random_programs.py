"""Random programs with memory to share: repeats, some in others, over buffers of a trip, and from trip to trip.

The kernels of :mod:`tests.cpu.random_nests`, and repeats that write buffers whole or row by row, read rows of this trip
and of earlier ones, overwrite, accumulate and carry. Buffers of a repeat are equally large, so that a wrong life shows
as a wrong result. All numbers are small integers: every engine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from glowtrain.loops import Accumulate, Buffer, Const, Expr, For, Index, Load, Reduce, Statement, Store, indices_of
from glowtrain.program.program import Instruction, Kernel, Repeat
from glowtrain.types import DType, f32, f64, i32, i64
from tests.cpu.random_nests import Programs, clamp

Row = Callable[[Expr], Expr]
"""An element of a row that can be read, by its subscript."""


@dataclass
class Trip:
    """A repeat in the making: its index, the buffers that a trip has written, and its instructions so far."""

    time: Index
    dtype: DType
    width: int
    whole: list[Buffer] = field(default_factory=list)
    """Written whole in this trip: [width]."""
    rows: list[Buffer] = field(default_factory=list)
    """Written row by row, row t in trip t: [trips, width]."""
    carried: list[Buffer] = field(default_factory=list)
    """Written before the repeat: [width]."""
    body: list[Instruction] = field(default_factory=list)


class RandomPrograms(Programs):
    """Draws programs of which repeats are a part."""

    def activation(self, dtype: DType, shape: tuple[int, ...]) -> Buffer:
        return self.result(dtype, shape, "activation")

    def kernel(self, *body: Statement) -> Kernel:
        self.count += 1
        return Kernel(f"step{self.count}", body)

    # ---- what a trip reads

    def read(self, trip: Trip) -> Row:
        """A row that this trip, an earlier one, or what runs before the repeat wrote."""
        buffer = self.choice([*trip.whole, *trip.rows, *trip.rows, *trip.carried, None])
        if buffer is None:
            x = self.input(trip.dtype, (trip.time.extent, trip.width))
            return lambda i: Load(x, (trip.time, i))
        turn = self.integer(0, 2) == 0
        if len(buffer.shape) == 1:
            return lambda i: Load(buffer, (self.turned(i, trip, turn),))
        at = self.choice([trip.time, Const(0, i64), self.before(trip.time)])
        return lambda i: Load(buffer, (at, self.turned(i, trip, turn)))

    @staticmethod
    def turned(i: Expr, trip: Trip, turn: bool) -> Expr:
        return (trip.width - 1) - i if turn else i

    @staticmethod
    def before(time: Index) -> Expr:
        """The trip before, or the first one."""
        return (time * 2) // 3  # 0, 0, 1, 2, 2, 3: never later than this trip

    def value(self, trip: Trip, i: Index) -> Expr:
        a, b = self.read(trip), self.read(trip)
        if self.integer(0, 5) == 0:
            (r,) = indices_of((trip.width,), "r")
            return clamp(Reduce("add", (r,), a(r) * b(r)))
        return self.binary(trip.dtype, a(i), b(i) + self.integer(0, 2))

    # ---- what a trip does

    def write_whole(self, trip: Trip) -> None:
        """A new buffer, or one that was read before, over its whole length."""
        (i,) = indices_of((trip.width,))
        value = self.value(trip, i)
        again = bool(trip.whole) and self.integer(0, 3) == 0
        unread = [b for b in trip.whole if not any(b is e.buffer for e in _loads(value))] if again else []
        target = self.choice(unread) if unread else self.activation(trip.dtype, (trip.width,))
        trip.body.append(self.kernel(For((i,), (Store(target, (i,), value),))))
        trip.whole = [*(b for b in trip.whole if b is not target), target]

    def write_row(self, trip: Trip) -> None:
        """Row t of a new buffer: later trips see it."""
        (i,) = indices_of((trip.width,))
        target = self.activation(trip.dtype, (trip.time.extent, trip.width))
        trip.body.append(self.kernel(For((i,), (Store(target, (trip.time, i), self.value(trip, i)),))))
        trip.rows.append(target)

    def write_parts(self, trip: Trip) -> None:
        """A buffer in two kernels, each a part of it."""
        if trip.width < 2:
            self.write_whole(trip)
            return
        cut = self.integer(1, trip.width - 1)
        target = self.activation(trip.dtype, (trip.width,))
        for start, stop in self.choice([((0, cut), (cut, trip.width)), ((cut, trip.width), (0, cut))]):
            (i,) = indices_of((stop - start,))
            a = self.read(trip)
            trip.body.append(self.kernel(For((i,), (Store(target, (i + start,), clamp(a(i) + 1)),))))
        trip.whole.append(target)

    def update_carried(self, trip: Trip) -> None:
        """A state in place, anew for the next trip, or by accumulation at places that repeat."""
        if not trip.carried:
            self.write_row(trip)
            return
        target, (i,) = self.choice(trip.carried), indices_of((trip.width,))
        if self.integer(0, 2) == 0:
            statement: Statement = Accumulate("max", target, (i * 2 - 1,), self.read_other(trip, target)(i))
            trip.body.append(self.kernel(For((i,), (statement,))))
            return
        other = self.read_other(trip, target)(i)
        value = self.binary(trip.dtype, Load(target, (i,)), other) if self.integer(0, 2) else clamp(other + 1)
        trip.body.append(self.kernel(For((i,), (Store(target, (i,), value),))))

    def read_other(self, trip: Trip, target: Buffer) -> Row:
        """A row of another buffer than the one that is written."""
        others = [b for b in trip.carried if b is not target]
        return self.read(Trip(trip.time, trip.dtype, trip.width, trip.whole, trip.rows, others))

    def inner_repeat(self, trip: Trip) -> None:
        """A repeat in the trip, which carries a buffer that the trip wrote."""
        self.write_whole(trip)
        state = trip.whole[-1]
        inner = Trip(Index(self.integer(1, 3), "u"), trip.dtype, trip.width, trip.whole[:-1], [], [state])
        self.steps_of(inner, self.integer(1, 3), deep=False)
        self.update_carried(inner)
        trip.body.append(Repeat(f"inner{self.count}", inner.time, tuple(inner.body)))

    def steps_of(self, trip: Trip, count: int, deep: bool) -> None:
        kinds = [self.write_whole, self.write_whole, self.write_row, self.write_row, self.write_parts]
        kinds += [self.update_carried, *([self.inner_repeat] if deep else [])]
        for _ in range(count):
            self.choice(kinds)(trip)

    def repeat(self) -> list[Instruction]:
        """A repeat with what it needs before it, and an output that shows what it computed."""
        trip = Trip(Index(self.integer(1, 5), "t"), self.choice([f32, f64, i32]), self.choice([1, 3, 8, 16, 17, 32]))
        before: list[Instruction] = []
        for _ in range(self.integer(0, 2)):
            trip.carried.append(self.activation(trip.dtype, (trip.width,)))
            (z,) = indices_of((trip.width,), "z")
            value = self.expr(trip.dtype, ((z, trip.width),), 1)
            before.append(self.kernel(For((z,), (Store(trip.carried[-1], (z,), value),))))
        self.steps_of(trip, self.integer(2, 6), deep=True)
        y = self.result(trip.dtype, (trip.time.extent, trip.width), "output")
        (i,) = indices_of((trip.width,))
        trip.body.append(self.kernel(For((i,), (Store(y, (trip.time, i), self.value(trip, i)),))))
        self.written += [y, *trip.carried, *trip.rows]
        return [*before, Repeat(f"repeat{self.count}", trip.time, tuple(trip.body))]

    def kinds(self) -> list[Callable[[], Any]]:
        """Repeats about as often as all other kernels together."""
        return [*super().kinds(), *[self.repeat] * 10]


def _loads(expr: Expr) -> list[Load]:
    found = [expr] if isinstance(expr, Load) else []
    return [*found, *(load for child in expr.children for load in _loads(child))]
