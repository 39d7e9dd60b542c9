"""Offsets that keep halves of buffers with their cores: they stay a packing, no higher, and fewer lines move."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from glowtrain.program.memory.affinity import LEAST, move_for_affinity
from glowtrain.program.memory.packing import pack
from glowtrain.program.memory.packing_search import Item

BIG = 4 * LEAST


def random_items(rng: np.random.Generator) -> list[Item]:
    firsts = rng.integers(0, 40, size := int(rng.integers(1, 40)))
    lasts = firsts + rng.integers(0, 12, size)
    return [Item(int(a), int(b), int(rng.integers(1, BIG))) for a, b in zip(firsts, lasts, strict=True)]


def overlapping(items: list[Item], offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    def meet(a: int, b: int) -> bool:
        one, other = items[a], items[b]
        together = one.first <= other.last and other.first <= one.last
        return together and offsets[a] < offsets[b] + other.size and offsets[b] < offsets[a] + one.size

    return [(a, b) for a, b in combinations(range(len(items)), 2) if meet(a, b)]


def changed(items: list[Item], offsets: tuple[int, ...], height: int) -> int:
    """Lines that belong to another half than before, each counted by itself."""
    owner, total = [-1] * height, 0
    for at in sorted(range(len(items)), key=lambda at: items[at].first):
        for line in range(items[at].size):
            half = int(line >= items[at].size // 2)
            total += owner[offsets[at] + line] == 1 - half
            owner[offsets[at] + line] = half
    return total


@pytest.mark.parametrize("seed", range(60))
def test_what_is_moved_is_a_packing_of_the_same_height(seed: int) -> None:
    items = random_items(np.random.default_rng(seed))
    packed = pack(items, steps=50)
    offsets = move_for_affinity(items, packed.offsets, packed.height)
    assert not overlapping(items, offsets)
    assert all(0 <= at <= packed.height - item.size for at, item in zip(offsets, items, strict=True))


def test_fewer_lines_change_halves() -> None:
    before = after = 0
    for seed in range(40):
        items = random_items(np.random.default_rng([7, seed]))
        packed = pack(items, steps=50)
        before += changed(items, packed.offsets, packed.height)
        after += changed(items, move_for_affinity(items, packed.offsets, packed.height), packed.height)
    assert after < 0.8 * before


def test_middles_meet_where_there_is_room() -> None:
    items = [Item(0, 0, 4 * BIG), Item(1, 1, 2 * BIG)]
    assert move_for_affinity(items, (0, 0), 4 * BIG) == (0, BIG)


def test_one_stays_where_nothing_is_better() -> None:
    items = [Item(0, 0, 2 * BIG), Item(1, 1, 2 * BIG)]
    assert move_for_affinity(items, (BIG, BIG), 4 * BIG) == (BIG, BIG)


def test_small_ones_stay() -> None:
    items = [Item(0, 0, 2 * LEAST), Item(1, 1, LEAST - 1)]
    assert move_for_affinity(items, (0, 0), 4 * LEAST) == (0, 0)


def test_what_is_alive_is_not_touched() -> None:
    items = [Item(0, 0, 4 * BIG), Item(1, 1, BIG), Item(1, 1, 2 * BIG)]
    offsets = move_for_affinity(items, (0, 3 * BIG, 0), 4 * BIG)
    assert not overlapping(items, offsets)


def test_nothing_to_settle() -> None:
    assert move_for_affinity([], (), 0) == ()
