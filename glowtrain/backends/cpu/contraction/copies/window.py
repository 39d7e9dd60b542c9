"""Copies of an operand that contain what is read outside of it, widened, with a reduction contiguous in memory.

Then a kernel needs no tests for padding, and reads neighbours along the sum as words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd, prod

from glowtrain.backends.cpu.contraction.describe import Operand, OperandAccess
from glowtrain.backends.llvm.formats import MEMORY, SIGNED, SIZE
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, pointer, vector

SLACK = 64
"""Bytes behind a copy that may be read."""


@dataclass(frozen=True)
class WindowSpan:
    """One axis of a copy: places, of which ``low`` to ``high`` exist in the source, ``step`` elements apart there.

    The first place lies ``start`` elements from the source's pointer.
    """

    count: int
    low: int
    high: int
    start: int
    step: int
    coefficients: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Window:
    """A copy of what a contraction reads of an operand, axes outermost first, in type ``dtype``."""

    spans: tuple[WindowSpan, ...]
    source: str
    dtype: str
    fill: int

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each axis in the copy."""
        return tuple(prod(span.count for span in self.spans[at + 1 :]) for at in range(len(self.spans)))

    @property
    def elements(self) -> int:
        return prod(span.count for span in self.spans)

    @property
    def nbytes(self) -> int:
        return self.elements * SIZE[self.dtype] + SLACK

    @property
    def access(self) -> OperandAccess:
        """Where the loops find the elements in the copy."""
        pairs = list(zip(self.spans, self.strides, strict=True))
        loops = range(len(self.spans[0].coefficients))
        moves = tuple(sum(span.coefficients[loop] * stride for span, stride in pairs) for loop in loops)
        return OperandAccess(sum(span.offset * stride for span, stride in pairs), moves)


def window(operand: Operand, extents: Sequence[int], sums: frozenset[int], dtype: str) -> Window | None:
    """The copy, with an axis last that a loop of ``sums`` walks in single steps; ``None`` if there is no such axis."""
    spans = [_span(operand, at, extents) for at in range(len(operand.axes))]
    order = sorted(range(len(spans)), key=lambda at: -operand.axes[at].stride)
    walked = [at for at in order if any(spans[at].coefficients[loop] == 1 and extents[loop] > 1 for loop in sums)]
    if not walked:
        return None
    own = [at for at in walked if all(loop in sums for loop, c in enumerate(spans[at].coefficients) if c)]
    last = (own or walked)[-1]
    order = [at for at in order if at != last] + [last]
    return Window(tuple(spans[at] for at in order), operand.dtype, dtype, operand.fill)


def transposed(operand: Operand, extents: Sequence[int], sums: Sequence[int]) -> Window | None:
    """The copy in the operand's own type with the axes last that the loops ``sums``, outermost first, walk in single
    steps; ``None`` if they walk others, too, or one of several loops shares its axis."""
    spans = [_span(operand, at, extents) for at in range(len(operand.axes))]
    order = sorted(range(len(spans)), key=lambda at: -operand.axes[at].stride)
    walked = [[at for at in order if spans[at].coefficients[loop]] for loop in sums]
    shared = [at for at in order if len(sums) > 1 and sum(map(bool, spans[at].coefficients)) > 1]
    if any(len(axes) != 1 or axes[0] in shared for axes in walked):
        return None
    last = [axes[0] for axes in walked]
    if any(spans[at].coefficients[loop] != 1 for at, loop in zip(last, sums, strict=True)):
        return None
    order = [at for at in order if at not in last] + last
    return Window(tuple(spans[at] for at in order), operand.dtype, operand.dtype, operand.fill)


def halo(operand: Operand, extents: Sequence[int]) -> Window:
    """The copy in the operand's own type and order of axes."""
    order = sorted(range(len(operand.axes)), key=lambda at: -operand.axes[at].stride)
    return Window(tuple(_span(operand, at, extents) for at in order), operand.dtype, operand.dtype, operand.fill)


def _span(operand: Operand, at: int, extents: Sequence[int]) -> WindowSpan:
    axis = operand.axes[at]
    first, end = axis.reach(extents)
    moving = [c if extent > 1 else 0 for c, extent in zip(axis.coefficients, extents, strict=True)]
    step = gcd(*moving) or 1
    count = (end - 1 - first) // step + 1
    low, high = (min(count, max(0, -((first - edge) // step))) for edge in (axis.low, axis.high))
    coefficients = tuple(c // step for c in moving)
    return WindowSpan(
        count, low, high, first * axis.stride, step * axis.stride, coefficients, (axis.offset - first) // step
    )


class WindowText:
    """Writes the function that makes a copy: ``void @name(ptr target, ptr source)``.

    ``bits``: of a vector register.
    """

    def __init__(self, window: Window, name: str, bits: int, index_type: LlvmType) -> None:
        self.window, self.spans = window, _joined(window.spans)
        params = [("ptr noalias", "target"), ("ptr noalias", "source")]
        self.f = LlvmFunction(name, params, linkage="internal", index_type=index_type)
        self.width = max(1, bits // 8 // SIZE[window.dtype])

    def text(self) -> str:
        """The whole function."""
        start = sum(span.start for span in self.window.spans)
        self._axis(0, self._from(pointer("%source"), start), pointer("%target"))
        return self.f.finish()

    def _from(self, address: LlvmValue, elements: int) -> LlvmValue:
        return self.f.shift(address, elements, MEMORY[self.window.source])

    def _to(self, address: LlvmValue, elements: int) -> LlvmValue:
        return self.f.shift(address, elements, MEMORY[self.window.dtype])

    def _axis(self, depth: int, source: LlvmValue, target: LlvmValue) -> None:
        """One axis: what lies before the source, what exists, what lies behind."""
        span, inner = self.spans[depth], prod(span.count for span in self.spans[depth + 1 :])
        low, high = (span.low, span.high) if span.low < span.high else (span.count, span.count)
        self._fill(target, low * inner)
        self._fill(self._to(target, high * inner), (span.count - high) * inner)
        if low == high:
            return
        source, target = self._from(source, low * span.step), self._to(target, low * inner)
        if depth == len(self.spans) - 1:
            self._run(source, target, high - low, span.step)
        elif high - low == 1:
            self._axis(depth + 1, source, target)
        else:
            with self.f.loop(high - low, [source, target], hint="axis") as loop:
                self._axis(depth + 1, loop.carried[0], loop.carried[1])
                loop.next = [self._from(loop.carried[0], span.step), self._to(loop.carried[1], inner)]

    def _run(self, source: LlvmValue, target: LlvmValue, count: int, step: int) -> None:
        """Elements that follow each other in the copy, ``step`` apart in the source."""
        width = self.width if step == 1 else 1
        trips, rest = divmod(count, width)
        if trips > 1:
            with self.f.loop(trips, [source, target], hint="run") as loop:
                self._piece(loop.carried[0], loop.carried[1], width)
                loop.next = [self._from(loop.carried[0], width * step), self._to(loop.carried[1], width)]
        elif trips:
            self._piece(source, target, width)
        at = trips * width
        while rest:
            width = 1 << (rest.bit_length() - 1)
            self._piece(self._from(source, at), self._to(target, at), width)
            at, rest = at + width, rest - width

    def _piece(self, source: LlvmValue, target: LlvmValue, width: int) -> None:
        source_type = vector(MEMORY[self.window.source], width)
        value = self.f.load(source_type, source, SIZE[self.window.source])
        self._store(self.f.widened(value, MEMORY[self.window.dtype], signed=self.window.source in SIGNED), target)

    def _fill(self, target: LlvmValue, count: int) -> None:
        """So many elements of the fill."""
        trips, rest = divmod(count, self.width)
        value = LlvmValue(str(self.window.fill), vector(MEMORY[self.window.dtype]))
        if trips:
            with self.f.loop(trips, [target], hint="fill") as loop:
                self._store(self.f.splat(value, self.width), loop.carried[0])
                loop.next = [self._to(loop.carried[0], self.width)]
        at = trips * self.width
        while rest:
            width = 1 << (rest.bit_length() - 1)
            self._store(self.f.splat(value, width), self._to(target, at))
            at, rest = at + width, rest - width

    def _store(self, value: LlvmValue, target: LlvmValue) -> None:
        self.f.store(value, target, SIZE[self.window.dtype])


def _joined(spans: Sequence[WindowSpan]) -> tuple[WindowSpan, ...]:
    """Neighbouring axes that are one run in the source and exist wholly, as one axis."""
    spans = [span for span in spans if span.count > 1 or span.high - span.low < 1] or list(spans[-1:])
    for at, (outer, inner) in enumerate(pairwise(spans)):
        if (inner.low, inner.high) == (0, inner.count) and outer.step == inner.step * inner.count:
            low, high = outer.low * inner.count, outer.high * inner.count
            joined = replace(inner, count=outer.count * inner.count, low=low, high=high)
            return _joined((*spans[:at], joined, *spans[at + 2 :]))
    return tuple(spans)
