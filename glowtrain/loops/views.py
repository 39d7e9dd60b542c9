"""The elements of a buffer under the subscripts of another shape, in row-major order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.loops.affine import affine, expression, flatten
from glowtrain.loops.language import Expr
from glowtrain.types import Shape


def viewed(index: Sequence[Expr], old: Shape, new: Shape) -> tuple[Expr, ...] | None:
    """The subscripts in shape ``new`` of the element that ``index`` means in shape ``old``, of as many elements.

    The new shape may have several axes as one, and more or fewer of extent 1; else there is no such view. Axes that
    both have keep their subscripts, whatever these are; others must follow from loop indices and be inside.
    """
    found: list[Expr] = []
    for (begin, end), after in _groups(old, new):
        own, extents = list(index[begin:end]), old[begin:end]
        if extents != after:
            if len(after) > 1 or not all(map(_is_inside, own, extents)):
                return None
            own = [expression(affine(flatten(own, extents)))] if after else []
        found += own
    return tuple(found)


def _is_inside(subscript: Expr, extent: int) -> bool:
    value = affine(subscript)
    low, high = value.range()
    return value.of_indices and low >= 0 and high < extent


def _groups(old: Shape, new: Shape) -> Iterator[tuple[tuple[int, int], Shape]]:
    """Axes of one shape, from one to before another, with the axes of the other one that have the same elements."""
    begin = first = 0
    while begin < len(old) or first < len(new):
        end, last, before, after = begin, first, 1, 1
        if first < len(new) and new[first] == 1:
            last += 1
        while (end == begin and last == first) or before != after:
            if last == len(new) or before <= after:
                before, end = before * old[end], end + 1
            else:
                after, last = after * new[last], last + 1
        yield (begin, end), new[first:last]
        begin, first = end, last
