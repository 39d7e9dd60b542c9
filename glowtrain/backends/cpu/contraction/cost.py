"""Cycles that an arrangement of a contraction takes: an analytic model; nothing is timed.

One step of the innermost loop costs what its multiply-adds, loads and instructions need, or what the caches deliver of
its operands, whichever is more. What things cost, on a present out-of-order core, stands in :mod:`.rates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate
from glowtrain.backends.cpu.contraction.rates import LINE, NEXT_LINES, OTHER_LINES, PAGE, THIRD_LEVEL


@dataclass(frozen=True)
class Average:
    """What one step touches in the average tile: tiles are balanced, so they are smaller than the largest one."""

    products: float
    a: float
    b: float
    tiles: float


def _average(x: Candidate) -> Average:
    extents, vec = x.problem.extents, x.vec
    a, b = x.problem.strides("a"), x.problem.strides("b")
    points, moved_a, moved_b, tiles = 1.0, 1.0, 1.0, x.problem.points
    for loop, size in x.tile:
        count = ceil(extents[loop] / size)
        mean = extents[loop] / count
        points *= mean
        moved_a *= mean if a[loop] else 1
        moved_b *= mean if b[loop] else 1
        tiles = tiles // extents[loop] * count
    vectors = 1.0
    if not x.dots:
        total = ceil(extents[vec] / x.machine.width)
        groups = ceil(total / x.vectors)
        vectors, tiles = total / groups, tiles // extents[vec] * groups
    return Average(vectors * points, moved_a * (vectors if a[vec] else 1), moved_b * (vectors if b[vec] else 1), tiles)


def compute(x: Candidate, kinds: Sequence[str]) -> tuple[float, Average]:
    """Cycles of one step with everything in the first-level cache."""
    mean, (price_a, price_b) = _average(x), x.axis.price
    a = mean.a * (_gathered(x) if x.problem.across else price_a)
    b = mean.b * (1 if x.pack_b else price_b)
    dot = x.problem.dot
    if dot is not None and dot.chains > 1:
        a, b = 2 * dot.chains * a, dot.chains * b
    widened = rates.CONVERSION * ((a if _widens(x, "a") else 0) + (b if _widens(x, "b") else 0))
    products = mean.products * x.axis.each + widened
    busy = mean.products * (2 if dot.second else dot.chains) if dot else products
    chain = rates.CHAIN if dot is None or dot.adds else rates.CHAIN_OF_ADDITIONS
    begun = max(busy / rates.MULTIPLY_ADDS, (a + b) / rates.LOADS, (products + a + b + 1) / rates.INSTRUCTIONS)
    step = max(begun, chain / x.copies) + rates.LOAD_BESIDE * (a + b)
    if "guard" in kinds:
        step += mean.products * rates.GUARD + a + b
    if "static" in kinds or len(x.tile) > 1:
        step *= rates.UNEVEN
    return step * _aliasing(x), mean


def _widens(x: Candidate, operand: str) -> bool:
    """Whether the kernel makes floats of an operand's bytes."""
    return x.problem.widens(operand) and not x.packed(operand)


def _gathered(x: Candidate) -> float:
    """Loads and instructions for one vector of words that are put together; windows share them if they fit."""
    assert x.problem.dot is not None
    sums = x.points * x.vectors * x.copies
    held = min(x.steps * x.vectors, sums * x.steps * _shared(x, "a"))
    written = x.steps <= rates.WRITTEN_STEPS and x.steps * sums <= rates.WRITTEN_PRODUCTS
    shares = written and held + sums + rates.SPARE_REGISTERS <= x.machine.registers
    return (x.problem.dot.group + 1) * (_shared(x, "a") if shares else 1)


def _aliasing(x: Candidate) -> float:
    """Windows of a tile's rows that lie on as many pages, or in the same sets of a cache, cost a few per cent."""
    a = x.problem.strides("a")
    far = 0 if x.pack_a else max([a[loop] for loop, _ in x.tile], default=0) * x.problem.bytes_of("a")
    if far < PAGE or sum([1 for i in x.problem.reductions if a[i]]) < 2:
        return 1.0
    return rates.ALIASING_PAGES if far % PAGE else rates.ALIASING_SETS


def total(x: Candidate, step: float, mean: Average, *, memory: bool) -> float:
    """Cycles for everything: the steps, what begins and ends each tile, and packing."""
    loops, width = x.problem.loops, x.machine.width
    parts = prod([ceil(loops[i].extent / size) for i, size in x.chunks]) if x.chunks else 1
    again = x.problem.source.accumulate or parts > 1
    ends = rates.TILE + mean.products * (rates.PARTIAL_RESULTS if again else rates.RESULTS)
    ends += mean.products * rates.RESULTS * width if not x.dots and loops[x.vec].c != 1 and width > 1 else 0
    ends += mean.products * (rates.DOT + rates.DOT_COPY * x.copies) if x.dots else _results(x, mean, parts)
    if memory and x.problem.blocks is None:  # in blocks, B is read once whatever the tile is
        slow = traffic(x, mean)
        step = max(step, slow) + rates.BESIDE * min(step, slow)
    packed = sum(packing(x).values()) if x.pack_a or x.pack_b else 0
    return mean.tiles * parts * (x.steps * step + ends) + packed + (_fetched(x, mean) if memory else 0)


def compute_cycles(x: Candidate, step: float, mean: Average) -> float:
    """Cycles to compute the steps, with everything in caches: a part of :func:`total`."""
    return mean.tiles * (x.steps * step)


def _fetched(x: Candidate, mean: Average) -> float:
    """Cycles until A has come for the first time, from another core that wrote it or from memory, where a tile takes a
    few elements of each of its rows: no prefetcher fetches these. A copy of A reads whole rows. (Processors without
    vectors are in small devices, which have nothing as far away.)"""
    a = stream(x, "a", mean.a)
    if a.rate == NEXT_LINES or x.machine.width == 1:
        return 0.0
    return x.footprint("a", range(len(x.problem.loops))) / a.run * rates.FIRST_RUN


def _results(x: Candidate, mean: Average, parts: int) -> float:
    """Cycles to write (and, if sums are taken up again, to read) a tile of C in whole cache lines."""
    held = x.problem.result_bytes
    if held <= x.machine.l1:
        return 0.0
    size, width, strides = x.problem.bytes_of("c"), x.machine.width, x.problem.strides("c")
    run = min(mean.products, x.vectors) * width * size
    if strides[x.vec] != 1:
        run = max([1, *[count for loop, count in x.tile if strides[loop] == 1]]) * size
    times = min(max(1.0, LINE / run), rates.BLOCKED_RESULTS if x.problem.dot else LINE)
    wanted = mean.products * width * size * times
    again = 2 if parts > 1 or x.problem.source.accumulate else 1
    if held <= x.machine.l2:
        return again * wanted / NEXT_LINES
    pages = prod([count for loop, count in x.tile if strides[loop] * size >= PAGE])
    return again * wanted / (rates.WRITTEN * THIRD_LEVEL) + (rates.PAGE_OF_RESULTS * pages if pages > 1 else 0)


def packing(x: Candidate) -> dict[str, float]:
    """Cycles of the copies of each operand that is packed."""
    packed = (("a", x.pack_a), ("b", x.pack_b and not x.problem.dot))
    return {operand: _copied(x, operand) for operand, wanted in packed if wanted}


def _copied(x: Candidate, operand: str) -> float:
    """Cycles to copy an operand; a transposition costs more than a plain copy, single elements most."""
    elements, copied = x.axis.copied[operand]
    if operand == "a":
        return elements * copied + rates.COPY_CALL
    if x.axis.from_memory:
        copied = max(copied, x.problem.bytes_of("b") * _first_time(x))
    return elements * _blocks_of_rows(x) * (copied + _away(x) * x.problem.size / 4) + rates.COPY_CALL


def _away(x: Candidate) -> float:
    """Further cycles for each four bytes of B that are copied, if the copy leaves the cache before it is read.

    B is copied panel by panel if all rows of A can be kept meanwhile, otherwise as a whole.
    """
    reductions, machine = x.problem.reductions, x.machine
    panel = x.steps * x.vectors * machine.width * x.problem.size
    left = panel > rates.PANEL_IN_L1 * machine.l1
    if x.unpacks:
        return rates.COPY_PREFETCHED if left else 0.0
    if x.footprint("a", [*x.problem.moving("a"), *reductions]) > machine.l2 // 2:
        whole = x.footprint("b", [*x.problem.moving("b"), *reductions])
        return rates.COPY_LEFT_L2 if whole > rates.ONE_IN_L2 * machine.l2 else 0.0
    return rates.COPY_LEFT_L1 if left else 0.0


def _blocks_of_rows(x: Candidate) -> int:
    """How often B is made floats of bytes: for as many rows at a time as the second level holds."""
    if not x.unpacks:
        return 1
    return ceil(x.footprint("a", [*x.problem.moving("a"), *x.problem.reductions]) / x.max_row_bytes)


def inner_reduction(x: Candidate, operand: str) -> int:
    """The innermost reduction loop that moves an operand (any reduction if none does)."""
    return x.problem.innermost[operand]


@dataclass(frozen=True)
class Stream:
    """What one step reads of an operand: bytes in whole cache lines, bytes proper, usable share of a cache's sets,
    whether steps are pages apart, bytes in a cycle from the second level, bytes side by side."""

    lines: float
    proper: float
    share: float
    far: bool
    rate: float
    run: float


def stream(x: Candidate, operand: str, elements: float) -> Stream:
    """How an operand is read along the reduction. Strides of a large power of two reach only some sets of a cache."""
    packed, strides = x.packed(operand), x.problem.strides(operand)
    size = 4 if x.problem.dot else x.problem.size if packed else x.problem.bytes_of(operand)
    if strides[x.vec]:
        elements *= x.machine.width
    apart = strides[inner_reduction(x, operand)] * size
    if apart < LINE or packed or (operand == "b" and x.prepacked):
        return Stream(elements * size, elements * size, 1, False, NEXT_LINES, elements * size)
    run = max([1.0, *[s for loop, s in x.tile if strides[loop] == 1]])
    if strides[x.vec] == 1:
        run = max(run, elements)
    touched = ceil(run * size / LINE)
    lines = elements / run * (touched + (rates.UNALIGNED if run * size % LINE else 0)) * LINE
    share = min(1.0, touched * LINE / (apart & -apart))
    return Stream(
        max(lines, elements * size),
        elements * size,
        share,
        apart >= PAGE,
        NEXT_LINES if run * size >= apart or apart == LINE else OTHER_LINES,
        run * size,
    )


def _first_time(x: Candidate) -> float:
    """Cycles for a byte of B that is read for the first time, from memory."""
    return 1 / THIRD_LEVEL + (rates.NOT_FOLLOWED / LINE if x.steps > rates.FOLLOWED else 0.0)


def _times(x: Candidate) -> float:
    """How many tiles of rows read the same columns of B, one after another."""
    tiled = dict(x.tile)
    return prod([ceil(x.problem.loops[i].extent / tiled.get(i, 1)) for i in x.problem.moving("a")])


def _shared(x: Candidate, operand: str) -> float:
    """The part of what a step touches that steps before it have not touched: taps of a window slide over the rest."""
    part, strides = 1.0, x.problem.strides(operand)
    for loop, size in x.tile:
        for i in x.problem.reductions if strides[loop] else ():
            extent = x.extents[i]
            ratio, odd = divmod(strides[loop], strides[i]) if strides[i] else (0, 1)
            if not odd and 0 < ratio < extent:
                part *= ((size - 1) * ratio + extent) / (size * extent)
                break
    return part


def traffic(x: Candidate, mean: Average) -> float:
    """Cycles for one step's operands as they come from the caches, B's columns being used for many rows in turn."""
    a, b = stream(x, "a", mean.a * _shared(x, "a")), stream(x, "b", mean.b * _shared(x, "b"))
    l1, l2, steps = x.machine.l1, x.machine.l2, x.steps
    if x.dots:
        return (a.proper + b.proper) * x.machine.width / NEXT_LINES
    cycles = 0.0
    together = steps * (a.lines + b.lines) <= rates.BOTH_IN_L1 * l1
    if not (together and steps * b.lines <= rates.B_IN_L1 * l1 * b.share):
        cycles += b.lines / (b.rate if steps * b.lines <= rates.ONE_IN_L2 * l2 * b.share else THIRD_LEVEL)
        cycles += rates.OTHER_PAGES if b.far and steps > rates.MANY_STEPS else 0
    if not x.pack_b and x.axis.from_memory:
        cycles += max(0.0, b.lines * _first_time(x) - cycles) / _times(x)
    if x.footprint("a", x.axis.others) > l1 // 2:
        kept = together and steps * a.lines <= rates.A_IN_L1 * l1 * a.share
        near = steps * a.lines <= rates.ONE_IN_L2 * l2 * a.share
        cycles += (a.proper if kept else a.lines) / (a.rate if near else THIRD_LEVEL)
        cycles += rates.OTHER_PAGES if a.far and steps > rates.MANY_STEPS else 0
    return cycles
