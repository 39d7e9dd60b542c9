"""Pack matrices that every trip of a repeat multiplies with once, before the repeat, behind what else is the same in
every trip (:mod:`~glowtrain.program.passes.loop_invariant_hoisting`).

A recurrent layer multiplies its state with the same weights in each step. Vectors of the products in
``y[m, n] = sum(k: x[t, m, k] * w[n, k])`` run along ``n``, whose neighbours are a row apart in ``w``; and rows of a
page or more would reach few sets of the caches. So ``w`` is copied into panels of some columns, each in the order in
which products read it:

    panels[p, k, l] = w[64 * p + l, k]
    repeat t: y[m, 64 * p + l] = sum(k: x[t, m, k] * panels[p, k, l])

In loops over parts of a batch each trip packs for itself what it reads, as it would alone.

Panels are those of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34(3), 2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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
    rewrite_body,
    statements,
    substitute,
)
from glowtrain.names import Names
from glowtrain.program.analysis.kernel_facts import box, contractions, row_major, summed_indices
from glowtrain.program.passes.loop_invariant_hoisting import hoisted
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.types import Array, TensorType

LINE = 64
"""Bytes of a cache line; vectors have at most as many."""
WIDEST = 16
"""Lines of a panel's row at most: a quarter of a page, so that rows reach all sets of a cache."""
FULL = 0.9
"""The part of a row's last line that columns fill at least, on average over its lines; otherwise vectors would be too
empty."""
USES = 16
"""Products in which an element takes part at least, so that copying it is little beside them."""


@dataclass(frozen=True)
class PackLoopInvariants:
    """The pass, for rows of panels of about so many bytes; with 0 nothing is packed."""

    row: int = 256

    def run(self, program: Program) -> Program:
        """The same program, its repeats reading panels."""
        if all(not instruction.children for instruction in program.instructions):
            return program
        program = replace(program, instructions=tuple(hoisted(program.instructions)))
        if not self.row:
            return program
        packing = _Packing(self.row, Names(buffer.name for buffer in program.buffers))
        instructions = tuple(packing.instructions(program.instructions))
        constants = (*program.constants, *packing.constants)
        return replace(program, instructions=instructions, constants=constants).trimmed()


@dataclass(frozen=True)
class InvariantMatrix:
    """A matrix of a contraction that may be packed: the ``load`` that reads it under the indices ``outer`` (moved by
    none of the other operand's), ``column`` and ``sums``."""

    load: Load
    outer: tuple[Index, ...]
    column: Index
    sums: tuple[Index, ...]


@dataclass
class _Packing:
    row: int
    names: Names
    constants: list[Buffer] = field(default_factory=list)

    def instructions(self, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
        """Instructions with what they read in repeats packed before these, outermost first."""
        for instruction in instructions:
            before: list[Kernel] = []
            if isinstance(instruction, Repeat) and not instruction.parts:
                instruction = self._inside(instruction, instruction, before)
            yield from before
            if instruction.children:
                instruction = instruction.with_children(tuple(self.instructions(instruction.children)))
            yield instruction

    def _inside(self, instruction: Instruction, repeat: Repeat, before: list[Kernel]) -> Instruction:
        """What becomes of an instruction of a repeat; the kernels that pack are added to ``before``."""
        if instruction.kernel is not None:
            return self._kernel(instruction.kernel, repeat, before)
        return instruction.with_children([self._inside(child, repeat, before) for child in instruction.children])

    def _kernel(self, kernel: Kernel, repeat: Repeat, before: list[Kernel]) -> Kernel:
        loop, found = box(kernel), list(contractions(kernel.body))
        if loop is None or len(found) != 1:
            return kernel
        total, a, b = found[0]
        for load, other in ((b, a), (a, b)):
            operand = None if load.buffer in repeat.written else operand_of(loop, total, load, other)
            if operand is not None and _uses(loop, operand, repeat) >= USES:
                return self._packed(kernel, loop, operand, before)
        return kernel

    def _packed(self, kernel: Kernel, loop: For, operand: InvariantMatrix, before: list[Kernel]) -> Kernel:
        column, load = operand.column, operand.load
        width = width_of(column.extent, self.row, load.dtype.size)
        if not width or (width == column.extent and _laid_out(operand)):
            return kernel
        panel, lane = Index(column.extent // width, "p"), Index(width, "l")
        place = panel * width + lane
        order = (*operand.outer, panel, *operand.sums, lane)
        panels = self._filled(load, {column: place}, order, kernel, before)
        steps: list[dict[Expr, Expr]] = [{load: Load(panels, order)}, {column: place}]
        body = loop.body
        for step in steps:
            body = rewrite_body(body, step.get)
        indices = [part for index in loop.indices for part in ((panel, lane) if index is column else (index,))]
        return replace(kernel, body=(For(tuple(indices), body),))

    def _filled(
        self, load: Load, places: dict[Expr, Expr], order: Sequence[Index], kernel: Kernel, before: list[Kernel]
    ) -> Buffer:
        """The panels: a constant's are a constant, others are filled by a kernel."""
        own = indices_of(tuple(index.extent for index in order))
        fresh: dict[Expr, Expr] = dict(zip(order, own, strict=True))
        subscripts = (substitute(substitute(subscript, places), fresh) for subscript in load.index)
        source = Load(load.buffer, tuple(subscripts))
        type_ = TensorType(load.dtype, tuple(index.extent for index in own))
        panels = Buffer(self.names.fresh(f"{load.buffer.name}.panels"), type_)
        if load.buffer.constant_array is not None:
            panels = replace(panels, kind="constant", initial=_elements(source, own, load.buffer.constant_array))
            self.constants.append(panels)
        else:
            before.append(Kernel(f"{kernel.name}.pack", (For(own, (Store(panels, own, source),)),)))
        return panels


def operand_of(loop: For, total: Reduce, load: Load, other: Load) -> InvariantMatrix | None:
    """An operand of a contraction of floats as a matrix: each subscript is affine in the indices of the kernel alone,
    and one of those outside of the sum moves it, but not the other operand, along neighbours of the result."""
    form, partner = (address(each.index, row_major(each.buffer.shape)) for each in (load, other))
    reduced = summed_indices(total)
    inner = (*loop.indices, *reduced)
    moved = {atom for atom, _ in form.terms}
    if not total.dtype.is_float or load.fill is not None or load.dtype != total.dtype or not moved <= set(inner):
        return None
    own = [index for index in loop.indices if index in moved]
    columns = [index for index in own if not partner.coefficient(index) and _contiguous(loop, index)]
    if not columns:
        return None
    sums = tuple(index for index in reduced if index in moved)
    return InvariantMatrix(load, tuple(index for index in own if index is not columns[-1]), columns[-1], sums)


def _contiguous(loop: For, index: Index) -> bool:
    """Whether neighbours along an index are neighbours in a result."""
    stores = [statement for statement in statements(loop.body) if isinstance(statement, Store)]
    return any(address(store.index, store.buffer.strides).coefficient(index) == 1 for store in stores)


def _uses(loop: For, operand: InvariantMatrix, repeat: Repeat) -> int:
    """The products of an element in all trips."""
    moving = {operand.column, *operand.outer}
    return repeat.trips * math.prod(index.extent for index in loop.indices if index not in moving)


def width_of(columns: int, row: int, size: int) -> int:
    """Columns of a panel for rows of about so many bytes: a divisor, so that panels are equal. Those that fill their
    lines best, of these the ones nearest to ``row``; 0 where none fills them well."""
    line, wanted = LINE // size, max(1, row // size)
    widths = [width for width in range(1, min(columns, WIDEST * line) + 1) if columns % width == 0]
    fullness = {width: width / (-(-width // line) * line) for width in widths}
    best = max(widths, key=lambda width: (fullness[width], -abs(math.log(width / wanted))))
    return best if fullness[best] >= FULL else 0


def _laid_out(operand: InvariantMatrix) -> bool:
    """Whether a matrix lies in memory as a single panel would."""
    form = address(operand.load.index, operand.load.buffer.strides)
    order = (*operand.outer, *operand.sums, operand.column)
    strides = row_major(tuple(index.extent for index in order))
    return all(form.coefficient(index) == stride for index, stride in zip(order, strides, strict=True))


def _elements(source: Load, own: Sequence[Index], initial: Array) -> Array:
    """What a load reads of a buffer's contents, for all indices."""
    form = address(source.index, row_major(source.buffer.shape))
    places = np.asarray(form.constant)
    for axis, index in enumerate(own):
        steps = np.arange(index.extent) * form.coefficient(index)
        places = places + steps.reshape((-1, *(1,) * (len(own) - axis - 1)))
    elements: Array = initial.reshape(-1)[places]
    return elements
