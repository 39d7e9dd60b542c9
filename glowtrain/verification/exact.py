"""Distances between a computation and the same in double precision, and how much of them rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glowtrain.backends import interpreter
from glowtrain.graph import Graph, Node, Value
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.retype import FLOATS, retyped_operator, widened
from glowtrain.stages import Options
from glowtrain.types import Array, dtype_of, f64

Arrays = Mapping[str, Array]

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
NATURAL = 8.0
"""Multiples of the interpreter's own rounding error that are allowed."""
ROUNDINGS = 4.0
"""Multiples of epsilon times the largest element, by the square root of the longest reduction, allowed beside that."""
LOCAL = 32.0
"""The same for one node against its reference in f64, on the same operands."""
KINK, CHANGE, LARGEST_CHANGE, NEARBY = 4.0, 64.0, 0.01, 8
"""A result beside a kink may be KINK times as far off as NEARBY runs with inputs changed by CHANGE epsilons (relative
to each element, at most LARGEST_CHANGE) are."""


@dataclass
class ReferenceRun:
    """A graph's values in its own types, and how far each may be from its value in f64.

    ``coarse``: the values that are computed of saved activations in bf16 (:func:`coarse_values`).
    """

    graph: Graph
    values: Mapping[Value, Array]
    exact: Mapping[Value, Array]
    inputs: Arrays
    state: Arrays
    coarse: frozenset[Value] = frozenset()

    def error(self, value: Value, actual: Array) -> float:
        """Distance from f64 over what is allowed: at most 1 is good."""
        length, coarsest = longest_reduction(self.graph), self.coarsest(value)
        return distance(actual, self.values[value], self.exact[value], length, coarsest)

    def coarsest(self, value: Value) -> float:
        """The epsilon of what a value is computed of, where that is not its own."""
        return EPSILON["bf16"] if value in self.coarse else 0.0

    def beside_a_kink(self, value: Value, actual: Array) -> float:
        """The distance over what small changes of all inputs and variables make of the interpreter's result.

        An element on a kink (of a ReLU, a maximum, a comparison) may fall to either side by rounding alone. Of a sum
        that is 0 (the gradient of a bias before a batch normalization) rounding is all there is: of one run it says
        little.
        """
        exact = self.exact[value]
        if actual.shape != exact.shape or actual.dtype != self.values[value].dtype:
            return math.nan
        nearby = [run[value] for run in self.nearby]
        if not dtype_of(actual.dtype).is_float:
            reached = np.any([actual == other for other in (exact, *nearby)], axis=0)
            return 0.0 if bool(np.all(reached)) else math.inf
        changes = (other.astype(np.float64) - exact for other in nearby)
        spread = max(_size(change[np.isfinite(change)]) for change in changes)
        error = _size(actual.astype(np.float64) - exact)
        return error / (KINK * spread) if spread and error == error else math.inf

    @cached_property
    def nearby(self) -> list[Mapping[Value, Array]]:
        """The interpreter's results for inputs and variables that are changed at random, by about what rounding adds up
        to."""
        random = np.random.default_rng(0)
        epsilons = [EPSILON[value.dtype.name] for value in self.exact if value.dtype.is_float]
        epsilons += [EPSILON["bf16"]] if self.coarse else []
        size = min(CHANGE * max(epsilons, default=EPSILON["f32"]), LARGEST_CHANGE)
        runs: list[Mapping[Value, Array]] = []
        for _ in range(NEARBY):
            feeds = {v.name: _changed(self.inputs[v.name], v, random, size) for v in self.graph.inputs}
            state = {v.name: _changed(self.state[v.name], v, random, size) for v in self.graph.variables}
            values = interpreter.evaluate(self.graph, feeds, state)
            runs.append({value: values[value] for _, value in results_of(self.graph)})
        return runs


def run_in_both(graph: Graph, inputs: Arrays, state: Arrays) -> ReferenceRun:
    """The interpreter's values, and those of the graph in f64."""
    wide = widened(graph)
    values = interpreter.evaluate(graph, inputs, state)
    feeds = {v.name: _as(inputs[v.name], v) for v in wide.graph.inputs}
    exact = interpreter.evaluate(wide.graph, feeds, {v.name: _as(state[v.name], v) for v in wide.graph.variables})
    in_f64 = {old: exact[new] for old, new in wide.values.items() if new in exact}
    return ReferenceRun(graph, values, in_f64, inputs, state)


def coarse_values(graph: Graph, options: Options) -> frozenset[Value]:
    """What is computed of numbers in bf16: with a precision everything; of activations that were saved for backward in
    bf16 new values of variables but for those that the forward pass updates."""
    if options.precision is not None:
        return frozenset((*graph.outputs.values(), *graph.updates.values()))
    if options.residuals is None:
        return frozenset()
    return frozenset(value for v, value in graph.updates.items() if v.name not in options.residuals.forward)


def _changed(array: Array, value: Value, random: np.random.Generator, size: float) -> Array:
    if not value.dtype.is_float:
        return np.asarray(array)
    wide = np.asarray(array).astype(np.float64)
    return _as(wide * (1 + size * random.standard_normal(value.shape)), value)


def _as(array: Array, value: Value) -> Array:
    return np.asarray(array).astype(value.dtype.numpy)


def results_of(graph: Graph) -> Iterator[tuple[str, Value]]:
    """Outputs and updates, by what they are called in reports."""
    yield from ((f"output {name}", value) for name, value in graph.outputs.items())
    yield from ((f"variable {variable.name}", value) for variable, value in graph.updates.items())


@dataclass(frozen=True)
class RoundingBound:
    """What a result may be: as far from ``expected`` (f64; integers as they are) as ``tolerance``."""

    expected: Array
    tolerance: float


def bound(natural: Array, exact: Array, length: float, scale: float = 0.0, coarsest: float = 0.0) -> RoundingBound:
    """What the rounding of ``natural``, the interpreter's result, against ``exact``, the same in f64, explains.

    ``length``: terms of the longest sum; ``scale``: the largest operand, if larger than the result: what cancels leaves
    its rounding behind; ``coarsest``: the largest epsilon of what it is computed of. Integers, and the places of NaN
    and infinities, must be those of ``natural``.
    """
    epsilon = EPSILON.get(dtype_of(natural.dtype).name)
    if epsilon is None:
        return RoundingBound(natural, 0.0)
    epsilon = max(epsilon, coarsest)
    narrow, wide = natural.astype(np.float64), exact.astype(np.float64)
    expected = np.where(np.isfinite(narrow) & np.isfinite(wide), wide, narrow)
    finite = np.isfinite(expected)
    rounding, size = _size(narrow[finite] - expected[finite]), max(scale, _size(expected[finite]))
    tolerance = NATURAL * rounding + ROUNDINGS * math.sqrt(length) * epsilon * size + _smallest(natural)
    return RoundingBound(expected, tolerance)


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of a type have the same bits; which NaN it is does not count."""
    bits = [np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") for array in (one, other)]
    return bool(np.all((bits[0] == bits[1]) | ((one != one) & (other != other))))


def distance(actual: Array, natural: Array, exact: Array, length: float, coarsest: float = 0.0) -> float:
    """How far ``actual`` is from what is expected, over what :func:`bound` allows; NaN if shapes or types differ."""
    if actual.shape != natural.shape or actual.dtype != natural.dtype:
        return math.nan
    allowed = bound(natural, exact, length, coarsest=coarsest)
    if not allowed.tolerance:
        return 0.0 if np.array_equal(actual, natural) else math.inf
    got, finite = actual.astype(np.float64), np.isfinite(allowed.expected)
    if not np.array_equal(got[~finite], allowed.expected[~finite], equal_nan=True):
        return math.inf
    error = _size(got[finite] - allowed.expected[finite])
    return error / allowed.tolerance if error == error else math.inf


def _smallest(array: Array) -> float:
    return 2.0**-14 if array.dtype.itemsize == 2 and array.dtype == np.float16 else 1e-30


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def ordered(error: float) -> float:
    """NaN counts as the largest."""
    return math.inf if math.isnan(error) else error


def longest_reduction(graph: Graph) -> float:
    """About how many elements meet in one, at most, in a node of the graph."""
    longest = 1.0
    for node in graph.nodes:
        longest = max(longest, _reduction(node))
    return longest


def _reduction(node: Node) -> float:
    read = max((value.type.size for value in node.inputs if value is not None), default=1)
    return read / max(1, min(output.type.size for output in node.outputs))


def local_error(node: Node, values: Mapping[Value, Array]) -> float:
    """A node's results against its reference in f64 on the very same operands, over what its rounding explains."""
    operands = [None if value is None else values[value] for value in node.inputs]
    wide = [None if array is None else _widest(array) for array in operands]
    exact = as_tuple(retyped_operator(node.operator, FLOATS, f64).reference(*wide))
    sizes = sorted(
        (finite_size(array) for array in wide if array is not None and array.dtype.kind == "f"), reverse=True
    )
    scale = max([*sizes[:1], math.prod(sizes[:2])])
    actual = (values[output] for output in node.outputs)
    return max(_local(a, np.asarray(e), scale, _reduction(node)) for a, e in zip(actual, exact, strict=True))


def _local(actual: Array, exact: Array, scale: float, length: float) -> float:
    epsilon = EPSILON.get(dtype_of(actual.dtype).name)
    if epsilon is None:
        return 0.0 if np.array_equal(actual, exact) else math.inf
    narrow = actual.astype(np.float64)
    both = np.isfinite(narrow) & np.isfinite(exact)
    size = max(scale, _size(exact[both]))
    allowed = LOCAL * math.sqrt(length) * epsilon * size + _smallest(actual)
    return _size(narrow[both] - exact[both]) / allowed


def _widest(array: Array) -> Array:
    return array.astype(np.float64) if dtype_of(array.dtype).is_float else array


def finite_size(array: Array) -> float:
    """The largest finite magnitude."""
    return _size(array[np.isfinite(array)])
