"""What the buffers of a planned program hold, from kernel to kernel.

Nothing in a program says what is a gradient. What outputs are computed from is the forward part; of the rest, what
makes results of it again says so by its name, and what else there is goes backward or updates variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from glowtrain.loops import Buffer
from glowtrain.program.memory.plan import lifetimes
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.residuals.storing import SUFFIX as ROUNDED
from glowtrain.program.program import Instruction, Program, leaves_of

Phase = Literal["forward", "again", "backward", "update"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""What kernels are for: outputs, results of these once more, gradients, variables."""

Kind = Literal["activations", "computed again", "gradients"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What buffers hold: what the forward part made, the same made once more, and all else."""

_MADE: dict[Phase, Kind] = {
    "forward": "activations", "again": "computed again", "backward": "gradients", "update": "gradients",
}  # fmt: skip


@dataclass(frozen=True)
class Content:
    """What a buffer holds from the kernel ``first``, which makes it, to the kernel ``last``, the last one for which it
    is kept."""

    buffer: Buffer
    kind: Kind
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer."""
        return self.buffer.type.nbytes


def phases_of(program: Program) -> tuple[Phase, ...]:
    """What each leaf of a program is for. Those inside of a repeat are for what the whole repeat is for."""
    wanted = set(program.outputs.values())
    phases: list[Phase] = []
    for instruction in reversed(program.instructions):
        leads = not wanted.isdisjoint(instruction.written)
        if leads:
            wanted.update(instruction.reads)
        leaves = list(leaves_of([instruction]))
        phases += [_phase(leaf, leads=leads) for leaf in reversed(leaves)]
    return tuple(reversed(phases))


def _phase(leaf: Instruction, *, leads: bool) -> Phase:
    """What a leaf is for, that leads to an output or not."""
    if leaf.name.endswith(SUFFIX):
        return "again"
    if leads or leaf.name.endswith(ROUNDED):
        return "forward"
    return "update" if any(buffer.kind == "variable" for buffer in leaf.writes) else "backward"


def contents_of(program: Program, phases: Sequence[Phase]) -> tuple[Content, ...]:
    """What the activations hold, in the order in which it is made. A buffer that several kernels write, as where a
    result takes its operand's place, holds something else after each of them."""
    writers: dict[Buffer, list[int]] = {}
    for position, leaf in enumerate(program.leaves):
        for buffer in leaf.writes:
            writers.setdefault(buffer, []).append(position)
    found = (
        content
        for buffer, (first, last) in lifetimes(program.instructions).items()
        for content in _held(buffer, first, last, writers.get(buffer, []), phases)
    )
    return tuple(sorted(found, key=lambda content: content.first))


def _held(buffer: Buffer, first: int, last: int, writers: Sequence[int], phases: Sequence[Phase]) -> Iterator[Content]:
    starts = sorted({first, *writers[1:]})
    for begin, end in zip(starts, [*starts[1:], last + 1], strict=True):
        yield Content(buffer, _MADE[phases[begin]], begin, end - 1)
