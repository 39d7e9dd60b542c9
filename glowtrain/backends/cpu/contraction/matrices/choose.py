"""Choosing the matrices that a contraction of bytes is taken in, and what that costs beside other instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.candidate import Candidate, VectorAxis
from glowtrain.backends.cpu.contraction.choose import ContractionPlan, arranged, panel_loops
from glowtrain.backends.cpu.contraction.describe import Problem
from glowtrain.backends.cpu.contraction.matrices.block import MatrixBlock, begins, shares, step_of
from glowtrain.backends.cpu.contraction.matrices.unit import REGISTERS, ROWS, WORD
from glowtrain.backends.cpu.contraction.rates import Machine

Tile = tuple[tuple[int, int], ...]


def choose_matrices(problem: Problem, machine: Machine, *, padded: bool) -> ContractionPlan | None:
    """The cheapest plan in matrices; None where words of A cannot be read as rows of matrices.

    ``padded``: a few bytes behind A may be read.
    """
    words = problem.words
    if words is None or problem.across or problem.bounds or problem.source.accumulate:
        return None
    extent = problem.loops[words].extent
    step = step_of(extent, padded=padded)
    if not step:
        return None
    found = [
        (_cost(x, block, len(begins(extent, step))), x, block)
        for x, block in _candidates(problem, machine, step)
        if block.fits
    ]
    if not found:
        return None
    cost, x, block = min(found, key=lambda entry: entry[0])
    return replace(arranged(x, (), cost), block=block)


def _candidates(problem: Problem, machine: Machine, step: int) -> Iterator[tuple[Candidate, MatrixBlock]]:
    for vec, packs in panel_loops(problem):
        axis, panels = VectorAxis(problem, machine, vec), ceil(problem.loops[vec].extent / machine.width)
        for columns in range(1, min(panels, REGISTERS) + 1):
            for tile, rows in _tiles(problem, vec, columns):
                yield Candidate(axis, columns, tile, pack_b=packs), MatrixBlock(rows, columns, step)


def _tiles(problem: Problem, vec: int, columns: int) -> Iterator[tuple[Tile, tuple[int, ...]]]:
    """Rows of matrices along one loop that moves A alone; several matrices go on along it, or along another one."""
    loops = [i for i in problem.outputs if i != vec and problem.loops[i].a and not problem.loops[i].b]
    for i in loops:
        extent = problem.loops[i].extent
        for count in range(1, min(ceil(extent / ROWS), REGISTERS) + 1):
            size = ceil(extent / ceil(extent / (count * ROWS)))
            if count > columns:
                size = min(ceil(size / count) * count, extent // count * count)
            yield ((i, size),), shares(size)
        for j in loops if extent <= ROWS else ():
            for count in range(2, min(problem.loops[j].extent, REGISTERS) + 1) if j != i else ():
                yield ((j, count), (i, extent)), (extent,) * count


def _cost(x: Candidate, block: MatrixBlock, trips: int) -> float:
    """Cycles of everything."""
    problem, loops = x.problem, x.problem.loops
    reductions = problem.reductions
    steps = trips * prod(loops[i].extent for i in reductions if i != problem.words)
    groups = ceil(loops[x.vec].extent / x.machine.width) / block.columns
    calls = ceil(groups) * prod(ceil(loops[i].extent / dict(x.tile).get(i, 1)) for i in problem.outputs if i != x.vec)
    rows = sum(block.rows)
    each = groups / ceil(groups) * block.columns
    products = max(each * rows, rates.MATRIX_CHAIN)
    read = _read(x, block, steps, rows, each)
    step = max(products, read) + rates.MATRIX_BESIDE * min(products, read)
    ends = rates.TILE + rates.MATRIX_CHAIN + rows * each * (rates.RESULTS + rates.MATRIX_ROW_STORED)
    ends += rates.MATRIX_ROW_FINISHED * rows * ceil(each * problem.bytes_of("c") / problem.size)
    return rates.MATRIX_CONFIGURATION + calls * (steps * step + ends)


def _read(x: Candidate, block: MatrixBlock, steps: int, rows: int, columns: float) -> float:
    """Cycles until the operands of a step have come."""
    l1, l2 = x.machine.l1, x.machine.l2
    words = columns * block.step / WORD
    panel = steps * words * rates.LINE
    b = rates.MATRIX_ROW if panel <= rates.B_IN_L1 * l1 else rates.MATRIX_ROW_OF_L2
    if panel > rates.ONE_IN_L2 * l2:
        b = rates.LINE / rates.THIRD_LEVEL
    inner = x.stride("a", x.tile[-1][0])
    lines = 1 if inner % rates.LINE == 0 and block.step == rates.LINE else 1 + block.step / rates.LINE
    window = x.footprint("a", [*x.problem.reductions, *(loop for loop, _ in x.tile)], dict(x.tile))
    a = rates.MATRIX_ROW if window <= rates.A_IN_L1 * l1 else rates.MATRIX_ROW_OF_L2
    return rows * a * lines + words * b
