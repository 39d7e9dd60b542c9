"""The update of a slice of each parameter, and of what the optimizer keeps for it (ZeRO, stage 1).

    parameters, gradients, slots --elements of a slice--> the optimizer's elementwise code --> new elements

The update of whole parameters is cut: slices are taken of its leaves instead of its results, through all elementwise
nodes. What is no elementwise function stays as it is, over whole values (the global norm of all gradients); so a new
element has the same bits as in the whole update, and an optimizer that needs a whole slot is refused.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glowtrain.errors import InputError
from glowtrain.grad.data_parallel import GRADIENT
from glowtrain.grad.shards import NewValues, ShardedStep
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.graph.traversal import topological
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, TensorType

FRESH, SLICE = "fresh.", ".slice"
"""Outputs and inputs with new elements of parameters; and what is behind the name of a slot of which there is a
slice."""

Slices = Mapping[str, slice]
"""Elements of parameters in row-major order, by name."""


@dataclass(frozen=True)
class SlicedUpdate:
    """The graphs of an update whose parameters and slots are in slices. Raises :class:`InputError` for an optimizer
    that cannot update a slice by itself."""

    step: ShardedStep

    def __post_init__(self) -> None:
        self.needs_whole_gradients  # noqa: B018 - cuts the update

    @cached_property
    def slots(self) -> dict[str, tuple[Variable, str]]:
        """What an optimizer keeps for each element of a parameter, by name, with the parameter's name."""
        made = self.step.values(1)
        return {slot.name: (slot, parameter.name) for slot, parameter in _owners(made).items()}

    @cached_property
    def needs_whole_gradients(self) -> bool:
        """Whether the update of a slice reads all gradients."""
        made = self.step.values(1)
        whole = {parameter.name: slice(0, parameter.type.size) for parameter in made.gradients}
        outputs, updates, _ = self._cut(made, whole, cuts_gradients=True)
        read = {value for node in topological([*outputs.values(), *updates.values()]) for value in node.inputs}
        if slots := sorted(value.name for value in read if value is not None and value.name in self.slots):
            raise InputError(
                f"fleet: sharded_optimizer= updates slices of parameters, and this optimizer reads all of {slots[0]} "
                "for each element (so do Muon's matrices, and limits of norms): leave it out"
            )
        return not read.isdisjoint(made.gradients.values())

    def graph(self, shards: int, slices: Slices) -> Graph:
        """The update from so many shards of a rank's slices: the parameters' new elements are its outputs, of the type
        that they are updated in. What is not in slices is updated whole."""
        made = self.step.values(shards)
        cuts = not self.needs_whole_gradients
        outputs, updates, pieces = self._cut(made, slices, cuts_gradients=cuts)
        gradients = pieces if cuts else list(made.gradients.values())
        return self.step.finished((*gradients, *made.others), outputs, updates, "sliced_update")

    def adoption(self) -> Graph:
        """New values of all parameters, whole, as variables."""
        given = {p: Input(self.step.updated[GRADIENT + p.name], FRESH + p.name) for p in self.step.parameters}
        values: dict[Variable, Value] = {p: as_dtype(value, p.dtype) for p, value in given.items()}
        return self.step.finished(tuple(given.values()), {}, self.step.trained.updates(values), "adoption")

    def _cut(
        self, made: NewValues, slices: Slices, *, cuts_gradients: bool
    ) -> tuple[dict[str, Value], dict[Variable, Value], list[Input]]:
        """New elements of parameters by name, updates of all else, and the slices of gradients that are inputs."""
        owners, outputs, pieces = _owners(made), dict[str, Value](), list[Input]()
        updates = {v: value for v, value in made.fresh.items() if v not in owners and v not in made.gradients}
        for parameter, gradient in made.gradients.items():
            if parameter.name not in slices:
                continue
            taken = slices[parameter.name]
            own = {slot: slot_slice(slot, taken) for slot, owner in owners.items() if owner is parameter}
            piece = Input(TensorType(gradient.dtype, (taken.stop - taken.start,)), gradient.name)
            pieces.append(piece)
            leaves: dict[Value, Value] = dict(own.items())
            leaves[parameter] = _elements(parameter, taken)
            leaves[gradient] = piece if cuts_gradients else _elements(gradient, taken)
            cutter = _Cutter(parameter, taken, leaves)
            updated = self.step.updated[gradient.name].dtype
            outputs[FRESH + parameter.name] = as_dtype(cutter.of(made.fresh[parameter]), updated)
            updates |= {own[slot]: cutter.of(made.fresh[slot]) for slot in own}
        return outputs, updates, pieces


class _Cutter:
    """Slices of values of a parameter's shape, from those of its ``leaves``."""

    def __init__(self, parameter: Variable, taken: slice, leaves: Mapping[Value, Value]) -> None:
        self.shape, self.taken = parameter.shape, taken
        self._cut = dict(leaves)

    def of(self, value: Value) -> Value:
        """The slice of a value."""
        for node in topological([value], self._cut):
            if node.operator.elementwise and all(map(self._fits, node.inputs)) and self._cut.keys() & set(node.inputs):
                operands = [None if each is None else self._operand(each) for each in node.inputs]
                self._cut[node.outputs[0]] = node.operator(*operands)
        return self._operand(value)

    def _fits(self, value: Value | None) -> bool:
        """Whether an operand is a scalar for all elements, or has an element for each."""
        return value is None or not value.rank or value.shape == self.shape

    def _operand(self, value: Value) -> Value:
        if value in self._cut:
            return self._cut[value]
        return _elements(value, self.taken) if value.rank else value


def slot_slice(slot: Variable, span: slice) -> Variable:
    """A variable that is a slice of another one's elements."""
    if any(slot.initial.strides) or not slot.rank:
        elements: Array = slot.initial.reshape(-1)[span]
    else:  # one number in memory stands for all
        elements = np.broadcast_to(slot.initial[(0,) * slot.rank], (span.stop - span.start,))
    return Variable(slot.name + SLICE, elements, trainable=False)


def _owners(made: NewValues) -> dict[Variable, Variable]:
    """Of variables that are updated element by element with a parameter: that parameter."""
    found = {v: _owner(made, v) for v in made.fresh if v not in made.gradients}
    return {slot: parameter for slot, parameter in found.items() if parameter is not None}


def _owner(made: NewValues, variable: Variable) -> Variable | None:
    """The parameter whose gradient a variable's elements are updated with."""
    parameters: dict[Value, Variable] = {gradient: p for p, gradient in made.gradients.items()}
    waiting, seen = [made.fresh[variable]], set[Value]()
    while waiting:
        value = waiting.pop()
        if value in parameters:
            return parameters[value]
        if value.node is not None and value.node.operator.elementwise and value not in seen:
            seen.add(value)
            waiting += [each for each in value.node.inputs if each is not None and each.shape == variable.shape]
    return None


def _elements(value: Value, taken: slice) -> Value:
    """A slice of a value's elements in row-major order."""
    elements: Value = reshape(value, (value.type.size,))[taken]
    return elements
