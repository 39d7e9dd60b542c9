"""Run kernels of a repeat that compute the same in each trip once, before the repeat: the weights of a recurrent layer
are rounded to bf16 once, not in every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.loops import expressions, statements, walk
from glowtrain.program.program import Instruction, Kernel, Repeat


def hoisted(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """The same instructions, each behind what leaves it. Of loops over parts of a batch nothing does."""
    for instruction in instructions:
        if instruction.children:
            instruction = instruction.with_children(tuple(hoisted(instruction.children)))
        if isinstance(instruction, Repeat) and not instruction.parts and instruction.trips:
            invariant = _invariant(instruction)
            yield from invariant
            left = [child for child in instruction.body if child not in invariant]
            instruction = instruction.with_children(left)
            if not left:
                continue
        yield instruction


def _invariant(repeat: Repeat) -> list[Kernel]:
    """The kernels that read nothing which the repeat writes but what others of them do, and not its index; nobody else
    writes their results there, or reads those of the trip before."""
    writers = {buffer: [child for child in repeat.body if buffer in child.writes] for buffer in repeat.writes}
    found: list[Kernel] = []
    for at, child in enumerate(repeat.body):
        kernel = child.kernel
        if kernel is None or _reads_index(kernel, repeat) or any(b.kind != "activation" for b in kernel.writes):
            continue
        own = all(writers[buffer] == [child] for buffer in kernel.writes)
        given = all(writer in found for buffer in kernel.reads for writer in writers.get(buffer, ()))
        late = any(buffer in before.reads for before in repeat.body[:at] for buffer in kernel.writes)
        if own and given and not late:
            found.append(kernel)
    return found


def _reads_index(kernel: Kernel, repeat: Repeat) -> bool:
    body = statements(kernel.body)
    return any(node is repeat.index for each in body for top in expressions(each) for node in walk(top))
