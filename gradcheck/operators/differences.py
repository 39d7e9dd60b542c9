"""Gradient rules against central differences in f64.

A :class:`Probe` is a function as graph values with a point to look at it. Its derivative (all gradients, as a function
of operands and cotangents) is a probe again, so second order is checked by the same code.

Directions of all inputs at once serve at any size, complex steps where the reference is analytic, and forward mode
checks reverse mode. Differences are extrapolated once (Richardson, 1911): D = (4 D(h/2) - D(h)) / 3 has an error of
order h^4. Where the rule and differences disagree, a smaller step decides; a kink shows in steps, or in sides, that
always disagree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import GlowtrainError
from glowtrain.grad.forward import jvp
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators.straight_through import has_convention, straight_through
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Input, Node, Value
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.types import Array, f64, type_of

STEP = 2e-4
SMALLER = 64.0
"""The step, and what it is divided by where a kink is near."""
ABSOLUTE, RELATIVE = 1e-7, 1e-6
"""Tolerance of a directional derivative."""
ROUNDING = 2e-15
"""Error of a function's value, per unit of the value: divided by the step it enters the slope."""
TRANSPOSED, COMPLEX = 1e-10, 1e-10
"""Tolerances of forward mode against reverse mode, and of a complex step, relative to the terms that are summed."""
REFUSALS = (GlowtrainError, ArithmeticError, LookupError, TypeError, ValueError, Warning)
"""What a reference raises for complex numbers if it does not take them."""
FULL = 40
"""Elements up to which an operand's Jacobian is computed whole; larger ones are projected."""


@dataclass(frozen=True)
class Probe:
    """A function from ``inputs`` to ``outputs`` at the point ``arrays``.

    ``wanted`` are the places of the inputs whose gradients are looked at, ``results`` those of the outputs that they
    flow from. ``exact``: gradients are those of the function itself, whatever conventions its operators have; so it is
    with the rules of a function without conventions, in which a StopGradient would be a mistake.
    """

    inputs: tuple[Input, ...]
    arrays: tuple[Array, ...]
    outputs: tuple[Value, ...]
    wanted: tuple[int, ...]
    results: tuple[int, ...]
    exact: bool = False

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.inputs, {f"y{k}": output for k, output in enumerate(self.outputs)})

    def at(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs at another point."""
        values = evaluate(self.graph, {value.name: array for value, array in zip(self.inputs, arrays, strict=True)})
        return tuple(values[output] for output in self.outputs)

    @property
    def sources(self) -> tuple[Value, ...]:
        """The outputs that gradients flow from."""
        return tuple(self.outputs[k] for k in self.results)

    @cached_property
    def source(self) -> Probe:
        """The function from the inputs to the sources that gradients are of (see :func:`straight_through`)."""
        near = Graph(self.inputs, {f"y{k}": y for k, y in enumerate(self.sources)})
        if not self.exact:
            point = {value.name: array for value, array in zip(self.inputs, self.arrays, strict=True)}
            near = straight_through(near, point)
        return replace(self, outputs=tuple(near.outputs.values()), results=tuple(range(len(self.results))))

    @cached_property
    def values(self) -> dict[Value, Array]:
        """Every value at the point."""
        return evaluate(self.graph, {value.name: array for value, array in zip(self.inputs, self.arrays, strict=True)})

    def moved(self, move: Mapping[int, Array], step: float) -> tuple[Array, ...]:
        """The outputs after a step from the point, for inputs by place. What does not depend on them stays as it is."""
        values = dict(self.values)
        values.update((self.inputs[k], self.arrays[k] + step * change) for k, change in move.items())
        run_nodes(self._after(frozenset(move)), values)
        return tuple(values[output] for output in self.outputs)

    @cached_property
    def _later(self) -> dict[frozenset[int], list[Node]]:
        return {}

    def _after(self, positions: frozenset[int]) -> list[Node]:
        """The nodes that depend on some inputs, in order."""
        if positions not in self._later:
            reached: set[Value | None] = {self.inputs[k] for k in positions}
            nodes = self._later[positions] = []
            for node in self.graph.nodes:
                if not reached.isdisjoint(node.inputs):
                    nodes.append(node)
                    reached.update(node.outputs)
        return self._later[positions]

    def direction(self, random: np.random.Generator) -> dict[int, Array]:
        """A random direction for all wanted inputs at once."""
        return {number: cotangent(self.arrays[number].shape, random) for number in self.wanted}

    def pulled(self, seeds: Sequence[Value]) -> tuple[Value | None, ...]:
        """The gradient of each wanted input for cotangents of the sources. Raises :class:`DifferentiationError`."""
        return pullback(self.sources, seeds, [self.inputs[k] for k in self.wanted])

    @cached_property
    def seeds(self) -> tuple[Input, ...]:
        """A cotangent for each source."""
        return tuple(Input(output.type, f"g{len(self.inputs) + k}") for k, output in enumerate(self.sources))

    @cached_property
    def gradients(self) -> tuple[Value | None, ...]:
        """The gradient of each wanted input for :attr:`seeds`. Raises :class:`DifferentiationError`."""
        return self.pulled(self.seeds)

    @cached_property
    def rule(self) -> Probe:
        """The gradients that there are, as a function of the inputs and of :attr:`seeds` (at ones)."""
        arrays = (*self.arrays, *(np.ones(seed.shape) for seed in self.seeds))
        return Probe((*self.inputs, *self.seeds), arrays, tuple(g for g in self.gradients if g is not None), (), ())

    def derivative(self, random: np.random.Generator) -> Probe | None:
        """All gradients, as a function of the inputs and of a cotangent for each source; ``None`` if there is none."""
        gradients, seeds = self.rule.outputs, self.seeds
        points = tuple(cotangent(seed.shape, random) for seed in seeds)
        if not gradients:
            return None
        wanted = (*self.wanted, *range(len(self.inputs), len(self.inputs) + len(seeds)))
        arrays = (*self.arrays, *(p.astype(seed.dtype.numpy) for p, seed in zip(points, seeds, strict=True)))
        exact = not any(has_convention(node) for node in self.graph.nodes)
        return Probe(self.rule.inputs, arrays, gradients, wanted, tuple(range(len(gradients))), exact)


def probe(arrays: Sequence[Array], outputs: Sequence[Value], inputs: Sequence[Input]) -> Probe:
    """A probe whose gradients go from all f64 outputs to all f64 inputs (others are too coarse for differences)."""
    wanted = tuple(k for k, value in enumerate(inputs) if value.dtype == f64)
    results = tuple(k for k, value in enumerate(outputs) if value.dtype == f64)
    return Probe(tuple(inputs), tuple(arrays), tuple(outputs), wanted, results)


def inputs_for(arrays: Sequence[Array]) -> tuple[Input, ...]:
    """One graph input for each array."""
    return tuple(Input(type_of(array), f"x{k}") for k, array in enumerate(arrays))


def cotangent(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Random numbers of either sign that are neither small nor large, so that no wrong entry hides."""
    return np.asarray(random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape))


def check_gradient(probe: Probe, random: np.random.Generator, oracle: str, full: int = FULL) -> Iterator[Measure]:
    """One measure for each f64 input: J^T c by the rule, against c J by differences, for several c.

    Up to ``full`` elements every column of J is computed; of larger inputs some columns and random directions. Raises
    :class:`DifferentiationError` where the rule does.
    """
    if not probe.results:
        return
    pulled = _Pulled.of(probe, random)
    for number, position in enumerate(probe.wanted):
        array = probe.arrays[position]
        if array.size:
            moves = [{position: along.reshape(array.shape)} for along in _directions(array.size, full, random)]
            yield pulled.against_differences(
                moves, oracle, pulled.misshapen(number), f"input {position} ({probe.inputs[position].type})"
            )


def check_directions(probe: Probe, random: np.random.Generator, oracle: str, count: int = 3) -> Iterator[Measure]:
    """One measure: the rule against differences along directions in which all f64 inputs move at once, at any size."""
    if not probe.results or not any(probe.arrays[number].size for number in probe.wanted):
        return
    pulled = _Pulled.of(probe, random)
    moves = [probe.direction(random) for _ in range(count)]
    wrong = next(filter(None, map(pulled.misshapen, range(len(probe.wanted)))), "")
    yield pulled.against_differences(moves, oracle, wrong, "all inputs")


Move = Mapping[int, Array]
"""How far inputs move, by place."""


@dataclass(frozen=True)
class _Pulled:
    """Gradients of a function by the rule: for each of several cotangents ``rows``, one for each wanted input."""

    function: Probe
    rows: Sequence[Sequence[Array]]
    gradients: Sequence[Sequence[Array]]

    @classmethod
    def of(cls, probe: Probe, random: np.random.Generator, count: int = 2) -> _Pulled:
        """The gradients for ``count`` random cotangents."""
        rows = [[cotangent(seed.shape, random) for seed in probe.seeds] for _ in range(count)]
        found = (iter(probe.rule.at((*probe.arrays, *row))) for row in rows)
        sizes = [probe.arrays[number].shape for number in probe.wanted]
        gradients = [
            [np.zeros(shape) if rule is None else next(row) for rule, shape in zip(probe.gradients, sizes, strict=True)]
            for row in found
        ]
        return cls(probe.source, rows, gradients)

    def misshapen(self, number: int) -> str:
        """What is wrong with the shape of a wanted input's gradient; empty if nothing."""
        position, found = self.function.wanted[number], self.gradients[0][number].shape
        type_ = self.function.inputs[position].type
        return "" if found == type_.shape else f"input {position} ({type_}): gradient has shape {found}"

    def slopes(self, moves: Sequence[Move]) -> Array:
        """What the gradients say about moves: [row, move]."""
        wanted = self.function.wanted
        terms = [[self._slope(dict(zip(wanted, row, strict=True)), move) for move in moves] for row in self.gradients]
        return np.array(terms, np.float64).reshape(len(self.gradients), len(moves))

    @staticmethod
    def _slope(gradients: Move, move: Move) -> float:
        # an infinite slope of an element that stays where it is takes no part
        moved = ((change, np.where(change == 0, 0.0, gradients[number])) for number, change in move.items())
        return float(sum(np.vdot(change, gradient) for change, gradient in moved))

    def against_differences(self, moves: Sequence[Move], oracle: str, wrong: str, name: str) -> Measure:
        """The gradients against differences along some moves; ``wrong``: why they cannot be compared."""
        if wrong:
            return Measure(oracle, np.inf, np.inf, wrong)
        expected = self.slopes(moves)
        first = _slopes(self.function, moves, self.rows, STEP)
        error, ratio = first.distance(expected)
        kinks = np.zeros_like(ratio, dtype=bool)
        if (ratio > 1).any():
            second = _slopes(self.function, moves, self.rows, STEP / SMALLER)
            finer, rest = second.distance(expected)
            error, ratio = np.where(rest < ratio, finer, error), np.minimum(rest, ratio)
            kinks = (ratio > 1) & ((finer <= 10 * second.spread) | second.has_kink(first, finer))
            if ((ratio > 1) & ~kinks).any():  # kinks that the first step crossed may hide those at the point
                third = _slopes(self.function, moves, self.rows, STEP / SMALLER / 8)
                kinks |= (ratio > 1) & (third.has_kink(second, finer) | (third.gap > 0.01 * finer + 4 * third.rounding))
        smooth = np.where(kinks, 0.0, ratio)
        worst = np.unravel_index(int(np.argmax(smooth)), ratio.shape)
        if kinks.any() and smooth[worst] <= 1:
            return Measure(oracle, detail=f"{name}: a kink within {STEP / SMALLER:.0e}", kind="kink")
        rule, slope, along = expected[worst], first.central[worst], _where(moves[int(worst[1])])
        told = f"{name}: {along}: rule {rule:.9g}, differences {slope:.9g}" if ratio[worst] > 1 else ""
        return Measure(oracle, float(error[worst]), float(ratio[worst]), told)


def _values(inputs: tuple[Input, ...], arrays: tuple[Array, ...], outputs: tuple[Value, ...]) -> tuple[Array, ...]:
    return Probe(inputs, arrays, outputs, (), ()).at(arrays)


@dataclass(frozen=True)
class _Slopes:
    """Slopes of the weighted outputs, [row, move], found with one step.

    ``spread``: how far ``step`` and half of it disagree; ``gap``: how far the slopes to the two sides do, which for a
    smooth function shrinks with the step; ``rounding``: what the outputs' last bits may contribute.
    """

    central: Array
    spread: Array
    gap: Array
    rounding: Array

    def distance(self, expected: Array) -> tuple[Array, Array]:
        """How far these are from expected slopes, and the same over the tolerance."""
        error = np.abs(self.central - expected)
        ratio = error / (ABSOLUTE + RELATIVE * np.abs(self.central) + self.rounding)
        return error, np.where(np.isnan(ratio), np.inf, ratio)

    def has_kink(self, coarser: _Slopes, error: Array) -> Array:
        """Where the slopes to the two sides stay as far apart as they were with a larger step."""
        noise = np.maximum(np.minimum(error / 1000, 1e-5), 4 * self.rounding)  # small slopes have small gaps
        result: Array = self.gap > np.maximum(0.3 * coarser.gap, noise)
        return result


def _slopes(function: Probe, moves: Sequence[Move], rows: Sequence[Sequence[Array]], step: float) -> _Slopes:
    shape = (len(rows), len(moves))
    central, spread, gap, rounding = (np.empty(shape) for _ in range(4))
    here = tuple(function.values[output] for output in function.outputs)
    middle = np.array([weighted(row, here) for row in rows])
    for k, move in enumerate(moves):
        values = {t: function.moved(move, t * step) for t in (1.0, -1.0, 0.5, -0.5)}
        y = {t: np.array([weighted(row, value) for row in rows]) for t, value in values.items()}
        coarse, fine = (y[1.0] - y[-1.0]) / (2 * step), (y[0.5] - y[-0.5]) / step
        central[:, k], spread[:, k] = (4 * fine - coarse) / 3, np.abs(fine - coarse)
        gap[:, k] = np.abs(y[1.0] + y[-1.0] - 2 * middle) / step
        rounding[:, k] = ROUNDING / step * sum(float(np.sum(np.abs(value))) for value in values[1.0])
    return _Slopes(central, spread, gap, rounding)


def weighted(row: Sequence[Array], outputs: Sequence[Array]) -> float:
    """The sum of outputs, each element times its cotangent in ``row``."""
    return float(sum(np.vdot(c, y) for c, y in zip(row, outputs, strict=True)))


def _directions(size: int, full: int, random: np.random.Generator) -> Array:
    """Unit vectors, all or some, and signs for what is larger; [direction, element]."""
    if size <= full:
        return np.eye(size)
    positions = random.choice(size, full // 2, replace=False)
    units = np.zeros(
        (len(positions), size)
    )  # not rows of an identity matrix: that of a large weight does not fit memory
    units[np.arange(len(positions)), positions] = 1.0
    return np.concatenate([units, random.choice([-1.0, 1.0], (3, size))])


def _where(move: Move) -> str:
    positions = [(number, element) for number, change in move.items() for element in np.flatnonzero(change)[:2]]
    return f"element {positions[0][1]}" if len(positions) == 1 else "a random direction"


def check_forward(probe: Probe, random: np.random.Generator, oracle: str) -> Iterator[Measure]:
    """One measure: <c, J d> by forward mode, against <J^T c, d> by reverse mode, for several c and one d."""
    if not probe.results or not probe.wanted:
        return
    pulled, move = _Pulled.of(probe, random), probe.direction(random)
    tangents = tuple(Input(probe.inputs[number].type, f"t{number}") for number in probe.wanted)
    forward = jvp(probe.sources, [probe.inputs[number] for number in probe.wanted], tangents)
    arrays = (*probe.arrays, *(move[number] for number in probe.wanted))
    found = _values((*probe.inputs, *tangents), arrays, tuple(forward))
    by_forward = np.array([weighted(row, found) for row in pulled.rows])
    sizes = [weighted([np.abs(c) for c in row], [np.abs(array) for array in found]) for row in pulled.rows]
    yield compared(
        oracle, by_forward, pulled.slopes([move])[:, 0], TRANSPOSED * (1.0 + np.array(sizes)), "<c, J d>, row "
    )


def check_complex(
    probe: Probe, reference: Callable[[Sequence[Array]], Sequence[Array]], random: np.random.Generator, oracle: str
) -> Iterator[Measure]:
    """One measure: the rule against a step in the imaginary direction, which has no rounding to speak of.

    f'(x) = Im f(x + ih) / h (W. Squire and G. Trapp, "Using complex variables to estimate derivatives of real
    functions", SIAM Review 40, 1998). Where ``reference`` does not take complex numbers, or is not analytic (steps in
    both directions must agree: Cauchy and Riemann), there is nothing to compare.
    """
    if not probe.results or not any(probe.arrays[number].size for number in probe.wanted):
        return
    pulled, moves = _Pulled.of(probe, random), [probe.direction(random) for _ in range(2)]
    for move in moves:
        steps = {h: _stepped(probe, reference, move, h) for h in (1e-5, -1e-5, 1e-5j, -1e-5j, 1e-25j)}
        if any(step is None for step in steps.values()):
            yield Measure(oracle, kind="absent")
            return
        by = {h: np.array([_weighted_complex(row, step) for row in pulled.rows]) for h, step in steps.items() if step}
        along, across = (by[1e-5] - by[-1e-5]) / 2e-5, (by[1e-5j] - by[-1e-5j]) / 2e-5j
        size = 1.0 + np.abs(along) + np.abs(by[1e-5])
        if not (np.abs(along - across) <= 1e-4 * size).all():
            yield Measure(oracle, kind="absent")
            return
        yield compared(
            oracle, by[1e-25j].imag / 1e-25, pulled.slopes([move])[:, 0], COMPLEX * size, "a random direction, row "
        )


def _stepped(
    probe: Probe, reference: Callable[[Sequence[Array]], Sequence[Array]], move: Move, step: complex
) -> tuple[Array, ...] | None:
    """The sources after a complex step; ``None`` if the reference does not give complex numbers."""
    arrays = [a + step * move[k] if k in move else a for k, a in enumerate(probe.arrays)]
    arrays = [np.asarray(a, np.complex128) if k in move else a for k, a in enumerate(arrays)]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            results = reference(arrays)
    except REFUSALS:
        return None
    found = tuple(np.asarray(results[k]) for k in probe.results)
    return found if all(np.iscomplexobj(array) for array in found) else None


def _weighted_complex(row: Sequence[Array], outputs: Sequence[Array]) -> complex:
    return complex(sum(np.vdot(c, y) for c, y in zip(row, outputs, strict=True)))


def compared(oracle: str, actual: Array, expected: Array, tolerance: Array | float, label: str = "") -> Measure:
    """Two arrays that should agree to within ``tolerance``; NaN and infinities must agree exactly."""
    if actual.shape != expected.shape:
        return Measure(oracle, np.inf, np.inf, f"{label}: shape {actual.shape} instead of {expected.shape}")
    if not actual.size:
        return Measure(oracle)
    with np.errstate(all="ignore"):
        wide, other = actual.astype(np.float64), expected.astype(np.float64)
        same = (wide == other) | (np.isnan(wide) & np.isnan(other))
        error = np.where(same, 0.0, np.abs(wide - other))
        error = np.where(np.isnan(error), np.inf, error)
        ratio = np.where(same, 0.0, error / np.maximum(tolerance, 1e-300))
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    position = [int(i) for i in worst]
    told = f"{label}{position}: {wide[worst]:.9g} instead of {other[worst]:.9g}" if ratio[worst] > 1 else ""
    return Measure(oracle, float(np.max(error)), float(ratio[worst]), told)
