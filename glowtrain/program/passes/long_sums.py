"""Split long sums over few results into parts, so that there is work for many threads: ``y[c] = sum(n, h, w: x)``
becomes ``parts[n, c] = sum(h, w: x)`` and ``y[c] = sum(n: parts[n, c])`` (the ``rfactor`` of Suriana, Adams and Kamil,
Parallel Associative Reductions in Halide, 2017).

The product of a vector and a matrix has tasks enough where it has some vectors of results. It is taken in the same
parts, but in one kernel, ``y[c] = sum(n: sum(h: x * w))``, which keeps them in registers: no buffer holds them, and the
bits are the same.

How a sum is cut follows from shapes alone, so that results have the same bits for any number of threads and on any
target; they are nearer to the exact ones, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from glowtrain.loops import (
    Buffer,
    Expr,
    For,
    Index,
    Load,
    Reduce,
    Store,
    address,
    indices_of,
    rewrite,
    substitute,
    walk,
)
from glowtrain.program.analysis.kernel_facts import contraction_operands
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.types import TensorType

WORK = 1 << 15
"""Elements that a kernel sums at least: some 10 µs."""
LONGEST = 1 << 20
"""Elements of a part at most: what is added to a long chain is rounded ever more coarsely, and equal elements all in
one direction (2^32 of them in 32 parts came out 1.6 % too large)."""


@dataclass(frozen=True)
class SumCut:
    """Which sums of a kind are cut, and how.

    ``results``: those of the nest at most; with more of them there are tasks enough. ``parts`` of each at most: enough
    for threads to finish at about the same time; more only where they would have more than :data:`LONGEST` elements
    each. ``elements`` of a part at least, so that parts are few beside what is
    summed. All parts together have at most ``beside`` of the elements of the smallest operand.
    """

    results: int
    parts: int
    elements: int
    beside: float = math.inf


ROWS = SumCut(results=32, parts=32, elements=64)
"""Each result is the sum of neighbours in memory."""
COLUMNS = SumCut(results=1 << 14, parts=32, elements=64)
"""Neighbours belong to neighbouring results, in lanes: a vector of results is a task."""
CONTRACTION = SumCut(results=1 << 11, parts=8, elements=512)
"""Products of two operands that lack indices of each other's, as those of a matrix product: a tile of results is a
task, and each part has to bring operands into registers again."""
LONG_CONTRACTION = SumCut(results=1 << 15, parts=8, elements=1 << 11, beside=0.25)
"""Products of which each tile of results reads operands far longer than a cache, as the gradient of a convolution's
weights reads all images: cut by tiles, threads would each bring all of them; cut by parts, their own ones."""
SHORT_CONTRACTION = SumCut(results=1 << 14, parts=2, elements=128)
"""The same of few products, done in some 10 µs, where each core would wait as long for what the other one wrote."""
FEW, EXCHANGED = 1 << 21, 0.25
"""Products that are few; and what their parts have at most of the elements of both operands, so that cores exchange
less of them than they would of the operands."""
LANES, TASKS, SHARED, FAR = 32, 128, 1 << 17, 1 << 19
"""Of the product of a vector and a matrix: results, neighbours in memory, that are some vectors, and that are tasks
enough without parts; products from which on threads share them, and from which on the matrix comes from memory, faster
in parts."""


@dataclass(frozen=True)
class SplitSums:
    """The pass."""

    def run(self, program: Program) -> Program:
        """The same program, its long sums in two kernels each."""
        return replace(program, instructions=tuple(_split(program.instructions)))


def _split(instructions: Sequence[Instruction], around: tuple[Index, ...] = ()) -> Iterator[Instruction]:
    for instruction in instructions:
        if instruction.kernel is not None:
            yield from split(instruction.kernel, around)
        elif instruction.children:
            parts = isinstance(instruction, Repeat) and instruction.parts
            inner = (*around, *instruction.indices) if parts else around
            yield instruction.with_children(tuple(_split(instruction.children, inner)))
        else:
            yield instruction


def split(kernel: Kernel, around: tuple[Index, ...] = ()) -> tuple[Kernel, ...]:
    """A kernel of one nest that stores one value, with each long sum in it computed by a kernel before it. Sums may
    depend on indices ``around`` it: of loops over parts of a batch, in which they are as they would be alone."""
    match kernel.body:
        case (For(indices=indices, body=(Store() as store,), serial=False),):
            pass
        case _:
            return (kernel,)
    if not store.reductions:
        return (kernel,)
    parts: list[Kernel] = []

    def change(expr: Expr) -> Expr | None:
        axis = _axis(expr, indices, around) if isinstance(expr, Reduce) else None
        if axis is None:
            return None
        assert isinstance(expr, Reduce)
        if _has_tasks(expr, indices, store):
            return _in_blocks(expr, axis)
        name = f"{kernel.name}.parts" + (str(len(parts)) if parts else "")
        part, rest = _factored(name, expr, axis, indices, store)
        parts.append(part)
        return rest

    value = rewrite(store.value, change)
    if value is store.value:
        return (kernel,)
    return (*parts, replace(kernel, body=(For(indices, (replace(store, value=value),)),)))


def _axis(sum_: Reduce, outer: Sequence[Index], around: Sequence[Index]) -> tuple[int, int] | None:
    """The axis of a sum along which it is cut, and into how many parts; ``None`` where it stays whole."""
    results, elements = (math.prod(index.extent for index in box) for box in (outer, sum_.indices))
    if sum_.partials or results * elements < WORK or not _closed(sum_, (*outer, *around)):
        return None
    kind = _cut(sum_, outer)
    cut = LONG_CONTRACTION if kind is CONTRACTION and results > kind.results else kind
    found = _divided(cut, sum_, results, elements)
    short = found is None and cut is LONG_CONTRACTION and results * elements <= FEW
    return _halved(sum_, results, elements) if short else found


def _divided(cut: SumCut, sum_: Reduce, results: int, elements: int) -> tuple[int, int] | None:
    """The first axis along which a sum can be cut so, and into how many parts."""
    if results > cut.results:
        return None
    most = min(max(cut.parts, elements // LONGEST), elements // cut.elements, _beside(sum_) * cut.beside / results)
    for axis, index in enumerate(sum_.indices):
        parts = _divisor(index.extent, int(most))
        if parts > 1:
            return axis, parts
    return None


def _halved(sum_: Reduce, results: int, elements: int) -> tuple[int, int] | None:
    """The same of a contraction of few products: along what lies farthest apart in both operands, as images do."""
    loads = [node for node in walk(sum_.body) if isinstance(node, Load)]
    parts = SHORT_CONTRACTION.parts
    if parts * results > EXCHANGED * sum(load.buffer.type.size for load in loads):
        return None
    found = _divided(SHORT_CONTRACTION, sum_, results, elements)
    return found if found and all(_outermost(load) == {sum_.indices[found[0]]} for load in loads) else None


def _beside(sum_: Reduce) -> int:
    """Elements of the smallest operand of a sum."""
    return min((load.buffer.type.size for load in walk(sum_.body) if isinstance(load, Load)), default=1)


def _cut(sum_: Reduce, outer: Sequence[Index]) -> SumCut:
    loads = [node for node in walk(sum_.body) if isinstance(node, Load)]
    used = [frozenset[Index]().union(*map(_mentioned, load.index)) & frozenset(outer) for load in loads]
    if any(a - b and b - a for a, b in combinations(used, 2)):
        return CONTRACTION
    return COLUMNS if any(_innermost(load) & frozenset(outer) for load in loads) else ROWS


def _has_tasks(sum_: Reduce, outer: Sequence[Index], result: Store) -> bool:
    """Whether it is all that is summed for a row of results, the product of a vector and a matrix that is near, and
    either has tasks enough or is no work for several threads.
    """
    found = contraction_operands(sum_)
    if found is None or _cut(sum_, outer) != COLUMNS or sum(isinstance(e, Reduce) for e in walk(result.value)) > 1:
        return False
    if any(load.fill is not None for load in found[1:]):
        return False
    a, b = (address(load.index, load.buffer.strides) for load in found[1:])
    place = address(result.index, result.buffer.strides)
    products = math.prod(index.extent for index in (*outer, *sum_.indices))
    least = LANES if products < SHARED else TASKS
    lanes = [j for j in outer if place.coefficient(j) == 1 and j.extent >= least]
    return products < FAR and any({a.coefficient(j), b.coefficient(j)} == {0, 1} for j in lanes)


def _in_blocks(sum_: Reduce, axis: tuple[int, int]) -> Reduce | None:
    """The sum of the sums of its parts. Integers have no order: their sum stays as it is."""
    if not sum_.dtype.is_float:
        return None
    at, parts = axis
    (part,) = indices_of((parts,), "p")
    inner, place = _cut_along(sum_, at, part)
    return Reduce(sum_.op, (part,), Reduce(sum_.op, inner, substitute(sum_.body, {sum_.indices[at]: place})))


def _closed(sum_: Reduce, outer: Sequence[Index]) -> bool:
    """Whether a sum depends on nothing that is computed around it, but for the indices of its nest."""
    own = {*outer, *sum_.indices}
    nodes = list(walk(sum_.body))
    inner = {index for node in nodes if isinstance(node, Reduce) and node is not sum_ for index in node.indices}
    return all(node in own or node in inner for node in nodes if isinstance(node, Index))


def _innermost(load: Load) -> frozenset[Index]:
    """The indices that lead to the neighbour in memory."""
    axes = [axis for axis in load.buffer.layout if load.buffer.shape[axis] > 1]
    return _mentioned(load.index[axes[-1]]) if axes else frozenset()


def _outermost(load: Load) -> frozenset[Index]:
    """The indices that lead to what is farthest away in memory."""
    axes = [axis for axis in load.buffer.layout if load.buffer.shape[axis] > 1]
    return _mentioned(load.index[axes[0]]) if axes else frozenset()


def _mentioned(expr: Expr) -> frozenset[Index]:
    nodes = (expr,) if isinstance(expr, Index) else walk(expr)  # most are one
    return frozenset([node for node in nodes if isinstance(node, Index) and node.extent > 1])


def _divisor(extent: int, most: int) -> int:
    """The largest divisor up to ``most`` (1 at least)."""
    return next((number for number in range(min(extent, most), 1, -1) if extent % number == 0), 1)


def _factored(
    name: str, sum_: Reduce, axis: tuple[int, int], outer: Sequence[Index], result: Store
) -> tuple[Kernel, Reduce]:
    """The kernel that computes the parts, and the sum of them."""
    at, parts = axis
    buffer = _parts(name, sum_, parts, outer, result)
    part, *own = indices_of((parts, *(index.extent for index in outer)))
    inner, place = _cut_along(sum_, at, part)
    body = substitute(sum_.body, {sum_.indices[at]: place, **dict(zip(outer, own, strict=True))})
    total = Reduce(sum_.op, inner, body) if inner else body
    kernel = Kernel(name, (For((part, *own), (Store(buffer, (part, *own), total),)),))
    (over,) = indices_of((parts,), "r")
    return kernel, Reduce(sum_.op, (over,), Load(buffer, (over, *outer)))


def _cut_along(sum_: Reduce, at: int, part: Index) -> tuple[tuple[Index, ...], Expr]:
    """The indices inside of a part, and what the cut index is there."""
    cut = sum_.indices[at]
    length = cut.extent // part.extent
    inner = (*sum_.indices[:at], *([Index(length, cut.name)] if length > 1 else []), *sum_.indices[at + 1 :])
    return inner, part * length + inner[at] if length > 1 else part


def _parts(name: str, sum_: Reduce, parts: int, outer: Sequence[Index], result: Store) -> Buffer:
    """Memory for the parts, those of neighbouring results next to each other."""
    place = address(result.index, result.buffer.strides)
    inwards = sorted(range(len(outer)), key=lambda axis: -abs(place.coefficient(outer[axis])))
    type_ = TensorType(sum_.dtype, (parts, *(index.extent for index in outer)))
    return Buffer(name, type_, "activation", (0, *(axis + 1 for axis in inwards)))
