"""Arrange contractions of small integers for dot-product instructions (see :mod:`dot`), or for single lanes.

A word is what such an instruction multiplies in one lane: several neighbours along the sum. The loop that is contiguous
in C runs along the lanes; the operand that it moves is packed, when code is generated if it is constant. The other one
is the same in all lanes: its words are read where they lie, or from a copy where the instruction wants wider elements,
where products would have to be left out, or where no reduction is contiguous. If the lanes move both (a convolution of
each channel by itself), words are put together from neighbours along the sum that are far apart, for many channels at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.copies.window import Window, halo, window
from glowtrain.backends.cpu.contraction.describe import Contraction, EpilogueClip, Operand, OperandAccess, Problem
from glowtrain.backends.cpu.contraction.dot import Dot, dot_of
from glowtrain.backends.cpu.contraction.matrices.unit import matrix_dot
from glowtrain.backends.cpu.panels import Packing, Parts
from glowtrain.backends.llvm.formats import SIZE
from glowtrain.backends.target import Target

ROWS = 8
"""Rows from which on it is worth packing an operand that is not constant."""


@dataclass(frozen=True)
class Prepared:
    """A contraction after its operands were copied: ``copies`` of A and B as they were before.

    ``turned``: A and B have changed places, so that A is the same in all lanes. ``columns``: the operand that is
    packed, as it was.
    """

    contraction: Contraction
    copies: tuple[Window | None, Window | None] = (None, None)
    dot: Dot | None = None
    turned: bool = False
    columns: OperandAccess | None = None

    @property
    def cycles(self) -> float:
        """About what copies of floats take, which no plan counts."""
        if self.dot is None or self.dot.chains == 1:
            return 0.0
        extents, b, c = self.contraction.extents, self.contraction.b.strides, self.contraction.c.strides
        packed = prod(n for n, stride in zip(extents, b, strict=True) if stride)
        near = any(stride == 1 and out for stride, out in zip(b, c, strict=True))
        copied = sum(copy.elements for copy in self.copies if copy is not None)
        return packed * (rates.PACKED_PAIR if near else rates.GATHERED_PAIR) + copied * rates.MOVED_PAIR

    @property
    def padded(self) -> bool:
        """Whether a few bytes behind A may be read: it is a copy."""
        return self.copies != (None, None)

    @property
    def prepacked(self) -> bool:
        """Whether B is packed when code is generated."""
        operands = self.contraction.operands
        return self.dot is not None and operands is not None and operands[1].constant


def prepare(contraction: Contraction, target: Target) -> Prepared:
    """The contraction for words if an instruction and the loops allow it, else for lanes."""
    if contraction.operands is None:
        return Prepared(contraction)
    return _for_words(contraction, partial(dot_of, target)) or _for_lanes(contraction)


def prepare_for_matrices(contraction: Contraction, target: Target) -> Prepared | None:
    """The contraction for words that whole matrices of are multiplied, if the target and the loops allow it."""
    if contraction.operands is None or not contraction.sums_integers or contraction.accumulate:
        return None
    return _for_words(contraction, lambda a, b, small: matrix_dot(target, a, b))


def turn(contraction: Contraction) -> Contraction:
    """A and B exchanged."""
    operands = contraction.operands
    assert operands is not None
    new = replace(contraction, a=contraction.b, b=contraction.a, operands=(operands[1], operands[0]))
    return replace(new, resident=(contraction.resident[1], contraction.resident[0]))


def clips_of(operand: Operand, extents: Sequence[int]) -> dict[EpilogueClip, None]:
    """The tests that the accesses of one operand need."""
    found = dict[EpilogueClip, None]()
    for axis in operand.axes:
        low, high = axis.reach(extents)
        if low < axis.low or high > axis.high:
            found[EpilogueClip(axis.coefficients, axis.offset - axis.low, axis.high - axis.low)] = None
    return found


def _for_words(contraction: Contraction, instruction: Callable[..., Dot | None]) -> Prepared | None:
    """A in words, B packed. ``instruction(a, b, small=...)`` is what multiplies elements of these types."""
    extents = contraction.extents
    lanes = [i for i, n in enumerate(extents) if n > 1 and contraction.c.strides[i] == 1]
    if len(lanes) != 1:
        return None
    turned = _turns(contraction, lanes[0])
    found = turn(contraction) if turned else contraction
    assert found.operands is not None
    a, b = found.operands
    dot = instruction(a.dtype, b.dtype, small=b.constant and b.small)
    rows = prod(n for n, moves in zip(extents, found.b.strides, strict=True) if not moves)
    if dot is None or not found.b.strides[lanes[0]] or not (b.constant or rows >= ROWS):
        return None
    if any(clip in clips_of(b, extents) for clip in found.clips):
        return None
    copied = _with_words(found, lanes[0], dot)
    if copied is None:
        return None
    found, copy = copied
    columns = found.b
    if b.constant:
        found = replace(found, b=_dense(found, lanes[0]))
    return Prepared(found, (None, copy) if turned else (copy, None), dot, turned, columns)


def _turns(contraction: Contraction, lane: int) -> bool:
    """Whether A has to be packed: the operand that the lanes move; if they move both, the one that fewer loops move."""
    moves = bool(contraction.a.strides[lane]), bool(contraction.b.strides[lane])
    if moves != (True, True):
        return moves[0]
    a, b = (
        sum(1 for x, c in zip(y.strides, contraction.c.strides, strict=True) if x and c)
        for y in (contraction.a, contraction.b)
    )
    return a < b


def _with_words(found: Contraction, lane: int, dot: Dot) -> tuple[Contraction, Window | None] | None:
    """The contraction with A so that words can be made of it, and the copy that this takes.

    A large copy for few results is not worth words that are put together.
    """
    assert found.operands is not None
    a, b = found.operands
    across = bool(found.a.strides[lane])
    wide = SIZE[a.dtype] * dot.group != 4 and not across
    if not found.clips and not wide and _near(found, lane):
        return found, None
    sums = frozenset(i for i, stride in enumerate(found.c.strides) if not stride)
    walked = frozenset({lane}) if across else sums
    copy = window(a, found.extents, walked, "i16" if wide else a.dtype) if a.axes else None
    if copy is None or (across and copy.elements > (6 if dot.adds else 3) * _outputs(found)):
        return None
    result = replace(found, a=copy.access, clips=(), operands=(Operand(copy.dtype), b))
    return (result, copy) if _near(result, lane) else None


def _outputs(contraction: Contraction) -> int:
    return prod(n for n, c in zip(contraction.extents, contraction.c.strides, strict=True) if c)


def _near(contraction: Contraction, lane: int) -> bool:
    """Whether words can be read of A: some reduction, or else the lanes, go through it without gaps."""
    a, c = contraction.a.strides, contraction.c.strides
    sums = [stride for n, stride, out in zip(contraction.extents, a, c, strict=True) if n > 1 and not out]
    return bool(any(sums) and a[lane] == 1) if a[lane] else 1 in sums


def _dense(contraction: Contraction, lane: int) -> OperandAccess:
    """B as an array of batches, sums in the order of A, and columns: it will be packed from wherever it is."""
    c, a, b = (x.strides for x in (contraction.c, contraction.a, contraction.b))
    loops = range(len(contraction.extents))
    sums = sorted((i for i in loops if not c[i]), key=lambda i: -abs(a[i]))
    others = sorted((i for i in loops if c[i] and b[i]), key=lambda i: -abs(c[i]))
    batches, columns = ([i for i in others if (bool(a[i]) and i != lane) is batch] for batch in (True, False))
    strides, step = [0] * len(contraction.extents), 1
    for loop in reversed([*batches, *sums, *columns]):
        strides[loop], step = step, step * contraction.extents[loop]
    return OperandAccess(0, tuple(strides))


def _for_lanes(contraction: Contraction) -> Prepared:
    """Operands as they are, but where something other than 0 is read outside of one, a copy of it."""
    assert contraction.operands is not None
    operands, accesses, copies = (
        list(contraction.operands),
        [contraction.a, contraction.b],
        list[Window | None]([None, None]),
    )
    clips = dict.fromkeys(contraction.clips)
    for at, operand in enumerate(contraction.operands):
        if operand.fill and clips_of(operand, contraction.extents):
            copy = halo(operand, contraction.extents)
            copies[at], operands[at], accesses[at] = copy, Operand(operand.dtype), copy.access
            for clip in clips_of(operand, contraction.extents):
                clips.pop(clip, None)
    for at, operand in enumerate(contraction.operands):
        if copies[at] is None:
            clips.update(clips_of(operand, contraction.extents))
    found = replace(contraction, a=accesses[0], b=accesses[1], clips=tuple(clips), operands=(operands[0], operands[1]))
    return Prepared(found, (copies[0], copies[1]))


def packing(
    prepared: Prepared, problem: Problem, vec: int, reductions: Sequence[int], width: int, step: int = 0
) -> Packing:
    """How B is packed for a plan; in steps of so many elements of the sum where it is taken in matrices."""
    assert prepared.dot is not None
    assert prepared.columns is not None
    assert prepared.contraction.operands is not None
    columns, extents = prepared.columns, prepared.contraction.extents
    b = prepared.contraction.operands[1]

    def parts(loop: int) -> Parts:
        nested = problem.loops[loop]
        if not b.constant:
            return ((nested.extent, nested.b),)
        return tuple((extents[part], columns.strides[part]) for part in nested.parts) or ((1, 0),)

    outer = tuple(parts(loop) for loop in outer_loops(problem, vec))
    sums = tuple(parts(loop) for loop in reductions)
    return Packing(b.dtype, columns.offset, outer, sums, parts(vec), width, prepared.dot, step)


def panels(problem: Problem, vec: int, reductions: Sequence[int], width: int) -> Packing:
    """How a known B that is read in lanes is packed for a plan."""
    source = problem.source
    columns = source.a if problem.swapped else source.b

    def parts(loop: int) -> Parts:
        return tuple((source.extents[part], columns.strides[part]) for part in problem.loops[loop].parts) or ((1, 0),)

    outer, sums = (tuple(parts(loop) for loop in loops) for loops in (outer_loops(problem, vec), reductions))
    return Packing(problem.type_of("b"), columns.offset, outer, sums, parts(vec), width, None)


def outer_loops(problem: Problem, vec: int) -> list[int]:
    """The loops, other than those of a panel, that move B."""
    return [i for i in problem.outputs if problem.loops[i].b and i != vec]
