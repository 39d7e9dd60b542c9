"""Cut a kernel to a slice: so many trips of one of its loops, from where a repeat around it says on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from glowtrain.loops import (
    Accumulate,
    Buffer,
    Expr,
    For,
    Index,
    Let,
    Load,
    Statement,
    Store,
    affine,
    call,
    rewrite,
    statements,
)
from glowtrain.memo import memoized
from glowtrain.program.analysis.kernel_facts import box
from glowtrain.program.program import Instruction, Kernel


@dataclass(frozen=True)
class Slices:
    """``size`` elements of an axis in each trip of ``trip``; ``axes`` says along which axis each of the ``buffers`` is
    cut, of which only a slice is there, in those that are given for them."""

    trip: Index
    size: int
    axes: Mapping[Buffer, int]
    buffers: Mapping[Buffer, Buffer]


@memoized
def loop_index(instruction: Instruction, buffer: Buffer, axis: int) -> Index | None:
    """The loop of a kernel with which it goes along an axis of a buffer: wherever the buffer is touched, that loop's
    index is the subscript there, and it has all of the axis. ``None`` if there is none."""
    kernel = instruction.kernel
    loop = None if kernel is None else box(kernel)
    if kernel is None or loop is None:
        return None
    found = {_alone(index[axis]) for index in subscripts(kernel, buffer)}
    index = found.pop() if len(found) == 1 else None
    return index if index is not None and index in loop.indices and index.extent == buffer.shape[axis] else None


def _alone(subscript: Expr) -> Index | None:
    """The index that a subscript is."""
    form = affine(subscript)
    match form.terms:
        case ((Index() as index, 1),) if form.constant == 0:
            return index
    return None


def subscripts(kernel: Kernel, buffer: Buffer) -> Sequence[tuple[Expr, ...]]:
    """Those of everything in a kernel that touches a buffer."""
    return _subscripts(kernel).get(buffer, ())


@memoized
def _subscripts(kernel: Kernel) -> dict[Buffer, list[tuple[Expr, ...]]]:
    found: dict[Buffer, list[tuple[Expr, ...]]] = {}
    stores = (s for s in statements(kernel.body) if isinstance(s, (Store, Accumulate)))
    for access in chain(kernel.survey.loads, stores):
        found.setdefault(access.buffer, []).append(access.index)
    return found


def cut_kernel(kernel: Kernel, index: Index, slices: Slices) -> Kernel:
    """A kernel on the slice of a trip, of which ``index`` is the loop that is cut."""
    return Kernel(kernel.name, _Cutting(index, slices).body(kernel.body))


@dataclass
class _Cutting:
    """Statements on a slice."""

    whole: Index
    slices: Slices
    memo: dict[Expr, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inner = Index(self.slices.size, self.whole.name)
        self.place = call("mul", self.slices.trip, self.slices.size) + self.inner

    def body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple([self._statement(statement) for statement in body])

    def _statement(self, statement: Statement) -> Statement:
        match statement:
            case For(indices, body, serial):
                own = tuple([self.inner if index is self.whole else index for index in indices])
                return For(own, self.body(body), serial)
            case Let(ref, value):
                return Let(ref, self._expr(value))
            case Store(buffer, index, value):
                return Store(*self._target(buffer, index), self._expr(value))
            case Accumulate(op, buffer, index, value):
                return Accumulate(op, *self._target(buffer, index), self._expr(value))

    def _target(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return self._element(buffer, tuple([self._expr(subscript) for subscript in index]))

    def _expr(self, expr: Expr) -> Expr:
        return rewrite(expr, self._change, self.memo)

    def _change(self, expr: Expr) -> Expr | None:
        if expr is self.whole:
            return self.place
        if isinstance(expr, Load) and expr.buffer in self.slices.buffers:
            return Load(*self._element(expr.buffer, expr.index), expr.fill)
        return None

    def _element(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An element of a buffer where that is, or in the slice that is there of it."""
        if buffer not in self.slices.buffers:
            return buffer, index
        axis = self.slices.axes[buffer]
        return self.slices.buffers[buffer], (*index[:axis], self.inner, *index[axis + 1 :])
