"""Random training steps: whole graphs with fan-out, shared parameters, unused results and updated state.

Operators come from the registry with a use from their own domain; their float operands are then replaced by mixtures of
the drawn numbers and of values computed before, so that any operator can follow any other. Numbers are followed along,
so magnitudes stay near 1 and values that are not finite are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.base import State
from glowtrain.backends.interpreter import evaluate, run_node
from glowtrain.compiler import compile as compiled
from glowtrain.compiler import planned
from glowtrain.gradcheck import forms
from glowtrain.gradcheck.draw import SeededDraw
from glowtrain.gradcheck.numeric import Probe, check_gradient, compared
from glowtrain.gradcheck.operators import MISTAKES, failure
from glowtrain.gradcheck.report import Measure
from glowtrain.graph import Draw, Graph, Input, Operator, Value, Variable, constant, rebuild, registered
from glowtrain.graph.retype import retyped
from glowtrain.graph.reverse import pullback
from glowtrain.ops.activation import Sigmoid
from glowtrain.ops.family import Elementwise
from glowtrain.ops.logic import Cast
from glowtrain.ops.move import Slice, reshape
from glowtrain.ops.pad import Tile
from glowtrain.ops.reduction import ReduceMean, ReduceSum
from glowtrain.program.evaluate import evaluate as run_program
from glowtrain.types import Array, Shape, dtype_of, f32, f64, type_of
from glowtrain.verification.exact import Arrays, bound, longest_reduction

LARGEST = 2.0
"""Values beyond this are scaled down."""
RATE = 0.05
STEPS = 2
"""Steps that a program trains, so that the state of the first is read by the second."""
DRIFT = 100.0
"""How much more than one operator's rounding a whole step may differ by in f64."""
DEPTH = 8
"""How many operations back cancellation is allowed for in f32."""
MOST = 2000
"""Elements of a value above which it is not used again."""


@dataclass(frozen=True)
class Case:
    """A loss over ``inputs`` at ``arrays``; those at ``parameters`` become variables in :attr:`step`.

    ``outputs`` are further results; ``swapped`` are pairs of variables that exchange their values in every step.
    """

    inputs: tuple[Input, ...]
    arrays: tuple[Array, ...]
    parameters: tuple[int, ...]
    loss: Value
    outputs: tuple[Value, ...] = ()
    swapped: bool = False

    @property
    def probe(self) -> Probe:
        """The loss as a function of parameters and inputs."""
        wanted = tuple(k for k, value in enumerate(self.inputs) if value.dtype == f64)
        return Probe(self.inputs, self.arrays, (self.loss,), wanted, (0,))

    @cached_property
    def step(self) -> Graph:
        """The training step: gradient descent on the parameters, a moving average and a counter as further state."""
        variables: dict[Value, Variable] = {
            self.inputs[k]: Variable(self.inputs[k].name, self.arrays[k]) for k in self.parameters
        }
        loss, *others = rebuild((self.loss, *self.outputs), variables)
        found = pullback([loss], [constant(1.0, f64)], list(variables.values()))
        updates: dict[Variable, Value] = {
            variable: variable - RATE * gradient
            for variable, gradient in zip(variables.values(), found, strict=True)
            if gradient is not None
        }
        average, count = Variable("average", np.zeros(()), False), Variable("count", np.zeros((), np.int64), False)
        updates |= {average: 0.5 * average + 0.5 * loss, count: count + 1}
        if self.swapped:
            first, second = Variable("first", np.arange(3.0)), Variable("second", -np.arange(3.0))
            updates |= {first: second, second: first}
        outputs = {"loss": loss, **{f"z{k}": value for k, value in enumerate(others)}}
        free = tuple(value for value in self.inputs if value not in variables)
        return Graph(free, outputs, updates, "random")

    @property
    def feeds(self) -> dict[str, Array]:
        """Arrays for the inputs of :attr:`step`."""
        named = {value.name: array for value, array in zip(self.inputs, self.arrays, strict=True)}
        return {value.name: named[value.name] for value in self.step.inputs}

    def __str__(self) -> str:
        return str(self.step)


def draw_case(draw: Draw) -> Case:
    """A random case; every choice is made by ``draw``."""
    return _Builder(draw).case()


Rule = Callable[[], None]


@dataclass
class _Builder:
    draw: Draw
    leaves: dict[Input, Array] = field(default_factory=dict)
    numbers: dict[Value, Array] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)

    def case(self) -> Case:
        extents = (self.draw.integer(1, 5), self.draw.integer(1, 9), self.draw.choice((1, 2, 17)))
        for _ in range(self.draw.integer(2, 4)):
            self.leaf(self.draw.floats(self._shape(extents), -1.5, 1.5))
        rules: tuple[Rule, ...] = (self.binary, self.unary, self.product, self.reduction, self.any, self.any)
        for _ in range(self.draw.integer(1, 9)):
            self.draw.choice(rules)()
        loss = self._loss()
        used = _reached(loss)
        inputs = tuple(value for value in self.leaves if value in used)
        parameters = tuple(
            k for k, value in enumerate(inputs) if value.dtype == f64 and (k == 0 or self.draw.boolean())
        )
        further = tuple(value for value in self.pool[-2:] if self.draw.boolean() and _reached(value) <= used)
        arrays = tuple(self.leaves[value] for value in inputs)
        return Case(inputs, arrays, parameters, loss, further, self.draw.boolean())

    def _shape(self, extents: Sequence[int]) -> Shape:
        return tuple(self.draw.choice(extents) for _ in range(self.draw.integer(0, 3)))

    def _loss(self) -> Value:
        """A weighted mean of some values, each weighted so that no sum is constant by construction."""
        terms = [self.pool[-1], *(self.pick() for _ in range(self.draw.integer(0, 2)))]
        if not any(_reached(value) for value in terms):
            terms.append(self.pool[0])
        total: Value | None = None
        for value in terms:
            weights = constant(self.draw.floats(value.shape, 0.5, 2.0))
            term: Value = ReduceMean(axes=None, keepdims=False)(value * weights)
            total = term if total is None else total + term
        assert total is not None
        return total

    def leaf(self, array: Array) -> Input:
        """A new input (or parameter)."""
        value = Input(type_of(array), f"x{len(self.leaves)}")
        self.leaves[value] = self.numbers[value] = array
        self.pool.append(value)
        return value

    def pick(self) -> Value:
        """A value computed before; late ones are likelier."""
        count = len(self.pool)
        return self.pool[count - 1 - self.draw.integer(0, min(count - 1, 3 if self.draw.boolean() else count - 1))]

    def keep(self, results: Any) -> None:
        """Enter results that are finite and not huge into the pool, scaled to a magnitude near 1."""
        for value in results if isinstance(results, tuple) else (results,):
            array = self.number(value)
            if not array.size or array.size > MOST or not np.isfinite(np.asarray(array, np.float64)).all():
                continue
            if not value.dtype.is_float or value.dtype != f64:
                value = Cast(to=f64)(value)
                array = self.number(value)
            largest = float(np.max(np.abs(array)))
            scaled = value if largest <= LARGEST else value * 2.0 ** -math.ceil(math.log2(largest / LARGEST))
            self.number(scaled)
            self.pool.append(scaled)

    def number(self, value: Value) -> Array:
        """What a value is at the case's arrays."""
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

    def binary(self) -> None:
        """Arithmetic on two values, broadcast where their shapes allow it."""
        a, b = self.pick(), self.pick()
        if not _broadcast(a.shape, b.shape):
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
        """Any differentiable operator of the registry. What names places in other operands stays as drawn."""
        operator = self.draw.choice(tuple(registered(_differentiable)))
        sample = operator.sample(self.draw)
        arrays = [None if array is None else np.asarray(array) for array in sample.inputs]
        fixed = sample.operator.index_places(*(None if array is None else type_of(array) for array in arrays))
        operands = [
            None if array is None else constant(array) if place in fixed else self.operand(array)
            for place, array in enumerate(arrays)
        ]
        self.keep(sample.operator(*operands))

    def operand(self, array: Array) -> Value:
        """A drawn operand: as it is, as a parameter, or mixed half and half with a value computed before."""
        choice = self.draw.integer(0, 3)
        if dtype_of(array.dtype) != f64 or choice == 0 or not array.size:
            return constant(array)
        if choice == 1:
            return self.leaf(array)
        low, high = float(array.min()), float(array.max())
        return 0.5 * self.into(self.shaped(self.pick(), array.shape), low, high) + 0.5 * array

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


def _broadcast(a: Shape, b: Shape) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def _reached(value: Value) -> set[Value]:
    """The inputs that a value depends on."""
    return {leaf for leaf in Graph((), {"value": value}).leaves if isinstance(leaf, Input)}


def check_case(case: Case, oracles: Sequence[str], seed: int = 0) -> Iterator[Measure]:
    """The measures of some of :data:`PROGRAM_ORACLES`; an oracle that raises counts as failed."""
    for oracle in oracles:
        try:
            yield from PROGRAM_ORACLES[oracle](case, np.random.default_rng(seed))
        except MISTAKES as error:
            yield failure(oracle, error)


def _gradient(case: Case, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient of the loss against differences, on some elements and random directions."""
    yield from check_gradient(case.probe, random, "gradient", full=8)


def _planned(case: Case, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of the planned program over its arena, against the interpreter."""
    plan = planned(case.step, check=True)
    state = {variable.name: variable.initial for variable in case.step.variables}

    def step(feeds: Arrays) -> Arrays:
        found, after = run_program(plan.program, feeds, state, plan)
        state.update(after)  # a variable that nothing needs is not in the program
        return {**found, **state}

    yield from _steps("planned", case, step)


def _compiled_f64(case: Case, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of native code in f64, against the interpreter."""
    native = compiled(case.step, "cpu")
    yield from _steps("compiled f64", case, lambda feeds: {**native(feeds), **_values(native.state)})


def _steps(oracle: str, case: Case, step: Callable[[Arrays], Arrays]) -> Iterator[Measure]:
    """Results and state after each step, against the interpreter's."""
    for number, known in enumerate(_interpreted(case.step, case.feeds)):
        found = step(case.feeds)
        for name, value in _roots(case.step).items():
            tolerance = DRIFT * forms.exact_tolerance(value, known, case.step)
            yield compared(oracle, found[name], known[value], tolerance, f"step {number}, {name}")


def _compiled(case: Case, random: np.random.Generator) -> Iterator[Measure]:
    """Steps of native code in f32, against the interpreter in f64; its error in f32 says how much is natural."""
    narrow = retyped(case.step, [f64], f32).graph
    wide = retyped(narrow, [f32], f64).graph
    feeds = {v.name: case.feeds[v.name].astype(v.dtype.numpy) for v in narrow.inputs}
    widened = {v.name: feeds[v.name].astype(v.dtype.numpy) for v in wide.inputs}
    native, roots, length = compiled(narrow, "cpu"), _roots(narrow), longest_reduction(narrow)
    steps = zip(_interpreted(wide, widened), _interpreted(narrow, feeds), strict=True)
    for number, (exact, natural) in enumerate(steps):
        found = {**native(feeds), **_values(native.state)}
        for name, value in _roots(wide).items():
            allowed = bound(natural[roots[name]], exact[value], length, forms.scale(value, exact, DEPTH))
            yield forms.within("compiled", found[name], allowed, f"step {number}, {name}")


def _interpreted(graph: Graph, feeds: Arrays) -> Iterator[dict[Value, Array]]:
    """Every value in each of the steps, in the interpreter."""
    state = {variable.name: variable.initial for variable in graph.variables}
    for _ in range(STEPS):
        known = evaluate(graph, feeds, state)
        state.update({variable.name: known[value] for variable, value in graph.updates.items()})
        yield known


def _roots(graph: Graph) -> dict[str, Value]:
    """Outputs and new values of variables, by name."""
    return {**graph.outputs, **{variable.name: value for variable, value in graph.updates.items()}}


def _values(state: State) -> dict[str, Array]:
    return {name: state.read(name) for name in state.names}


PROGRAM_ORACLES: dict[str, Callable[[Case, np.random.Generator], Iterator[Measure]]] = {
    "gradient": _gradient,
    "planned": _planned,
    "compiled": _compiled,
    "compiled f64": _compiled_f64,
}
"""The oracles for random programs."""


def drawn_case(seed: int, example: int) -> Case:
    """A case that depends on seed and example only."""
    return draw_case(SeededDraw(seed, "program", example))
