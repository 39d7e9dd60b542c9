"""Scan: a loop over the slices of tensors, with carried states; and its gradient.

The gradient of a Scan is a Scan in the other direction, over the slices that the forward one left behind. Its body is
the reverse walk over the forward body; what that reads of forward values is stacked by a second forward Scan with the
same body values and more outputs, which a graph pass can merge with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Constant, Draw, Graph, Input, Node, Operator, Sample, Value, operator, rebuild
from glowtrain.graph.reverse import pullback
from glowtrain.ops.arithmetic import Add
from glowtrain.ops.contraction import Gemm, MatMul, reshaped, swapped
from glowtrain.ops.family import Grads, normalize_axis
from glowtrain.ops.move import Transpose
from glowtrain.ops.reduction import ReduceSum, filled
from glowtrain.ops.transcendental import Tanh
from glowtrain.types import Array, TensorType, f64, i64

Ints = tuple[int, ...]


@operator
@dataclass(frozen=True)
class Scan(Operator):
    """Run ``body`` once for each slice of the scan inputs, carrying states from step to step.

    Operands: initial states, ``num_scan_inputs`` scan inputs, then ``num_captured`` values of the outer graph that
    every step reads whole. The body's inputs are states, slices and captured values in this order; its outputs are the new
    states, then one slice of each scan output. Results: final states, then the stacked scan outputs. Empty axes and
    directions stand for axis 0 and direction 0 (forward).
    """

    body: Graph
    num_scan_inputs: int
    scan_input_axes: Ints = ()
    scan_output_axes: Ints = ()
    scan_input_directions: Ints = ()
    scan_output_directions: Ints = ()
    num_captured: int = 0

    control: ClassVar[bool] = True
    """The operator runs a subgraph; the compiler lowers it itself."""

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

    def steps(self, *inputs: TensorType) -> int:
        """The number of steps, from the operand types."""
        return inputs[self.num_states].shape[self._input_axes(inputs)[0]]

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
        for place, (given, declared) in enumerate(zip(inputs, self.body.inputs, strict=True)):
            shape = given.shape
            if states <= place < states + self.num_scan_inputs:
                axis = axes[place - states]
                if len(shape) <= axis or shape[axis] != steps:
                    raise self.fail(f"scan input {place - states} must have extent {steps} on axis {axis}", *inputs)
                shape = (*shape[:axis], *shape[axis + 1 :])
            if given.with_shape(shape) != declared.type:
                rule = f"operand {place} gives the body {given.with_shape(shape)}, but it takes {declared.type}"
                raise self.fail(rule, *inputs)
        results = list(self.body.outputs.values())
        for place, (before, after) in enumerate(zip(self.body.inputs[:states], results[:states], strict=True)):
            if before.type != after.type:
                raise self.fail(f"state {place} goes in as {before.type} and comes out as {after.type}", *inputs)
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

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        states, cut = list(inputs[: self.num_states]), self.num_states + self.num_scan_inputs
        sequences = zip(inputs[self.num_states : cut], self._input_axes(inputs), strict=True)
        scanned = [np.moveaxis(x, axis, 0) for x, axis in sequences]
        steps = scanned[0].shape[0]
        slices: list[list[Array]] = [[] for _ in range(self.num_scan_outputs)]
        for step in range(steps):
            places = (steps - 1 - step if direction else step for direction in self.input_directions)
            current = [x[place] for x, place in zip(scanned, places, strict=True)]
            results = run_body(self.body, [*states, *current, *inputs[cut:]])
            states = results[: self.num_states]
            for stack, result in zip(slices, results[self.num_states :], strict=True):
                stack.append(result)
        return (*states, *self._stacked(slices))

    def _stacked(self, slices: Sequence[list[Array]]) -> Iterable[Array]:
        values = list(self.body.outputs.values())[self.num_states :]
        places = zip(slices, self.output_directions, self._output_axes(), values, strict=True)
        for stack, direction, axis, value in places:
            ordered = stack[::-1] if direction else stack
            empty = np.zeros((*value.shape[:axis], 0, *value.shape[axis:]), value.dtype.numpy)
            yield np.stack(ordered, axis) if stack else empty

    def decompose(self, *inputs: Any) -> Any:
        """The same with all scanned axes moved to the front."""
        axes = (*(None,) * self.num_states, *self._input_axes(inputs), *(None,) * self.num_captured)
        moved = [x if not axis else _moved(x, axis, 0) for x, axis in zip(inputs, axes, strict=True)]
        results = _tuple(self.replace(scan_input_axes=(), scan_output_axes=())(*moved))
        stacks = zip(results[self.num_states :], self._output_axes(), strict=True)
        outputs = (*results[: self.num_states], *(_moved(value, 0, axis) if axis else value for value, axis in stacks))
        return outputs if len(outputs) > 1 else outputs[0]

    def vjp(self, g: Any, y: Any, *inputs: Any) -> Grads:
        if not self.is_canonical:
            results, operands = _tuple(self.decompose(*inputs)), tuple(dict.fromkeys(inputs))
            found = dict(zip(operands, pullback(results, _tuple(g), operands, boundary=operands), strict=True))
            return tuple(found.pop(value, None) for value in inputs)  # all of it to the first place of each operand
        return _ScanGradient(self, inputs, _tuple(y), _tuple(g)).gradients()

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """A recurrence h' = tanh(h a + x B + m), counting its steps, with every direction and axis."""
        batch, inner, width, steps = (draw.integer(1, 3) for _ in range(4))
        body = _sample_body(batch, inner, width)
        axes, directions = tuple(draw.integer(0, 2) for _ in range(4)), tuple(draw.integer(0, 1) for _ in range(4))
        slices = ((batch, inner), (batch, width))
        scanned = [draw.floats((*s[:axis], steps, *s[axis:])) for s, axis in zip(slices, axes[:2], strict=True)]
        scan = cls(body, 2, axes[:2], axes[2:], directions[:2], directions[2:], num_captured=2)
        states = (draw.floats((batch, width)), np.zeros((), np.int64))
        return Sample(scan, (*states, *scanned, draw.floats((width,)), draw.floats((inner, width))))


def _sample_body(batch: int, inner: int, width: int) -> Graph:
    state, step = f64[batch, width], f64[batch, inner]
    types = {"h": state, "count": i64[()], "x": step, "m": state, "a": f64[width], "b": f64[inner, width]}
    values = [Input(type_, name) for name, type_ in types.items()]
    h, count, x, m, a, b = values
    following = Tanh()(h * a + x @ b + m)
    outputs = {"h.next": following, "count.next": count + 1, "y": following * m, "z": h}
    return Graph(tuple(values), outputs, name="recurrence")


def run_body(body: Graph, inputs: Sequence[Array]) -> list[Array]:
    """A body's outputs, node by node with NumPy."""
    known: dict[Value, Array] = dict(zip(body.inputs, inputs, strict=True))
    known.update((value, value.array) for value in body.constants)
    for node in body.nodes:
        results = node.operator.reference(*(None if value is None else known[value] for value in node.inputs))
        known.update(zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    return [np.asarray(known[value]) for value in body.outputs.values()]


def _moved(x: Value, source: int, target: int) -> Value:
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    result: Value = Transpose(perm=tuple(order))(x)
    return result


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


Sum = Callable[[], Value]


@dataclass
class _ScanGradient:
    """The gradient of one canonical Scan.

    ``operands`` and ``results`` are the node's, ``cotangents`` those of the results (``None``: zero). The gradient runs
    backwards in time, so what the forward Scan read or wrote in direction d, it reads or writes in direction 1 - d.
    """

    scan: Scan
    operands: Sequence[Value]
    results: Sequence[Value]
    cotangents: Sequence[Value | None]
    wanted: dict[tuple[Value, int], None] = field(default_factory=dict)
    """Values of the gradient's body to be stacked, and whether backwards (step t at place steps - 1 - t)."""
    residuals: dict[Value, None] = field(default_factory=dict)
    """Values of the forward body to be stacked."""
    stacks: dict[tuple[Value, int], Value] = field(default_factory=dict)
    """The stacks, once they are made."""

    def __post_init__(self) -> None:
        body, states, cut = self.scan.body, self.scan.num_states, self.scan.num_states + self.scan.num_scan_inputs
        self.states, self.slices, self.captured = body.inputs[:states], body.inputs[states:cut], body.inputs[cut:]
        self.outer: dict[Value, Value] = dict(zip(body.inputs, self.operands, strict=True))
        values = list(body.outputs.values())
        self.seeds = [
            Input(value.type, f"d.{value.name or place}") if self._has_cotangent(place, value) else None
            for place, value in enumerate(values)
        ]
        found = pullback(values, self.seeds, body.inputs)
        self.step_gradients: dict[Value, Value | None] = dict(zip(body.inputs, found, strict=True))

    def _has_cotangent(self, place: int, value: Value) -> bool:
        """States carry one from later steps even where the final state has none."""
        return value.dtype.is_float and (place < self.scan.num_states or self.cotangents[place] is not None)

    @cached_property
    def varying(self) -> set[Value]:
        """The forward body's values that differ from step to step."""
        found: set[Value] = {*self.states, *self.slices}
        for node in self.scan.body.nodes:
            if any(value in found for value in node.inputs):
                found.update(node.outputs)
        return found

    def gradients(self) -> Grads:
        """The cotangents of all operands."""
        sums = {value: self._plan(value) for value in self.captured}
        carried = [value for value, seed in zip(self.states, self.seeds, strict=False) if seed is not None]
        added = [v for v in self.captured if self.step_gradients[v] is not None and sums[v] is None]
        for value in self.slices:
            if self.step_gradients[value] is not None:
                self.wanted[self._step_gradient(value), self._direction(value)] = None
        inputs = [seed for seed in self.seeds[: self.scan.num_states] if seed is not None]
        starts = [self._final(seed) for seed in inputs] + [filled(0.0, value.type) for value in added]
        totals = [Input(value.type, f"d.{value.name}") for value in added]
        roots = [self._step_gradient(value) for value in carried]
        roots += [total + self._step_gradient(value) for total, value in zip(totals, added, strict=True)]
        finals: dict[Value, Value] = dict(
            zip([*carried, *added], self._run([*inputs, *totals], starts, roots), strict=True)
        )
        return tuple(self._result(value, finals, sums.get(value)) for value in self.scan.body.inputs)

    def _step_gradient(self, value: Value) -> Value:
        gradient = self.step_gradients[value]
        return filled(0.0, value.type) if gradient is None else gradient

    def _final(self, seed: Input) -> Value:
        """The cotangent with which a state enters the last step."""
        cotangent = self.cotangents[self.seeds.index(seed)]
        return filled(0.0, seed.type) if cotangent is None else cotangent

    def _result(self, value: Value, finals: dict[Value, Value], total: Sum | None) -> Value | None:
        if value in finals:
            return finals[value]
        if value in self.slices and self.step_gradients[value] is not None:
            return self.stacks[self._step_gradient(value), self._direction(value)]
        return None if total is None else total()

    def _direction(self, slice_: Value) -> int:
        return self.scan.input_directions[self.slices.index(slice_)]

    def _plan(self, captured: Value) -> Sum | None:
        """How to get a captured value's gradient from stacks after the loop; ``None``: add it up inside."""
        gradient = self.step_gradients[captured]
        before = dict(self.wanted), dict(self.residuals)
        total = None if gradient is None else self._summed(gradient)
        if total is None:
            self.wanted, self.residuals = before
        return total

    def _summed(self, value: Value) -> Sum | None:
        """The sum of a gradient over all steps, as one contraction or reduction over stacks where it has that form."""
        node = value.node
        if node is None or value in self.varying:
            return None
        op, (first, *others) = node.operator, node.inputs
        assert first is not None
        if isinstance(op, Add) and others[0] is not None and first.type == others[0].type:
            left, right = self._summed(first), self._summed(others[0])
            return None if left is None or right is None else lambda: left() + right()
        if op.moves and not others:
            inner = self._summed(first)
            return None if inner is None else lambda: op(inner())
        if isinstance(op, ReduceSum):
            axes = (0, *(axis + 1 for axis in op.reduced(first.type)))
            stack = self._stack(first)
            return lambda: reshaped(ReduceSum(axes=axes, keepdims=False)(stack()), value.shape)
        return self._contraction(node)

    def _contraction(self, node: Node) -> Sum | None:
        """sum over t of A_t B_t is one product over (t, k)."""
        op, a, b = node.operator, node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        if a is None or b is None or a.rank != 2 or b.rank != 2:
            return None
        if isinstance(op, MatMul):
            return self._product(a, b, Gemm())
        if isinstance(op, Gemm) and (len(node.inputs) == 2 or node.inputs[2] is None):
            return self._product(a, b, op)
        return None

    def _product(self, a: Value, b: Value, form: Gemm) -> Sum:
        left, right = self._stack(a), self._stack(b)

        def total() -> Value:
            rows, columns = left(), right()
            rows = swapped(rows) if form.transA else rows
            columns = swapped(columns) if form.transB else columns
            _, m, k = rows.shape
            n, terms = columns.shape[2], rows.shape[0] * k
            rows = reshaped(Transpose(perm=(1, 0, 2))(rows), (m, terms))
            product = rows @ reshaped(columns, (terms, n))
            return product if form.alpha == 1 else product * form.alpha

        return total

    def _stack(self, value: Value) -> Sum:
        """Ask for the stack of a body value; moves are taken out of the loop."""
        node = value.node
        if node is not None and isinstance(node.operator, Transpose) and node.inputs[0] is not None:
            inner, perm = self._stack(node.inputs[0]), node.operator.perm or tuple(reversed(range(value.rank)))
            return lambda: Transpose(perm=(0, *(axis % value.rank + 1 for axis in perm)))(inner())
        if value in self.slices and not self._direction(value):
            return lambda: self.outer[value]
        if value in self.varying:
            self.residuals[value] = None
        else:
            self.wanted[value, 0] = None
        return lambda: self.stacks[value, 0]

    def _run(self, states: Sequence[Input], starts: Sequence[Value], roots: Sequence[Value]) -> Sequence[Value]:
        """Make the forward Scan that leaves the residuals and the backward one; returns the final states."""
        seeds = [seed for seed in self.seeds[self.scan.num_states :] if seed is not None]
        results = [*roots, *(value for value, _ in self.wanted)]
        if not results:
            return []
        read = self._read(results)
        kept = [value for value in read if value in self.varying and value not in self.slices]
        self._stack_residuals([*self.residuals, *kept])
        scanned = [*kept, *(value for value in read if value in self.slices)]
        captured = [value for value in read if value in self.captured]
        if not seeds and not scanned:
            scanned = [self.slices[0]]
        fresh = {value: Input(value.type, value.name or "r") for value in (*scanned, *captured)}
        values = rebuild(results, fresh)
        inputs = (*states, *seeds, *fresh.values())
        named = {f"v{place}": value for place, value in enumerate(values)}
        body = Graph(inputs, named, name=f"{self.scan.body.name}.grad")
        operands, directions = self._scanned(seeds, scanned)
        scan = Scan(
            body,
            num_scan_inputs=len(operands),
            scan_input_directions=directions,
            scan_output_directions=tuple(1 - backwards for _, backwards in self.wanted),
            num_captured=len(captured),
        )
        outputs = _tuple(scan(*starts, *operands, *(self.outer[value] for value in captured)))
        self.stacks.update(zip(self.wanted, outputs[len(roots) :], strict=True))
        return outputs[: len(roots)]

    def _scanned(self, seeds: Sequence[Input], values: Sequence[Value]) -> tuple[list[Value], Ints]:
        """The gradient's scan inputs (cotangents first), and the directions that run backwards in time."""
        operands: list[Value] = []
        directions: list[int] = []
        for seed in seeds:
            place = self.seeds.index(seed)
            cotangent = self.cotangents[place]
            assert cotangent is not None
            operands.append(cotangent)
            directions.append(1 - self.scan.output_directions[place - self.scan.num_states])
        for value in values:
            given = value in self.slices
            operands.append(self.outer[value] if given else self.stacks[value, 0])
            directions.append(1 - self._direction(value) if given else 1)
        return operands, tuple(directions)

    def _read(self, roots: Sequence[Value]) -> list[Value]:
        """The forward body's values that ``roots`` are to be computed from.

        What does not vary, and what only moves elements, is computed again rather than stacked.
        """
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        stack = list(reversed(roots))
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.outer or (value in self.varying and not _cheap(value)):
                found[value] = None
            elif value.node is not None:
                stack.extend(operand for operand in reversed(value.node.inputs) if operand is not None)
        return list(found)

    def _stack_residuals(self, values: Sequence[Value]) -> None:
        """Stack values of the forward body: those that are scan outputs already are at hand."""
        given = list(self.scan.body.outputs.values())[self.scan.num_states :]
        for value in dict.fromkeys(values):
            if value in given and not self.scan.output_directions[given.index(value)]:
                self.stacks[value, 0] = self.results[self.scan.num_states + given.index(value)]
        missing = [value for value in dict.fromkeys(values) if (value, 0) not in self.stacks]
        if not missing:
            return
        extra = {f"residual{place}": value for place, value in enumerate(missing, len(self.scan.body.outputs))}
        scan = self.scan.replace(
            body=self.scan.body.with_(outputs=self.scan.body.outputs | extra),
            scan_input_axes=(),
            scan_output_axes=(),
            scan_output_directions=(*self.scan.output_directions, *(0 for _ in missing)),
        )
        outputs = _tuple(scan(*self.operands))
        self.stacks.update(zip(((value, 0) for value in missing), outputs[len(self.results) :], strict=True))


def _cheap(value: Value) -> bool:
    """Whether a value is a rearrangement of a tensor that is not larger."""
    if value.node is None or not value.node.operator.moves:
        return False
    source = value.node.inputs[0]
    return source is not None and source.type.size <= value.type.size
