"""Narrow kernels to what is read: one that fills a buffer of which only a box is read, such as the gradient of
weights of which some rows are trained, runs over this box alone, and the buffer is as large as that.

Sums keep the order that they have for the whole buffer: long ones are cut before this pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glowtrain.loops import (
    Buffer,
    Expr,
    For,
    Index,
    Load,
    Store,
    affine,
    rewrite_body,
)
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.types import TensorType

Bounds = tuple[tuple[int, int], ...]
"""The first element and the one behind the last, along each axis."""


@dataclass(frozen=True)
class Narrow:
    """The pass."""

    def run(self, program: Program) -> Program:
        """The same program without elements that nobody reads."""
        narrowing = _Narrowing(program)
        for position in reversed(range(len(program.instructions))):
            narrowing.visit(position)
        if not narrowing.smaller:
            return program
        return replace(program, instructions=tuple(narrowing.instructions)).with_buffers(narrowing.smaller)


@dataclass
class _Narrowing:
    """The instructions so far, readers before what they read; ``smaller``: what stands for narrowed buffers."""

    program: Program
    instructions: list[Instruction] = field(init=False)
    touching: dict[Buffer, list[int]] = field(init=False, default_factory=dict)
    smaller: dict[Buffer, Buffer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.instructions = list(self.program.instructions)
        for position, instruction in enumerate(self.instructions):
            for buffer in instruction.operands:
                self.touching.setdefault(buffer, []).append(position)

    def visit(self, position: int) -> None:
        """Narrow what the instruction at a position fills, where it can be."""
        filled = _filled(self.instructions[position])
        if filled is None:
            return
        kernel, loop, store = filled
        readers = [other for other in self.touching[store.buffer] if other != position]
        bounds = self._read(store.buffer, position, readers)
        if bounds is None:
            return
        new = _narrowed(store.buffer, bounds)
        self.smaller[store.buffer] = new
        self.instructions[position] = _over(kernel, loop, store, bounds)
        for reader in readers:
            self.instructions[reader] = self.instructions[reader].rewritten(_Shift(store.buffer, bounds))

    def _read(self, buffer: Buffer, writer: int, readers: Sequence[int]) -> Bounds | None:
        """The smallest box that holds all that is read of a buffer; ``None`` where it is all, as of most, or not
        known."""
        if not readers or readers[0] < writer:
            return None
        whole = tuple([(0, extent) for extent in buffer.shape])
        found: Bounds | None = None
        for reader in readers:
            instruction = self.instructions[reader]
            if instruction.kernel is None or buffer in instruction.writes or buffer in instruction.opaque:
                return None
            for load in instruction.survey.loads:
                if load.buffer is buffer:
                    found = _bounds(load) if found is None else _around(found, _bounds(load))
                    if found == whole:
                        return None
        return found if found is not None and all(low < high for low, high in found) else None


def _filled(instruction: Instruction) -> tuple[Kernel, For, Store] | None:
    """The parts of a kernel that fills one activation, an index for each axis."""
    kernel = instruction.kernel
    match kernel.body if kernel is not None else ():
        case (For(body=(Store() as store,), serial=False) as loop,):
            pass
        case _:
            return None
    assert kernel is not None
    if store.buffer.kind != "activation" or store.buffer in kernel.reads:
        return None
    along = [_along(subscript) for subscript in store.index]
    extents = [1 if index is None else index.extent for index in along]
    own = [index for index in along if index is not None]
    if tuple(extents) != store.buffer.shape:
        return None
    if len(set(own)) != len(own) or any(index not in own for index in loop.indices if index.extent > 1):
        return None
    return kernel, loop, store


def _along(subscript: Expr) -> Index | None:
    """The index that a subscript is; ``None`` where it is 0 or anything else."""
    if isinstance(subscript, Index):
        return subscript if subscript.extent != 1 else None
    form = affine(subscript)
    match form.terms:
        case ((Index() as index, 1),) if form.constant == 0:
            return index
    return None


def _bounds(load: Load) -> Bounds:
    """The box that a load reads; what lies outside of the buffer is filled."""
    return tuple([_along_axis(at, size) for at, size in zip(load.index, load.buffer.shape, strict=True)])


def _along_axis(subscript: Expr, size: int) -> tuple[int, int]:
    low, last = (0, subscript.extent - 1) if isinstance(subscript, Index) else affine(subscript).range()
    return max(low, 0), min(last + 1, size)


def _around(one: Bounds, other: Bounds) -> Bounds:
    """The smallest box that holds two."""
    both = zip(one, other, strict=True)
    return tuple([(min(low, least), max(high, most)) for (low, high), (least, most) in both])


def _narrowed(buffer: Buffer, bounds: Bounds) -> Buffer:
    shape = tuple(high - low for low, high in bounds)
    return replace(buffer, type=TensorType(buffer.dtype, shape))


def _over(kernel: Kernel, loop: For, store: Store, bounds: Bounds) -> Kernel:
    """The kernel over a box; the buffer is replaced later."""
    fresh: dict[Expr, Expr] = {}
    indices = {index: index for index in loop.indices}
    subscripts = list[Expr]()
    for subscript, (low, high) in zip(store.index, bounds, strict=True):
        index = _along(subscript)
        if index is not None and (low, high) != (0, index.extent):
            indices[index] = new = Index(high - low, index.name)
            fresh[index] = new + low if low else new
            subscript = new
        subscripts.append(subscript)
    (body,) = rewrite_body((Store(store.buffer, store.index, store.value),), fresh.get)
    assert isinstance(body, Store)
    inner = Store(store.buffer, tuple(subscripts), body.value)
    return replace(kernel, body=(For(tuple(indices.values()), (inner,)),))


@dataclass(frozen=True)
class _Shift:
    """Loads of a buffer, as they are of the box that is left of it."""

    buffer: Buffer
    bounds: Bounds

    def __call__(self, expr: Expr) -> Expr | None:
        if not isinstance(expr, Load) or expr.buffer is not self.buffer:
            return None
        pairs = zip(expr.index, self.bounds, strict=True)
        return Load(expr.buffer, tuple([at - low if low else at for at, (low, _) in pairs]), expr.fill)
