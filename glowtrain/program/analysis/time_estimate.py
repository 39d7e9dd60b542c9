"""How long instructions take, roughly: for choices that must be the same on every machine, and need no more than the
right order of magnitude.
"""

from __future__ import annotations

from collections.abc import Iterable

from glowtrain.program.analysis.work_count import WorkCount, work_of
from glowtrain.program.program import Instruction
from glowtrain.stages import Rates


def nanoseconds(work: WorkCount, rates: Rates) -> float:
    """The time of some work: the sum of what its sums of products, its other operations, its costly functions and its
    bytes take, as far as they do not overlap (the first two do with the last)."""
    plain = max(work.total - 2 * work.multiply_adds, 0)
    computing = work.multiply_adds / rates.multiply_adds + plain / rates.operations + work.functions / rates.functions
    return max(computing, work.bytes / rates.bytes)


def estimate(instruction: Instruction, rates: Rates) -> float:
    """The time of an instruction, with all trips of the instructions inside."""
    if instruction.is_leaf:
        return nanoseconds(work_of(instruction), rates)
    return instruction.trips * total(instruction.children, rates)


def total(instructions: Iterable[Instruction], rates: Rates) -> float:
    """The time of several instructions, one after the other."""
    return sum(estimate(instruction, rates) for instruction in instructions)
