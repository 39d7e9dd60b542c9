"""Whether a kernel may write rows of its result over those of an operand: a softmax goes through a row for its greatest
element, and for the last time when it writes what it makes of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from glowtrain.loops import Affine, Buffer, For, Index, Let, Load, Statement, Store, address, evaluations, writes
from glowtrain.program.analysis.kernel_facts import covers


def takes_rows(loop: For, result: Buffer, operand: Buffer) -> bool:
    """Whether a loop over rows reads an operand, of the same elements in memory as its result, in no row but its own,
    and after the first writes to the result's row not at all.

    Those writes are a loop inside, which reads the operand at the element that it writes alone.
    """
    at = next(position for position, inner in enumerate(loop.body) if result in writes((inner,)))
    row, before, after = loop.body[at], loop.body[:at], loop.body[at + 1 :]
    if not isinstance(row, For) or row.serial or not all(isinstance(inner, (Let, Store)) for inner in row.body):
        return False
    store, *others = [inner for inner in row.body if isinstance(inner, Store) and inner.buffer is result]
    if others or store is not row.body[-1] or not covers(store, (*loop.indices, *row.indices)):
        return False
    return (
        not any(_loads(result, (*before, row)))
        and not any(_loads(operand, after))
        and all(same_element(load, store) for load in _loads(operand, (row,)))
        and all(_in_row(load, store, loop.indices) for load in _loads(operand, before))
    )


def same_element(load: Load, store: Store) -> bool:
    """Whether a load is certainly of the element in memory that a store writes."""
    if load.fill is not None:
        return False
    if load.index == store.index and load.buffer.shape == store.buffer.shape:
        return True
    here, there = address(load.index, load.buffer.strides), address(store.index, store.buffer.strides)
    return here + there.scale(-1) == Affine(0)


def _loads(buffer: Buffer, body: Sequence[Statement]) -> Iterator[Load]:
    return (load for inner in evaluations(body) for load in inner.loads if load.buffer is buffer)


def _in_row(load: Load, store: Store, rows: Sequence[Index]) -> bool:
    """Whether a load is of an element of the row that a store writes: elements side by side."""
    read, written = address(load.index, load.buffer.strides), address(store.index, store.buffer.strides)
    if load.fill is not None or not (read.is_linear and written.is_linear):
        return False
    if any(read.coefficient(index) != written.coefficient(index) for index in rows):
        return False
    here, whole = _inside(read, rows), _inside(written, rows)
    length = prod(index.extent for index, _ in whole.terms if isinstance(index, Index))
    return whole.range() == (0, length - 1) and here.range()[0] >= 0 and here.range()[1] < length


def _inside(place: Affine, rows: Sequence[Index]) -> Affine:
    """What of an address does not follow from the row."""
    return Affine(place.constant, tuple((atom, step) for atom, step in place.terms if atom not in rows))
