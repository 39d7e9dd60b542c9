"""The candidates that the cost model prices: a vector loop, and the arrangements of a contraction that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod

from glowtrain.backends.cpu.contraction import rates
from glowtrain.backends.cpu.contraction.describe import Problem
from glowtrain.backends.cpu.contraction.rates import Machine
from glowtrain.backends.cpu.order.contraction import FEW_PARTIALS, SumOrder


class VectorAxis:
    """A loop along the lanes, and all that candidates have in common by it: there are a hundred of them, perhaps.

    ``dots``: it is a reduction; ``prepacked``: B is packed when code is generated; ``steps`` of a whole sum;
    ``copies``: partial sums that are kept at once of those that the order of the sum asks for (``None``: it asks for
    none); ``price``: loads that make one vector of A and of B; ``each``: instructions of a product of vectors that is
    added.
    """

    def __init__(self, problem: Problem, machine: Machine, loop: int) -> None:
        own = problem.loops[loop]
        self.problem, self.machine, self.loop = problem, machine, loop
        self.dots = own.reduces
        self.prepacked = is_prepacked(problem, machine, loop)
        self.steps = self.steps_of(problem.all_steps)
        self.partials = None if problem.order is None else vectors_of_partials(problem.order, machine)
        self.copies = None if problem.order is None else live_partials(problem.order, machine)
        self.price = _price(own.a, machine.width), 1 if self.prepacked else _price(own.b, machine.width)
        self.each = _instructions(problem, machine)

    def steps_of(self, steps: int) -> int:
        """Steps that are left of so many, where lanes run along a reduction."""
        extent = self.problem.loops[self.loop].extent
        return steps // extent * ceil(extent / self.machine.width) if self.dots else steps

    @cached_property
    def others(self) -> tuple[int, ...]:
        """The other output loops, and the reductions."""
        return (*[i for i in self.problem.outputs if i != self.loop], *self.problem.reductions)

    @cached_property
    def from_memory(self) -> bool:
        """Whether B's rows are pages apart, and all of it is more than the second level holds, however little of it a
        part of the sum reads. What is prepacked is read one line after another."""
        problem = self.problem
        apart = problem.strides("b")[problem.innermost["b"]] * problem.bytes_of("b")
        if self.prepacked or apart < rates.PAGE:
            return False
        every = range(len(problem.loops))
        return problem.footprint("b", every, problem.extents) > rates.ONE_IN_L2 * self.machine.l2

    @cached_property
    def copied(self) -> dict[str, tuple[int, float]]:
        """For each operand the elements that a copy has, and cycles for one of them; a transposition costs more than a
        plain copy, single elements most."""
        return {"a": self._copy("a", self.problem.innermost["a"]), "b": self._copy("b", self.loop)}

    def _copy(self, operand: str, inner: int) -> tuple[int, float]:
        strides = self.problem.strides(operand)
        elements = prod([loop.extent for loop, stride in zip(self.problem.loops, strides, strict=True) if stride])
        near = any(stride == 1 for i, stride in enumerate(strides) if i != inner)
        each = rates.COPY if strides[inner] == 1 else rates.TRANSPOSITION if near else rates.SCATTER
        return elements, each * rates.COPY_LANES / self.machine.width


def _price(lane: int, width: int) -> float:
    """Loads that make one vector of an operand with this stride between lanes."""
    if lane in (0, 1) or width == 1:
        return 1
    return rates.REVERSAL if lane == -1 else rates.ELEMENT * width


def _instructions(problem: Problem, machine: Machine) -> float:
    """Instructions of one product of vectors, added to a sum; small integers are widened first."""
    if problem.dot:
        return problem.dot.chains if problem.dot.adds else 3 if problem.dot.second else 2
    if problem.holds_integers:
        return 2 + rates.WIDENING * sum(problem.bytes_of(operand) < 4 for operand in "ab")
    return 1 if machine.fused else 2


@dataclass(eq=False)
class Candidate:
    """An arrangement to be priced: vector loop, register tile, what is packed and in which parts the sum is taken.

    Nothing changes one; it is not frozen, as that takes three times as long to make.
    """

    axis: VectorAxis
    vectors: int
    tile: tuple[tuple[int, int], ...]
    pack_a: bool = False
    pack_b: bool = False
    chunks: tuple[tuple[int, int], ...] = ()
    problem: Problem = field(init=False)
    machine: Machine = field(init=False)
    vec: int = field(init=False)
    dots: bool = field(init=False)
    points: int = field(init=False)

    def __post_init__(self) -> None:
        axis = self.axis
        self.problem, self.machine, self.vec, self.dots = axis.problem, axis.machine, axis.loop, axis.dots
        self.points = prod([size for _, size in self.tile])

    @property
    def prepacked(self) -> bool:
        """Whether B is packed when code is generated."""
        return self.axis.prepacked

    @property
    def partials(self) -> int:
        """Vectors of partial sums that each output has."""
        return self._independent if self.axis.partials is None else self.axis.partials

    @property
    def copies(self) -> int:
        """Those of them that are kept at once: all, or as many as registers allow."""
        return self._independent if self.axis.copies is None else self.axis.copies

    @property
    def unpacks(self) -> bool:
        """Whether floats are made of bytes that were packed when code was generated, for many rows at once."""
        return self.pack_b and self.prepacked

    @property
    def max_row_bytes(self) -> int:
        """Bytes of A that a block of rows may have at most, to stay in the second level."""
        return int(self.machine.l2 * (rates.ROWS_BESIDE_FLOATS if self.unpacks else rates.ROWS_IN_L2))

    @cached_property
    def _independent(self) -> int:
        """Sums of integers for each output, so that independent ones hide the latency of an addition."""
        count, products = 1, self.points * self.vectors
        if self.problem.dot and not self.problem.dot.adds:
            return count
        while (
            products * count * 2 <= rates.IN_FLIGHT
            and products * count * 4 < self.machine.registers
            and (self.dots or products < 4)
        ):
            count *= 2
        return count

    @cached_property
    def extents(self) -> Mapping[int, int]:
        """Extents inside the chunks."""
        return {**self.problem.extents, **dict(self.chunks)} if self.chunks else self.problem.extents

    @cached_property
    def steps(self) -> int:
        """Steps of one call of the kernel."""
        return self.axis.steps_of(self.problem.steps(self.extents)) if self.chunks else self.axis.steps

    def packed(self, operand: str) -> bool:
        return self.pack_a if operand == "a" else self.pack_b

    def stride(self, operand: str, loop: int) -> int:
        return self.problem.strides(operand)[loop]

    def footprint(self, operand: str, loops: Sequence[int], changes: Mapping[int, int] | None = None) -> int:
        """Bytes of an operand that the given loops touch (within one chunk, other loops standing still)."""
        extents = {**self.extents, **changes} if changes else self.extents
        return self.problem.footprint(operand, loops, extents)


def is_prepacked(problem: Problem, machine: Machine, vec: int) -> bool:
    """Whether B is packed when code is generated: constant floats, or bytes that are made floats, all of which exist,
    where the vector loop moves B alone. Code that is to be small reads floats as they are: panels may have lanes too
    many.
    """
    loop = problem.loops[vec]
    if loop.a or not loop.b or loop.reduces or machine.width == 1 or not problem.is_constant("b") or problem.drops("b"):
        return False
    return problem.widens("b") or not (problem.source.sums_integers or machine.compact)


def vectors_of_partials(order: SumOrder, machine: Machine) -> int:
    """Vectors of partial sums of an output, or of a vector of outputs."""
    return max(1, order.partials // machine.width) if order.lanes else order.partials


def live_partials(order: SumOrder, machine: Machine) -> int:
    """Those that are kept at once. Where lanes are few, one pass over the operands after another sums some of them: the
    more there are at once, the fewer outputs share what is loaded. Of a group's
    one is kept: the other one, and the sums of results, are spilled meanwhile.
    """
    if order.group:
        return 1
    return min(vectors_of_partials(order, machine), max(FEW_PARTIALS, machine.registers // 4))


def views_fit(x: Candidate) -> bool:
    """Registers: the sums, the B vectors of one step if they are used more than once, one A value at a time."""
    sums = x.points * x.vectors * x.copies
    a, b = x.problem.strides("a"), x.problem.strides("b")
    rows, columns = 1, x.vectors
    for loop, size in x.tile:
        rows *= size if a[loop] else 1
        columns *= size if b[loop] else 1
    return sums == 1 or sums + (columns if rows > 1 else 1) + 1 <= x.machine.registers - 1
