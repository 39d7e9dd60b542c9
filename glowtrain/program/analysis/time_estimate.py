"""How long instructions take, roughly: for choices that must be the same on every machine, and need no more than the
right order of magnitude. What has to be exact, and counts what is shared between loops, is
:mod:`glowtrain.program.analysis.work_count`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field

from glowtrain.deferred import dataclass, remembered
from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Affine,
    Apply,
    Buffer,
    Expr,
    For,
    Index,
    Load,
    Reduce,
    Statement,
    Store,
    address,
)
from glowtrain.loops.functions import Cost
from glowtrain.program.analysis.kernel_facts import contraction_operands
from glowtrain.program.program import Instruction
from glowtrain.stages import Rates


@remembered
def estimate(instruction: Instruction, rates: Rates) -> float:
    """The nanoseconds of an instruction, with all trips of the instructions inside: of its arithmetic, or of its bytes
    if these take longer, and of elements that have to be accessed one by one. Of a native function only the bytes are
    known."""
    if not instruction.is_leaf:
        return instruction.trips * total(instruction.children, rates)
    counted = _Counted()
    counted.body(instruction.nests, 1)
    moved = sum(counted.bytes(buffer) for buffer in (*instruction.reads, *instruction.writes))
    return max(counted.nanoseconds(rates), moved / rates.bytes) + counted.strided / rates.strided


def total(instructions: Iterable[Instruction], rates: Rates) -> float:
    """The nanoseconds of several instructions, one after the other."""
    return sum(estimate(instruction, rates) for instruction in instructions)


@dataclass
class _Counted:
    """Terms of sums of products, other operations and costly functions; how often buffers are accessed, and elements
    that are no neighbours of those before and after them; the accesses of the present loop with their points."""

    multiply_adds: int = 0
    operations: int = 0
    functions: int = 0
    strided: int = 0
    accesses: dict[Buffer, int] = field(default_factory=dict)
    present: list[tuple[Affine, int]] = field(default_factory=list)

    def nanoseconds(self, rates: Rates) -> float:
        plain = self.multiply_adds / rates.multiply_adds + self.operations / rates.operations
        return plain + self.functions / rates.functions

    def bytes(self, buffer: Buffer) -> int:
        """Bytes of the elements that are touched, at most."""
        return min(self.accesses.get(buffer, buffer.type.size), buffer.type.size) * buffer.dtype.size

    def body(self, body: Sequence[Statement], points: int) -> None:
        for statement in body:
            if isinstance(statement, For):
                around, self.present = self.present, []
                self.body(statement.body, points * math.prod(index.extent for index in statement.indices))
                self.strided += _strided(self.present)
                self.present = around
                continue
            self._expression(statement.value, points)
            if isinstance(statement, (Store, Accumulate)):
                self._access(statement, points)

    def _access(self, access: Load | Store | Accumulate, points: int, factor: bool = False) -> None:
        """Note an access; factors of sums of products are laid out for that first."""
        buffer = access.buffer
        self.accesses[buffer] = self.accesses.get(buffer, 0) + points
        if not factor:
            self.present.append((address(access.index, buffer.strides), points))

    def _expression(self, value: Expr, points: int) -> None:
        """An expression at so many points; subscripts are no arithmetic."""
        seen, stack = {value}, [(value, points, False)]
        while stack:
            node, times, factor = stack.pop()
            below = node.children
            match node:
                case Load():
                    self._access(node, times, factor)
                    below = ()
                case Apply(function=name):
                    function = FUNCTIONS[name]
                    if function.cost == Cost.EXPENSIVE and node.dtype.is_float:
                        self.functions += times
                    self.operations += times
                case Reduce(indices=indices, body=inner):
                    times *= math.prod(index.extent for index in indices)
                    if isinstance(inner, Apply) and inner.function == "mul":
                        factor = factor or contraction_operands(node) is not None
                        self.multiply_adds += times
                        below = inner.children
                    else:
                        self.operations += times
            stack += [(child, times, factor) for child in below if child not in seen]
            seen.update(below)


def _strided(accesses: Sequence[tuple[Affine, int]]) -> int:
    """The points at which accesses of a loop are not of neighbours, along the index along which most are."""
    along: Counter[Expr] = Counter()
    for form, points in accesses:
        along.update({atom: points for atom, factor in form.terms if isinstance(atom, Index) and factor == 1})
    if not along:
        return 0
    ((inner, _),) = along.most_common(1)
    return sum(points for form, points in accesses if not form.is_linear or form.coefficient(inner) not in (0, 1))
