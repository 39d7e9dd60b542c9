"""Description of a contraction, and its normal form.

A contraction is one nest of loops with a single statement ``C[c] += A[a] * B[b]`` whose addresses are affine in the
loop indices. Matrix products in every transposition, batched products, convolutions and both of their gradients are
all of this form; what a loop *is* (row, column, batch, reduction) follows from which operands it moves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import TYPE_CHECKING

from glowtrain.backends.cpu.contraction.dot import Dot
from glowtrain.backends.cpu.order.contraction import SumOrder, sum_order
from glowtrain.backends.cpu.order.nest import partials_in_lanes
from glowtrain.backends.cpu.tasks import Work
from glowtrain.backends.llvm.formats import SIZE
from glowtrain.backends.llvm.values import LlvmType, vector

if TYPE_CHECKING:
    from glowtrain.backends.cpu.panels import Packing


@dataclass(frozen=True)
class OperandAccess:
    """Where an operand is touched: element address ``offset + sum(strides[l] * index[l])``.

    ``strides`` has one entry for each loop, in elements: 0 where the loop does not move the operand; may be negative.
    """

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class EpilogueClip:
    """Where NOT ``0 <= offset + sum(coefficients * index) < extent`` the product contributes nothing (zero padding).

    Nothing is loaded from the operands at clipped indices either.
    """

    coefficients: tuple[int, ...]
    offset: int
    extent: int


@dataclass(frozen=True)
class Axis:
    """One axis of an operand in memory: its subscript is ``offset + sum(coefficients * index)``.

    Elements exist at subscripts from ``low`` to before ``high``, ``stride`` elements apart.
    """

    coefficients: tuple[int, ...]
    offset: int
    low: int
    high: int
    stride: int

    def reach(self, extents: Sequence[int]) -> tuple[int, int]:
        """The least subscript, and the one after the greatest, with these extents of the loops."""
        spans = [factor * (extent - 1) for factor, extent in zip(self.coefficients, extents, strict=True)]
        return self.offset + sum(min(0, s) for s in spans), self.offset + sum(max(0, s) for s in spans) + 1


@dataclass(frozen=True)
class Operand:
    """What is known of an operand beside its addresses: axes (none: unknown), what is read outside of them, whether
    its values are known when code is generated, and whether those are ``small``: at most 64 in magnitude; whether those
    of bf16 are ``flushed``: 0 or so large that no product of two is denormal.
    """

    dtype: str
    axes: tuple[Axis, ...] = ()
    fill: int = 0
    constant: bool = False
    small: bool = False
    flushed: bool = False


@dataclass(frozen=True)
class Contraction:
    """``C[c] (+)= sum over the reduction loops of A[a] * B[b]``; a loop is a reduction where its stride in C is 0.

    ``names`` are for printing. All extents are at least 1, and no two output indices share an element of C.
    With ``accumulate`` the sum starts from what C holds, otherwise from 0. Sums of type ``dtype`` are of products of
    that type, or for i32 of smaller integers as ``operands`` says; they wrap around. ``result`` is the type of C where
    an epilogue makes something else of the sums. In sums of floats an operand may be of bytes, whose numbers are meant,
    and in those of f32 it may be of bf16. With ``whole`` the epilogue stores all results, and C, which it reads, never
    holds a part of a sum. ``blocks`` is the reduction loop, if any, of which each trip is summed by itself, from 0 on;
    these sums are added up then. ``resident``: which of the operands are the same at each trip of a loop around the
    contraction.
    """

    names: tuple[str, ...]
    extents: tuple[int, ...]
    c: OperandAccess
    a: OperandAccess
    b: OperandAccess
    clips: tuple[EpilogueClip, ...] = ()
    dtype: str = "f32"
    accumulate: bool = False
    operands: tuple[Operand, Operand] | None = None
    result: str = ""
    whole: bool = False
    blocks: int | None = None
    resident: tuple[bool, bool] = (False, False)

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.extents), *(len(x.strides) for x in (self.c, self.a, self.b))}
        counts |= {len(clip.coefficients) for clip in self.clips}
        if len(counts) > 1:
            lengths = ", ".join(map(str, sorted(counts)))
            raise ValueError(
                f"contraction over {self.names}: names, extents, strides, clips differ in length: {lengths}"
            )
        if min(self.extents, default=1) < 1:
            raise ValueError(f"contraction over {self.names}: extents {self.extents} must all be at least 1")
        if self.dtype not in SCALARS:
            raise ValueError(f"contraction over {self.names}: dtype {self.dtype!r} is not one of {sorted(SCALARS)}")
        if self.operands and not {x.dtype for x in self.operands} <= (_PRODUCTS if self.sums_integers else self._real):
            types = " and ".join(x.dtype for x in self.operands)
            raise ValueError(f"contraction over {self.names}: products of {types} are not summed in {self.dtype}")

    @property
    def sums_integers(self) -> bool:
        return self.dtype == "i32"

    @property
    def _real(self) -> frozenset[str]:
        """What may stand for real numbers."""
        return frozenset({self.dtype, "i8", "u8"} | ({"bf16"} if self.dtype == "f32" else set()))

    @property
    def types(self) -> dict[str, str]:
        """The element types of ``c``, ``a`` and ``b``."""
        a, b = (x.dtype for x in self.operands) if self.operands else (self.dtype, self.dtype)
        return {"c": self.result or self.dtype, "a": a, "b": b}


@dataclass(frozen=True)
class ContractionKernel:
    """``void @name(c, a, b, <epilogue pointers>, workspace, <epilogue indices>, begin, end)``.

    ``functions``: the text of each function by its name, after those that it calls; the kernel itself is the last.
    ``workspace`` is in bytes (0: the pointer is not used); ``plan`` says in one line how the nest was arranged,
    ``work`` which tasks there are (see :mod:`glowtrain.backends.cpu.tasks`).
    ``packed``: an operand (0 is A, 1 is B) that is constant and that the function wants packed.
    """

    name: str
    functions: Mapping[str, str]
    workspace: int
    plan: str
    work: Work
    packed: tuple[int, Packing] | None = None

    @property
    def text(self) -> str:
        """All of the functions."""
        return "".join(self.functions.values())


SCALARS = {"f32": ("float", 4), "f64": ("double", 8), "i32": ("i32", 4)}
"""LLVM type and size in bytes of each type of sums."""
_PRODUCTS = frozenset({"i8", "u8", "i16", "u16", "i32"})


@dataclass(frozen=True)
class Nested:
    """A loop of the normal form: strides in C, A, B, coefficient in each clip, and the original loops it runs over."""

    extent: int
    c: int
    a: int
    b: int
    clips: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def reduces(self) -> bool:
        return self.c == 0


@dataclass(frozen=True)
class EpilogueBound:
    """The constant side of a clip: ``0 <= offset + ... < extent``."""

    offset: int
    extent: int


@dataclass(frozen=True)
class Problem:
    """A contraction in normal form: no loop of extent 1, mergeable loops merged, clips that always hold dropped.

    ``swapped`` tells that A and B changed places (multiplication commutes).
    """

    loops: tuple[Nested, ...]
    offsets: tuple[int, int, int]
    bounds: tuple[EpilogueBound, ...]
    source: Contraction
    keep_lanes: bool
    swapped: bool = False
    dot: Dot | None = None

    def sums(self, width: int) -> LlvmType:
        """The LLVM type of so many sums."""
        return vector(SCALARS[self.source.dtype][0], width)

    @property
    def size(self) -> int:
        """Bytes of a sum."""
        return SCALARS[self.source.dtype][1]

    def type_of(self, operand: str) -> str:
        """The element type of ``c``, ``a`` or ``b`` as the kernel reads it."""
        return self.source.types[{"a": "b", "b": "a"}.get(operand, operand) if self.swapped else operand]

    @property
    def holds_integers(self) -> bool:
        """Whether the operands of sums of integers are read as they are stored."""
        return self.source.operands is not None and self.source.sums_integers

    def widens(self, operand: str) -> bool:
        """Whether ``a`` or ``b`` is of a smaller type, and made floats when it is read."""
        return self._widened[operand]

    @cached_property
    def _widened(self) -> dict[str, bool]:
        plain = self.source.sums_integers or self.dot is not None
        return {operand: not plain and self.type_of(operand) != self.source.dtype for operand in "cab"}

    def is_constant(self, operand: str) -> bool:
        """Whether the elements of ``a`` or ``b`` are known when code is generated."""
        operands = self.source.operands
        return operands is not None and operands[(operand == "b") != self.swapped].constant

    def resident(self, operand: str) -> bool:
        """Whether ``a`` or ``b`` is the same at each trip of a loop around: in a cache, perhaps, since the last one."""
        return self.source.resident[(operand == "b") != self.swapped]

    def bytes_of(self, operand: str) -> int:
        """Bytes of an element of ``c``, ``a`` or ``b``."""
        return self._bytes[operand]

    @cached_property
    def _bytes(self) -> dict[str, int]:
        return {operand: SIZE[self.type_of(operand)] for operand in "cab"}

    @cached_property
    def across(self) -> bool:
        """Whether the lanes of words move A too, so that a word is put together from several vectors."""
        return self.dot is not None and any(loop.c == loop.a == 1 and loop.b for loop in self.loops)

    @cached_property
    def words(self) -> int | None:
        """The reduction that is taken in words: the longest that is contiguous in A; or the one that moves A most."""
        if self.dot is None:
            return None
        if self.order is not None:
            return self.order.along
        sums = [i for i, loop in enumerate(self.loops) if loop.reduces]
        if self.across:
            return max(sums, key=lambda i: abs(self.loops[i].a))
        return max((i for i in sums if self.loops[i].a == 1), key=lambda i: self.loops[i].extent)

    @cached_property
    def innermost_sum(self) -> int | None:
        """The reduction that runs inside of all others, if it is not the last of :attr:`reductions`: that of words, or
        the one along which there are groups."""
        return self.words if self.grouped is None else self.grouped

    @property
    def grouped(self) -> int | None:
        """The reduction along which there are groups: all of its trips are taken."""
        return self.order.along if self.order is not None and self.order.group else None

    @cached_property
    def order_key(self) -> Hashable:
        """Equal for problems whose sums of the same elements have the same bits: the loops of the sum in the order in
        which they are taken, and its partial sums."""
        if self.order is None:
            return "integers"
        order, extents = self.order, [(self.loops[i].parts, self.loops[i].extent) for i in self.reductions]
        along = self.loops[order.along].parts if order.partials > 1 else ()
        return "contraction", tuple(extents), along, replace(order, along=-1), self.partial_blocks

    def step(self, loop: int) -> int:
        """Places of a reduction that one step takes."""
        return self.dot.group if self.dot and loop == self.words else 1

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        return tuple(i for i, loop in enumerate(self.loops) if loop.c)

    @cached_property
    def reductions(self) -> tuple[int, ...]:
        """Reduction loops, outermost first: blocks, then the farther an index moves the operands, the farther out."""
        found = [i for i, loop in enumerate(self.loops) if not loop.c]
        return tuple(sorted(found, key=lambda i: (i != self.blocks, -abs(self.loops[i].a) - abs(self.loops[i].b))))

    @cached_property
    def innermost(self) -> dict[str, int]:
        """The innermost reduction loop that moves an operand (any reduction if none does)."""
        order = self.reductions
        return {operand: next((i for i in reversed(order) if self.strides(operand)[i]), order[-1]) for operand in "cab"}

    def steps(self, extents: Mapping[int, int]) -> int:
        """Steps of a sum over loops of these extents."""
        return prod([ceil(extents[i] / self.step(i)) for i in self.reductions])

    @cached_property
    def all_steps(self) -> int:
        """Steps of a whole sum."""
        return self.steps(self.extents)

    @cached_property
    def blocks(self) -> int | None:
        """The reduction of which each trip is summed by itself: the outermost one."""
        own = (self.source.blocks,)
        return next((i for i, loop in enumerate(self.loops) if loop.parts == own), None)

    @cached_property
    def order(self) -> SumOrder | None:
        """The order in which floats are summed; integers have any."""
        return None if self.source.sums_integers else sum_order(self)

    @cached_property
    def extents(self) -> dict[int, int]:
        """The extent of each loop."""
        return {i: loop.extent for i, loop in enumerate(self.loops)}

    @property
    def partial_blocks(self) -> int:
        """Partial sums that the sums of blocks are added up in."""
        return 1 if self.blocks is None else partials_in_lanes([self.loops[self.blocks].extent])

    @cached_property
    def points(self) -> int:
        """Results."""
        return prod(self.loops[i].extent for i in self.outputs)

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of C from the first to the last result, or of the results alone where that is less."""
        moving = [(self.strides("c")[i], self.loops[i].extent) for i in self.outputs]
        reach = 1 + sum(stride * (extent - 1) for stride, extent in moving)
        return min(self.points, reach) * self.bytes_of("c")

    def strides(self, operand: str) -> tuple[int, ...]:
        """The distance by which each loop moves an operand (``c``, ``a`` or ``b``), without its direction."""
        return self._strides[operand]

    @cached_property
    def _strides(self) -> dict[str, tuple[int, ...]]:
        return {operand: tuple(abs(getattr(loop, operand)) for loop in self.loops) for operand in "cab"}

    def moving(self, operand: str) -> tuple[int, ...]:
        """The output loops that move ``a`` or ``b`` alone of the two."""
        return self._moving[operand]

    @cached_property
    def _moving(self) -> dict[str, tuple[int, ...]]:
        a, b = self.strides("a"), self.strides("b")
        return {
            "a": tuple([i for i in self.outputs if a[i] and not b[i]]),
            "b": tuple([i for i in self.outputs if b[i] and not a[i]]),
        }

    def footprint(self, operand: str, loops: Iterable[int], extents: Mapping[int, int]) -> int:
        """Bytes of an operand that loops of these extents touch, the others standing still."""
        strides, elements, reach = self.strides(operand), 1, 1
        for i in loops:
            if strides[i]:
                elements *= extents[i]
                reach += strides[i] * (extents[i] - 1)
        return min(elements, reach) * self.bytes_of(operand)

    def drops(self, operand: str) -> bool:
        """Whether some clip drops all products of an element of ``a`` or ``b``: it may not exist."""
        for clip, bound in enumerate(self.bounds):
            spans = [(loop.clips[clip] * (loop.extent - 1), bool(getattr(loop, operand))) for loop in self.loops]
            low = bound.offset + sum(min(0, span) if moves else max(0, span) for span, moves in spans)
            high = bound.offset + sum(max(0, span) if moves else min(0, span) for span, moves in spans)
            if low < 0 or high >= bound.extent:
                return True
        return False

    def clips_on(self, loop: int) -> list[int]:
        """The clips that this loop moves."""
        return [k for k, factor in enumerate(self.loops[loop].clips) if factor]

    def name(self, loop: int) -> str:
        return "".join(self.source.names[part] for part in self.loops[loop].parts)

    def swap(self) -> Problem:
        """The same problem with A and B exchanged."""
        loops = tuple(replace(loop, a=loop.b, b=loop.a) for loop in self.loops)
        c, a, b = self.offsets
        return replace(self, loops=loops, offsets=(c, b, a), swapped=not self.swapped)


def normalise(contraction: Contraction, *, keep_lanes: bool, dot: Dot | None = None) -> Problem:
    """The normal form. ``keep_lanes``: no loop contiguous in C is merged with others (an epilogue sees lanes)."""
    c, a, b = contraction.c, contraction.a, contraction.b
    clips = [clip for clip in contraction.clips if not _always(clip, contraction.extents)]
    loops = [
        Nested(extent, c.strides[i], a.strides[i], b.strides[i], tuple(clip.coefficients[i] for clip in clips), (i,))
        for i, extent in enumerate(contraction.extents)
        if extent > 1
    ]
    offsets = (c.offset, a.offset, b.offset)
    bounds = tuple(EpilogueBound(clip.offset, clip.extent) for clip in clips)
    if not any(loop.reduces for loop in loops):
        loops.append(Nested(1, 0, 0, 0, (0,) * len(clips), ()))
    apart = [loop for loop in loops if loop.parts == (contraction.blocks,)]
    merged = _merge([loop for loop in loops if loop not in apart], keep_lanes)
    return Problem((*merged, *apart), offsets, bounds, contraction, keep_lanes, dot=dot)


def _always(clip: EpilogueClip, extents: tuple[int, ...]) -> bool:
    spans = [coefficient * (extent - 1) for coefficient, extent in zip(clip.coefficients, extents, strict=True)]
    low = clip.offset + sum(min(0, span) for span in spans)
    high = clip.offset + sum(max(0, span) for span in spans)
    return low >= 0 and high < clip.extent


def _merge(loops: list[Nested], keep_lanes: bool) -> list[Nested]:
    """Merge pairs of loops that walk every operand and clip as one longer loop would, until none is left."""
    for outer in loops:
        for inner in loops:
            if outer is not inner and _one(outer, inner) and not (keep_lanes and abs(inner.c) == 1):
                rest = [loop for loop in loops if loop is not outer and loop is not inner]
                merged = replace(inner, extent=outer.extent * inner.extent, parts=outer.parts + inner.parts)
                place = min(loops.index(outer), loops.index(inner))
                return _merge([*rest[:place], merged, *rest[place:]], keep_lanes)
    return loops


def _one(outer: Nested, inner: Nested) -> bool:
    pairs = [(outer.c, inner.c), (outer.a, inner.a), (outer.b, inner.b), *zip(outer.clips, inner.clips, strict=True)]
    return all(far == near * inner.extent for far, near in pairs)
