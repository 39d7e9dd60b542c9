"""The forms that the compiler gives a graph - lowered, planned, native - against what the interpreter gives.

How much rounding explains is :func:`glowtrain.verification.exact.bound`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.interpreter import evaluate
from glowtrain.compiler.walk import WALK, after, arrive, select
from glowtrain.errors import VerificationError
from glowtrain.gradcheck.operators.differences import compared
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Value
from glowtrain.program.interpret.evaluate import evaluate as run_program
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options
from glowtrain.types import Array
from glowtrain.verification.exact import Arrays, RoundingBound, bound, finite_size, longest_reduction, same_bits
from glowtrain.verification.native import other_on_threads, run_loaded

EXACT = 16.0
"""Multiples of the bound that are allowed where no wider type says how much rounding is natural."""
LAST = 3
"""How many operations back cancellation is allowed for."""

Runner = Callable[[Graph, Arrays], Arrays]


def run_lowered(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs by the evaluator on the program as lowered, without any optimization."""
    return run_program(arrive(graph, stages=select("expanded", "lowered")), inputs)[0]


def run_planned(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs by the evaluator on the optimized, fused and planned program, in its arena."""
    plan: Plan = arrive(graph, Options(check=True))
    return run_program(plan.program, inputs, plan=plan)[0]


def run_compiled(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs of the native code. Raises :class:`VerificationError` where they have other bits on several threads."""
    alone = backend_of("cpu").for_checks(1)
    artifact = arrive(graph, Options(facts=alone.facts), alone.stages(WALK))
    state = {variable.name: variable.initial for variable in graph.variables}
    if problem := other_on_threads(alone, artifact, graph, inputs, state):
        raise VerificationError(problem)
    return run_loaded(alone, artifact, graph, inputs, state)[0]


def run_by(backend: Backend) -> Runner:
    """Outputs of what a backend compiles."""

    def run(graph: Graph, inputs: Arrays) -> Arrays:
        artifact = arrive(graph, Options(facts=backend.facts), backend.stages(WALK))
        state = {variable.name: variable.initial for variable in graph.variables}
        return run_loaded(backend, artifact, graph, inputs, state)[0]

    return run


def run_on_targets(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs of the native code. Raises :class:`VerificationError` where code for another kind of processor has other
    bits."""
    own = backend_of("cpu")
    plan: Plan = arrive(graph, Options(facts=own.facts))
    wanted = _left(*_on(own, plan, graph, inputs))
    for words, other in own.bit_equal().items():
        for name, array in _left(*_on(other, plan, graph, inputs)).items():
            if not same_bits(wanted[name], array):
                raise VerificationError(f"{name} has other bits in code for {words}")
    return wanted


def _left(outputs: Arrays, variables: Arrays) -> dict[str, Array]:
    return {**outputs, **variables}


def _on(backend: Backend, plan: Plan, graph: Graph, inputs: Arrays) -> tuple[Arrays, Arrays]:
    """Outputs of a backend's code, and the variables that it updates."""
    artifact = arrive(plan, Options(facts=backend.facts), after("plan", backend.stages(WALK)))
    state = {variable.name: variable.initial for variable in graph.variables}
    return run_loaded(backend, artifact, graph, inputs, state)[:2]


def same_in_f64(oracle: str, run: Runner, graph: Graph, inputs: Arrays) -> Iterator[Measure]:
    """One measure per output of ``run`` against the interpreter, almost exact."""
    reference, found = evaluate(graph, inputs), run(graph, inputs)
    for name, value in graph.outputs.items():
        yield compared(oracle, found[name], reference[value], exact_tolerance(value, reference, graph), name)


def exact_tolerance(value: Value, reference: Mapping[Value, Array], graph: Graph) -> float:
    """How far another order of evaluation may be from the interpreter's value, in its own type."""
    size = scale(value, reference) + 1e-6
    return EXACT * bound(reference[value], reference[value], longest_reduction(graph), size).tolerance


def scale(value: Value, reference: Mapping[Value, Array], last: int = LAST) -> float:
    """The largest element of a value and of what its last operations read: what cancels leaves its rounding behind."""
    found, latest = {value}, [value]
    for _ in range(last):
        operands = (
            x for v in latest if v.node is not None for x in v.node.inputs if x is not None and x.dtype.is_float
        )
        latest = [x for x in operands if x not in found]
        found.update(latest)
    return max(finite_size(np.asarray(reference[part], np.float64)) for part in found)


def close_in(
    oracle: str, run: Runner, narrow: Graph, wide: Graph, inputs: Arrays, slack: float = 1.0
) -> Iterator[Measure]:
    """One measure per output of ``run`` on a narrow graph, against the interpreter on the same graph in f64.

    ``inputs`` have the narrow graph's types; the wide graph gets the same numbers. ``slack``: how many times the error
    that rounding explains is allowed.
    """
    with np.errstate(all="ignore"):
        widened = {v.name: np.asarray(inputs[v.name]).astype(v.dtype.numpy) for v in wide.inputs}
        exact, natural = evaluate(wide, widened), evaluate(narrow, inputs)
    found, length = run(narrow, inputs), longest_reduction(narrow)
    for (name, value), other in zip(wide.outputs.items(), narrow.outputs.values(), strict=True):
        allowed = bound(natural[other], exact[value], length, scale(value, exact))
        yield within(oracle, found[name], replace(allowed, tolerance=slack * allowed.tolerance), name)


def within(oracle: str, actual: Array, allowed: RoundingBound, label: str) -> Measure:
    """The measure of a result that may be as far from what is expected as rounding explains."""
    return compared(oracle, actual, allowed.expected, allowed.tolerance, label)


def feeds(graph: Graph, arrays: Sequence[Array]) -> dict[str, Array]:
    """Arrays by input name, in order."""
    return {value.name: np.ascontiguousarray(a) if a.ndim else a for value, a in zip(graph.inputs, arrays, strict=True)}
