"""If, Loop and Scan: subgraphs that read the graph around them.

A branch or an unrolled body is built in place. A body that stays a loop is a graph of its own, in which what it reads
of the graph around it becomes further inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto

from glowtrain.errors import ModelError, ShapeError, UnknownValueError
from glowtrain.graph import Constant, Graph, Input, Ragged, Value, constant
from glowtrain.onnx_io.read.build import Bound, Builder, attributes_of
from glowtrain.onnx_io.read.data_dependent_sizes import cut
from glowtrain.onnx_io.read.rules.loop_bounds import static_steps
from glowtrain.onnx_io.schema.tensors import array_from_tensor, dtype_from_onnx
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.logic import And, Cast, Where
from glowtrain.ops.tensor.move import Concat, Reshape, Unsqueeze
from glowtrain.types import boolean, i64

UNROLLED = 8
"""Steps up to which a loop is unrolled even where it could stay a loop."""
MOST_UNROLLED = 4096
"""Steps up to which a loop is unrolled because it cannot stay one."""
MOST_STEPS = 1 << 15
"""Steps that are unrolled in a whole model: loops in loops multiply."""

MOST_COMPILED = 1 << 24
"""Steps of a loop in native code, whose numbers lie in memory."""


@dataclass
class Branch(Builder):
    """Builds a subgraph in place: names that it does not define are those of the scope around it."""

    outer: Builder = field(kw_only=True)

    def leaf(self, name: str) -> Bound:
        return self.outer.read(name)

    def root(self, leaf: Value) -> Value | None:
        return self.outer.root(leaf)

    def unroll(self) -> int:
        return self.outer.unroll()

    def seed(self) -> float:
        return self.outer.seed()

    def results(self, graph: GraphProto, inputs: Sequence[Bound]) -> list[Bound]:
        """What the subgraph gives for inputs. Raises :class:`ShapeError` for another number of them than it takes."""
        declared = [value.name for value in graph.input]
        if len(declared) != len(inputs):
            name = f"subgraph {graph.name!r}" if graph.name else "subgraph"
            raise ShapeError(f"its {name} takes {len(declared)} inputs, not {len(inputs)}")
        self.environment.update(zip(declared, inputs, strict=True))
        for tensor in graph.initializer:
            self.environment[tensor.name] = Constant(array_from_tensor(tensor, self.recipe.folder), tensor.name)
        self.run(graph)
        return [self.read(value.name) for value in graph.output]


@dataclass
class BodyBuilder(Branch):
    """Builds a subgraph as a graph: values of the scope around it are captured as further inputs."""

    captured: dict[Value, Input] = field(default_factory=dict)

    def leaf(self, name: str) -> Bound:
        return self._capture(self.outer.read(name))

    def _capture(self, bound: Bound) -> Bound:
        if isinstance(bound, Value):
            return bound if isinstance(bound, Constant) else self._input(bound)
        if isinstance(bound, tuple):
            return tuple(self._capture(item) for item in bound)
        return None if bound is None else Ragged(self._input(bound.value), bound.axis, self._input(bound.size))

    def _input(self, value: Value) -> Input:
        return self.captured.setdefault(value, Input(value.type, value.name))

    def root(self, leaf: Value) -> Value | None:
        outside = next((value for value, inside in self.captured.items() if inside is leaf), None)
        return None if outside is None else self.outer.root(outside)

    def tensors(self, graph: GraphProto, inputs: Sequence[Value]) -> list[Value]:
        """The results, which must be tensors."""
        found = self.results(graph, inputs)
        if not all(isinstance(value, Value) for value in found):
            raise ModelError(f"{self.recipe.title}: subgraph {graph.name!r} of a loop gives a sequence")
        return [value for value in found if isinstance(value, Value)]


def branch(builder: Builder, graph: GraphProto, inputs: Sequence[Bound] = ()) -> list[Bound]:
    """What a subgraph gives, built in place."""
    return Branch(builder.recipe, builder.binding, outer=builder).results(graph, inputs)


def _scalar(value: Value) -> Value:
    result: Value = value if value.rank == 0 else Reshape(shape=())(value)
    return result


def if_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """If: the branch that is taken where that is known, else both, and a choice between their results."""
    branches = attributes_of(builder, node)
    condition = builder.tensor(node.input[0], builder.what(node))
    if isinstance(condition, Constant):
        taken = "then_branch" if condition.array.reshape(()).item() else "else_branch"
        return tuple(branch(builder, branches[taken]))
    what = builder.what(node)
    results = []
    for name in ("then_branch", "else_branch"):
        try:
            results.append(branch(builder, branches[name]))
        except UnknownValueError:
            raise
        except ModelError as error:  # perhaps no call takes this branch for operands of these shapes
            unknown = builder.unknown(condition, f"{what}: its {name} is not valid here ({error}); its condition")
            raise (unknown if isinstance(unknown, UnknownValueError) else error) from None
    both = zip(*results, strict=True)
    try:
        return tuple(_choice(_scalar(condition), first, second) for first, second in both)
    except _DifferentError:
        raise builder.unknown(condition, f"{what}: its branches give different types; its condition") from None


class _DifferentError(Exception):
    """The branches of an If give values of different types."""


def _choice(condition: Value, first: Bound, second: Bound) -> Bound:
    if first is second:
        return first
    if isinstance(first, Value) and isinstance(second, Value) and first.type == second.type:
        chosen: Value = Where()(condition, first, second)
        return chosen
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(_choice(condition, one, other) for one, other in zip(first, second, strict=True))
    raise _DifferentError


def scan_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Scan: what its body reads of the graph around it becomes operands."""
    attributes = attributes_of(builder, node)
    body, count = attributes.pop("body"), attributes["num_scan_inputs"]
    operands = [builder.tensor(name, builder.what(node)) for name in node.input]
    states = len(operands) - count
    axes = attributes.get("scan_input_axes") or (0,) * count
    types = [value.type for value in operands[:states]]
    for value, axis in zip(operands[states:], axes, strict=True):
        shape = list(value.shape)
        del shape[axis]
        types.append(value.type.with_shape(tuple(shape)))
    inner = BodyBuilder(builder.recipe, builder.binding, outer=builder)
    inputs = [Input(type_, value.name) for value, type_ in zip(body.input, types, strict=True)]
    graph = _graph(inner, inputs, inner.tensors(body, inputs), body.name)
    return builder.build(
        Scan(body=graph, num_captured=len(inner.captured), **attributes), [*operands, *inner.captured], node
    )


def _graph(inner: BodyBuilder, inputs: Sequence[Input], results: Sequence[Value], name: str) -> Graph:
    outputs = {f"{value.name or 'y'}.{position}": value for position, value in enumerate(results)}
    return Graph((*inputs, *inner.captured.values()), outputs, name=name or "body")


def loop_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Loop: unrolled where that is needed or short, else a Scan over the numbers of the steps."""
    return _Loop(builder, node, attributes_of(builder, node)["body"]).results()


@dataclass
class _Loop:
    """One Loop: ``count`` steps at most, while a condition holds."""

    builder: Builder
    node: NodeProto
    body: GraphProto

    def __post_init__(self) -> None:
        names = list(self.node.input) + [""] * (2 - len(self.node.input))
        self.what = self.builder.what(self.node)
        self.going = self._optional(names[1])
        self.states = [self.builder.read(name) if name else None for name in names[2:]]
        trip = self._optional(names[0])
        if trip is not None and not isinstance(trip, Constant):
            raise self.builder.unknown(trip, f"{self.what}: its trip count")
        self.count = None if trip is None else max(0, int(trip.array.reshape(()).item()))

    def _optional(self, name: str) -> Value | None:
        return self.builder.tensor(name, self.what) if name else None

    def results(self) -> tuple[Bound, ...]:
        if self.count is None or self.count > UNROLLED:
            looped = self._as_scan()
            if looped is not None:
                return looped
        return self._unrolled()

    def _unrolled(self) -> tuple[Bound, ...]:
        """Every step in place; its condition must be known."""
        states, stacks, step = self.states, self._stacks(), 0
        going = self.going
        while (self.count is None or step < self.count) and self._holds(going):
            if step == MOST_UNROLLED:
                raise ModelError(
                    f"{self.what} runs for more than {MOST_UNROLLED} steps and cannot be compiled as a loop"
                )
            if self.builder.unroll() > MOST_STEPS:
                raise ModelError(f"{self.what}: with it, more than {MOST_STEPS} steps of loops would be unrolled")
            inputs = [constant(np.int64(step)), constant(True) if going is None else going, *states]
            condition, *results = branch(self.builder, self.body, inputs)
            going = condition if isinstance(condition, Value) else None
            states = results[: len(states)]
            for stack, value in zip(stacks, results[len(states) :], strict=True):
                stack.append(value)
            step += 1
        return (*states, *(self._stacked(stack, position) for position, stack in enumerate(stacks)))

    def _stacks(self) -> list[list[Bound]]:
        return [[] for _ in range(len(self.body.output) - 1 - len(self.states))]

    def _holds(self, going: Value | None) -> bool:
        if going is None:
            return True
        if not isinstance(going, Constant):
            raise self.builder.unknown(going, f"{self.what}: its condition")
        return bool(going.array.reshape(()).item())

    def _stacked(self, stack: list[Bound], position: int) -> Value:
        """The values that the steps gave for one output, along a new first axis."""
        if not stack:
            return self._empty(self.body.output[len(self.states) + 1 + position])
        values = [value for value in stack if isinstance(value, Value)]
        if len(values) < len(stack) or any(value.type != values[0].type for value in values):
            raise ModelError(f"{self.what}: the steps give different types for scan output {position}")
        stacked: Value = Concat(axis=0)(*(Unsqueeze(axes=(0,))(value) for value in values))
        return stacked

    def _empty(self, declared: ValueInfoProto) -> Value:
        tensor = declared.type.tensor_type
        extents = [extent.dim_value for extent in tensor.shape.dim]
        return Constant(np.zeros((0, *extents), dtype_from_onnx(tensor.elem_type, self.what).numpy))

    def _as_scan(self) -> tuple[Bound, ...] | None:
        """The loop as a Scan; ``None`` where it is short, or a state is no tensor or changes its type, or a step or the
        number of steps must be known.
        """
        states = [value for value in self.states if isinstance(value, Value)]
        if len(states) < len(self.states):
            return None
        inner = BodyBuilder(self.builder.recipe, self.builder.binding, outer=self.builder)
        inputs = [Input(value.type, declared.name) for value, declared in zip(states, self.body.input[2:], strict=True)]
        step = Input(i64[()], "step")
        try:
            condition, *results = inner.tensors(self.body, [step, constant(True), *inputs])
        except ModelError:
            return None
        if any(before.type != after.type for before, after in zip(inputs, results, strict=False)):
            return None
        begins = self.going is None or _always(self.going)
        count = static_steps(self.count, condition, step, inputs, states, results) if begins else None
        if count is not None:
            if count > MOST_COMPILED:
                raise ShapeError(f"it runs for {count:,} steps; a compiled loop may run for {MOST_COMPILED:,} at most")
            steps = constant(np.arange(count, dtype=np.int64))
            graph = _graph(inner, [*inputs, step], results, self.body.name)
            return self._made(graph, inner, [*states, steps]) if count > UNROLLED else None
        if self.count is None or self.count > MOST_STEPS:
            return None
        steps = constant(np.arange(self.count, dtype=np.int64))
        return self._stopping(inner, inputs, step, condition, results, [*states, steps])

    def _made(self, graph: Graph, inner: BodyBuilder, operands: list[Value]) -> tuple[Value, ...]:
        scan = Scan(body=graph, num_scan_inputs=1, num_captured=len(inner.captured))
        return self.builder.build(scan, [*operands, *inner.captured], self.node)

    def _stopping(
        self,
        inner: BodyBuilder,
        inputs: list[Input],
        step: Input,
        condition: Value,
        results: list[Value],
        operands: list[Value],
    ) -> tuple[Bound, ...]:
        """A Scan that keeps its states once the condition has failed, and counts the steps that counted."""
        going, count = Input(boolean[()], "going"), Input(i64[()], "count")
        states = [Where()(going, new, old) for old, new in zip(inputs, results, strict=False)]
        following = [And()(going, _scalar(condition)), count + Cast(to=i64)(going), *states, *results[len(inputs) :]]
        graph = _graph(inner, [going, count, *inputs, step], following, self.body.name)
        first = constant(True) if self.going is None else _scalar(self.going)
        _, size, *found = self._made(graph, inner, [first, constant(np.int64(0)), *operands])
        stacks = [cut(Ragged(value, 0, size)) for value in found[len(inputs) :]]
        return (*found[: len(inputs)], *stacks)


def _always(condition: Value) -> bool:
    return isinstance(condition, Constant) and bool(condition.array.reshape(()).item())
