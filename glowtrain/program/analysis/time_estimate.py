"""Estimate how long instructions take, roughly: for choices that must be the same on every machine, and need no more
than the right order of magnitude. What has to be exact, and counts what is shared between loops, is
:mod:`glowtrain.program.analysis.work_count`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Apply,
    Buffer,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Statement,
    Store,
    address,
)
from glowtrain.loops.functions import Cost
from glowtrain.memo import memoized
from glowtrain.program.analysis.kernel_facts import contraction_operands
from glowtrain.program.program import Instruction
from glowtrain.stages import Rates

Key = TypeVar("Key")


@memoized
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


Address = tuple[tuple[Expr, ...], tuple[int, ...]]
"""Subscripts, and the strides of the buffer that is accessed there."""


@dataclass
class _Counts:
    """What a statement does at one point: terms of sums of products, other operations and costly functions; how often
    buffers are accessed, and at which addresses, but for factors of sums of products, which are laid out for that
    first.
    """

    multiply_adds: int = 0
    operations: int = 0
    functions: int = 0
    accesses: dict[Buffer, int] = field(default_factory=dict)
    addresses: dict[Address, int] = field(default_factory=dict)

    def access(self, access: Load | Store | Accumulate, times: int, factor: bool = False) -> None:
        """Note an access."""
        buffer = access.buffer
        _add(self.accesses, buffer, times)
        if not factor:
            _add(self.addresses, (access.index, buffer.strides), times)

    def expression(self, value: Expr) -> None:
        """Count an expression; subscripts are no arithmetic."""
        seen, stack = {value}, [(value, 1, False)]
        while stack:
            node, times, factor = stack.pop()
            below = node.children
            match node:
                case Load():
                    self.access(node, times, factor)
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


@memoized
def _counts(statement: Let | Store | Accumulate) -> _Counts:
    """Kept with the statement: what makes a result again consists of statements of the kernel that made it."""
    found = _Counts()
    found.expression(statement.value)
    if isinstance(statement, (Store, Accumulate)):
        found.access(statement, 1)
    return found


@dataclass
class _Counted:
    """The same of loops, at all their points; and elements that are no neighbours of those before and after them."""

    multiply_adds: int = 0
    operations: int = 0
    functions: int = 0
    strided: int = 0
    accesses: dict[Buffer, int] = field(default_factory=dict)

    def nanoseconds(self, rates: Rates) -> float:
        plain = self.multiply_adds / rates.multiply_adds + self.operations / rates.operations
        return plain + self.functions / rates.functions

    def bytes(self, buffer: Buffer) -> int:
        """Bytes of the elements that are touched, at most."""
        return min(self.accesses.get(buffer, buffer.type.size), buffer.type.size) * buffer.dtype.size

    def body(self, body: Sequence[Statement], points: int) -> dict[Address, int]:
        """Count statements at so many points; the addresses of their accesses, with how often each occurs at a
        point."""
        addresses: dict[Address, int] = {}
        for statement in body:
            if isinstance(statement, For):
                inner = points * math.prod(index.extent for index in statement.indices)
                self.strided += inner * _strided(self.body(statement.body, inner))
                continue
            counts = _counts(statement)
            self.multiply_adds += points * counts.multiply_adds
            self.operations += points * counts.operations
            self.functions += points * counts.functions
            for buffer, times in counts.accesses.items():
                _add(self.accesses, buffer, points * times)
            for each, times in counts.addresses.items():
                _add(addresses, each, times)
        return addresses


def _add(counts: dict[Key, int], key: Key, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


def _strided(addresses: Mapping[Address, int]) -> int:
    """How many accesses of a loop at one point are not of neighbours, along the index along which most are."""
    forms = [(address(*each), times) for each, times in addresses.items()]
    along: dict[Index, int] = {}
    for form, times in forms:
        for atom, factor in form.terms:
            if factor == 1 and isinstance(atom, Index):
                _add(along, atom, times)
    if not along:
        return 0
    inner = max(along, key=along.__getitem__)
    return sum(times for form, times in forms if not form.is_linear or form.coefficient(inner) not in (0, 1))
