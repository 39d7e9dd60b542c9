"""Arrange contractions of bf16: the same sums on every target, and on some by instructions that multiply pairs.

Where no reduction without padding is long enough for groups of products, zeros are multiplied as all else: operands are
copied with their padding, whatever instructions there are. For pairs B is packed in words (see :mod:`.dot`), and A, if
its groups do not run along neighbours, copied so that they do.
"""

from __future__ import annotations

from dataclasses import replace

from glowtrain.backends.cpu.contraction.copies.window import Window, halo, transposed
from glowtrain.backends.cpu.contraction.describe import Contraction, Problem, normalise
from glowtrain.backends.cpu.contraction.dot import dot_of
from glowtrain.backends.cpu.contraction.dot_product import Prepared, clips_of, turn
from glowtrain.backends.cpu.order.contraction import SHORTEST_GROUP
from glowtrain.backends.target import Target


def padded(contraction: Contraction) -> Prepared:
    """The contraction, with operands copied where groups could run along padding only."""
    found, copies = contraction, list[Window | None]([None, None])
    if not _groups_in_padding(contraction):
        return Prepared(contraction)
    assert contraction.operands is not None
    for at, operand in enumerate(contraction.operands):
        if clips_of(operand, contraction.extents):
            copy = copies[at] = halo(operand, contraction.extents)
            found = replace(found, a=copy.access) if at == 0 else replace(found, b=copy.access)
    return Prepared(replace(found, clips=()), (copies[0], copies[1]))


def _groups_in_padding(contraction: Contraction) -> bool:
    """Whether products of bf16 have a reduction that is long enough for groups only among those with padding, and the
    operands' axes are known."""
    operands = contraction.operands
    if operands is None or {x.dtype for x in operands} != {"bf16"} or not contraction.clips:
        return False
    loops = [loop for loop in normalise(contraction, keep_lanes=False).loops if loop.reduces]
    long = [loop for loop in loops if loop.extent >= SHORTEST_GROUP]
    if not long or not all(any(loop.clips) for loop in long):
        return False
    known = {clip for operand in operands for clip in clips_of(operand, contraction.extents)}
    return all(operand.axes and not operand.fill for operand in operands) and set(contraction.clips) <= known


def prepare_pairs(contraction: Contraction, plain: Prepared, target: Target) -> Prepared | None:
    """The contraction for words, if the target multiplies pairs and the loops allow it; ``plain``: what
    :func:`padded` makes of it."""
    operands, problem = contraction.operands, normalise(plain.contraction, keep_lanes=False)
    if operands is None or not all(x.flushed for x in operands) or problem.order is None or not problem.order.group:
        return None
    dot, moves = dot_of(target, operands[0].dtype, operands[1].dtype), _moved_by_lanes(contraction)
    if dot is None or moves is None or not _in_ranges(problem):
        return None
    turned, padding = moves == "a", plain.copies != (None, None)
    found = turn(contraction) if turned else contraction
    assert found.operands is not None
    a, b = found.operands
    of_a, of_b = (tuple(reversed(plain.copies)) if turned else plain.copies) if padding else (None, None)
    if not padding and found.clips and (not b.axes or set(found.clips) & set(clips_of(b, found.extents))):
        return None  # packing reads all of B
    along = problem.loops[problem.order.along]
    if (along.b if turned else along.a) != 1:
        of_a = transposed(a, found.extents, along.parts) if a.axes else None
        if of_a is None:
            return None
    found = replace(
        found,
        a=found.a if of_a is None else of_a.access,
        b=found.b if of_b is None else of_b.access,
        clips=() if padding else found.clips,
    )
    return Prepared(found, (of_b, of_a) if turned else (of_a, of_b), dot, turned, found.b)


def _in_ranges(problem: Problem) -> bool:
    """Whether each clip bounds a reduction of its own from one loop over results: words have no test of a product."""
    moved = [[i for i, loop in enumerate(problem.loops) if loop.clips[clip]] for clip in range(len(problem.bounds))]
    bounded = [[i for i in loops if problem.loops[i].reduces] for loops in moved]
    apart = len({i for loops in bounded for i in loops}) == len(bounded)
    return apart and all(len(sums) == 1 and len(loops) <= 2 for sums, loops in zip(bounded, moved, strict=True))


def _moved_by_lanes(contraction: Contraction) -> str | None:
    """The operand that the only loop contiguous in C moves; ``None`` if it moves both, or there are others."""
    lanes = [i for i, n in enumerate(contraction.extents) if n > 1 and contraction.c.strides[i] == 1]
    moved = [x for x in "ab" if lanes and getattr(contraction, x).strides[lanes[0]]]
    return moved[0] if len(lanes) == len(moved) == 1 else None
