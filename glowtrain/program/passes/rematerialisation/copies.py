"""Insert copies of the kernels that recompute dropped buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from glowtrain.loops import Buffer
from glowtrain.names import Names
from glowtrain.program.passes.rematerialisation.holes import Hole
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.rematerialisation.timeline import Timeline
from glowtrain.program.program import Instruction, Kernel


def with_copies(timeline: Timeline, names: Names) -> Iterator[Instruction]:
    """The instructions of a timeline, with what fills its holes where they end."""
    due: dict[int, list[Hole]] = defaultdict(list)
    for holes in timeline.holes.values():
        for hole in holes:
            due[hole.end].append(hole)
    present: dict[Buffer, Buffer] = {}
    for position, instruction in enumerate(timeline.instructions):
        for hole in _sources_first(due[position], timeline):
            yield from _made_again(hole, present, names)
        yield instruction.with_buffers(present)


def _sources_first(holes: list[Hole], timeline: Timeline) -> Iterator[Hole]:
    """Holes that end at the same instruction, in an order in which what they are made of is there: that of the kernels
    that made them first, but for results of one kernel, of which one may be loaded for another, never both ways."""
    waiting = {hole.buffer: hole for hole in sorted(holes, key=lambda hole: timeline.maker(hole.buffer))}
    while waiting:
        ready = next(b for b, hole in waiting.items() if waiting.keys().isdisjoint(hole.recomputation.sources))
        yield waiting.pop(ready)


def _made_again(hole: Hole, present: dict[Buffer, Buffer], names: Names) -> list[Kernel]:
    """The copies that fill a buffer again, which is another one from here on."""
    buffers = (hole.buffer, *hole.recomputation.scratch)
    fresh = {buffer: replace(buffer, name=names.fresh(buffer.name + SUFFIX)) for buffer in buffers}
    kernels = hole.recomputation.copy({**present, **fresh})
    present[hole.buffer] = fresh[hole.buffer]
    return kernels
