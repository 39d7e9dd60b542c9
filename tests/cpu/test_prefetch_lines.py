"""Tiles ask for the lines of what their epilogues read and write: at the addresses at which these do it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from operator import add, floordiv, mod, mul

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Value

SMALL_CACHES = replace(Target.named("avx512"), l1=1 << 12, l2=1 << 13)
"""Everything is far away."""
ROW = 4 * 80
"""Bytes of a row of results."""
OPERATIONS = {"add": add, "mul": mul, "udiv": floordiv, "urem": mod}
SIZES = {"i8": 1, "i32": 4, "float": 4, "i64": 8}


@gt.model(x=gt.f32[8, 24, 32], w=gt.f32[32, 80], other=gt.f32[24, 80])
def batches(x: Value, w: Value, other: Value) -> Value:
    """Rows of all batches are one loop: which of a batch a vector is in is known when the code runs."""
    return gt.nn.relu(x @ w + other)


@gt.model(x=gt.f32[4, 24, 80], w=gt.f32[80, 80], other=gt.f32[4, 24, 80])
def whole_batches(x: Value, w: Value, other: Value) -> Value:
    """What stands beside the product goes on from batch to batch, too."""
    return gt.nn.relu(x @ w + other)


@gt.model(x=gt.f32[96, 80], w=gt.f32[80, 80], other=gt.f32[96, 80])
def rows(x: Value, w: Value, other: Value) -> Value:
    return gt.nn.relu(x @ w + other)


@gt.model(x=gt.f32[96, 16], w=gt.f32[16, 80], other=gt.f32[96, 80])
def few_steps(x: Value, w: Value, other: Value) -> Value:
    return gt.nn.relu(x @ w + other)


@pytest.mark.parametrize("model", [rows, batches, whole_batches, few_steps])
def test_lines_that_are_asked_for_are_read_or_written_later_and_begin_each_row(model: gt.Model) -> None:
    tiles = list(tiles_of(model))
    assert tiles
    for tile in tiles:
        asked, touched = addresses(tile)
        assert len(asked) > 1
        assert asked <= touched
        assert all(any(0 <= one - begin < ROW for begin in asked) for one in touched)


@pytest.mark.parametrize("model", [rows, whole_batches])
def test_sums_of_many_steps_ask_for_every_line_between_them(model: gt.Model) -> None:
    """And those of fewer for the first one of each row, before they begin."""
    for tile in tiles_of(model):
        asked, touched = addresses(tile)
        assert "asked" in tile
        assert asked == touched
    assert not any("asked" in tile for tile in tiles_of(few_steps))


def test_rows_of_batches_that_lie_one_behind_the_other_are_one_loop() -> None:
    """Of the product, and of what is done to its sums."""
    assert all("urem" in tile for tile in tiles_of(batches))
    assert not any("urem" in tile for tile in tiles_of(whole_batches))


def tiles_of(model: gt.Model) -> Iterator[str]:
    text = generate(arrive(model.bind({})), SMALL_CACHES).text
    for function in re.split(r"^(?=define )", text, flags=re.MULTILINE):
        if ".tile" in function.partition("(")[0] and "prefetch" in function and "%e0" in function:
            yield function


def addresses(tile: str) -> tuple[set[int], set[int]]:
    """Where a tile's epilogue prefetches lines, and where it loads and stores, at some indices: addresses that follow
    from its indices and from pointers to what is beside the product. A pointer that a loop moves has an address for
    each of its trips.
    """
    known = {f"%e{at}": np.array(at << 40) for at in range(4)} | {f"%x{at}": np.array(3 + at) for at in range(6)}
    asked, touched = set[int](), set[int]()
    for line in tile.splitlines():
        if found := re.match(r"  (%\w+) = (\w+) i64 (\S+), (\S+)$", line):
            operands = [known.get(each, _number(each)) for each in found.groups()[2:]]
            if not any(operand is None for operand in operands):
                known[found[1]] = OPERATIONS[found[2]](*operands)
        elif found := re.match(r"  (%\w+) = getelementptr (?:inbounds )?(\w+), ptr (%\w+), i64 (\S+)$", line):
            base, by = known.get(found[3]), known.get(found[4], _number(found[4]))
            if base is not None and by is not None:
                known[found[1]] = base + SIZES[found[2]] * by
        elif found := re.match(r"  (%\w+) = phi ptr \[ (%\w+), %\w+ \], \[ (%\w+), %\w+ \]$", line):
            if found[2] in known:
                known[found[1]] = known[found[2]] + in_trips(tile, found[3])
        elif found := re.match(r"  (%\w+) = phi i64 \[ 0, %\w+ \], \[ (%\w+), %\w+ \]$", line):
            known |= in_loop(tile, found[1], found[2])
        elif found := re.match(r"  (%\w+) = call ptr @llvm\.launder\S+\(ptr (%\w+)\)$", line):
            known |= {found[1]: known[found[2]]} if found[2] in known else {}
        elif found := re.search(r"prefetch\.p0\(ptr (%\w+)", line):
            asked |= set(known[found[1]].ravel().tolist()) if found[1] in known else set()
        elif found := re.search(r"(?:load <16 x float>|store <16 x float> %\w+), ptr (%\w+)", line):
            touched |= set(known[found[1]].ravel().tolist()) if found[1] in known else set()
    return asked, touched


def in_loop(tile: str, index: str, following: str) -> dict[str, np.ndarray]:
    """The values of the index of a loop over the rows of a tile, or over the vectors of a row."""
    kind = re.search(rf"^(row|vector)\d+:\n  {index} = ", tile, re.MULTILINE)
    trips = re.search(rf"icmp slt i64 {following}, (\d+)", tile)
    assert trips
    values = np.arange(int(trips[1]))
    return {index: values[:, None] if kind[1] == "row" else values} if kind else {}


def in_trips(tile: str, following: str) -> np.ndarray:
    """How many bytes further a pointer is in each trip of the loop that prefetches lines, which adds to it so."""
    far = re.search(rf"^  {following} = getelementptr i8, ptr %\w+, i64 (\d+)$", tile, re.MULTILINE)
    trips = re.search(r"icmp slt i64 %\w+, (\d+)\n  br i1 %\w+, label %asked", tile)
    assert far
    assert trips
    return int(far[1]) * np.arange(int(trips[1]))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None
