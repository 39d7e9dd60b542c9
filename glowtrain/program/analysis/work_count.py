"""Count a program's work, whatever code it becomes: operations on numbers, and bytes that have to be moved.

An *operation* is one result of a scalar function or one step of a reduction, so a multiply-add is two and a contraction
2·M·N·K, padding included. Each expression counts once for every value that the loop indices below it take: what does
not depend on a loop is computed outside of it. Subscripts, conversions, comparisons and choices are no operations.

*Bytes* are those of each operand's elements that are touched, each once (compulsory traffic: what no cache saves). What
an instruction wrote itself before counts as written only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Apply,
    Buffer,
    Cast,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    affine,
    statements,
    walk,
)
from glowtrain.loops.functions import Cost
from glowtrain.program.analysis.kernel_facts import contraction_operands
from glowtrain.program.program import Instruction, Program
from glowtrain.types import DType, f64

BYTES, INTEGERS, FLOATS, DOUBLES = "i8", "int", "f32", "f64"
"""The kinds of operations: sums of products of bytes, others on integers, and on floats; f16 and bf16 count as f32, in
which they are computed."""
MOST_VALUES = 1 << 20
"""Values of a subscript that are listed at most; of more, only the number is known."""


@dataclass(frozen=True)
class WorkCount:
    """The operations of an instruction by their kinds, the bytes that it reads and writes; of the operations, those by
    ``functions`` that take many instructions, such as exp; ``multiply_adds`` are the terms of sums of products."""

    operations: Mapping[str, int] = field(default_factory=dict)
    functions: int = 0
    read: int = 0
    written: int = 0
    multiply_adds: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return sum(self.operations.values())

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def work_of(instruction: Instruction) -> WorkCount:
    """The work of one trip of an instruction with none inside; of a native function only its operands are known."""
    if instruction.native is not None:
        read, written = (sum(b.type.nbytes for b in buffers) for buffers in (instruction.reads, instruction.writes))
        return WorkCount({}, 0, read, written)
    counting = _Counting(instruction)
    counting.body(instruction.nests, ())
    return counting.total()


def trips_of(program: Program) -> Iterator[tuple[Instruction, int]]:
    """The instructions that run, in order, each with how often it does: what stands in a repeat without trips does
    not."""
    return _trips(program.instructions, 1)


def _trips(instructions: Iterable[Instruction], times: int) -> Iterator[tuple[Instruction, int]]:
    for instruction in instructions:
        if instruction.is_leaf:
            yield instruction, times
        elif instruction.trips:
            yield from _trips(instruction.children, times * instruction.trips)


Region = tuple[Hashable, int]
"""Elements of a buffer: equal regions have an equal first part; the second is their number."""


@dataclass
class _Counting:
    """What was counted so far of one instruction."""

    instruction: Instruction
    operations: Counter[str] = field(default_factory=Counter)
    functions: int = 0
    multiply_adds: int = 0
    depends: dict[Expr, frozenset[Index]] = field(default_factory=dict)
    """The instruction's own indices on which the value of an expression depends."""
    counted: set[Expr] = field(default_factory=set)
    read: dict[Buffer, dict[Hashable, int]] = field(default_factory=dict)
    written: dict[Buffer, dict[Hashable, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loops = (s.indices for s in statements(self.instruction.nests) if isinstance(s, For))
        reductions = (reduce.indices for reduce in self.instruction.survey.reductions)
        self.own = frozenset(index for indices in (*loops, *reductions) for index in indices)

    def total(self) -> WorkCount:
        read, written = (sum(_touched(b, r) for b, r in regions.items()) for regions in (self.read, self.written))
        operations = {kind: n for kind, n in self.operations.items() if n}
        return WorkCount(operations, self.functions, read, written, self.multiply_adds)

    def body(self, body: Sequence[Statement], around: tuple[Index, ...], serial: bool = False) -> None:
        """Statements under these indices; under ``serial`` loops what is stored may be loaded at the next point."""
        for statement in body:
            match statement:
                case For(indices=indices, body=inner):
                    if all(index.extent for index in indices):
                        self.body(inner, (*around, *indices), serial or statement.serial)
                case Let(ref=ref, value=value):
                    self.expression(value, around, serial)
                    self.depends[ref] = self.depends[value]
                case Store(buffer=buffer, index=at, value=value):
                    self.subscripts(at, around, serial)
                    self.expression(value, around, serial)
                    self.written.setdefault(buffer, {}).update([self.region(buffer, at)])
                case Accumulate(buffer=buffer, index=at, value=value):
                    self.subscripts(at, around, serial)
                    self.expression(value, around, serial)
                    self.add(buffer.dtype, _points(around))
                    self.accesses(buffer, at)
                    self.written.setdefault(buffer, {}).update([self.region(buffer, at)])

    def subscripts(self, index: Sequence[Expr], around: tuple[Index, ...], serial: bool) -> None:
        """Subscripts are no operations, but what they load is read."""
        for expr in index:
            self.find(expr, around, serial)
            for node in walk(expr):
                if isinstance(node, Load):
                    self.accesses(node.buffer, node.index)

    def expression(self, expr: Expr, around: tuple[Index, ...], serial: bool) -> None:
        """An expression, without what was counted already."""
        self.find(expr, around, serial)
        stack = [expr]
        while stack:
            node = stack.pop()
            if node in self.counted:
                continue
            self.counted.add(node)
            self.operation(node)
            if isinstance(node, Load):
                self.accesses(node.buffer, node.index)
                self.subscripts(node.index, around, serial)
            else:
                stack += node.children

    def find(self, expr: Expr, around: tuple[Index, ...], serial: bool) -> None:
        """What an expression and all below it depend on."""
        stack = [expr]
        while stack:
            missing = [child for child in stack[-1].children if child not in self.depends]
            if missing:
                stack += missing
                continue
            node = stack.pop()
            if node not in self.depends:
                self.depends[node] = self._depends(node, around, serial)

    def _depends(self, node: Expr, around: tuple[Index, ...], serial: bool) -> frozenset[Index]:
        below = frozenset[Index]().union(*(self.depends[child] for child in node.children))
        match node:
            case Index():
                return frozenset({node}) & self.own
            case Reduce(indices=indices):
                return below - frozenset(indices)
            case Load(buffer=buffer) if serial and buffer in self.instruction.written:
                return below | frozenset(around)
            case Ref():
                return frozenset(around)  # a name from outside of the instruction is not known
        return below

    def operation(self, node: Expr) -> None:
        """Count a scalar function or a reduction."""
        match node:
            case Apply(function=name, arguments=arguments):
                function = FUNCTIONS[name]
                points = _points(self.depends[node])
                self.add(arguments[-1].dtype, function.operations * points)
                if function.cost == Cost.EXPENSIVE and function.operations and arguments[-1].dtype.is_float:
                    self.functions += points
            case Reduce(indices=indices):
                steps = _points(self.depends[node]) * _points(indices)
                self.multiply_adds += steps if _multiplies(node) else 0
                if _multiplies_bytes(node):
                    self.operations[BYTES] += 2 * steps
                    self.counted.add(node.body)
                    self.expression_below(node.body)
                else:
                    self.add(node.dtype, steps)

    def expression_below(self, product: Expr) -> None:
        """The loads of a product that was counted with its sum."""
        for node in walk(product):
            if isinstance(node, Load):
                self.counted.add(node)
                self.accesses(node.buffer, node.index)

    def add(self, dtype: DType, count: int) -> None:
        """Operations on numbers of a type; on booleans there are none."""
        if dtype.is_float or dtype.is_integer:
            self.operations[DOUBLES if dtype == f64 else FLOATS if dtype.is_float else INTEGERS] += count

    def accesses(self, buffer: Buffer, index: Sequence[Expr]) -> None:
        """Elements that are read, unless the instruction has written to the buffer before."""
        if buffer not in self.written:
            self.read.setdefault(buffer, {}).update([self.region(buffer, index)])

    def region(self, buffer: Buffer, index: Sequence[Expr]) -> Region:
        """The elements at these subscripts, as far as they are inside of the buffer."""
        axes = [self.axis(subscript, extent) for subscript, extent in zip(index, buffer.shape, strict=True)]
        points = _points(frozenset[Index]().union(*(self.depends[subscript] for subscript in index)))
        return tuple(key for key, _ in axes), min(points, math.prod(count for _, count in axes))

    def axis(self, subscript: Expr, extent: int) -> Region:
        """The different values of a subscript along an axis."""
        form, depends = affine(subscript), self.depends[subscript]
        points = _points(depends)
        if points > MOST_VALUES or {atom for atom, _ in form.terms} & self.own != set(depends):
            return ("some", min(extent, points)), min(extent, points)
        values = np.array([form.constant])
        for index, factor in form.terms:
            if index in depends and isinstance(index, Index):
                values = np.unique(values[:, None] + factor * np.arange(index.extent))
        values = values[(values >= 0) & (values < extent)]
        return values.tobytes(), len(values)


def _touched(buffer: Buffer, regions: Mapping[Hashable, int]) -> int:
    """Bytes of different regions: as if no two had a common element, but not more than the buffer has."""
    return min(buffer.type.size, sum(regions.values())) * buffer.dtype.size


def _points(indices: Iterable[Index]) -> int:
    return math.prod(index.extent for index in indices)


def _multiplies(total: Reduce) -> bool:
    """Whether it is a sum of products."""
    body = total.body.value if isinstance(total.body, Cast) else total.body
    return total.op == "add" and isinstance(body, Apply) and body.function == "mul"


def _multiplies_bytes(total: Reduce) -> bool:
    """Whether it is a sum of products of bytes, for which processors have instructions of their own."""
    found = contraction_operands(total)
    return found is not None and total.dtype.is_integer and all(load.dtype.size == 1 for load in found[1:])
