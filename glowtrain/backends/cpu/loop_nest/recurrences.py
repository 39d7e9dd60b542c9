"""Recognise recurrences along a loop: which can be kept in a register from trip to trip, and which run in lanes."""

from __future__ import annotations

from glowtrain.backends.cpu.order.analysis import accesses, reductions
from glowtrain.loops import Affine, For, Let, Load, Store, affine, loads
from glowtrain.types import f32, f64


def recurrence(loop: For) -> For | None:
    """The loop that runs in order at each point of a parallel one and is all that it does there, if there are several
    points and all elements lie at affine addresses."""
    match loop:
        case For(indices=points, body=(For(serial=True) as inner,), serial=False):
            flat = all(isinstance(statement, (Let, Store)) for statement in inner.body)
            if flat and any(index.extent > 1 for index in points) and not any(True for _ in reductions(inner.body)):
                return inner if all(access.offset.is_linear for access in accesses(inner.body)) else None
    return None


def carried(loop: For) -> Load | None:
    """The load of what the trip before stored, where a loop in order stores one element in each trip; in the first trip
    it is outside of the buffer."""
    match loop:
        case For(indices=(index,), body=(*lets, Store() as store), serial=True):
            pass
        case _:
            return None
    found = [load for load in loads(loop.body) if load.buffer is store.buffer]
    if not all(isinstance(statement, Let) for statement in lets) or len(set(found)) != 1 or found[0].fill is None:
        return None
    (load,) = set(found)
    pairs = list(zip(map(affine, load.index), map(affine, store.index), store.buffer.shape, strict=True))
    moving = [(before, here, extent) for before, here, extent in pairs if before != here]
    if len(moving) != 1 or store.buffer.dtype not in (f32, f64):
        return None
    ((before, here, extent),) = moving
    step = here.coefficient(index)
    follows = abs(step) == 1 and extent == index.extent and before == here + Affine(-step)
    return load if follows and [atom for atom, _ in here.terms] == [index] else None
