"""Checks of single operators on samples of their own domains, by oracles that do not depend on one another."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glowtrain.errors import GlowtrainError, ShapeError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.differences import (
    Probe,
    check_complex,
    check_directions,
    check_forward,
    check_gradient,
    compared,
    inputs_for,
    probe,
)
from glowtrain.gradcheck.operators.onnx_runtime import SLACK, NotRun, run_by_onnx_runtime
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Input, Node, Operator, Sample, Value, constant
from glowtrain.graph.attributes import DOMAIN
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.retype import retyped
from glowtrain.onnx_io.runtimes import comparable
from glowtrain.types import Array, DType, bf16, dtype_of, f16, f32, f64, type_of
from glowtrain.verification.exact import EPSILON

MISTAKES = (GlowtrainError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What wrong operator code raises: a failed check, not the end of the run."""


@dataclass(frozen=True)
class Applied:
    """An operator at a sample, as a function of the operands that are there."""

    sample: Sample
    probe: Probe

    @property
    def operator(self) -> Operator:
        return self.sample.operator

    def reference(self, present: Sequence[Array]) -> tuple[Array, ...]:
        """NumPy's results for the operands that are there."""
        left = iter(present)
        results = self.operator.reference(*(None if array is None else next(left) for array in self.sample.inputs))
        return as_tuple(results)

    def operands(self, present: Sequence[Value]) -> list[Value | None]:
        """Operands in their places, ``None`` where one is absent."""
        left = iter(present)
        return [None if array is None else next(left) for array in self.sample.inputs]


def applied(sample: Sample) -> Applied:
    """The operator on graph inputs of the sample's types. Raises :class:`ShapeError` as ``infer`` does."""
    arrays = tuple(np.asarray(array) for array in sample.inputs if array is not None)
    inputs = inputs_for(arrays)
    left = iter(inputs)
    node = Node(sample.operator, [None if array is None else next(left) for array in sample.inputs])
    return Applied(sample, probe(arrays, node.outputs, inputs))


def types(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """``infer`` says what ``reference`` gives."""
    for output, array in zip(use.probe.outputs, use.probe.at(use.probe.arrays), strict=True):
        fits = type_of(array) == output.type
        yield Measure("types", 0.0, 0.0 if fits else np.inf, f"{output.type} inferred, {type_of(array)} given")


def jacobian(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient rule against differences of the reference: for everything at once, for one result while nothing
    reads the others, and for one operand while the others are constants of the graph, which a rule may look into."""
    if use.operator.differentiable:
        yield from check_gradient(use.probe, random, "jacobian")
        if len(use.probe.results) > 1:
            alone = replace(use.probe, results=(int(random.choice(use.probe.results)),))
            yield from check_gradient(alone, random, "jacobian")
        if use.probe.wanted and len(use.probe.inputs) > 1:
            yield from check_gradient(_beside_constants(use, int(random.choice(use.probe.wanted))), random, "jacobian")


def _beside_constants(use: Applied, number: int) -> Probe:
    """The operator as a function of one operand."""
    own = use.probe
    values = [x if k == number else constant(own.arrays[k]) for k, x in enumerate(own.inputs)]
    node = Node(use.operator, use.operands(values))
    return probe((own.arrays[number],), node.outputs, (own.inputs[number],))


def directions(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient rules against differences where all operands move at once."""
    if use.operator.differentiable:
        yield from check_directions(use.probe, random, "directions")


def complex_step(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient rules against imaginary steps of the reference, where it is analytic."""
    if use.operator.differentiable and not use.operator.has("surrogate"):
        yield from check_complex(use.probe, use.reference, random, "complex step")


def forward(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Forward mode against reverse mode."""
    if use.operator.differentiable:
        yield from check_forward(use.probe, random, "forward")


def second_order(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The gradient's gradient rule against differences of the gradient, and forward mode through the gradient against
    it."""
    if use.operator.differentiable:
        derivative = use.probe.derivative(random)
        if derivative is not None:
            yield from check_gradient(derivative, random, "second order", full=8)
            yield from check_forward(derivative, random, "second order")


def decomposition(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The reference against the decomposition's, and the gradient rule against the decomposition's (the surrogate's
    where there is one)."""
    if not use.operator.has("decompose"):
        return
    own, operands = use.probe, use.operands(use.probe.inputs)
    simpler = _written(own, use.operator.decompose(*operands))
    pairs = list(zip(simpler.at(own.arrays), own.at(own.arrays), strict=True))
    if use.operator.differentiable and use.operator.has("vjp"):
        followed = _written(own, use.operator.surrogate(*operands)) if use.operator.has("surrogate") else simpler
        pairs += _gradient_pairs(own, followed, random)
    for found, expected in pairs:
        yield compared("decomposition", found, expected, _same(expected))


def _written(own: Probe, results: Any) -> Probe:
    """The same function with other results."""
    return replace(own, outputs=as_tuple(results))


def _same(array: Array) -> float:
    """How far two ways to compute an array may be apart."""
    largest = float(np.max(np.abs(array.astype(np.float64)), initial=1e-3))
    return (
        1e-10 * largest
        if array.dtype == np.float64
        else 4 * float(EPSILON.get(dtype_of(array.dtype).name, 0)) * largest
    )


def _gradient_pairs(own: Probe, simpler: Probe, random: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    derivative = own.derivative(random)
    if derivative is None:
        return
    seeds = derivative.inputs[len(own.inputs) :]
    both = [
        (a, b) for a, b in zip(own.pulled(seeds), simpler.pulled(seeds), strict=True) if a is not None and b is not None
    ]
    values = replace(derivative, outputs=tuple(value for pair in both for value in pair))
    results = iter(values.at(derivative.arrays))
    for expected, found in zip(results, results, strict=True):
        yield found, expected


def whole(probe: Probe, random: np.random.Generator, *, gradients: bool) -> Probe:
    """Results and gradients at once, as a function of operands and cotangents."""
    derivative = probe.derivative(random) if gradients else None
    return probe if derivative is None else replace(derivative, outputs=(*probe.outputs, *derivative.outputs))


def evaluator(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The lowering (results and gradients) in the evaluator, against the reference."""
    yield from _in_f64("evaluator", ladder.run_lowered, use, random)


def plan(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The same optimized, fused and planned, over the arena."""
    yield from _in_f64("planned", ladder.run_planned, use, random)


def compiled_f64(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code in f64 (results and gradients)."""
    yield from _in_f64("compiled f64", ladder.run_compiled, use, random)


def _in_f64(oracle: str, run: ladder.Runner, use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    all_ = whole(use.probe, random, gradients=use.operator.differentiable)
    yield from ladder.same_in_f64(oracle, run, all_.graph, ladder.feeds(all_.graph, all_.arrays))


def compiled(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code in f32 (results and gradients), against the reference in f64 at the same numbers."""
    yield from narrowed("compiled", use, f32, random, gradients=use.operator.differentiable)


def targets(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code for other kinds of processors in f32 (results and gradients): the same bits."""
    run = ladder.run_on_targets
    yield from narrowed("targets", use, f32, random, gradients=use.operator.differentiable, run=run)


def compiled_f16(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code in f16 (results)."""
    yield from narrowed("compiled f16", use, f16, random, gradients=False)


def compiled_bf16(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code in bf16 (results)."""
    yield from narrowed("compiled bf16", use, bf16, random, gradients=False)


def by_onnx_runtime(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The saved graph of results and gradients in f32 by ONNX Runtime (where installed), against the reference."""
    if not use.operator.differentiable or not comparable(use.sample):
        return
    try:
        yield from narrowed("onnx runtime", use, f32, random, gradients=True, run=run_by_onnx_runtime, slack=SLACK)
    except NotRun:
        yield Measure("onnx runtime", kind="absent")


def narrowed(
    oracle: str,
    use: Applied,
    dtype: DType,
    random: np.random.Generator,
    *,
    gradients: bool,
    run: ladder.Runner = ladder.run_compiled,
    slack: float = 1.0,
) -> Iterator[Measure]:
    """Results, and gradients if wanted, that ``run`` computes in a narrow type, against the reference in f64 at the
    same numbers; nothing where the operator does not take the type."""
    try:
        smaller = applied(converted(use.sample, dtype)).probe
    except ShapeError:
        return
    wide = whole(use.probe, random, gradients=gradients)
    same_places = replace(smaller, wanted=use.probe.wanted, results=use.probe.results)
    narrow = whole(same_places, np.random.default_rng(0), gradients=gradients)
    numbers = [array.astype(v.dtype.numpy) for array, v in zip(wide.arrays, narrow.inputs, strict=True)]
    yield from ladder.close_in(oracle, run, narrow.graph, wide.graph, ladder.feeds(narrow.graph, numbers), slack)


def converted(sample: Sample, dtype: DType) -> Sample:
    """The sample with f64 operands in another float type (bodies of control operators too)."""
    changes = {
        field.name: retyped(value, [f64], dtype).graph
        for field in dataclasses.fields(sample.operator)  # type: ignore[arg-type]
        if isinstance(value := getattr(sample.operator, field.name), Graph)
    }
    operator = sample.operator.replace(**changes) if changes else sample.operator
    return Sample(operator, tuple(None if a is None else _cast(a, f64, dtype) for a in sample.inputs))


def _cast(array: Array, before: DType, after: DType) -> Array:
    return array.astype(after.numpy) if array.dtype == before.numpy else array


Oracle = Callable[[Applied, np.random.Generator], Iterator[Measure]]

ORACLES: dict[str, Oracle] = {
    "types": types,
    "jacobian": jacobian,
    "directions": directions,
    "complex step": complex_step,
    "forward": forward,
    "second order": second_order,
    "decomposition": decomposition,
    "evaluator": evaluator,
    "planned": plan,
    "compiled": compiled,
    "targets": targets,
    "compiled f64": compiled_f64,
    "compiled f16": compiled_f16,
    "compiled bf16": compiled_bf16,
    "onnx runtime": by_onnx_runtime,
}
"""Every oracle for single operators."""


def edges(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """The lowering (results) in the evaluator, against the reference: at the edges of the operator's domain."""
    graph = use.probe.graph
    yield from ladder.same_in_f64("edges", ladder.run_lowered, graph, ladder.feeds(graph, use.probe.arrays))


def edges_compiled(use: Applied, random: np.random.Generator) -> Iterator[Measure]:
    """Native code in f32 (results), against the reference in f64: at the edges of the operator's domain."""
    yield from narrowed("edges compiled", use, f32, random, gradients=False)


EDGES: dict[str, Oracle] = {"edges": edges, "edges compiled": edges_compiled}
"""The oracles for samples at the edges of domains (:func:`glowtrain.gradcheck.operators.edges.drawn_edge`)."""

SLOPES = ("jacobian", "directions", "complex step", "forward", "second order", "decomposition")
"""Oracles of gradients, in f64."""
GRADIENT = ("types", *SLOPES)
"""Oracles that need NumPy only."""


def check_sample(sample: Sample, oracles: Sequence[str], seed: int = 0) -> Iterator[Measure]:
    """The measures of some oracles; an oracle that raises counts as failed, as does a sample that ``infer`` refuses."""
    try:
        use = applied(sample)
    except MISTAKES as error:
        yield failure("types", error, _undeclared(sample.operator))
        return
    for oracle in oracles:
        random = np.random.default_rng([seed, zlib.crc32(oracle.encode())])
        try:
            yield from {**ORACLES, **EDGES}[oracle](use, random)
        except MISTAKES as error:
            yield failure(oracle, error)


def failure(oracle: str, error: BaseException, advice: str = "") -> Measure:
    """The measure of an oracle that raised."""
    return Measure(oracle, np.inf, np.inf, f"{type(error).__name__}: {error}{advice}")


def _undeclared(operator: Operator) -> str:
    """What to do if a value that a family's ``sample`` drew for an attribute is outside of its domain."""
    fields = dataclasses.fields(operator)  # type: ignore[arg-type]
    names = [field.name for field in fields if DOMAIN not in field.metadata and field.name in operator.stated()]
    if "sample" in vars(type(operator)) or not names:
        return ""
    return f"; unless that is wrong, give {' and '.join(names)} a domain by glowtrain.attribute"


def described(sample: Sample) -> str:
    """The operator with its attributes and operand types."""
    return sample.operator.on(*(None if array is None else type_of(np.asarray(array)) for array in sample.inputs))


def drawn(operator: type[Operator], seed: int, example: int) -> Sample:
    """A sample that depends on operator, seed and example only. Three of seven may have a long axis.

    Oracles that see one example in 2, 3, 4, 5 or 10 see such ones as well: these numbers have no factor in common.
    """
    return operator.sample(ChoiceDraw(seed, operator.key(), example, tails=example % 7 in (1, 2, 3)))


def operands_with_gradients(sample: Sample) -> list[int]:
    """The positions of the operands that a gradient reaches; none where the rule fails."""
    if not sample.operator.differentiable:
        return []
    present = [position for position, array in enumerate(sample.inputs) if array is not None]
    try:
        use = applied(sample).probe
        found = use.pulled([Input(output.type, f"c{k}") for k, output in enumerate(use.sources)])
    except MISTAKES:
        return []
    return [present[number] for number, gradient in zip(use.wanted, found, strict=True) if gradient is not None]
