"""Gradient rules against central differences in f64.

A :class:`Probe` is a function as graph values with a point to look at it. Its derivative (all gradients, as a function
of operands and cotangents) is a probe again, so second order is checked by the same code.

Differences are extrapolated once (Richardson, 1911): D = (4 D(h/2) - D(h)) / 3 has an error of order h^4. Where the
rule and differences disagree, a smaller step decides; a kink shows in steps, or in sides, that always disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.gradcheck.report import Measure
from glowtrain.graph import Graph, Input, Value
from glowtrain.graph.reverse import pullback
from glowtrain.types import Array, f64, type_of

STEP = 2e-4
SMALLER = 64.0
"""The step, and what it is divided by where a kink is near."""
ABSOLUTE, RELATIVE = 1e-7, 1e-6
"""Tolerance of a directional derivative."""
ROUNDING = 2e-15
"""Error of a function's value, per unit of the value: divided by the step it enters the slope."""
FULL = 40
"""Elements up to which an operand's Jacobian is computed whole; larger ones are projected."""


@dataclass(frozen=True)
class Probe:
    """A function from ``inputs`` to ``outputs`` at the point ``arrays``.

    ``wanted`` are the places of the inputs whose gradients are looked at, ``results`` those of the outputs that they
    flow from.
    """

    inputs: tuple[Input, ...]
    arrays: tuple[Array, ...]
    outputs: tuple[Value, ...]
    wanted: tuple[int, ...]
    results: tuple[int, ...]

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.inputs, {f"y{k}": output for k, output in enumerate(self.outputs)})

    def at(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs at another point."""
        known = evaluate(self.graph, {value.name: array for value, array in zip(self.inputs, arrays, strict=True)})
        return tuple(known[output] for output in self.outputs)

    @property
    def sources(self) -> tuple[Value, ...]:
        """The outputs that gradients flow from."""
        return tuple(self.outputs[k] for k in self.results)

    def pulled(self, seeds: Sequence[Value]) -> tuple[Value | None, ...]:
        """The gradient of each wanted input for cotangents of the sources. Raises :class:`DifferentiationError`."""
        return pullback(self.sources, seeds, [self.inputs[k] for k in self.wanted])

    def derivative(self, random: np.random.Generator) -> Probe | None:
        """All gradients, as a function of the inputs and of a cotangent for each source; ``None`` if there is none."""
        seeds = tuple(Input(output.type, f"g{len(self.inputs) + k}") for k, output in enumerate(self.sources))
        gradients = tuple(gradient for gradient in self.pulled(seeds) if gradient is not None)
        points = tuple(cotangent(seed.shape, random) for seed in seeds)
        if not gradients:
            return None
        wanted = (*self.wanted, *range(len(self.inputs), len(self.inputs) + len(seeds)))
        arrays = (*self.arrays, *(p.astype(seed.dtype.numpy) for p, seed in zip(points, seeds, strict=True)))
        return Probe((*self.inputs, *seeds), arrays, gradients, wanted, tuple(range(len(gradients))))


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
    seeds = tuple(Input(output.type, f"c{k}") for k, output in enumerate(probe.sources))
    rules = probe.pulled(seeds)
    present = tuple(rule for rule in rules if rule is not None)
    rows = [[cotangent(seed.shape, random) for seed in seeds] for _ in range(2)]
    by_row = [iter(_values((*probe.inputs, *seeds), (*probe.arrays, *row), present)) for row in rows]
    function = replace(probe, outputs=probe.sources, results=tuple(range(len(probe.results))))
    for place, rule in zip(probe.wanted, rules, strict=True):
        array = probe.arrays[place]
        by_rule = [np.zeros(array.shape) if rule is None else next(gradients) for gradients in by_row]
        if array.size:
            yield _compared(function, place, rows, by_rule, _directions(array.size, full, random), oracle)


def _values(inputs: tuple[Input, ...], arrays: tuple[Array, ...], outputs: tuple[Value, ...]) -> tuple[Array, ...]:
    return Probe(inputs, arrays, outputs, (), ()).at(arrays)


def _compared(
    function: Probe, place: int, rows: Sequence[Sequence[Array]], by_rule: Sequence[Array], along: Array, oracle: str
) -> Measure:
    """The rule's gradients for an input against differences along some directions."""
    name = f"input {place} ({function.inputs[place].type})"
    if any(gradient.shape != function.arrays[place].shape for gradient in by_rule):
        return Measure(oracle, np.inf, np.inf, f"{name}: gradient has shape {by_rule[0].shape}")
    expected = np.array([along @ gradient.ravel() for gradient in by_rule])
    first = _slopes(function, place, along, rows, STEP)
    error, ratio = first.distance(expected)
    kinks = np.zeros_like(ratio, dtype=bool)
    if (ratio > 1).any():
        second = _slopes(function, place, along, rows, STEP / SMALLER)
        finer, rest = second.distance(expected)
        error, ratio = np.where(rest < ratio, finer, error), np.minimum(rest, ratio)
        kinks = (ratio > 1) & ((finer <= 10 * second.spread) | (second.gap > np.maximum(0.3 * first.gap, 1e-5)))
    smooth = np.where(kinks, 0.0, ratio)
    worst = np.unravel_index(int(np.argmax(smooth)), ratio.shape)
    if kinks.any() and smooth[worst] <= 1:
        return Measure(oracle, detail=f"{name}: a kink within {STEP / SMALLER:.0e}", kind="kink")
    told = f"{name}: {_where(along[worst[1]])}: rule {expected[worst]:.9g}, differences {first.central[worst]:.9g}"
    return Measure(oracle, float(error[worst]), float(ratio[worst]), told if ratio[worst] > 1 else "")


@dataclass(frozen=True)
class _Slopes:
    """Slopes of the weighted outputs, [row, direction], found with one step.

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


def _slopes(function: Probe, place: int, along: Array, rows: Sequence[Sequence[Array]], step: float) -> _Slopes:
    shape = (len(rows), len(along))
    central, spread, gap, rounding = (np.empty(shape) for _ in range(4))
    middle = np.array([_weighted(row, function.at(function.arrays)) for row in rows])
    for k, direction in enumerate(along):
        values = {t: _moved(function, place, direction * t * step) for t in (1.0, -1.0, 0.5, -0.5)}
        y = {t: np.array([_weighted(row, value) for row in rows]) for t, value in values.items()}
        coarse, fine = (y[1.0] - y[-1.0]) / (2 * step), (y[0.5] - y[-0.5]) / step
        central[:, k], spread[:, k] = (4 * fine - coarse) / 3, np.abs(fine - coarse)
        gap[:, k] = np.abs(y[1.0] + y[-1.0] - 2 * middle) / step
        rounding[:, k] = ROUNDING / step * sum(float(np.sum(np.abs(value))) for value in values[1.0])
    return _Slopes(central, spread, gap, rounding)


def _moved(function: Probe, place: int, change: Array) -> tuple[Array, ...]:
    arrays = list(function.arrays)
    arrays[place] = arrays[place] + change.reshape(arrays[place].shape)
    return function.at(arrays)


def _weighted(row: Sequence[Array], outputs: Sequence[Array]) -> float:
    return float(sum(np.vdot(c, y) for c, y in zip(row, outputs, strict=True)))


def _directions(size: int, full: int, random: np.random.Generator) -> Array:
    """Unit vectors, all or some, and signs for what is larger; [direction, element]."""
    if size <= full:
        return np.eye(size)
    places = random.choice(size, full // 2, replace=False)
    units = np.zeros((len(places), size))  # not rows of an identity matrix: that of a large weight does not fit memory
    units[np.arange(len(places)), places] = 1.0
    return np.concatenate([units, random.choice([-1.0, 1.0], (3, size))])


def _where(direction: Array) -> str:
    places = np.flatnonzero(direction)
    return f"element {places[0]}" if places.size == 1 else "a random direction"


def compared(oracle: str, found: Array, expected: Array, tolerance: Array | float, label: str = "") -> Measure:
    """Two arrays that should agree to within ``tolerance``; NaN and infinities must agree exactly."""
    if found.shape != expected.shape:
        return Measure(oracle, np.inf, np.inf, f"{label}: shape {found.shape} instead of {expected.shape}")
    if not found.size:
        return Measure(oracle)
    with np.errstate(all="ignore"):
        wide, other = found.astype(np.float64), expected.astype(np.float64)
        same = (wide == other) | (np.isnan(wide) & np.isnan(other))
        error = np.where(same, 0.0, np.abs(wide - other))
        error = np.where(np.isnan(error), np.inf, error)
        ratio = np.where(same, 0.0, error / np.maximum(tolerance, 1e-300))
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = [int(i) for i in worst]
    told = f"{label}{place}: {wide[worst]:.9g} instead of {other[worst]:.9g}" if ratio[worst] > 1 else ""
    return Measure(oracle, float(np.max(error)), float(ratio[worst]), told)
