"""The rungs below the interpreter: a graph lowered, planned and compiled must give what the interpreter gives.

In f64 the evaluator of the loop language must agree almost exactly. In narrower types the interpreter's own rounding in
that type, measured against f64, says how much rounding is natural; the bound also grows with the square root of the
longest reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.compiler import compile as compiled
from glowtrain.compiler import planned
from glowtrain.gradcheck.numeric import compared
from glowtrain.gradcheck.report import Measure
from glowtrain.graph import Graph, Value
from glowtrain.lower.lower import lower
from glowtrain.program.evaluate import evaluate as run_program
from glowtrain.types import Array, DType, bf16, dtype_of, f16, f32, f64

EPSILON: dict[DType, float] = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}
EXACT = 64.0
"""Multiples of epsilon that orders of evaluation may differ by, for each unit of the reduction's square root."""
LAST = 3
"""How many operations back cancellation is allowed for."""
NATURAL, ROUNDINGS = 8.0, 16.0
"""Multiples of the interpreter's own rounding error, and of epsilon times the largest result, that are allowed."""

Arrays = Mapping[str, Array]
Runner = Callable[[Graph, Arrays], Arrays]


def run_lowered(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs by the evaluator on the program as lowered."""
    return run_program(lower(graph), inputs)[0]


def run_planned(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs by the evaluator on the optimized, fused and planned program, in its arena."""
    plan = planned(graph)
    return run_program(plan.program, inputs, plan=plan)[0]


def run_compiled(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs of the native code."""
    return compiled(graph, "cpu")(inputs)


def same_in_f64(oracle: str, run: Runner, graph: Graph, inputs: Arrays) -> Iterator[Measure]:
    """One measure per output of ``run`` against the interpreter, almost exact."""
    known, found = evaluate(graph, inputs), run(graph, inputs)
    for name, value in graph.outputs.items():
        yield compared(oracle, found[name], known[value], exact_tolerance(value, known, graph), name)


def exact_tolerance(value: Value, known: Mapping[Value, Array], graph: Graph) -> float:
    """How far another order of evaluation may be from the interpreter's value, in its own type."""
    epsilon = EPSILON.get(value.dtype, 0.0)
    return EXACT * epsilon * math.sqrt(longest_reduction(graph)) * (scale(value, known) + 1e-6)


def scale(value: Value, known: Mapping[Value, Array], last: int = LAST) -> float:
    """The largest element of a value and of what its last operations read: what cancels leaves its rounding behind."""
    found, latest = {value}, [value]
    for _ in range(last):
        operands = (
            x for v in latest if v.node is not None for x in v.node.inputs if x is not None and x.dtype.is_float
        )
        latest = [x for x in operands if x not in found]
        found.update(latest)
    return max(_size(known[part]) for part in found)


def close_in(oracle: str, run: Runner, narrow: Graph, wide: Graph, inputs: Arrays) -> Iterator[Measure]:
    """One measure per output of ``run`` on a narrow graph, against the interpreter on the same graph in f64.

    ``inputs`` have the narrow graph's types; the wide graph gets the same numbers.
    """
    with np.errstate(all="ignore"):
        widened = {v.name: np.asarray(inputs[v.name]).astype(v.dtype.numpy) for v in wide.inputs}
        exact, natural = evaluate(wide, widened), evaluate(narrow, inputs)
    found = run(narrow, inputs)
    for (name, value), other in zip(wide.outputs.items(), narrow.outputs.values(), strict=True):
        bound = Bound(natural[other], exact[value], scale(value, exact), narrow)
        yield bound.check(oracle, found[name], name)


@dataclass(frozen=True)
class Bound:
    """What a narrow result may be: the interpreter's in that type and in f64, and the size of the operands."""

    natural: Array
    exact: Array
    scale: float
    graph: Graph

    def check(self, oracle: str, found: Array, label: str) -> Measure:
        """Compare a result. Integers must be the interpreter's; so must the places of NaN and infinities."""
        epsilon = EPSILON.get(dtype_of(self.natural.dtype))
        if epsilon is None:
            return compared(oracle, found, self.natural, 0.5, label)
        with np.errstate(all="ignore"):
            narrow, wide = self.natural.astype(np.float64), self.exact.astype(np.float64)
            rounding = _size(np.abs(narrow - wide))
        smallest = float(np.finfo(np.float16).tiny) if self.natural.dtype == np.float16 else 1e-30
        length = math.sqrt(longest_reduction(self.graph))
        tolerance = NATURAL * rounding + ROUNDINGS * length * epsilon * self.scale + smallest
        return compared(oracle, found, wide if np.isfinite(narrow).all() else narrow, tolerance, label)


def _size(array: Array) -> float:
    """The largest finite magnitude."""
    magnitudes = np.abs(np.asarray(array, np.float64))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def longest_reduction(graph: Graph) -> float:
    """How many elements meet in one, at most, in a node of the graph (estimated from sizes)."""
    longest = 1.0
    for node in graph.nodes:
        read = max((value.type.size for value in node.inputs if value is not None), default=1)
        longest = max(longest, read / max(1, min(output.type.size for output in node.outputs)))
    return longest


def feeds(graph: Graph, arrays: Sequence[Array]) -> dict[str, Array]:
    """Arrays by input name, in order."""
    return {value.name: np.ascontiguousarray(a) if a.ndim else a for value, a in zip(graph.inputs, arrays, strict=True)}
