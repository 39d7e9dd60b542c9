"""A training step in equal parts of its batch: the gradients of each part, and one update from all of them.

    step ::= gradients of part 0, ..., gradients of part n-1; update

Parts can be computed anywhere and at the same time; only their results meet, in a fixed order: gradients are added up
from part 0 on and divided by n, and running statistics take in the parts one after the other. So the update is to the
bit that of one device which accumulates the gradients of n batches (``accumulate=n`` of an optimizer), and whoever
applies it to the same variables has the same ones after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.errors import DifferentiationError
from glowtrain.grad.gradients import check_scalar, reached
from glowtrain.grad.parts import WHOLE, Parts
from glowtrain.grad.training import LOSS, Optimize, guarded
from glowtrain.graph import Constant, Graph, Input, Node, Value, Variable
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.rewriting import rebuild
from glowtrain.graph.traversal import topological
from glowtrain.ops.reduce.reduction import accumulator, as_dtype

GRADIENT, STATE = "gradient.", "state."
"""What the names of a part's outputs begin with: gradients by the parameter, and what updates of the model's own state
are made of, by number."""


@dataclass(frozen=True)
class SplitStep:
    """A step in parts: for each part the graph of its loss, gradients and state, under names that end in a dot and the
    part's number; and the update, which takes all of these and gives the mean loss."""

    parts: tuple[Graph, ...]
    update: Graph


def split_step(
    model: Graph, loss: Value, targets: Sequence[Input], parameters: Sequence[Variable], optimize: Optimize, parts: int,
    trained: Parts = WHOLE,
) -> SplitStep:  # fmt: skip
    """A training step of ``parts`` batches of the model's size; of the parameters in ``trained``, their parts alone.

    Raises :class:`DifferentiationError` if nothing is left to train, and for a model whose loss reads what each batch
    updates otherwise than by itself.
    """
    check_scalar(loss)
    gradients = reached(loss, parameters)
    if not gradients:
        raise DifferentiationError(f"the loss does not depend on any trainable parameter of {model.name}")
    step = StepParts(model, {LOSS: loss}, trained.trained(gradients))
    inputs = (*model.inputs, *targets)
    graphs = tuple(step.part(number, inputs) for number in range(parts))
    return SplitStep(graphs, step.update(optimize, parts, trained))


class StepParts:
    """What the parts of a step have in common."""

    def __init__(self, model: Graph, measured: Mapping[str, Value], gradients: Mapping[Variable, Value]) -> None:
        """``measured``: the loss, and metrics beside it."""
        self.name = model.name
        self.changing = tuple(model.updates)
        """The model's own variables."""
        roots = iter(_primitive([*measured.values(), *gradients.values(), *model.updates.values()], self.changing))
        self.measured = {name: next(roots) for name in measured}
        self.gradients = {parameter: next(roots) for parameter in gradients}
        self.fresh = dict(zip(self.changing, roots, strict=True))
        """The model's own variables after a batch."""
        self.state = frontier(self.fresh.values(), self.changing)
        """What a batch contributes to them."""
        self.counters = [variable for variable in self.changing if not frontier([self.fresh[variable]], self.changing)]
        """Those that go on without what is in a batch."""
        self._check()

    def _check(self) -> None:
        """A part may read only such variables as it knows without the parts before it."""
        read = _read((*self.measured.values(), *self.gradients.values(), *self.state), self.changing)
        for variable in read:
            if frontier([self.fresh[variable]], self.changing):
                raise DifferentiationError(
                    f"{self.name} cannot be trained in parts of a batch: its loss reads {variable.name}, which every "
                    "batch updates"
                )

    def part(self, number: int, inputs: Sequence[Input]) -> Graph:
        """One part: counters are as far on as the parts before it leave them."""
        names, values = list(self.results), list(self.results.values())
        for _ in range(number):
            values = rebuild(values, {variable: self.fresh[variable] for variable in self.counters})
        outputs = {f"{name}.{number}": value for name, value in zip(names, values, strict=True)}
        return Graph(tuple(inputs), outputs, {}, f"{self.name}.part{number}")

    @cached_property
    def results(self) -> dict[str, Value]:
        """What a part gives."""
        gradients = {GRADIENT + parameter.name: gradient for parameter, gradient in self.gradients.items()}
        return {**self.measured, **gradients, **self.contributed}

    @property
    def contributed(self) -> dict[str, Value]:
        """What updates of the model's own variables are made of, by name."""
        return {f"{STATE}{index}": value for index, value in enumerate(self.state)}

    def update(self, optimize: Optimize, parts: int, trained: Parts) -> Graph:
        """New values of all variables from the results of all parts."""
        given = [
            {name: Input(value.type, f"{name}.{number}") for name, value in self.results.items()}
            for number in range(parts)
        ]
        means = {
            parameter: _mean(
                [as_dtype(each[GRADIENT + parameter.name], accumulator(parameter.dtype)) for each in given]
            )
            for parameter in self.gradients
        }
        optimizer, loss = optimize(means), _mean([each[LOSS] for each in given])
        updates = trained.updates(guarded({**self.state_after(given), **optimizer.values}, loss))
        inputs = tuple(each for own in given for each in own.values())
        return trained.read_from_whole(
            Graph((*inputs, *optimizer.inputs), {LOSS: loss}, updates, f"{self.name}.update")
        )

    def state_after(self, contributions: Sequence[Mapping[str, Value]]) -> dict[Variable, Value]:
        """The model's own variables when they have taken in all parts, one after the other."""
        present: dict[Variable, Value] = {variable: variable for variable in self.changing}
        for own in contributions:
            mapping: dict[Value, Value] = dict(present.items())
            mapping |= {value: own[f"{STATE}{index}"] for index, value in enumerate(self.state)}
            fresh = rebuild(list(self.fresh.values()), mapping)
            present = dict(zip(self.changing, fresh, strict=True))
        return present


def _mean(values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total * (1.0 / len(values))


def _primitive(roots: list[Value], changing: Sequence[Variable]) -> list[Value]:
    """The same values, where operators that read the changing variables and are made of others are these others."""
    while composite := [node for node in topological(roots) if _reads(node, changing) and _is_composite(node)]:
        results = [as_tuple(node.operator.decompose(*node.inputs)) for node in composite]
        mapping: dict[Value, Value] = {}
        for node, made in zip(composite, results, strict=True):
            mapping |= dict(zip(node.outputs, made, strict=False))
        roots = rebuild(roots, mapping)
    return roots


def _reads(node: Node, changing: Sequence[Variable]) -> bool:
    return any(value in changing for value in node.inputs)


def _is_composite(node: Node) -> bool:
    return node.operator.has("decompose") and not node.operator.lowers(*node.inputs)


def _dependent(roots: Sequence[Value], changing: Sequence[Variable]) -> set[Value]:
    """The values that depend on the changing variables, these included."""
    found: set[Value] = set(changing)
    for node in topological(roots):
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def frontier(roots: Iterable[Value], changing: Sequence[Variable]) -> list[Value]:
    """The values that do not depend on the changing variables, and that ``roots`` are made of with them."""
    roots = list(roots)
    dependent = _dependent(roots, changing)
    found: dict[Value, None] = {value: None for value in roots if value not in dependent}
    between = _between(roots, dependent)
    for node in topological(roots):
        if node in between:
            found |= {value: None for value in node.inputs if value is not None and value not in dependent}
    return [value for value in found if not isinstance(value, Constant)]


def _between(roots: Sequence[Value], dependent: set[Value]) -> set[Node]:
    """The nodes that roots are made of by dependent values alone."""
    found: set[Node] = set()
    waiting = [value.node for value in roots if value in dependent and value.node is not None]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            operands = (value for value in node.inputs if value is not None and value in dependent)
            waiting += [value.node for value in operands if value.node is not None]
    return found


def _read(roots: Sequence[Value], changing: Sequence[Variable]) -> list[Variable]:
    """The changing variables that values are made of."""
    leaves = {value for node in topological(roots) for value in node.inputs}
    return [variable for variable in changing if variable in leaves]
