"""How long instructions take, roughly: for choices that must be the same on every machine, and need no more than the
right order of magnitude. What has to be exact, and counts what is shared between loops, is
:mod:`glowtrain.program.analysis.work_count`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from glowtrain.loops import FUNCTIONS, Accumulate, Apply, Buffer, Expr, For, Load, Reduce, Statement, Store
from glowtrain.loops.functions import Cost
from glowtrain.program.program import Instruction
from glowtrain.stages import Rates


def estimate(instruction: Instruction, rates: Rates) -> float:
    """The nanoseconds of an instruction, with all trips of the instructions inside: of its arithmetic, or of its bytes
    if these take longer. Of a native function only the bytes are known."""
    if not instruction.is_leaf:
        return instruction.trips * total(instruction.children, rates)
    counted = _Counted()
    counted.body(instruction.nests, 1)
    moved = sum(counted.bytes(buffer) for buffer in (*instruction.reads, *instruction.writes))
    return max(counted.nanoseconds(rates), moved / rates.bytes)


def total(instructions: Iterable[Instruction], rates: Rates) -> float:
    """The nanoseconds of several instructions, one after the other."""
    return sum(estimate(instruction, rates) for instruction in instructions)


@dataclass
class _Counted:
    """Terms of sums of products, other operations and costly functions; how often buffers are accessed."""

    multiply_adds: int = 0
    operations: int = 0
    functions: int = 0
    accesses: dict[Buffer, int] = field(default_factory=dict)

    def nanoseconds(self, rates: Rates) -> float:
        plain = self.multiply_adds / rates.multiply_adds + self.operations / rates.operations
        return plain + self.functions / rates.functions

    def bytes(self, buffer: Buffer) -> int:
        """Bytes of the elements that are touched, at most."""
        return min(self.accesses.get(buffer, buffer.type.size), buffer.type.size) * buffer.dtype.size

    def body(self, body: Sequence[Statement], points: int) -> None:
        for statement in body:
            if isinstance(statement, For):
                self.body(statement.body, points * math.prod(index.extent for index in statement.indices))
                continue
            self._expression(statement.value, points)
            if isinstance(statement, (Store, Accumulate)):
                self._access(statement.buffer, points)

    def _access(self, buffer: Buffer, points: int) -> None:
        self.accesses[buffer] = self.accesses.get(buffer, 0) + points

    def _expression(self, value: Expr, points: int) -> None:
        """An expression at so many points; subscripts are no arithmetic."""
        seen, stack = {value}, [(value, points)]
        while stack:
            node, times = stack.pop()
            below = node.children
            match node:
                case Load(buffer=buffer):
                    self._access(buffer, times)
                    below = ()
                case Apply(function=name):
                    function = FUNCTIONS[name]
                    if function.cost == Cost.EXPENSIVE and node.dtype.is_float:
                        self.functions += times
                    self.operations += times
                case Reduce(indices=indices, body=inner):
                    times *= math.prod(index.extent for index in indices)
                    if isinstance(inner, Apply) and inner.function == "mul":
                        self.multiply_adds += times
                        below = inner.children
                    else:
                        self.operations += times
            stack += [(child, times) for child in below if child not in seen]
            seen.update(below)
