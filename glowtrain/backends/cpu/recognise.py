"""Kernels that are contractions: from loop nests to the contraction generator.

A flat nest with one sum of products of two affine loads is a contraction; what else the nest computes from the
finished sums (bias, activation, optimizer update, further results) becomes the generator's epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.backends.cpu.contraction import Axis, Contraction, EpilogueClip, Operand, OperandAccess, dot, generate
from glowtrain.backends.cpu.contraction import ContractionKernel as Generated
from glowtrain.backends.cpu.epilogue import CacheLine, Coordinates
from glowtrain.backends.cpu.loop_nest.collapse import collapse
from glowtrain.backends.cpu.loop_nest.scope import Context
from glowtrain.backends.cpu.loop_nest.writer import Nests
from glowtrain.backends.cpu.order.analysis import Free, reductions
from glowtrain.backends.llvm.formats import MEMORY, REGISTER, SIZE, as_stored
from glowtrain.backends.llvm.text import INDEX, LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, Number, pointer
from glowtrain.backends.target import Target
from glowtrain.loops import (
    Affine,
    Apply,
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    address,
    affine,
    expressions,
    loads,
    statements,
    within,
)
from glowtrain.loops.functions import FUNCTIONS, Cost
from glowtrain.program.analysis.kernel_facts import (
    blocked_operands,
    box,
    contraction_operands,
    summed_indices,
)
from glowtrain.program.program import Kernel
from glowtrain.types import bf16, f32, f64, i8, u8

SMALL = 2048
"""Contractions of fewer multiplications are not worth kernels of their own."""
_INSTRUCTIONS: dict[type, int] = {Load: 3, Index: 0, Const: 0, Ref: 0, Reduce: 0}
_EXPENSIVE = 30
"""Instructions of a function that is none of the processor's."""
_EACH_LANE = 4
"""Instructions for one lane of a load or store whose lanes are not neighbours."""


@dataclass(frozen=True)
class BufferFacts:
    """What is known of buffers: those that no call changes (``lasting``), those that the innermost loop around a kernel
    reads and does not change (``held``), and those of bf16 that hold no small numbers but 0 (``flushed``)."""

    lasting: Set[Buffer] = frozenset()
    held: Set[Buffer] = frozenset()
    flushed: Set[Buffer] = frozenset()


NOTHING = BufferFacts()


@dataclass(frozen=True)
class ContractionProduct:
    """A kernel seen as a contraction: its loop, sum, operands, and the store that takes the sums."""

    loop: For
    total: Reduce
    a: Load
    b: Load
    target: Store
    whole: bool = False
    """Whether the kernel also reads what ``target`` writes, at the same element, so that it holds no partial sums."""

    @property
    def indices(self) -> tuple[Index, ...]:
        return (*self.loop.indices, *summed_indices(self.total))

    @property
    def blocks(self) -> int | None:
        """The number of the index, if any, that sums of its own are added up along."""
        return len(self.loop.indices) if isinstance(self.total.body, Reduce) else None

    @property
    def plain(self) -> bool:
        """Nothing but the sums is stored."""
        return self.loop.body == (self.target,) and self.target.value is self.total


def recognise(kernel: Kernel) -> ContractionProduct | None:
    """The kernel as a contraction, if it is one that the generator takes. Loops through which all that it reads and
    writes goes on without a gap are one: else each vector of the epilogue would divide an index to know its place, and
    tiles could not ask for its rows one after another."""
    loop = box(kernel)
    if loop is None or not all(isinstance(statement, (Let, Store)) for statement in loop.body):
        return None
    found = _sum_of_products(loop)
    if found is None or math.prod(i.extent for i in (*loop.indices, *summed_indices(found[0]))) < SMALL:
        return None
    if len(loop.body) > 1 or expressions(loop.body[0])[-1] is not found[0]:
        loop = collapse(loop, Free())
        found = _sum_of_products(loop)
        assert found is not None
    total, a, b = found
    inner = frozenset((*loop.indices, *summed_indices(total)))
    if not all(_takes(load, total, inner) for load in (a, b)) or {a.buffer, b.buffer} & set(kernel.writes):
        return None
    target = _target(loop.body, total, inner)
    if target is not None:
        return ContractionProduct(loop, total, a, b, target)
    updated = _updated(loop.body, total, inner)
    return None if updated is None else ContractionProduct(loop, total, a, b, updated, whole=True)


def _sum_of_products(loop: For) -> tuple[Reduce, Load, Load] | None:
    """The only reduction of a nest and its operands, if it is one of products."""
    totals = list(reductions(loop.body))
    return contraction_operands(totals[0]) or blocked_operands(totals[0]) if len(totals) == 1 else None


def _takes(load: Load, total: Reduce, inner: frozenset[Index]) -> bool:
    """An element at an affine place: of the sum's own type or a smaller one, padded if at all with zeros; or an
    integer."""
    if total.dtype.is_float and (total.dtype not in (f32, f64) or not _sums(total, load) or load.fill not in (None, 0)):
        return False
    pairs = zip((affine(i) for i in load.index), load.buffer.shape, strict=True)
    known = all(within(form, n) or (form.is_linear and {i for i, _ in form.terms} <= inner) for form, n in pairs)
    return known and _moves(address(load.index, load.buffer.strides), total, inner)


def _sums(total: Reduce, load: Load) -> bool:
    """Whether a sum of floats takes an element: of its own type, a byte, or bf16 that was made when the code runs."""
    written = load.dtype == bf16 and total.dtype == f32 and load.buffer.kind == "activation"
    return written or load.dtype in (total.dtype, i8, u8)


def _moves(form: Affine, total: Reduce, inner: frozenset[Index]) -> bool:
    """Whether the kernel's own indices lead through memory linearly; for integers, those of repeats around it too."""
    return form.linear_in(inner) if total.dtype.is_float else form.is_linear


def _target(body: Sequence[Statement], total: Reduce, inner: frozenset[Index]) -> Store | None:
    """The store that is made of the sums: nothing here reads its buffer.

    It may hold partial sums, so it has their type; sums of integers are not taken in parts, so theirs may have any.
    """
    read = {load.buffer for load in loads(body)}
    stores = [s for s in body if isinstance(s, Store) and s.buffer not in read]
    stores = [s for s in stores if _moves(address(s.index, s.buffer.strides), total, inner)]
    if total.dtype.is_float:
        stores = [s for s in stores if s.buffer.dtype == total.dtype]
    return min(stores, key=lambda s: (s.value is not total, s.buffer.dtype != total.dtype), default=None)


def _updated(body: Sequence[Statement], total: Reduce, inner: frozenset[Index]) -> Store | None:
    """A store to a buffer that is read at the same element alone: there sums are never taken in parts."""
    stores = [s for s in body if isinstance(s, Store)]
    if total.dtype.is_float:
        stores = [s for s in stores if s.buffer.dtype == total.dtype]
    stores = [s for s in stores if _moves(address(s.index, s.buffer.strides), total, inner)]
    return next(iter(stores), None)


def contraction_text(
    kernel: Kernel,
    product: ContractionProduct,
    name: str,
    target: Target,
    outer: Sequence[Index],
    facts: BufferFacts = NOTHING,
) -> Generated:
    """The generated function ``name(c, a, b, further operands, workspace, outer indices, begin, end)``. Operands that
    are constants, or of the lasting ones, may be wanted packed."""
    resident = [x.buffer in facts.held and not outer_offset(x, product.indices).terms for x in (product.a, product.b)]
    contraction = replace(contraction_of(product, facts), resident=(resident[0], resident[1]))
    epilogue = None if product.plain else FusedEpilogue(kernel, product, target, outer)
    return generate(contraction, name, target, epilogue, "internal")


def contraction_of(product: ContractionProduct, facts: BufferFacts = NOTHING) -> Contraction:
    """The loops of a contraction, without its epilogue."""
    inner = product.indices
    c, a, b = (_access(inner, address(x.index, x.buffer.strides)) for x in (product.target, product.a, product.b))
    names, extents = tuple(index.name for index in inner), tuple(index.extent for index in inner)
    clips, dtype = _clips(product, inner), product.total.dtype.name
    contraction = Contraction(names, extents, c, a, b, clips, dtype, whole=product.whole, blocks=product.blocks)
    if not product.total.dtype.is_float:
        operands = _operand(product.a, inner), _operand(product.b, inner)
        return replace(contraction, operands=operands, result=_stored(product.target.buffer.dtype.name))
    operands = _operand(product.a, inner, facts), _operand(product.b, inner, facts)
    plain = {product.a.dtype, product.b.dtype} == {product.total.dtype} and not any(x.constant for x in operands)
    return contraction if plain else replace(contraction, operands=operands)


def outer_offset(access: Store | Load, inner: Sequence[Index]) -> Affine:
    """The part of an address that depends on the indices of enclosing repeats: the caller adds it to the pointer."""
    form = address(access.index, access.buffer.strides)
    return Affine(0, tuple(term for term in form.terms if term[0] not in inner))


def _access(inner: Sequence[Index], form: Affine) -> OperandAccess:
    return OperandAccess(form.constant, tuple(form.coefficient(index) for index in inner))


def _stored(dtype: str) -> str:
    """The type of the bits in memory."""
    return dtype if MEMORY[dtype] == REGISTER[dtype] else f"u{8 * SIZE[dtype]}"


def _operand(load: Load, inner: Sequence[Index], facts: BufferFacts = NOTHING) -> Operand:
    """What generating code must know of an operand beside its addresses."""
    fixed = (load.buffer.kind == "constant" or load.buffer in facts.lasting) and not outer_offset(load, inner).terms
    return Operand(
        load.dtype.name,
        _axes(load, inner),
        int(load.fill or 0),
        fixed,
        is_small(load.buffer),
        load.buffer in facts.flushed,
    )


def is_small(buffer: Buffer) -> bool:
    """Whether all elements of a constant are known to be so small that more instructions are exact."""
    if buffer.constant_array is None or buffer.dtype != i8:
        return False
    return bool(np.all(np.abs(buffer.constant_array.astype(np.int16)) <= dot.SMALL))


def _axes(load: Load, inner: Sequence[Index]) -> tuple[Axis, ...]:
    """The axes in memory along which a load moves: those of its buffer, or of a view of it (none if not known)."""
    extents, strides = [index.extent for index in inner], load.buffer.strides
    rest, found = address(load.index, strides), list[Axis]()
    for subscript, extent, stride in zip(load.index, load.buffer.shape, strides, strict=True):
        form = affine(subscript)
        if form.is_linear:
            rest += form.scale(-stride)
            axis = Axis(tuple(form.coefficient(index) for index in inner), form.constant, 0, extent, stride)
            moves = {index for index, _ in form.terms} <= set(inner)
            low, high = axis.reach(extents)
            found.append(axis if moves else replace(axis, low=low, high=high))
    for at, index in enumerate(inner):
        stride = rest.coefficient(index)
        if stride < 0:
            return ()
        if stride:
            found.append(Axis(tuple(int(at == loop) for loop in range(len(inner))), 0, 0, index.extent, stride))
    if rest.constant:
        found.append(Axis((0,) * len(inner), rest.constant, rest.constant, rest.constant + 1, 1))
    return tuple(found)


def _clips(product: ContractionProduct, inner: Sequence[Index]) -> tuple[EpilogueClip, ...]:
    clips: dict[EpilogueClip, None] = {}
    for load in (product.a, product.b):
        for subscript, extent in zip(load.index, load.buffer.shape, strict=True):
            form = affine(subscript)
            if load.fill is not None and not within(form, extent):
                clips[EpilogueClip(tuple(form.coefficient(index) for index in inner), form.constant, extent)] = None
    return tuple(clips)


def further_operands(kernel: Kernel, product: ContractionProduct) -> list[Buffer]:
    """The buffers of the epilogue."""
    if product.plain:
        return []
    own = (*(() if product.whole else (product.target.buffer,)), product.a.buffer, product.b.buffer)
    return [buffer for buffer in kernel.operands if buffer not in own]


class FusedEpilogue:
    """The rest of the kernel, computed from the finished sums."""

    def __init__(self, kernel: Kernel, product: ContractionProduct, target: Target, outer: Sequence[Index]) -> None:
        self.product = product
        self.target = target
        self.outer = tuple(outer)
        self.operands = further_operands(kernel, product)
        # The rest may read the operands of the sum at other places: they come again under names of their own.
        self.again = [b for b in dict.fromkeys((product.a.buffer, product.b.buffer)) if b in _read_beside(product)]
        self.lines: dict[tuple[int, int], dict[tuple[Buffer, Affine], bool]] = {}
        self._nests: Nests | None = None

    @property
    def _result(self) -> Store | None:
        """The store that is left to the generator."""
        return None if self.product.whole else self.product.target

    @property
    def params(self) -> list[tuple[str, str]]:
        pointers = [("ptr", f"e{k}") for k in range(len(self.operands) + len(self.again))]
        return pointers + [(INDEX, f"t{k}") for k in range(len(self.outer))]

    def length(self, lane: int, width: int) -> int:
        """About how many instructions a vector takes, with ``width`` lanes along loop ``lane`` (-1: a single one)."""
        body = self.product.loop.body
        plain = sum(map(_instructions, _beside(self.product))) + 3 * len(body)
        return plain + _EACH_LANE * width * self._apart(lane)

    def _apart(self, lane: int) -> int:
        """Loads and stores whose lanes are not neighbours."""
        if lane < 0:
            return 0
        accesses: list[Store | Load] = [node for node in _beside(self.product) if isinstance(node, Load)]
        accesses += [s for s in self.product.loop.body if isinstance(s, Store) and s is not self._result]
        forms = [address(access.index, access.buffer.strides) for access in accesses]
        return sum(1 for form in forms if form.coefficient(self.product.loop.indices[lane]) not in (0, 1))

    def emit(
        self, f: LlvmFunction, value: LlvmValue, coordinates: Sequence[Number], lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        """The lanes that go to C; everything else is stored on the way."""
        body, indices = self.product.loop.body, self.product.loop.indices
        along = indices[lane] if 0 <= lane < len(indices) and value.width > 1 else None
        with self._at(f, coordinates, along) as nests, nests.e.along(Context(along, value.width, mask)):
            e = nests.e
            if along is not None:
                e.scopes.set(("start", along), f.index(coordinates[lane]))
            e.scopes.set(self.product.total, value)
            result = value
            for statement in body:
                if statement is self._result:
                    result = as_stored(f, e.full(statement.value), statement.buffer.dtype.name, self.target)
                else:
                    nests.statement(statement)
        return result

    @contextmanager
    def _at(self, f: LlvmFunction, coordinates: Sequence[Number], along: Index | None) -> Iterator[Nests]:
        """What writes the rest of the kernel at some coordinates; but for an index along the lanes."""
        if self._nests is None or self._nests.f is not f:
            pointers = {buffer: pointer(f"%e{k}") for k, buffer in enumerate((*self.operands, *self.again))}
            outer = {t: f.index(f"%t{k}") for k, t in enumerate(self.outer)}
            self._nests = Nests(f, self.target, pointers, self.product.loop.body, outer)
        e = self._nests.e
        with e.scopes.inner(), e.bindings():
            for index, at in zip(self.product.loop.indices, coordinates, strict=False):
                if index is not along:
                    e.bind(index, f.index(at))
            yield self._nests

    def cache_lines(
        self, f: LlvmFunction, where: Callable[[], Coordinates], lane: int, min_bytes: int
    ) -> list[CacheLine]:
        indices, found = self.product.loop.indices, list[CacheLine]()
        if (lane, min_bytes) not in self.lines:
            self.lines[lane, min_bytes] = self._lines(indices[lane], min_bytes)
        if not self.lines[lane, min_bytes]:
            return found
        first, further = where()
        with self._at(f, first, None) as nests:
            for (buffer, form), written in self.lines[lane, min_bytes].items():
                begin = nests.e.pointer(buffer, nests.e.scalar_sum(form))
                by = sum(form.coefficient(index) * more for index, more in zip(indices, further, strict=False))
                found.append(CacheLine(begin, by * buffer.dtype.size, written))
        return found

    def _lines(self, lane: Index, min_bytes: int) -> dict[tuple[Buffer, Affine], bool]:
        """Where vectors of large operands lie, and whether they are read and written."""
        bound = frozenset((*self.product.loop.indices, *self.outer))
        accesses: list[Store | Load] = [
            expr for expr in _beside(self.product) if isinstance(expr, Load) and expr.fill is None
        ]
        accesses += [s for s in self.product.loop.body if isinstance(s, Store) and s is not self._result]
        found: dict[tuple[Buffer, Affine], bool] = {}
        for access in accesses:
            form = address(access.index, access.buffer.strides)
            if access.buffer.type.nbytes >= min_bytes and form.coefficient(lane) == 1 and form.linear_in(bound):
                found[access.buffer, form] = (access.buffer, form) in found and isinstance(access, Store)
        return found


def _instructions(node: Expr) -> int:
    """About how many instructions an expression takes, without its operands."""
    if isinstance(node, Apply) and FUNCTIONS[node.function].cost is Cost.EXPENSIVE:
        return _EXPENSIVE
    return _INSTRUCTIONS.get(type(node), 1)


def _read_beside(product: ContractionProduct) -> set[Buffer]:
    """Buffers that are read outside of the sum."""
    return {expr.buffer for expr in _beside(product) if isinstance(expr, Load)}


def _beside(product: ContractionProduct) -> Iterator[Expr]:
    """What the kernel computes outside of the sum."""
    seen: set[Expr] = {product.total}
    stack = [expr for s in statements(product.loop.body) for expr in expressions(s)]
    while stack:
        expr = stack.pop()
        if expr not in seen:
            seen.add(expr)
            yield expr
            stack += expr.children
