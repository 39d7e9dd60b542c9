"""Find which elements of a buffer are written: exact, by marking them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from glowtrain.loops import Buffer, Expr, Index, Load, Ref, Statement, Store, Written, stores_of, walk
from glowtrain.program.interpret.storage import Memory
from glowtrain.program.interpret.vectorize import Evaluation, VectorFacts, VectorScope, strided
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.types import Array, Shape

MAX_POINTS = 1 << 24
"""A store whose places are not affine is not followed over more points than this."""

MOST_TRIPS = 64
"""Trips of repeats that are followed one by one."""

Trip = Mapping[Index, int]
NO_TRIP: Trip = MappingProxyType({})


def program_stores(instructions: Iterable[Instruction]) -> Iterator[Written]:
    """The stores of instructions, with the indices of repeats and loops around each."""
    return itertools.chain.from_iterable(instruction.stores() for instruction in instructions)


def covered(buffer: Buffer, stores: Iterable[Written], *, unknown: bool = False, trip: Trip = NO_TRIP) -> Array:
    """For each element of the buffer, whether one of the stores writes it.

    ``trip`` holds the values of indices of repeats. Of the others that the loops around a store do not bind, one trip
    sees one value: such a store covers what it writes for each of them, and nothing where they have more than
    :data:`MOST_TRIPS` values. ``unknown`` is what a store to places that depend on data counts as: covering
    everything, or nothing.
    """
    mask = np.zeros(buffer.shape, np.bool_)
    for store, around in stores:
        if store.buffer is buffer and not mask.all() and all(index.extent for index in around):
            mask |= _always(mask.shape, store, around, unknown, trip)
    return mask


def covers(buffer: Buffer, stores: Iterable[Written]) -> bool:
    """Whether the stores write every element of the buffer. A single store of all, the usual one, is told from its
    subscripts, which takes no memory."""
    known = [(store, around) for store, around in stores if store.buffer is buffer]
    return any(_is_whole(store, around) for store, around in known) or bool(covered(buffer, known).all())


def _is_whole(store: Store, around: Sequence[Index]) -> bool:
    """Whether each subscript is a loop of its own over the whole axis."""
    subscripts = [each for each in store.index if isinstance(each, Index) and each in around]
    extents = tuple(each.extent for each in subscripts)
    return (
        len(set(subscripts)) == len(store.index)
        and extents == store.buffer.shape
        and all(index.extent for index in around)
    )


def _always(shape: Shape, store: Store, around: Sequence[Index], unknown: bool, trip: Trip) -> Array:
    """What a store writes for each value of the indices that neither its loops nor ``trip`` bind."""
    facts = VectorFacts()
    free = tuple(frozenset[Index]().union(*(facts.free(i) for i in store.index)) - set(around) - set(trip))
    always = np.ones(shape, np.bool_)
    if math.prod(index.extent for index in free) > MOST_TRIPS:
        return ~always
    for values in itertools.product(*(range(index.extent) for index in free)):
        once = np.zeros(shape, np.bool_)
        mark(once, store.index, around, unknown=unknown, fixed={**trip, **dict(zip(free, values, strict=True))})
        always &= once
    return always


def overwrites(leaf: Instruction) -> frozenset[Buffer]:
    """The activations of which an instruction writes every element before it reads any, in each trip of repeats around
    it."""
    read = set(leaf.reads)
    candidates = [b for b in leaf.writes if b.kind == "activation"]
    return frozenset(b for b in candidates if _first_is_store(leaf.nests, b, read) and covers(b, leaf.stores()))


def _first_is_store(body: Sequence[Statement], buffer: Buffer, read: set[Buffer]) -> bool:
    """A buffer that the kernel also reads is overwritten only if a whole nest of plain stores comes first."""
    if buffer not in read:
        return True
    for position, statement in enumerate(body):
        kernel = Kernel("", (statement,))
        if buffer in kernel.reads:
            return False
        if buffer in kernel.writes:
            return covers(buffer, stores_of(body[: position + 1]))
    return False


def mark(
    mask: Array,
    subscripts: Sequence[Expr],
    around: Sequence[Index],
    *,
    unknown: bool,
    fixed: Trip = NO_TRIP,
) -> None:
    """Mark the elements at ``subscripts`` (one for each axis), for all values of the indices ``around``, those in
    ``fixed`` at one value. Subscripts that depend on data mark everything if ``unknown``, or nothing."""
    facts, outer = VectorFacts(), VectorScope().at(tuple(fixed), tuple(fixed.values()))
    scope = outer.opened(around, [(0, index.extent) for index in around])
    affines = [facts.affine(i) for i in subscripts]
    ranges = [scope.range_of(affine) for affine in affines]
    if all(r is not None and r[0] >= 0 and r[1] < extent for r, extent in zip(ranges, mask.shape, strict=True)):
        strided(mask, affines, [0] * mask.ndim, scope, writeable=True)[...] = True
        return
    used = frozenset[Index]().union(*(facts.free(i) for i in subscripts)) - set(fixed)
    if math.prod(index.extent for index in used) > MAX_POINTS or any(depends_on_data(i) for i in subscripts):
        mask |= unknown
        return
    narrow = outer.opened(tuple(used), [(0, index.extent) for index in used])
    index, inside = Evaluation(Memory(_EMPTY, {}, {}, None), facts, {}, narrow).subscripts(subscripts, mask.shape)
    mask[tuple(np.broadcast_to(i, inside.shape)[inside] for i in index)] = True


def depends_on_data(expr: Expr) -> bool:
    """Whether an expression depends on more than loop indices."""
    return any(isinstance(node, (Load, Ref)) for node in walk(expr))


_EMPTY = Program("", {}, {}, {}, ())
