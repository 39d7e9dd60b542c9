"""Copies that change the layout of an operand, so that the kernel reads it in whole vectors one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glowtrain.backends.llvm.formats import REGISTER, SIGNED
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.values import LlvmValue


@dataclass(frozen=True)
class PackMove:
    """One loop of a copy: how far the source and the destination move at each step, in elements."""

    extent: int
    source: int
    target: int


@dataclass(frozen=True)
class PackSource:
    """What is copied to ``lanes``: elements of ``dtype``, as floats where that is a type of bytes."""

    lanes: Lanes
    dtype: str

    def shift(self, place: LlvmValue, offset: int) -> LlvmValue:
        return self.stored.shift(place, offset)

    def load(self, place: LlvmValue, lane: int, count: int) -> LlvmValue:
        return self.lanes.widened(self.stored.load(place, lane, count), signed=self.dtype in SIGNED)

    @property
    def stored(self) -> Lanes:
        return self.lanes.of(REGISTER[self.dtype])


def copy(
    lanes: Lanes, dtype: str, source: LlvmValue, target: LlvmValue, moves: Sequence[PackMove], *, padded: bool = False
) -> None:
    """Write a loop nest that copies ``source``, of ``dtype``, to ``target``; exactly one loop with target stride 1 is
    expected.

    Contiguous runs are copied as vectors, transpositions go through registers in square blocks, anything else by
    elements. With ``padded`` whole vectors may be written past the end of the run of target stride 1.
    """
    given = PackSource(lanes, dtype)
    run = next((move for move in moves if move.target == 1), PackMove(1, 1, 1))
    rest = [move for move in moves if move is not run]
    across = next((move for move in rest if move.source == 1), None)
    if run.source == 1 or lanes.width == 1 or across is None:
        _nest(given, source, target, rest, lambda s, t: _line(given, s, t, run, padded))
    else:
        rest.remove(across)
        _nest(given, source, target, rest, lambda s, t: _square(given, s, t, run, across, padded))


def _nest(
    given: PackSource,
    source: LlvmValue,
    target: LlvmValue,
    moves: Sequence[PackMove],
    body: Callable[[LlvmValue, LlvmValue], None],
) -> None:
    if not moves:
        body(source, target)
        return
    move, *rest = sorted(moves, key=lambda m: -abs(m.source))
    if move.extent == 1:
        _nest(given, source, target, rest, body)
        return
    with given.lanes.f.loop(move.extent, [source, target], hint="copy") as loop:
        _nest(given, loop.carried[0], loop.carried[1], rest, body)
        loop.next = [given.shift(loop.carried[0], move.source), given.lanes.shift(loop.carried[1], move.target)]


def _blocks(
    given: PackSource,
    source: LlvmValue,
    target: LlvmValue,
    move: PackMove,
    body: Callable[[LlvmValue, LlvmValue, int], None],
) -> None:
    """``body(source, target, count)`` for each block of at most ``width`` steps of one loop."""
    width = given.lanes.width
    full, rest = divmod(move.extent, width)
    if full:
        block = PackMove(full, move.source * width, move.target * width)
        _nest(given, source, target, [block], lambda s, t: body(s, t, width))
    if rest:
        done = full * width
        body(given.shift(source, done * move.source), given.lanes.shift(target, done * move.target), rest)


def _line(given: PackSource, source: LlvmValue, target: LlvmValue, run: PackMove, padded: bool) -> None:
    lanes = given.lanes

    def block(s: LlvmValue, t: LlvmValue, count: int) -> None:
        lanes.store(given.load(s, run.source, count), t, lanes.width if padded else count)

    if run.source == 0 and lanes.width > 1:
        padded = False
    _blocks(given, source, target, run, block)


def _square(
    given: PackSource, source: LlvmValue, target: LlvmValue, run: PackMove, across: PackMove, padded: bool
) -> None:
    lanes = given.lanes

    def rows(s: LlvmValue, t: LlvmValue, high: int) -> None:
        def block(s: LlvmValue, t: LlvmValue, wide: int) -> None:
            loaded = [given.load(given.shift(s, row * run.source), 1, wide) for row in range(high)]
            turned = lanes.transpose(loaded + [lanes.zero] * (lanes.width - high))
            for column in range(wide):
                place = lanes.shift(t, column * across.target)
                lanes.store(turned[column], place, lanes.width if padded else high)

        _blocks(given, s, t, across, block)

    _blocks(given, source, target, run, rows)
