"""Scan: a loop over the slices of tensors, with carried states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Graph, Input, Operator, Sample, Value, constant, operator, rebuild
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.specialise.index_ranges import IndexUse
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.ops.core.family import normalize_axis
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.tensor.move import Concat, Transpose, Unsqueeze
from glowtrain.types import Array, TensorType, f64, i64

Ints = tuple[int, ...]


@operator
@dataclass(frozen=True)
class Scan(Operator):
    """Run ``body`` once for each slice of the scan inputs, carrying states from step to step.

    Operands: initial states, ``num_scan_inputs`` scan inputs, then ``num_captured`` values of the outer graph that
    every step reads whole. The body's inputs are states, slices and captured values in this order; its outputs are the
    new states, then one slice of each scan output. Results: final states, then the stacked scan outputs. Empty axes
    and directions stand for axis 0 and direction 0 (forward).

    With ``parts`` scan inputs are not stacks of slices: each step takes as many elements of axis 0 as the body's input
    has, one part after the other. Steps are then few, of much work each.
    """

    body: Graph
    num_scan_inputs: int
    scan_input_axes: Ints = ()
    scan_output_axes: Ints = ()
    scan_input_directions: Ints = ()
    scan_output_directions: Ints = ()
    num_captured: int = 0
    parts: bool = False

    control: ClassVar[bool] = True

    @property
    def num_states(self) -> int:
        return len(self.body.inputs) - self.num_scan_inputs - self.num_captured

    @property
    def num_scan_outputs(self) -> int:
        return len(self.body.outputs) - self.num_states

    @property
    def input_directions(self) -> Ints:
        """0 (forward) or 1 (backward) for each scan input."""
        return self.scan_input_directions or (0,) * self.num_scan_inputs

    @property
    def output_directions(self) -> Ints:
        """0 (append) or 1 (prepend) for each scan output."""
        return self.scan_output_directions or (0,) * self.num_scan_outputs

    @property
    def is_canonical(self) -> bool:
        """Whether all slices are taken and stacked along axis 0."""
        return not any(self.scan_input_axes) and not any(self.scan_output_axes)

    def lowers(self, *inputs: Value | None) -> bool:
        return self.is_canonical

    def steps(self, *inputs: TensorType) -> int:
        """The number of steps, from the operand types."""
        extent = inputs[self.num_states].shape[self._input_axes(inputs)[0]]
        return extent // self._part(0) if self.parts else extent

    def _part(self, position: int) -> int:
        """The elements of axis 0 that a step takes of a scan input."""
        return self.body.inputs[self.num_states + position].shape[0]

    def _input_axes(self, inputs: Sequence[Any]) -> Ints:
        slices = self.body.inputs[self.num_states : self.num_states + self.num_scan_inputs]
        axes = self.scan_input_axes or (0,) * self.num_scan_inputs
        whole = (value.type.with_shape((1, *value.shape)) for value in slices)
        return tuple(normalize_axis(self, axis, type_) for axis, type_ in zip(axes, whole, strict=True))

    def _output_axes(self) -> Ints:
        slices = list(self.body.outputs.values())[self.num_states :]
        axes = self.scan_output_axes or (0,) * self.num_scan_outputs
        whole = (value.type.with_shape((1, *value.shape)) for value in slices)
        return tuple(normalize_axis(self, axis, type_) for axis, type_ in zip(axes, whole, strict=True))

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        self._check_attributes(*inputs)
        steps, states = self.steps(*inputs), self.num_states
        axes = self._input_axes(inputs)
        for position, (given, declared) in enumerate(zip(inputs, self.body.inputs, strict=True)):
            shape = given.shape
            if states <= position < states + self.num_scan_inputs and self.parts:
                if shape[:1] != (steps * declared.shape[0],):
                    raise self.fail(
                        f"scan input {position - states} must have {steps} parts of {declared.type}", *inputs
                    )
                shape = (declared.shape[0], *shape[1:])
            elif states <= position < states + self.num_scan_inputs:
                axis = axes[position - states]
                if len(shape) <= axis or shape[axis] != steps:
                    raise self.fail(f"scan input {position - states} must have extent {steps} on axis {axis}", *inputs)
                shape = (*shape[:axis], *shape[axis + 1 :])
            if given.with_shape(shape) != declared.type:
                rule = f"operand {position} gives the body {given.with_shape(shape)}, but it takes {declared.type}"
                raise self.fail(rule, *inputs)
        results = list(self.body.outputs.values())
        for position, (before, after) in enumerate(zip(self.body.inputs[:states], results[:states], strict=True)):
            if before.type != after.type:
                raise self.fail(f"state {position} goes in as {before.type} and comes out as {after.type}", *inputs)
        stacks = zip(results[states:], self._output_axes(), strict=True)
        stacked = (v.type.with_shape((*v.shape[:axis], steps, *v.shape[axis:])) for v, axis in stacks)
        return (*(value.type for value in results[:states]), *stacked)

    def _check_attributes(self, *inputs: TensorType) -> None:
        if self.num_scan_inputs < 1 or self.num_states < 0 or self.num_scan_outputs < 0:
            raise self.fail("the body's inputs and outputs do not fit num_scan_inputs and num_captured", *inputs)
        if len(inputs) != len(self.body.inputs) or any(type_ is None for type_ in inputs):
            raise self.fail(f"takes {len(self.body.inputs)} operands, one for each body input", *inputs)
        outer = [leaf for leaf in self.body.leaves if not isinstance(leaf, Constant) and leaf not in self.body.inputs]
        if outer:
            raise self.fail(f"the body reads {outer[0]!r}, which must be passed as a captured operand", *inputs)
        lengths = {
            "scan_input_axes": (self.scan_input_axes, self.num_scan_inputs),
            "scan_input_directions": (self.scan_input_directions, self.num_scan_inputs),
            "scan_output_axes": (self.scan_output_axes, self.num_scan_outputs),
            "scan_output_directions": (self.scan_output_directions, self.num_scan_outputs),
        }
        for name, (values, length) in lengths.items():
            if values and len(values) != length:
                raise self.fail(f"{name} must hold {length} numbers, not {len(values)}", *inputs)
        if any(direction not in (0, 1) for direction in (*self.input_directions, *self.output_directions)):
            raise self.fail("directions must be 0 (forward) or 1 (backward)", *inputs)
        slices = self.body.inputs[self.num_states : self.num_states + self.num_scan_inputs]
        if self.parts and (any(self.input_directions) or any(self.scan_input_axes) or not all(s.rank for s in slices)):
            raise self.fail("parts are taken along axis 0, forward", *inputs)
        if self.parts and any(0 in value.shape for value in slices):
            raise self.fail("parts must have elements", *inputs)

    def index_uses_inside(self) -> Iterable[tuple[int, IndexUse]]:
        return ((self.body.inputs.index(use.input), use) for use in self.body.index_uses)

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        states, cut = list(inputs[: self.num_states]), self.num_states + self.num_scan_inputs
        sequences = zip(inputs[self.num_states : cut], self._input_axes(inputs), strict=True)
        scanned = [np.moveaxis(x, axis, 0) for x, axis in sequences]
        if self.parts:
            scanned = [x.reshape((-1, self._part(position), *x.shape[1:])) for position, x in enumerate(scanned)]
        steps = scanned[0].shape[0]
        slices: list[list[Array]] = [[] for _ in range(self.num_scan_outputs)]
        for step in range(steps):
            positions = (steps - 1 - step if direction else step for direction in self.input_directions)
            current = [x[position] for x, position in zip(scanned, positions, strict=True)]
            results = run_body(self.body, [*states, *current, *inputs[cut:]])
            states = results[: self.num_states]
            for stack, result in zip(slices, results[self.num_states :], strict=True):
                stack.append(result)
        return (*states, *self._stacked(slices))

    def _stacked(self, slices: Sequence[list[Array]]) -> Iterable[Array]:
        values = list(self.body.outputs.values())[self.num_states :]
        positions = zip(slices, self.output_directions, self._output_axes(), values, strict=True)
        for stack, direction, axis, value in positions:
            ordered = stack[::-1] if direction else stack
            empty = np.zeros((*value.shape[:axis], 0, *value.shape[axis:]), value.dtype.numpy)
            yield np.stack(ordered, axis) if stack else empty

    def unrolled(self, *inputs: Any) -> tuple[Value, ...]:
        """The results without a loop: the body's nodes once for each step."""
        states, cut = list(inputs[: self.num_states]), self.num_states + self.num_scan_inputs
        scanned = list(zip(inputs[self.num_states : cut], self._input_axes(inputs), self.input_directions, strict=True))
        steps = self.steps(*inputs)
        slices: list[list[Value]] = [[] for _ in range(self.num_scan_outputs)]
        for step in range(steps):
            current = [_slice(x, axis, steps - 1 - step if back else step) for x, axis, back in scanned]
            if self.parts:
                rows = (self._part(position) for position in range(self.num_scan_inputs))
                current = [x[step * n : (step + 1) * n] for (x, *_), n in zip(scanned, rows, strict=True)]
            operands = (*states, *current, *inputs[cut:])
            results = rebuild(tuple(self.body.outputs.values()), dict(zip(self.body.inputs, operands, strict=True)))
            states = results[: self.num_states]
            for stack, result in zip(slices, results[self.num_states :], strict=True):
                stack.append(result)
        values = list(self.body.outputs.values())[self.num_states :]
        positions = zip(slices, self.output_directions, self._output_axes(), values, strict=True)
        return (*states, *(_stack(stack[:: -1 if back else 1], axis, value) for stack, back, axis, value in positions))

    def decompose(self, *inputs: Any) -> Any:
        """The same with all scanned axes moved to the front."""
        axes = (*(None,) * self.num_states, *self._input_axes(inputs), *(None,) * self.num_captured)
        moved = [x if not axis else _moved(x, axis, 0) for x, axis in zip(inputs, axes, strict=True)]
        results = as_tuple(self.replace(scan_input_axes=(), scan_output_axes=())(*moved))
        stacks = zip(results[self.num_states :], self._output_axes(), strict=True)
        outputs = (*results[: self.num_states], *(_moved(value, 0, axis) if axis else value for value, axis in stacks))
        return outputs if len(outputs) > 1 else outputs[0]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """A recurrence h' = tanh(h a + x B + m k), counting its steps, with every direction and axis; or one result."""
        if draw.integer(0, 3) == 0:
            return cls._sample_of_one_result(draw)
        batch, inner, width, steps = (draw.integer(1, 3) for _ in range(4))
        body = _sample_body(batch, inner, width)
        axes, directions = tuple(draw.integer(0, 2) for _ in range(4)), tuple(draw.integer(0, 1) for _ in range(4))
        slices = ((batch, inner), (batch, width))
        scanned = [draw.floats((*s[:axis], steps, *s[axis:])) for s, axis in zip(slices, axes[:2], strict=True)]
        scan = cls(body, 2, axes[:2], axes[2:], directions[:2], directions[2:], num_captured=3)
        states = (draw.floats((batch, width)), np.zeros((), np.int64))
        captured = (draw.floats(shape) for shape in ((width,), (inner, width), (batch, width)))
        return Sample(scan, (*states, *scanned, *captured))

    @classmethod
    def _sample_of_one_result(cls, draw: Draw) -> Sample:
        """h' = tanh(h x) without a stack, or the stack of y = x tanh(x) without a state."""
        width, steps, axis, direction = draw.integer(1, 3), draw.integer(1, 3), draw.integer(0, 1), draw.integer(0, 1)
        h, x = Input(f64[width], "h"), Input(f64[width], "x")
        scanned = draw.floats((width, steps) if axis else (steps, width))
        if draw.boolean():
            body = Graph((h, x), {"h.next": Tanh()(h * x)}, name="recurrence")
            return Sample(cls(body, 1, (axis,), (), (direction,)), (draw.floats((width,)), scanned))
        body = Graph((x,), {"y": x * Tanh()(x)}, name="map")
        return Sample(cls(body, 1, (axis,), (axis,), (direction,), (direction,)), (scanned,))


def _sample_body(batch: int, inner: int, width: int) -> Graph:
    state, step = f64[batch, width], f64[batch, inner]
    captured = {"a": f64[width], "b": f64[inner, width], "k": state}
    types = {"h": state, "count": i64[()], "x": step, "m": state, **captured}
    values = [Input(type_, name) for name, type_ in types.items()]
    h, count, x, m, a, b, k = values
    following = Tanh()(h * a + x @ b + m * k)
    outputs = {"h.next": following, "count.next": count + 1, "y": following * m, "z": h}
    return Graph(tuple(values), outputs, name="recurrence")


def run_body(body: Graph, inputs: Sequence[Array]) -> list[Array]:
    """A body's outputs, node by node with NumPy."""
    environment: dict[Value, Array] = dict(zip(body.inputs, inputs, strict=True))
    environment.update((value, value.array) for value in body.constants)
    run_nodes(body.nodes, environment)
    return [np.asarray(environment[value]) for value in body.outputs.values()]


def _slice(x: Value, axis: int, position: int) -> Value:
    """x at a place of an axis."""
    result: Value = Gather(axis)(x, constant(np.asarray(position)))
    return result


def _stack(parts: Sequence[Value], axis: int, like: Value) -> Value:
    """Values one after another on a new axis; nothing in the shape of ``like``, if there are none."""
    if not parts:
        return constant(np.zeros((*like.shape[:axis], 0, *like.shape[axis:]), like.dtype.numpy))
    result: Value = Concat(axis)(*(Unsqueeze((axis,))(part) for part in parts))
    return result


def _moved(x: Value, source: int, target: int) -> Value:
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    result: Value = Transpose(perm=tuple(order))(x)
    return result
