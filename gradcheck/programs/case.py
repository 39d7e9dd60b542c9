"""A random program: losses over inputs, as a training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators.differences import Probe
from glowtrain.graph import Graph, Input, Node, Value, Variable, constant, rebuild
from glowtrain.graph.retype import retyped, widened
from glowtrain.types import Array, DType, f64

RATE = 0.05


@dataclass(frozen=True)
class Case:
    """``losses`` over ``inputs`` at ``arrays``; those at the places ``parameters`` are trained by :attr:`step`.

    ``outputs`` are further results. ``states``: inputs, by place, that hold state, and what becomes of each. ``apart``:
    the losses train one parameter after another in turn, by walks of their own; together they train all otherwise.
    """

    inputs: tuple[Input, ...]
    arrays: tuple[Array, ...]
    parameters: tuple[int, ...]
    losses: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    states: tuple[tuple[int, Value], ...] = ()
    apart: bool = False

    @property
    def roots(self) -> tuple[Value, ...]:
        """All that is computed: losses, further results, new states."""
        return (*self.losses, *self.outputs, *(value for _, value in self.states))

    def with_roots(self, roots: Sequence[Value]) -> Case:
        """The same case with other values in place of its :attr:`roots`."""
        left = iter(roots)
        losses, outputs = tuple(next(left) for _ in self.losses), tuple(next(left) for _ in self.outputs)
        return replace(self, losses=losses, outputs=outputs, states=tuple((k, next(left)) for k, _ in self.states))

    @cached_property
    def graph(self) -> Graph:
        """What is computed, without gradients."""
        return Graph(self.inputs, {f"r{k}": value for k, value in enumerate(self.roots)}, name="program")

    @property
    def probe(self) -> Probe:
        """The losses in f64, as a function of parameters and inputs; gradients of those are wanted that no operator
        without a gradient carries to a float."""
        wide = widened(self.graph.with_(outputs={f"r{k}": value for k, value in enumerate(self.losses)})).graph
        arrays = tuple(a.astype(v.dtype.numpy) for a, v in zip(self.arrays, wide.inputs, strict=True))
        cut = _cut(wide)
        wanted = tuple(k for k, value in enumerate(wide.inputs) if value.dtype == f64 and value not in cut)
        return Probe(wide.inputs, arrays, tuple(wide.outputs.values()), wanted, tuple(range(len(self.losses))))

    @cached_property
    def step(self) -> Graph:
        """The training step: gradient descent on the parameters, the states, a moving average, and a counter."""
        positions = {*self.parameters, *(number for number, _ in self.states)}
        variables: dict[Value, Variable] = {
            self.inputs[k]: Variable(self.inputs[k].name, self.arrays[k], k in self.parameters)
            for k in sorted(positions)
        }
        case = self.with_roots(rebuild(self.roots, variables))
        trained = [variables[self.inputs[k]] for k in self.parameters]
        updates: dict[Variable, Value] = {v: v - RATE * g for v, g in case._gradients(trained)}
        updates |= {variables[self.inputs[k]]: value for k, value in case.states}
        average, count = Variable("average", np.zeros(()), False), Variable("count", np.zeros((), np.int64), False)
        loss = case.losses[0]
        if loss.dtype != f64:
            average = Variable("average", np.zeros((), loss.dtype.numpy), False)
        updates |= {average: 0.5 * average + 0.5 * loss, count: count + 1}
        outputs = {f"loss{k}": value for k, value in enumerate(case.losses)}
        outputs |= {f"z{k}": value for k, value in enumerate(case.outputs)}
        free = tuple(value for value in self.inputs if value not in variables)
        return Graph(free, outputs, updates, "random")

    def _gradients(self, trained: Sequence[Variable]) -> Iterator[tuple[Variable, Value]]:
        """Each variable that a loss depends on, and its gradient."""
        shares = len(self.losses) if self.apart else 1
        for share in range(shares):
            losses = self.losses[share : share + 1] if self.apart else self.losses
            own = trained[share::shares]
            found = pullback(losses, [constant(1.0, loss.dtype) for loss in losses], own)
            yield from ((v, g) for v, g in zip(own, found, strict=True) if g is not None)

    def in_type(self, dtype: DType) -> Case:
        """The same case with all that is f64 in another type. Raises :class:`ShapeError` where an operator refuses."""
        other = retyped(self.graph, [f64], dtype)
        arrays = tuple(a.astype(v.dtype.numpy) for a, v in zip(self.arrays, other.graph.inputs, strict=True))
        case = self.with_roots([other.values[value] for value in self.roots])
        return replace(case, inputs=other.graph.inputs, arrays=arrays)

    @property
    def feeds(self) -> dict[str, Array]:
        """Arrays for the inputs of :attr:`step`."""
        named = {value.name: array for value, array in zip(self.inputs, self.arrays, strict=True)}
        return {value.name: named[value.name] for value in self.step.inputs}

    def __str__(self) -> str:
        return str(self.step)


def _cut(graph: Graph) -> set[Value]:
    """The leaves that operators without a gradient make floats of, in bodies too."""
    values = [value for node in graph.nodes for value in _cut_operands(node)]
    return set(Graph((), {f"v{k}": value for k, value in enumerate(values)}).leaves)


def _cut_operands(node: Node) -> Iterator[Value]:
    present = [value for value in node.inputs if value is not None]
    if not node.operator.differentiable and any(output.dtype.is_float for output in node.outputs):
        yield from present
    for body in node.operator.attributes().values() if node.operator.control else ():
        if isinstance(body, Graph):
            inner = _cut(body)
            yield from (value for value, leaf in zip(present, body.inputs, strict=True) if leaf in inner)
