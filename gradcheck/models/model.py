"""A person's own model: every parameter and every float input against differences of the loss in f64.

The model is checked in its training form, as the trainer would run it. A loss that is not smooth at the point (a Relu
exactly at 0, a tie) has no derivative there; where the two sides' slopes differ and the rule lies between them this is
reported as a kink and not as a failure. A failure names the node that is to blame
(:mod:`glowtrain.gradcheck.models.blame`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import InputError
from glowtrain.grad.flow import Flow
from glowtrain.grad.gradients import check_scalar
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.models.blame import INNOCENT, Blame
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.straight_through import straight_through
from glowtrain.gradcheck.report.report import Check, GradcheckReport, Measure, Progress, Status, merged
from glowtrain.graph import Graph, Input, Node, Template, Value, Variable, constant, no_model
from glowtrain.graph.retype import widened
from glowtrain.losses import Attached, Loss, LossFunction, as_loss, output_of
from glowtrain.modes.training_and_inference import make_trainable
from glowtrain.onnx_io.read.load import load_numeric
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.types import Array, TensorType, f64

STEPS = (1e-4, 1e-5, 1e-6, 1e-7)
"""Steps relative to a parameter's size; the first at which rule and differences agree counts: kinks lie outside it."""
TOLERANCE = 1e-5
"""Relative tolerance of a slope, beside the rounding of the loss."""
EXTENT = 3
"""What symbolic dimensions are set to when neither inputs nor dims say."""


def check(
    model: Graph | Template | str | Path,
    inputs: Mapping[str, Array] | None = None,
    loss: str | Loss | LossFunction | None = None,
    *,
    output: str | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    directions: int = 3,
    compiled: bool = True,
    progress: Progress | None = None,
) -> GradcheckReport:
    """Check the gradient of a model's loss for each trainable parameter and float input.

    ``model``: a graph, a template, or the path of an ONNX file. ``inputs`` holds data by name (the loss's targets too);
    what is missing is drawn. Without a loss, a weighted mean of ``output`` is taken, or of all float outputs.
    ``directions``: random ones for each parameter, beside single elements. With ``compiled``, native code's gradients
    are compared with those in f64. What a StopGradient holds back counts as a constant. ``progress`` is called with
    each parameter or input that is done, the number of those done, and the number of all steps. Raises
    :class:`InputError` for inputs that do not fit, for trainable variables of integers, and where there is nothing to
    check; :class:`DifferentiationError` for a loss that is no scalar, and for an operator without a rule.
    """
    begin = time.perf_counter()
    if loss is not None and output is not None:
        raise InputError("give a loss or an output, not both")
    random = np.random.default_rng(seed)
    graph = _objective(_bound(model, inputs, dims), loss, output, seed, random)
    subject = LossCheck(graph, inputs or {}, random)
    checks = subject.checks(directions, compiled=compiled, progress=progress)
    return GradcheckReport(tuple(checks), seed, directions, time.perf_counter() - begin)


def _silent(subject: str, number: int, total: int) -> None:
    """No progress is told."""


def _bound(
    model: Graph | Template | str | Path, inputs: Mapping[str, Array] | None, dims: Mapping[str, int] | None
) -> Graph:
    if isinstance(model, (str, Path)):
        model = load_numeric(model, dims)
    if isinstance(model, Graph):
        return model
    if not isinstance(model, Template):
        raise InputError(f"check takes a graph, a template or a path, {no_model(model)}")
    shapes = {name: np.shape(array) for name, array in (inputs or {}).items() if name in model.inputs}
    return model.bind({**dict.fromkeys(model.symbols, EXTENT), **model.dims_for(shapes), **(dims or {})})


def _objective(
    model: Graph, loss: str | Loss | LossFunction | None, output: str | None, seed: int, random: np.random.Generator
) -> Graph:
    """The loss of a model in training form, as the only output; its targets are inputs."""
    trained = make_trainable(model, seed=seed)
    _refuse_integers(trained)
    attached = _attached(trained, loss, output, random)
    check_scalar(attached.value)
    return Graph((*trained.inputs, *attached.targets), {"loss": attached.value}, name=model.name)


class LossCheck:
    """A graph whose only output is a ``loss``, as it is and in f64, at a point: data by name; what is missing is drawn.

    ``locations``: where nodes come from, for messages (``in layers.0 (model.py:12: h = ...)``).
    Raises :class:`InputError` for data that do not fit, and where there is nothing to check.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        random: np.random.Generator,
        locations: Mapping[Node, str] | None = None,
    ) -> None:
        self.random = random
        self.narrow = graph
        unknown = [name for name in inputs if name not in {v.name for v in graph.inputs}]
        if unknown:
            known = ", ".join(v.name for v in graph.inputs) or "none"
            raise InputError(f"{graph.name} with its loss has no input {', '.join(map(repr, unknown))}; it has {known}")
        drawn = {v.name: _data(v.type, random) for v in graph.inputs if v.name not in inputs}
        self.arrays = check_inputs(graph, {**inputs, **drawn})
        wide = widened(graph)
        self.wide = wide.graph
        told = locations or {}
        self.locations = {
            new.node: told[old.node]
            for old, new in wide.values.items()
            if old.node is not None and new.node is not None and old.node in told
        }
        self.loss = self.wide.outputs["loss"]
        self.numbers = {v.name: self.arrays[v.name].astype(v.dtype.numpy) for v in self.wide.inputs}
        if not self.wanted:
            raise InputError(f"{graph.name} has no trainable parameter and no float input: there is nothing to check")

    def checks(self, directions: int, *, compiled: bool = True, progress: Progress | None = None) -> list[Check]:
        """All comparisons, as :func:`check` describes them."""
        told, total = progress or _silent, len(self.names) + compiled
        checks: list[Check] = []
        for number, name in enumerate(self.names, 1):
            checks += self.checked(name, directions)
            told(name, number, total)
        if compiled:
            checks += self.native()
            told("native code", total, total)
        return checks

    @cached_property
    def wanted(self) -> dict[str, Value]:
        """What gradients are checked for: trainable parameters, float inputs."""
        leaves: tuple[Value, ...] = (*(v for v in self.wide.variables if v.trainable), *self.wide.inputs)
        return {value.name: value for value in leaves if value.dtype == f64 and value.type.size}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.wanted)

    @cached_property
    def rules(self) -> dict[str, Value | None]:
        """The gradients by name, as graph code; ``None`` where none flows."""
        found = pullback([self.loss], [constant(1.0, f64)], list(self.wanted.values()))
        return dict(zip(self.wanted, found, strict=True))

    @cached_property
    def values(self) -> dict[Value, Array]:
        """Every value in f64, the gradients among them."""
        rules = {f"d {name}": rule for name, rule in self.rules.items() if rule is not None}
        return evaluate(self.wide.with_(outputs={**self.wide.outputs, **rules}), self.numbers)

    def gradient(self, name: str) -> Array:
        """The gradient by the rules; zeros where none flows."""
        rule = self.rules[name]
        return np.zeros(self.wanted[name].shape) if rule is None else self.values[rule]

    def checked(self, name: str, directions: int) -> list[Check]:
        """The gradient for one parameter or input along random directions and single elements."""
        leaf = self.wanted[name]
        kind = "parameter" if isinstance(leaf, Variable) else "input"
        where = f"{kind} {leaf.type}"
        if self.rules[name] is None:
            return [self._cut(name, where)]
        measures = [self.along(name, direction) for direction in self.directions(self.gradient(name), directions)]
        checks = merged(name, [(where, measure) for measure in measures])
        return [self._blamed(c, self.blame.of(leaf)) if c.status == "failed" else c for c in checks]

    def _cut(self, name: str, where: str) -> Check:
        """That no gradient reaches a parameter or input, and why: a failure where an operator cuts off a parameter."""
        leaf = self.wanted[name]
        cuts = [cut for cut in self.flow.of(leaf).cuts if cut.kind != "stopped"]
        told = "; ".join(f"{cut.node}: {cut.why}" for cut in cuts)
        status: Status = "failed" if cuts and isinstance(leaf, Variable) else "absent"
        why = f"it is cut by {told}" if cuts else "the loss does not depend on it, or through a StopGradient only"
        return Check(name, "gradient", status, 0, 0.0, 0.0, f"{where}: no gradient reaches it; {why}")

    def _blamed(self, check: Check, verdict: str) -> Check:
        return replace(check, detail=f"{check.detail}; {verdict}")

    @cached_property
    def flow(self) -> Flow:
        """The ways from anything to the loss."""
        return Flow([self.loss])

    @cached_property
    def blame(self) -> Blame:
        return Blame(self.wide, self.loss, self.values, np.random.default_rng(0), self.locations)

    def directions(self, gradient: Array, count: int) -> Iterator[Array]:
        """Random signs, ``count`` times; then the element with the largest gradient and a random one."""
        for _ in range(count):
            yield self.random.choice([-1.0, 1.0], gradient.shape)
        for location in {int(np.argmax(np.abs(gradient))), int(self.random.integers(gradient.size))}:
            unit = np.zeros(gradient.size)
            unit[location] = 1.0
            yield unit.reshape(gradient.shape)

    def along(self, name: str, direction: Array) -> Measure:
        """The gradient by the rules along one direction, against differences of the loss."""
        point, gradient = self.values[self.wanted[name]], self.gradient(name)
        direction = direction * scale_of(point)
        expected = float(np.vdot(gradient, direction))
        natural = float(np.linalg.norm(gradient * direction))
        here = float(self.values[self.loss])
        slopes = slopes_along(lambda array: self._loss_at(name, array), here, point, direction, expected, natural)
        last = slopes[-1]
        if last.ratio <= 1:
            return Measure("gradient", last.error, last.ratio)
        if is_kink(slopes) and self.blame.of(self.wanted[name]) == INNOCENT:
            told = f"a kink at this point: slopes {last.left:.6g} and {last.right:.6g} on its sides"
            return Measure("gradient", detail=told, kind="kink")
        told = f"rule {expected:.9g}, differences {last.central:.9g}"
        return Measure("gradient", last.error, last.ratio, told)

    def _loss_at(self, name: str, array: Array) -> float:
        leaf = self.wanted[name]
        inputs = {**self.numbers, name: array} if isinstance(leaf, Input) else self.numbers
        values = evaluate(self.straight_through, inputs, {name: array} if isinstance(leaf, Variable) else None)
        return float(values[self.straight_through.outputs["loss"]])

    @cached_property
    def straight_through(self) -> Graph:
        """The loss as differences see it."""
        return straight_through(Graph(self.wide.inputs, {"loss": self.loss}, name=self.wide.name), self.numbers)

    def native(self) -> Iterator[Check]:
        """Gradients of native code in the model's own types against those in f64."""
        by_name = {value.name: value for value in (*self.narrow.variables, *self.narrow.inputs)}
        wanted = [by_name[name] for name in self.names]
        loss = self.narrow.outputs["loss"]
        found = pullback([loss], [constant(1.0, loss.dtype)], wanted)
        rules = {name: rule for name, rule in zip(self.names, found, strict=True) if rule is not None}
        narrow = self.narrow.with_(outputs=rules)
        measures = ladder.close_in("compiled", ladder.run_compiled, narrow, widened(narrow).graph, self.arrays)
        for name, measure in zip(rules, measures, strict=True):
            for check in merged(name, [("", measure)]):
                failed = check.status == "failed"
                yield self._blamed(check, self.blame.compiled) if failed else check


@dataclass(frozen=True)
class Slope:
    """Slopes of the loss along a direction: at the point, to its left and right; how far the rule is from the first."""

    central: float
    left: float
    right: float
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        return self.error / self.tolerance if np.isfinite(self.error) else np.inf

    @property
    def gap(self) -> float:
        """How far the two sides disagree: of a smooth loss this shrinks with the step."""
        return abs(self.right - self.left)


def _slope(loss: tuple[float, float, float], step: float, expected: float, natural: float) -> Slope:
    """From the loss one step before the point, at it and one step after it."""
    left, right = (loss[1] - loss[0]) / step, (loss[2] - loss[1]) / step
    central = (loss[2] - loss[0]) / (2 * step)
    rounding = 1e-14 * max(abs(value) for value in loss) / step
    tolerance = TOLERANCE * max(abs(expected), natural) + rounding + 1e-12
    return Slope(central, left, right, abs(central - expected), tolerance)


def slopes_along(
    loss_at: Callable[[Array], float], here: float, point: Array, direction: Array, expected: float, natural: float
) -> list[Slope]:
    """Slopes of a loss (``here`` at the point) by ever smaller steps, up to the first that is as expected.

    ``natural``: how large a slope in this direction may well be, which tolerances go by.
    """
    slopes = []
    for step in STEPS:
        left, right = (loss_at(point + t * direction) for t in (-step, step))
        slopes.append(_slope((left, here, right), step, expected, natural))
        if slopes[-1].ratio <= 1:
            break
    return slopes


def is_kink(slopes: Sequence[Slope]) -> bool:
    """Whether the slopes of both sides differ, and do not come closer as the step becomes smaller."""
    before, last = slopes[-2:]
    return last.gap > max(0.3 * before.gap, 100 * last.tolerance)


def scale_of(point: Array) -> float:
    """The size of a parameter's elements, which steps are relative to."""
    return max(float(np.sqrt(np.mean(np.square(point)))), 1e-2)


def _refuse_integers(model: Graph) -> None:
    """Raise :class:`InputError` naming trainable variables that no gradient can change."""
    wrong = [f"{v.name} ({v.type})" for v in model.variables if v.trainable and not v.dtype.is_float]
    if wrong:
        raise InputError(
            f"{model.name}: {', '.join(wrong)}: trainable, but not of a float type, so there is no gradient; "
            "make it trainable=False, or a float that the model casts"
        )


def _attached(
    model: Graph, loss: str | Loss | LossFunction | None, output: str | None, random: np.random.Generator
) -> Attached:
    if loss is not None:
        return as_loss(loss).attach(model)
    chosen = list(model.outputs.values()) if output is None else [output_of(model, output)]
    return Attached((), _weighted_mean(model.name, chosen, random))


def _weighted_mean(name: str, outputs: Sequence[Value], random: np.random.Generator) -> Value:
    """A loss that sees every element of every float output with a weight of its own."""
    total: Value | None = None
    for output in outputs:
        if output.dtype.is_float:
            weights = constant(random.uniform(0.5, 1.5, output.shape), output.dtype)
            term: Value = ReduceMean(axes=None, keepdims=False)(output * weights)
            total = term if total is None or total.dtype != term.dtype else total + term
    if total is None:
        raise InputError(f"{name} has no float output; pass a loss")
    return total


def _data(type_: TensorType, random: np.random.Generator) -> Array:
    """Numbers for an input: standard normal floats; 0 or 1 for integers, which any label or token may be."""
    if type_.dtype.is_float:
        return np.asarray(random.standard_normal(type_.shape)).astype(type_.dtype.numpy)
    return np.asarray(random.integers(0, 2, type_.shape)).astype(type_.dtype.numpy)
