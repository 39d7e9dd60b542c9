"""The verifier of memory plans."""

from __future__ import annotations

from collections.abc import Iterator

from glowtrain.errors import ProgramError
from glowtrain.loops import Buffer
from glowtrain.program.analysis.liveness import live_sets
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Instruction, describe
from glowtrain.program.verify import verify


def verify_plan(plan: Plan) -> None:
    """Check a plan's program, and the plan; raise :class:`ProgramError` with everything that is broken.

    - Every activation has a place, at a multiple of its alignment, in the arena, and nothing else has one.
    - Activations that are alive together do not share memory (by a liveness analysis that the planner does not use).
    """
    verify(plan.program)
    problems = list(dict.fromkeys(_plan_problems(plan)))
    if problems:
        raise ProgramError(f"the memory plan of {plan.program.name} is wrong:", problems)


def _plan_problems(plan: Plan) -> Iterator[str]:
    activations = [buffer for buffer in plan.program.buffers if buffer.kind == "activation"]
    for buffer in activations:
        offset = plan.offsets.get(buffer)
        if offset is None:
            yield f"{describe(buffer)} has no place"
            continue
        if offset < 0 or offset % plan.alignment:
            yield f"{describe(buffer)} is at {offset}, which is no multiple of {plan.alignment}"
        if offset + buffer.type.nbytes > plan.arena:
            yield f"{describe(buffer)} ends at {offset + buffer.type.nbytes}, outside of the arena of {plan.arena}"
    for buffer in plan.offsets:
        if buffer not in activations:
            yield f"{describe(buffer)} has a place but is not an activation of the program"
    for leaf, live in live_sets(plan.program):
        yield from _overlaps(leaf, live, plan)


def _overlaps(leaf: Instruction, live: frozenset[Buffer], plan: Plan) -> Iterator[str]:
    placed = sorted(
        (plan.offsets[b], plan.offsets[b] + b.type.nbytes, b.name, b)
        for b in live
        if b in plan.offsets and b.type.nbytes
    )
    reach: tuple[int, Buffer] | None = None
    for begin, end, _, buffer in placed:
        if reach is not None and begin < reach[0]:
            shared = f"{describe(reach[1])} and {describe(buffer)} share memory"
            yield f"{shared} but both are alive in {leaf.kind} {leaf.name}"
        if reach is None or end > reach[0]:
            reach = end, buffer
