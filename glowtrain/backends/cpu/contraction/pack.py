"""Copies that change the layout of an operand, so that the kernel reads it in whole vectors one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.values import LlvmValue


@dataclass(frozen=True)
class PackMove:
    """One loop of a copy: how far the source and the destination move at each step, in elements."""

    extent: int
    source: int
    target: int


def copy(
    lanes: Lanes, source: LlvmValue, target: LlvmValue, moves: Sequence[PackMove], *, padded: bool = False
) -> None:
    """Write a loop nest that copies ``source`` to ``target``; exactly one loop with target stride 1 is expected.

    Contiguous runs are copied as vectors, transpositions go through registers in square blocks, anything else by
    elements. With ``padded`` whole vectors may be written past the end of the run of target stride 1.
    """
    run = next((move for move in moves if move.target == 1), PackMove(1, 1, 1))
    rest = [move for move in moves if move is not run]
    across = next((move for move in rest if move.source == 1), None)
    if run.source == 1 or lanes.width == 1 or across is None:
        _nest(lanes, source, target, rest, lambda s, t: _line(lanes, s, t, run, padded))
    else:
        rest.remove(across)
        _nest(lanes, source, target, rest, lambda s, t: _square(lanes, s, t, run, across, padded))


def _nest(
    lanes: Lanes,
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
        _nest(lanes, source, target, rest, body)
        return
    with lanes.f.loop(move.extent, [source, target], hint="copy") as loop:
        _nest(lanes, loop.carried[0], loop.carried[1], rest, body)
        loop.next = [lanes.shift(loop.carried[0], move.source), lanes.shift(loop.carried[1], move.target)]


def _blocks(
    lanes: Lanes,
    source: LlvmValue,
    target: LlvmValue,
    move: PackMove,
    body: Callable[[LlvmValue, LlvmValue, int], None],
) -> None:
    """``body(source, target, count)`` for each block of at most ``width`` steps of one loop."""
    full, rest = divmod(move.extent, lanes.width)
    if full:
        block = PackMove(full, move.source * lanes.width, move.target * lanes.width)
        _nest(lanes, source, target, [block], lambda s, t: body(s, t, lanes.width))
    if rest:
        done = full * lanes.width
        body(lanes.shift(source, done * move.source), lanes.shift(target, done * move.target), rest)


def _line(lanes: Lanes, source: LlvmValue, target: LlvmValue, run: PackMove, padded: bool) -> None:
    def block(s: LlvmValue, t: LlvmValue, count: int) -> None:
        lanes.store(lanes.load(s, run.source, count), t, lanes.width if padded else count)

    if run.source == 0 and lanes.width > 1:
        padded = False
    _blocks(lanes, source, target, run, block)


def _square(lanes: Lanes, source: LlvmValue, target: LlvmValue, run: PackMove, across: PackMove, padded: bool) -> None:
    def rows(s: LlvmValue, t: LlvmValue, high: int) -> None:
        def block(s: LlvmValue, t: LlvmValue, wide: int) -> None:
            loaded = [lanes.load(lanes.shift(s, row * run.source), 1, wide) for row in range(high)]
            turned = lanes.transpose(loaded + [lanes.zero] * (lanes.width - high))
            for column in range(wide):
                place = lanes.shift(t, column * across.target)
                lanes.store(turned[column], place, lanes.width if padded else high)

        _blocks(lanes, s, t, across, block)

    _blocks(lanes, source, target, run, rows)
