"""Pack an operand: copy it in a layout that the kernel reads in whole vectors one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glowtrain.backends.llvm.formats import MEMORY, factors
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import INDEX, LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, Number, pointer

STRIP, STRIPS = 4, 4
"""Lanes of a strip, and strips of a vector, from which tiles are transposed strip by strip; AVX2 takes longer so."""


@dataclass(frozen=True)
class PackMove:
    """One loop of a copy: how far the source and the destination move at each step, in elements."""

    extent: int
    source: int
    target: int


@dataclass(frozen=True)
class PackSource:
    """What is copied to ``lanes``: elements of ``dtype``, as floats where that is a type of bytes or bf16."""

    lanes: Lanes
    dtype: str

    def shift(self, address: LlvmValue, offset: Number) -> LlvmValue:
        return self.stored.shift(address, offset)

    def load(self, address: LlvmValue, lane: int, count: int) -> LlvmValue:
        return factors(self.lanes, self.stored.load(address, lane, count), self.dtype)

    @property
    def stored(self) -> Lanes:
        return self.lanes.of(MEMORY[self.dtype])


@dataclass(frozen=True)
class TransposeTile:
    """A block that is transposed in registers: ``high`` rows of ``dtype``, ``wide`` elements of each. With ``padded``
    whole vectors are written, zeros behind the rows that there are."""

    dtype: str
    high: int
    wide: int
    padded: bool


def transpose_text(name: str, tile: TransposeTile, type_: LlvmType, index_type: LlvmType) -> str:
    """``void @name(target, source, rows, columns)``, with the strides between rows of the source and of the target.

    Many copies have the same blocks, which are most of their code: with strides as arguments it is there once.
    """
    params = [("ptr noalias", "target"), ("ptr noalias", "source"), (INDEX, "rows"), (INDEX, "columns")]
    f = LlvmFunction(name, params, linkage="internal", index_type=index_type)
    lanes = Lanes(f, type_)
    write = _tile_in_strips if lanes.strip >= STRIP and lanes.width >= STRIPS * lanes.strip else _tile
    write(PackSource(lanes, tile.dtype), tile, f.index("%rows"), f.index("%columns"))
    return f.finish()


def _tile(reader: PackSource, tile: TransposeTile, rows: LlvmValue, columns: LlvmValue) -> None:
    """Whole rows are loaded and transposed."""
    lanes = reader.lanes
    loaded = [reader.load(row, 1, tile.wide) for row in _steps(reader, pointer("%source"), rows, tile.high)]
    transposed = lanes.transpose(loaded + [lanes.zero] * (lanes.width - tile.high))
    _store_columns(lanes, tile, transposed, pointer("%target"), columns, tile.wide)


def _tile_in_strips(reader: PackSource, tile: TransposeTile, rows: LlvmValue, columns: LlvmValue) -> None:
    """A loop over strips of columns: half of the shuffles, and a third of the time that LLVM takes for those of a whole
    tile.
    """
    lanes, stored = reader.lanes, reader.stored.wide(reader.lanes.strip)

    def strip(source: LlvmValue, target: LlvmValue, count: int) -> None:
        parts = [stored.load(row, 1, count) for row in _steps(reader, source, rows, tile.high)]
        joined = lanes.joined_strips(parts + [stored.zero] * (lanes.width - tile.high))
        transposed = lanes.transpose_strips([factors(lanes, each, tile.dtype) for each in joined])
        _store_columns(lanes, tile, transposed, target, columns, count)

    full, rest = divmod(tile.wide, lanes.strip)
    source, target = pointer("%source"), pointer("%target")
    if full:
        with lanes.f.loop(full, [source, target], hint="strip") as loop:
            here, there = loop.carried
            strip(here, there, lanes.strip)
            further = lanes.f.op("mul", columns, lanes.strip)
            loop.next = [reader.shift(here, lanes.strip), lanes.shift(there, further)]
        source, target = loop.results
    if rest:
        strip(source, target, rest)


def _store_columns(
    lanes: Lanes, tile: TransposeTile, values: Sequence[LlvmValue], target: LlvmValue, columns: LlvmValue, count: int
) -> None:
    """Write the first ``count`` of these values, each a column of the source."""
    for value, address in zip(values, _steps(lanes, target, columns, count), strict=False):
        lanes.store(value, address, lanes.width if tile.padded else tile.high)


def _steps(memory: PackSource | Lanes, address: LlvmValue, stride: LlvmValue, count: int) -> list[LlvmValue]:
    """So many pointers, each a stride after the one before."""
    addresses = [address]
    while len(addresses) < count:
        addresses.append(memory.shift(addresses[-1], stride))
    return addresses


def copy(
    reader: PackSource,
    source: LlvmValue,
    target: LlvmValue,
    moves: Sequence[PackMove],
    name_of: Callable[[TransposeTile], str],
    *,
    padded: bool = False,
) -> None:
    """Write a loop nest that copies ``source`` to ``target``; exactly one loop with target stride 1 is expected.

    Contiguous runs are copied as vectors, transpositions go through registers in square tiles, by functions that
    ``name_of`` gives the names of, anything else by elements. With ``padded`` whole vectors may be written past the end
    of the run of target stride 1.
    """
    run, across = _run(moves), _across(moves, reader.lanes.width)
    rest = [move for move in moves if move is not run and move is not across]
    if across is None:
        _nest(reader, source, target, rest, lambda s, t: _line(reader, s, t, run, padded))
    else:
        _nest(reader, source, target, rest, lambda s, t: _tiles(reader, s, t, run, across, name_of, padded))


def transposes(moves: Sequence[PackMove], width: int) -> bool:
    """Whether a copy transposes, so that its time goes into blocks."""
    return _across(moves, width) is not None


def _run(moves: Sequence[PackMove]) -> PackMove:
    """The loop along the lanes of the target."""
    return next((move for move in moves if move.target == 1), PackMove(1, 1, 1))


def _across(moves: Sequence[PackMove], width: int) -> PackMove | None:
    """The loop along neighbours in the source, where that is another one than in the target."""
    run = _run(moves)
    if run.source == 1 or width == 1:
        return None
    return next((move for move in moves if move is not run and move.source == 1), None)


def _nest(
    reader: PackSource,
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
        _nest(reader, source, target, rest, body)
        return
    with reader.lanes.f.loop(move.extent, [source, target], hint="copy") as loop:
        _nest(reader, loop.carried[0], loop.carried[1], rest, body)
        loop.next = [reader.shift(loop.carried[0], move.source), reader.lanes.shift(loop.carried[1], move.target)]


def _blocks(
    reader: PackSource,
    source: LlvmValue,
    target: LlvmValue,
    move: PackMove,
    body: Callable[[LlvmValue, LlvmValue, int], None],
) -> None:
    """``body(source, target, count)`` for each block of at most ``width`` steps of one loop."""
    width = reader.lanes.width
    full, rest = divmod(move.extent, width)
    if full:
        block = PackMove(full, move.source * width, move.target * width)
        _nest(reader, source, target, [block], lambda s, t: body(s, t, width))
    if rest:
        done = full * width
        body(reader.shift(source, done * move.source), reader.lanes.shift(target, done * move.target), rest)


def _line(reader: PackSource, source: LlvmValue, target: LlvmValue, run: PackMove, padded: bool) -> None:
    lanes = reader.lanes

    def block(s: LlvmValue, t: LlvmValue, count: int) -> None:
        lanes.store(reader.load(s, run.source, count), t, lanes.width if padded else count)

    if run.source == 0 and lanes.width > 1:
        padded = False
    _blocks(reader, source, target, run, block)


def _tiles(
    reader: PackSource, source: LlvmValue, target: LlvmValue, run: PackMove, across: PackMove,
    name_of: Callable[[TransposeTile], str], padded: bool,
) -> None:  # fmt: skip
    strides = ", ".join(reader.lanes.f.index(stride).typed for stride in (run.source, across.target))

    def rows(s: LlvmValue, t: LlvmValue, high: int) -> None:
        def block(s: LlvmValue, t: LlvmValue, wide: int) -> None:
            name = name_of(TransposeTile(reader.dtype, high, wide, padded and high < reader.lanes.width))
            reader.lanes.f.line(f"call void @{name}({t.typed}, {s.typed}, {strides})")

        _blocks(reader, s, t, across, block)

    _blocks(reader, source, target, run, rows)
