"""The gradients of ONNX's own node tests: at their own data, by oracles that do not depend on the rules.

A test's model becomes a function of all its float inputs and initializers in f64, at the numbers that the test gives.
Where those lie on a kink (ties, zeros of a ReLU) or at the end of the function's domain, they are nudged off it, and
the gradient is checked there.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.backends.inputs import check_inputs
from glowtrain.compiler import compile as compiled
from glowtrain.errors import GlowtrainError
from glowtrain.grad.flow import Flow
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.differences import (
    STEP,
    Probe,
    check_directions,
    check_forward,
    check_gradient,
    probe,
)
from glowtrain.gradcheck.operators.oracles import MISTAKES, failure
from glowtrain.gradcheck.operators.page import rounded
from glowtrain.gradcheck.report.report import Check, Measure, merged
from glowtrain.graph import Graph, Input, Template, Value, constant, substituted
from glowtrain.graph.retype import widened
from glowtrain.graph.specialise.binding import spread
from glowtrain.onnx_io.checks.conformance import in_processes
from glowtrain.onnx_io.checks.node_tests import NodeTest, node_tests
from glowtrain.ops.elementwise.logic import Where
from glowtrain.presentation.messages import plural
from glowtrain.types import Array, dtype_of

NUDGES = (1e-2, 3e-2, 1e-1, 3e-1)
"""How far data are moved off a kink, at random, relative to their size or 1."""
FULL = 16
"""Elements of an input up to which its Jacobian is computed whole."""
IN_F64 = ("jacobian", "directions", "forward")
"""The oracles whose errors do not depend on a model's element types."""
SHOWN = 8
"""Names of tests that are listed for one reason, at most."""
ABOUT = """\
- in f64, against central differences: single elements of each float input, random directions of it and of all together
  (tolerance 1e-7 + 1e-6 of the slope), of a sum of all float outputs with random weights;
- forward mode against reverse mode (1e-10);
- native code in the model's own element types against f64, as far off as its rounding explains.

A test counts for each differentiable operator of its model; the models `*_expanded` are ONNX's definitions of an
operator by simpler ones."""


@dataclass(frozen=True)
class Outcome:
    """What was found about the gradients of one test.

    ``operators``: the differentiable ones of its model; ``dtypes``: those of its inputs of floats; ``nudged``: how far
    its data were moved off a kink; ``reason``: why there is nothing to check.
    """

    name: str
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    nudged: float = 0.0
    reason: str = ""
    seconds: float = 0.0

    @property
    def checked(self) -> bool:
        """Whether there is a gradient, and nothing that was compared is wrong."""
        return not self.reason and all(check.status in ("passed", "absent") for check in self.checks)

    @property
    def problem(self) -> str:
        """Why a gradient was not found right, or not compared."""
        wrong = [check for check in self.checks if check.status in ("failed", "kink")]
        return self.reason or "; ".join(f"{check.oracle}: {check.detail}" for check in wrong)


@dataclass(frozen=True)
class Subject:
    """The model of a test as a function at its own data: in its own types, and in f64."""

    narrow: Probe
    wide: Probe

    @classmethod
    def of(cls, graph: Graph, arrays: Sequence[Array]) -> Subject:
        """The function that a graph is, at some data."""
        wide = widened(graph).graph
        numbers = [array.astype(v.dtype.numpy) for array, v in zip(arrays, wide.inputs, strict=True)]
        function = probe(numbers, list(wide.outputs.values()), wide.inputs)
        own = Probe(graph.inputs, tuple(arrays), tuple(graph.outputs.values()), function.wanted, function.results)
        return cls(own, function)

    def finite(self) -> Subject:
        """The same without those elements of results that are not finite at these data."""
        found = self.wide.at(self.wide.arrays)
        keep = {k: np.isfinite(found[k]) for k in self.wide.results if not np.isfinite(found[k]).all()}
        return Subject(_kept(self.narrow, keep), _kept(self.wide, keep)) if keep else self

    def nudged(self, size: float, random: np.random.Generator) -> Subject:
        """The function at data moved at random: each element by up to ``size``, in proportion to its own."""
        moved = list(self.narrow.arrays)
        for number in self.wide.wanted:
            moved[number] = _nudged(self.wide.arrays[number], size, random).astype(moved[number].dtype)
        numbers = [a.astype(v.dtype.numpy) for a, v in zip(moved, self.wide.inputs, strict=True)]
        return Subject(replace(self.narrow, arrays=tuple(moved)), replace(self.wide, arrays=tuple(numbers)))

    @property
    def on_an_edge(self) -> bool:
        """Whether a result is not finite at the data, or a step away from them."""
        moves = [{k: np.full(self.wide.arrays[k].shape, step)} for k in self.wide.wanted for step in (STEP, 0.0, -STEP)]
        found = [self.wide.moved(move, 1.0) for move in moves]
        return not all(np.isfinite(y[k]).all() for y in found for k in self.wide.results)

    def measures(self, seed: int = 0) -> Iterator[Measure]:
        """The rules against differences, forward mode against reverse mode, native code against f64."""
        for oracle in (self._jacobian, self._directions, self._forward, self._compiled):
            try:
                yield from oracle(np.random.default_rng(seed))
            except MISTAKES as error:
                yield failure(oracle.__name__.strip("_"), error)

    def _jacobian(self, random: np.random.Generator) -> Iterator[Measure]:
        yield from check_gradient(self.wide, random, "jacobian", FULL)

    def _directions(self, random: np.random.Generator) -> Iterator[Measure]:
        yield from check_directions(self.wide, random, "directions")

    def _forward(self, random: np.random.Generator) -> Iterator[Measure]:
        yield from check_forward(self.wide, random, "forward")

    def _compiled(self, random: np.random.Generator) -> Iterator[Measure]:
        """Gradients of native code in the model's own types."""
        derivative = self.narrow.derivative(random)
        if derivative is not None:
            graph = derivative.graph
            feeds = ladder.feeds(graph, derivative.arrays)
            yield from ladder.close_in("compiled", ladder.run_compiled, graph, widened(graph).graph, feeds)


def bound(test: NodeTest, call: int = 0) -> tuple[Graph, list[Array]]:
    """A test's graph for the data of a call, initializers made inputs, and the data of all inputs."""
    model, given = test.load(), test.calls[call]
    graph = compiled(model, "interpreter").specialised(given).graph
    rest = {name: value for name, value in given.items() if name not in graph.binding.values}
    if isinstance(model, Template):
        rest = dict(spread(model.structures, rest))
    data = check_inputs(graph, rest)
    leaves: dict[Value, Input] = {variable: Input(variable.type, variable.name) for variable in graph.variables}
    whole = substituted(graph, leaves).with_(inputs=(*graph.inputs, *leaves.values()))
    return whole, [*(data[v.name] for v in graph.inputs), *(v.initial for v in graph.variables)]


def why_none(graph: Graph) -> str:
    """Why a graph's results have no gradient for its inputs; empty if they have one."""
    leaves = [value for value in graph.inputs if value.dtype.is_float and value.type.size]
    results = [value for value in graph.outputs.values() if value.dtype.is_float and value.type.size]
    if not leaves and any(dtype_of(array.dtype).is_float for array in graph.binding.values.values()):
        return "the elements of its inputs decide about shapes, so they are constants"
    if not leaves or not results:
        return f"no {'output' if leaves else 'input'} of floats with elements"
    seeds = [Input(result.type, f"g{k}") for k, result in enumerate(results)]
    if any(gradient is not None for gradient in pullback(results, seeds, leaves)):
        return ""
    flow = Flow(results)
    told = {cut.node.operator.key(): cut.why for leaf in leaves for cut in flow.of(leaf).cuts}
    return "; ".join(f"{key}: {reason}" for key, reason in told.items()) or "the results do not depend on the inputs"


def _nudged(array: Array, size: float, random: np.random.Generator) -> Array:
    """Numbers near the given ones; ordinary ones in place of infinities and NaN."""
    finite = np.where(np.isfinite(array), array, random.uniform(0.5, 2.0, array.shape))
    scale = np.where(finite == 0, 1.0, np.clip(np.abs(finite), 0.1, 1.0))
    noise = random.uniform(0.3, 1.0, array.shape) * random.choice([-1.0, 1.0], array.shape)
    return np.asarray(finite + size * scale * noise)


def _kept(function: Probe, keep: dict[int, Array]) -> Probe:
    """The function with zeros in place of some elements of its outputs."""
    outputs = list(function.outputs)
    for number, mask in keep.items():
        value: Value = outputs[number]
        outputs[number] = Where()(constant(mask), value, constant(np.zeros((), value.dtype.numpy)))
    return replace(function, outputs=tuple(outputs))


def run(test: NodeTest, seed: int = 0) -> Outcome:
    """Check the gradients of one test, in this process."""
    began = time.perf_counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            found = _run(test, seed)
        except MISTAKES as error:
            found = Outcome(test.name, checks=tuple(merged(test.name, [("", failure("gradient", error))])))
    return replace(found, seconds=time.perf_counter() - began)


def _run(test: NodeTest, seed: int) -> Outcome:
    try:
        graph, arrays = bound(test)
    except GlowtrainError as error:
        return Outcome(test.name, reason=" ".join(f"{type(error).__name__}: {error}".split()))
    if reason := why_none(graph):
        return Outcome(test.name, reason=reason)
    subject, size = Subject.of(graph, arrays), 0.0
    checks = _checks(test, subject, seed)
    if _on_a_kink(checks) or (not _right(checks) and subject.on_an_edge):
        for size in NUDGES:
            checks = _checks(test, subject.nudged(size, np.random.default_rng(seed)), seed)
            if _right(checks):
                break
    dtypes = dict.fromkeys(value.dtype.name for value in graph.inputs if value.dtype.is_float)
    return Outcome(test.name, test.operators, tuple(dtypes), checks, size)


def _checks(test: NodeTest, subject: Subject, seed: int) -> tuple[Check, ...]:
    return tuple(merged(test.name, [("", measure) for measure in subject.finite().measures(seed)]))


def _right(checks: Iterable[Check]) -> bool:
    return all(check.status in ("passed", "absent") for check in checks)


def _on_a_kink(checks: Iterable[Check]) -> bool:
    """Whether the data lie on a kink, and nothing is wrong beside that."""
    statuses = {check.status for check in checks}
    return "kink" in statuses and "failed" not in statuses


def matching(pattern: str = "") -> list[str]:
    """The names of the node tests that contain ``pattern``."""
    return [name for name in _tests() if pattern in name]


@functools.cache
def _tests() -> dict[str, NodeTest]:
    return {test.name: test for test in node_tests()}


def run_named(name: str) -> Outcome:
    """Check the gradients of a test by its name."""
    return run(_tests()[name])


def run_all(names: Sequence[str], jobs: int = 1) -> Iterator[Outcome]:
    """Check tests by name in ``jobs`` processes. One that ends its process is reported as a crash."""
    return in_processes(run_named, names, jobs, lambda name: Outcome(name, checks=(_CRASH,)))


_CRASH = Check("", "gradient", "failed", 0, math.inf, math.inf, "the process crashed")


def section(outcomes: Iterable[Outcome]) -> str:
    """The results as a section of a page, in Markdown."""
    found = sorted(outcomes, key=lambda outcome: outcome.name)
    smooth = [outcome for outcome in found if not outcome.reason]
    right, nudged = sum(o.checked for o in smooth), sum(o.checked and o.nudged > 0 for o in smooth)
    single = [o for o in smooth if "f32" in o.dtypes]
    operators = plural(len(_tally(smooth)), "operator")
    return "\n".join(
        [
            "## Gradients",
            "",
            f"{plural(len(found), 'node test')}, {len(smooth):,} of them with a gradient ({len(single):,} in f32),",
            f"through {operators} of ONNX; {right:,} found right, at the test's own data (or",
            f"beside them, for {nudged} whose data lie on a kink or at the end of a domain):",
            "",
            ABOUT,
            "",
            "| operator | tests | in f32 | beside a kink | worst error in f64, of what is allowed |",
            "|---|---|---|---|---|",
            *_rows(smooth),
            "",
            "### Gradients that are not right",
            "",
            *([f"- `{o.name}`: {o.problem}" for o in smooth if not o.checked] or ["All are."]),
            "",
            "### Tests without a gradient, and why",
            "",
            *_reasons(found),
            "",
        ]
    )


def _tally(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The tests of each operator, by name."""
    by: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for key in outcome.operators:
            by[key].append(outcome)
    return dict(sorted(by.items()))


def _rows(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for key, tests in _tally(outcomes).items():
        beside, single = sum(test.nudged > 0 for test in tests), sum("f32" in test.dtypes for test in tests)
        worst = max((c.ratio for test in tests for c in test.checks if c.oracle in IN_F64), default=0.0)
        yield f"| {key} | {len(tests)} | {single} | {beside or '–'} | {rounded(worst)} |"


def _reasons(outcomes: Iterable[Outcome]) -> Iterator[str]:
    by: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.reason:
            by[outcome.reason.replace(outcome.name, "the model")].append(outcome.name)
    for reason, names in sorted(by.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        told = f"{len(names)} tests" if len(names) > SHOWN else f"`{'`, `'.join(names)}`"
        yield f"- {told}: {reason}"
