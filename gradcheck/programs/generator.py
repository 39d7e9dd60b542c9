"""Random programs, put together operator by operator.

Operators come from the registry with a use from their own domain; their float operands are then replaced by mixtures of
the drawn numbers and of values computed before, so that any operator can follow any other. Numbers are followed along,
so magnitudes stay near 1 and values that are not finite are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.gradcheck.operators.oracles import converted
from glowtrain.graph import Draw, Input, Operator, Sample, Value, constant, registered
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.retype import FLOATS, retyped_operator
from glowtrain.ops.core.evaluate import run_node
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.logic import Cast, Where
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum
from glowtrain.ops.tensor.move import Slice, reshape
from glowtrain.ops.tensor.pad import Tile
from glowtrain.types import Array, DType, Shape, bf16, boolean, dtype_of, f16, f32, f64, i8, i32, i64, type_of

LARGEST = 2.0
"""Values beyond this are scaled down."""
MOST = 2000
"""Elements of a value above which it is not used again."""
NARROW = (f32, f16, bf16)
"""The types that parts of a program compute in."""
INTEGERS = (i64, i32, i8)

Rule = Callable[[], None]


@dataclass
class Composer:
    """Values that are there to be used (``pool``, all of one float type), and rules that add to them.

    ``numbers`` is what values are at the program's arrays. A part of a program has a composer of its own, within
    ``outer``.
    """

    draw: Draw
    dtype: DType = f64
    outer: Composer | None = None
    leaves: dict[Input, Array] = field(default_factory=dict)
    numbers: dict[Value, Array] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """How many composers this one is within."""
        return 0 if self.outer is None else self.outer.depth + 1

    def grow(self, count: int, rules: Iterable[Rule]) -> None:
        """Apply some of the rules, ``count`` in all."""
        options = tuple(rules)
        for _ in range(count):
            self.draw.choice(options)()

    @property
    def plain_rules(self) -> tuple[Rule, ...]:
        """Rules without parts."""
        return self.binary, self.unary, self.product, self.reduction, self.any, self.any

    # ---- leaves and values

    def leaf(self, array: Array) -> Value:
        """A new input (or parameter) of the program."""
        value = self.entered(array)
        if value.dtype == self.dtype:
            self.pool.append(value)
        return value

    def entered(self, array: Array) -> Value:
        """A new input, outermost."""
        if self.outer is not None:
            return self.outer.entered(array)
        value = Input(type_of(array), f"x{len(self.leaves)}")
        self.leaves[value] = self.numbers[value] = array
        return value

    def pick(self) -> Value:
        """A value computed before; late ones are likelier."""
        count = len(self.pool)
        return self.pool[count - 1 - self.draw.integer(0, min(count - 1, 3 if self.draw.boolean() else count - 1))]

    def keep(self, results: Any) -> None:
        """Enter results that are finite and not huge into the pool, scaled to a magnitude near 1."""
        for value in as_tuple(results):
            if value.dtype.is_stored or not value.type.size or value.type.size > MOST:
                continue
            if not np.isfinite(np.asarray(self.number(value), np.float64)).all():
                continue
            same: Value = value if value.dtype == self.dtype else Cast(to=self.dtype)(value)
            largest = float(np.max(np.abs(self.number(same).astype(np.float64))))
            if not math.isfinite(largest):
                continue
            scaled = same if largest <= LARGEST else same * 2.0 ** -math.ceil(math.log2(largest / LARGEST))
            self.number(scaled)
            self.pool.append(scaled)

    def number(self, value: Value) -> Array:
        """What a value is at the program's arrays."""
        stack = [value]
        while stack:
            node = stack[-1].node
            if stack[-1] in self.numbers or node is None:
                self.numbers.setdefault(stack[-1], getattr(stack[-1], "array", np.zeros(())))
                stack.pop()
                continue
            missing = [operand for operand in node.inputs if operand is not None and operand not in self.numbers]
            if missing:
                stack += missing
                continue
            self.numbers.update(zip(node.outputs, run_node(node, self.numbers), strict=True))
        return self.numbers[value]

    def floats(self, shape: Shape, low: float, high: float) -> Array:
        """Drawn numbers in the composer's type."""
        return self.draw.floats(shape, low, high).astype(self.dtype.numpy)

    def into(self, value: Value, low: float, high: float) -> Value:
        """The value carried smoothly into (low, high)."""
        result: Value = low + (high - low) * Sigmoid()(value)
        return result

    def shaped(self, value: Value, shape: Shape) -> Value:
        """The value's elements, repeated or cut, in another shape."""
        size, wanted = value.type.size, math.prod(shape)
        flat = reshape(value, (size,))
        if size < wanted:
            flat = Tile(repeats=(-(-wanted // size),))(flat)
        if flat.type.size > wanted:
            flat = Slice(starts=(0,), ends=(wanted,), axes=(0,))(flat)
        return reshape(flat, shape)

    def above(self, value: Value) -> Value:
        """Which elements lie above a number that none of them is near: rounding does not change it."""
        ordered = np.unique(self.number(value).astype(np.float64))
        number = int(np.argmax(np.diff(ordered))) if len(ordered) > 1 else 0
        middle = float(np.mean(ordered[number : number + 2])) if len(ordered) > 1 else float(ordered[0]) - 0.5
        result: Value = value > middle
        return result

    # ---- rules

    def binary(self) -> None:
        """Arithmetic on two values, broadcast where their shapes allow it."""
        a, b = self.pick(), self.pick()
        if not broadcast(a.shape, b.shape):
            b = self.shaped(b, a.shape)
        choice = self.draw.integer(0, 3)
        self.keep((a + b, a * b, a - b, a / (b * b + 1.0))[choice])

    def unary(self) -> None:
        """A smooth function of one value, brought into its domain."""
        function = self.draw.choice(tuple(registered(_smooth)))
        sample = function.sample(self.draw)
        if len(sample.inputs) == 1:
            self.keep(sample.operator(self.into(self.pick(), *function.domain_range)))

    def product(self) -> None:
        """A matrix product of values, whatever their shapes."""
        a, b = self.pick(), self.pick()
        inner, rows, columns = (self.draw.integer(1, 6) for _ in range(3))
        self.keep(self.shaped(a, (rows, inner)) @ self.shaped(b, (inner, columns)))

    def reduction(self) -> None:
        """A sum or mean over some axes."""
        value = self.pick()
        axes = tuple(axis for axis in range(value.rank) if self.draw.boolean())
        if axes:
            function = self.draw.choice((ReduceSum, ReduceMean))
            self.keep(function(axes=axes, keepdims=self.draw.boolean())(value))

    def any(self) -> None:
        """Any differentiable operator of the registry. What indexes other operands stays as drawn."""
        self.keep(self._use(self.draw.choice(tuple(registered(_differentiable))), self.operand))

    def stepwise(self) -> None:
        """Any operator without a gradient, on drawn operands: what it jumps at is not near."""
        results = self._use(self.draw.choice(tuple(registered(_stepwise))), self.drawn_operand)
        self.keep(tuple(Cast(to=self.dtype)(value) for value in results if not value.dtype.is_stored))

    def _use(self, cls: type[Operator], operand: Callable[[Array], Value]) -> tuple[Value, ...]:
        sample = cls.sample(self.draw)
        arrays = [None if array is None else np.asarray(array) for array in sample.inputs]
        if self.dtype != f64:
            sample = converted(Sample(sample.operator, tuple(arrays)), self.dtype)
            arrays = list(sample.inputs)
        if not _widens(sample.operator, arrays):
            return ()
        fixed = sample.operator.index_ranges(*(None if array is None else type_of(array) for array in arrays))
        operands = [
            None if array is None else constant(array) if number in fixed else operand(array)
            for number, array in enumerate(arrays)
        ]
        try:
            results = sample.operator(*operands)
        except ShapeError:
            if self.dtype == f64:
                raise
            return ()  # the operator does not take this type
        return as_tuple(results)

    def operand(self, array: Array) -> Value:
        """A drawn operand: as it is, as a parameter, or mixed half and half with a value computed before."""
        choice = self.draw.integer(0, 3)
        if dtype_of(array.dtype) != self.dtype or choice == 0 or not array.size or not np.isfinite(array).all():
            return constant(array)
        if choice == 1:
            return self.leaf(array)
        low, high = float(array.min()), float(array.max())
        return 0.5 * self.into(self.shaped(self.pick(), array.shape), low, high) + 0.5 * constant(array)

    def drawn_operand(self, array: Array) -> Value:
        """A drawn operand: as it is, or as an input."""
        return self.entered(array) if array.size and self.draw.boolean() else constant(array)

    def selection(self) -> None:
        """One of two values for each element, by what a third one is."""
        which, a, b = self.pick(), self.pick(), self.pick()
        self.keep(Where()(self.above(which), self.shaped(a, which.shape), self.shaped(b, which.shape)))

    def integers(self) -> None:
        """Arithmetic on integers of some type: given ones, and such as say where a value is large."""
        dtype = self.draw.choice(INTEGERS)
        where = self.above(self.pick())
        a: Value = Cast(to=dtype)(where)
        b = self.entered(self.draw.integers(where.shape, -3, 3).astype(dtype.numpy))
        found: Value = (a + b, a * b, b - a * 2, Where()(where, b, a))[self.draw.integer(0, 3)]
        if self.draw.boolean():
            found = Cast(to=self.draw.choice((boolean, *INTEGERS)))(found)
        value = self.shaped(self.pick(), where.shape)
        self.keep(value * Cast(to=self.dtype)(found) * 0.5)


def _widens(operator: Operator, arrays: Iterable[Array | None]) -> bool:
    """Whether the operator computes the same in f64: not if it reads floats as bits, or has one result type."""
    types = [None if array is None else type_of(array) for array in arrays]
    wide = [type_.with_dtype(f64) if type_ is not None and type_.dtype.is_float else type_ for type_ in types]
    try:
        found = retyped_operator(operator, FLOATS, f64).infer(*wide)
    except ShapeError:
        return False
    return all(type_.dtype == f64 for type_ in as_tuple(found) if type_.dtype.is_float)


def _smooth(cls: type[Operator]) -> bool:
    return (
        issubclass(cls, Elementwise)
        and cls.arity == 1
        and cls.differentiable
        and "float" in cls.kinds
        and not cls.kinks
    )


def _differentiable(cls: type[Operator]) -> bool:
    return cls.differentiable and (cls.has("vjp") or cls.has("decompose"))


def _stepwise(cls: type[Operator]) -> bool:
    return not cls.random and not _differentiable(cls)


def broadcast(a: Shape, b: Shape) -> bool:
    """Whether two shapes broadcast."""
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
