"""Compute a large buffer twice where it is read along two of its axes: once slice by slice for the kernels that read it
along the one, and again for those that read it along the other.

The gradient of a loss over a large vocabulary has a row for each token, and the product with the weights needs rows as
a whole; the gradient of the weights needs its columns as a whole. So there is no axis along which both run, and all
would be there at once. Elements of a column can be made again one by one where scalars of their rows are kept: the
largest score and the logarithm of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from glowtrain.loops import Buffer, For, Let, Ref, Store, evaluations
from glowtrain.names import Names
from glowtrain.program.analysis.kernel_facts import box, conflict
from glowtrain.program.passes.loop_fusion.fuse_pair import Limits, Sums
from glowtrain.program.passes.needed import leading_to
from glowtrain.program.passes.rematerialisation.copies import with_copies
from glowtrain.program.passes.rematerialisation.orders import keeps_orders
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.rematerialisation.timeline import Demand, Timeline
from glowtrain.program.passes.slices.cutting import loop_index
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.types import TensorType

SCALAR = ".scalar"
"""Ends the names of buffers that hold a scalar for each row."""


def duplications(program: Program, least: int, limits: Limits) -> Iterator[Program]:
    """The program with one buffer of at least ``least`` bytes computed twice, for each for which that is possible."""
    names = Names(buffer.name for buffer in program.buffers)
    sums = limits.sums
    instructions = [_if_orders_stay(sums, each, _with_scalars(each, least, names)) for each in program.instructions]
    large = dict.fromkeys(b for each in instructions for b in each.writes if b.kind == "activation")
    for buffer in sorted((b for b in large if b.type.nbytes >= least), key=lambda b: -b.type.nbytes):
        for axis in range(buffer.type.rank):
            parted = _parted(instructions, buffer, axis)
            copied = None if parted is None else _copied(*parted, buffer, limits, names.copy())
            if copied is not None:
                yield replace(program, instructions=tuple(_without_unread(copied, sums)))


def _parted(instructions: Sequence[Instruction], buffer: Buffer, axis: int) -> tuple[list[Instruction], int] | None:
    """The instructions in an order in which all who read a buffer along an axis come first, and the position of the
    first of the others; ``None`` where there is no such order, or one of both is missing."""
    touching = [at for at, instruction in enumerate(instructions) if buffer in instruction.touched]
    along = [at for at in touching if loop_index(instructions[at], buffer, axis) is not None]
    across = [at for at in touching if at not in along]
    if len(along) < 2 or along[0] != touching[0] or not across:
        return None
    early = [at for at in across if at < along[-1]]
    for at in early:
        between = (other for other in range(at + 1, along[-1] + 1) if other not in early)
        if any(conflict(instructions[at], instructions[other]) for other in between):
            return None
    first = [instruction for at, instruction in enumerate(instructions[: along[-1] + 1]) if at not in early]
    rest = [*(instructions[at] for at in early), *instructions[along[-1] + 1 :]]
    position = len(first) + next(at for at, instruction in enumerate(rest) if buffer in instruction.touched)
    return [*first, *rest], position


def _copied(
    instructions: Sequence[Instruction], position: int, buffer: Buffer, limits: Limits, names: Names
) -> list[Instruction] | None:
    """The instructions in which a buffer is made again for the one at a position."""
    timeline = Timeline(instructions, limits)
    if not timeline.recomputable(buffer):
        return None
    demand, before = Demand(timeline, position), [at for at in timeline.accesses[buffer] if at < position]
    if not demand.hole(buffer, before[-1], position):
        return None
    timeline.apply(demand.drop())
    return [_if_orders_stay(limits.sums, each, _flat(each)) for each in with_copies(timeline, names)]


def _if_orders_stay(sums: Sums | None, before: Instruction, after: Instruction) -> Instruction:
    """The instruction as changed, if its sums keep their order; else as it was."""
    kernel = after.kernel
    return after if after is before or kernel is None or keeps_orders(sums, [before], [kernel]) else before


def _flat(instruction: Instruction) -> Instruction:
    """A copy in one loop, where it consists of nothing but one in another."""
    match instruction:
        case Kernel(
            name=name, body=(For(indices=outer, body=(For(indices=inner, body=body, serial=False),), serial=False),)
        ) if name.endswith(SUFFIX):
            return Kernel(name, (For((*outer, *inner), body),))
    return instruction


def _with_scalars(instruction: Instruction, least: int, names: Names) -> Instruction:
    """A kernel over rows of a large result that also stores the scalars with which elements of a row are made."""
    loop = None if instruction.kernel is None else box(instruction.kernel)
    if loop is None or not any(b.type.nbytes >= least and b.kind == "activation" for b in instruction.writes):
        return instruction
    inner = [statement for statement in loop.body if isinstance(statement, For)]
    if len(inner) != 1 or not instruction.written.isdisjoint(instruction.reads):
        return instruction
    used = {node for each in evaluations(inner) for node in each.nodes if isinstance(node, Ref)}
    refs = [s.ref for s in loop.body if isinstance(s, Let) and s.ref in used]
    shape = tuple(index.extent for index in loop.indices)
    stores = [Store(_scalars(ref, shape, names), loop.indices, ref) for ref in refs]
    return Kernel(instruction.name, (For(loop.indices, (*loop.body, *stores)),)) if refs else instruction


def _scalars(ref: Ref, shape: tuple[int, ...], names: Names) -> Buffer:
    return Buffer(names.fresh(ref.name + SCALAR), TensorType(ref.dtype, shape))


def _without_unread(instructions: Sequence[Instruction], sums: Sums | None) -> Iterator[Instruction]:
    """The instructions without stores of scalars that nobody reads."""
    read = {buffer for instruction in instructions for buffer in instruction.reads}
    for instruction in instructions:
        unread = {b for b in instruction.writes if b.name.endswith(SCALAR) and b not in read}
        if unread and instruction.kernel is not None:
            body = leading_to(instruction.written - unread, instruction.kernel.body)
            instruction = _if_orders_stay(sums, instruction, Kernel(instruction.name, body))
        yield instruction
