"""Graph to Program: every node becomes loop nests over buffers, every Scan a repeat.

Operators without ``lower`` were replaced by their decomposition before. But for :mod:`~glowtrain.lower.update_groups`
nothing is optimised here: each node writes its own buffers; fusion removes most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glowtrain.errors import PluginError, ShapeError
from glowtrain.graph import Constant, Graph, Node, Operator, Value, Variable, bodies_of
from glowtrain.graph.specialise.index_ranges import check_constant_indices
from glowtrain.loops import Buffer, Const, Expr, For, Index, Rows, Statement, Tensor, indices_of
from glowtrain.lower.update_groups import UpdateGroup, lower_group, update_groups
from glowtrain.lower.updates import pieces
from glowtrain.names import Names
from glowtrain.native import NativeFunction
from glowtrain.ops.control.scan import Scan
from glowtrain.presentation.messages import page
from glowtrain.program.program import Call, Instruction, Kernel, Program, Repeat
from glowtrain.types import i64


@dataclass(frozen=True)
class Lower:
    """The pass from a graph to a program."""

    def run(self, graph: Graph) -> Program:
        """The program that computes a graph, every value in a buffer of its own.

        Raises :class:`PluginError` for an operator that has no lowering
        (:class:`~glowtrain.lower.expand.ExpandOperators` replaces those that have a decomposition).
        """
        return _Lowering(graph).program()


def values_by_buffer(graph: Graph) -> dict[str, Value]:
    """The value that each buffer of the lowered graph holds, by the buffer's name, or by that of a value within a
    kernel; values inside of Scans have none."""
    lowering = _Lowering(graph)
    lowering.program()
    values = (*graph.leaves, *(value for node in graph.nodes for value in node.outputs))
    inside = lowering.inside
    return {inside[v] if v in inside else lowering.tensors[v].buffer.name: v for v in values}


def nodes_by_kernel(graph: Graph) -> dict[str, Node]:
    """The node that each kernel and call of the lowered graph computes, by its name; of a group of updates it is the
    last. Copies belong to none."""
    lowering = _Lowering(graph)
    lowering.program()
    return lowering.origins


@dataclass
class _Lowering:
    graph: Graph
    names: Names = field(default_factory=Names)
    kernels: Names = field(default_factory=Names)
    tensors: dict[Value, Tensor] = field(default_factory=dict)
    constants: list[Buffer] = field(default_factory=list)
    preferences: list[tuple[Buffer, tuple[int, ...]]] = field(default_factory=list)
    needs: list[tuple[Buffer, tuple[int, ...]]] = field(default_factory=list)
    """Preferences of operators to which layouts matter."""
    origins: dict[str, Node] = field(default_factory=dict)
    homes: dict[Value, Tensor] = field(default_factory=dict)
    """Where results of the body that is being lowered belong."""
    inside: dict[Value, str] = field(default_factory=dict)
    """The names of results of groups of updates, which are in no buffer."""

    def program(self) -> Program:
        groups = update_groups(self.graph)
        inputs = {value.name: self._leaf(value) for value in self.graph.inputs}
        variables = {value.name: self._leaf(value) for value in self.graph.variables}
        instructions, last = self._instructions(groups)
        outputs = {}
        for name, value in self.graph.outputs.items():
            outputs[name] = Buffer(self.names.fresh(name), value.type, "output")
            instructions.append(copy(self._tensor(value), Tensor(outputs[name])))
        elsewhere = {variable for group in groups for variable in group.variables}
        staged = [
            (variable, piece.offsets, self._stage(piece.value, variable, instructions))
            for variable, value in self.graph.updates.items()
            if variable not in elsewhere
            for piece in pieces(variable, value)
        ]
        instructions += map(self._group, last)
        instructions += [copy(tensor, self._tensor(variable), offsets) for variable, offsets, tensor in staged]
        updates = tuple(variable.name for variable in self.graph.updates)
        return Program(
            self.graph.name,
            inputs,
            outputs,
            variables,
            tuple(instructions),
            updates,
            tuple(self.constants),
            (*self.needs, *self.preferences),
        )

    def _instructions(self, groups: Sequence[UpdateGroup]) -> tuple[list[Instruction], list[UpdateGroup]]:
        """The instructions of all nodes, each group as soon as nobody reads what it writes; and the groups that are to
        come after all of them, and after copies of what they write."""
        grouped = {node for group in groups for node in group.nodes}
        nodes = [node for node in self.graph.nodes if node not in grouped]
        position = {node: place for place, node in enumerate(nodes)}
        loops = max((place for node, place in position.items() if bodies_of(node.operator)), default=-1)
        ready: dict[int, list[UpdateGroup]] = {}
        for group in groups:
            ready.setdefault(max(loops, self._place(group, position)), []).append(group)
        instructions: list[Instruction] = [*map(self._group, ready.pop(-1, ()))]
        for place, node in enumerate(nodes):
            instructions += self._node(node)
            instructions += map(self._group, ready.pop(place, ()))
        return instructions, [group for late in ready.values() for group in late]

    def _place(self, group: UpdateGroup, position: Mapping[Node, int]) -> int:
        """The position of the last node, -1 for none, that makes what a group reads, or reads what it writes; bodies of
        loops, which may read any variable, are not looked through."""
        if not set(self.graph.roots).isdisjoint(group.variables):
            return len(position)
        makers = [value.node for value in group.operands if value.node is not None]
        readers = [node for variable in group.variables for node in self.graph.users.get(variable, ())]
        return max((position[node] for node in (*makers, *readers) if node in position), default=-1)

    def _stage(self, value: Value, variable: Variable, instructions: list[Instruction]) -> Tensor:
        """A new value that no other update can overwrite: a variable's present value is copied first."""
        tensor = self._tensor(value)
        if tensor.buffer.kind != "variable" or value is variable:
            return tensor
        staged = Tensor(Buffer(self.names.fresh(f"{value.name}.old"), value.type))
        instructions.append(copy(tensor, staged))
        return staged

    def _tensor(self, value: Value) -> Tensor:
        if value not in self.tensors:
            self._leaf(value)
        return self.tensors[value]

    def _leaf(self, value: Value) -> Buffer:
        """The buffer of an input, constant or variable."""
        if value in self.tensors:
            return self.tensors[value].buffer
        if isinstance(value, Constant):
            buffer = Buffer(self.names.fresh(value.name or "c"), value.type, "constant", initial=value.array)
            self.constants.append(buffer)
        elif isinstance(value, Variable):
            buffer = Buffer(self.names.fresh(value.name), value.type, "variable", initial=value.source)
        else:
            buffer = Buffer(self.names.fresh(value.name), value.type, "input")
        self.tensors[value] = Tensor(buffer)
        return buffer

    def _node(self, node: Node) -> list[Instruction]:
        operator = node.operator
        check_constant_indices(node)
        inputs = [None if value is None else self._tensor(value) for value in node.inputs]
        if isinstance(operator, Scan):
            return self._scan(operator, node, inputs)
        function = operator.called(*node.inputs)
        if function is not None:
            return self._call(function, node, [tensor for tensor in inputs if tensor is not None])
        name = self._named(node)
        outputs = tuple(self._output(node, value) for value in node.outputs)
        kernels = split(name, _lowered(operator, outputs, inputs))
        if len(kernels) > 1 and self._move_home(node):
            outputs = tuple(self.tensors[value] for value in node.outputs)
            kernels = split(name, _lowered(operator, outputs, inputs))
        types = [None if value is None else value.type for value in node.inputs]
        wishes = operator.layouts(*types)
        wished = self.needs if wishes and operator.layouts_matter(*types) else self.preferences
        for tensor, layout in zip((*outputs, *inputs), wishes, strict=False):
            if tensor is not None and layout is not None and tensor.whole:
                wished.append((tensor.buffer, layout))
        return kernels

    def _group(self, group: UpdateGroup) -> Kernel:
        """The kernel of a group of updates."""
        for node in group.nodes:
            self.inside[node.outputs[0]] = self.names.fresh(_hint(node, node.outputs[0]))
        name = self.kernels.fresh("update")
        self.origins[name] = group.nodes[-1]
        return Kernel(name, tuple(lower_group(group, self.graph.updates, self._tensor, self.inside)))

    def _move_home(self, node: Node) -> bool:
        """Let results of a loop's body be made where they belong, which are written in several loops and so could not
        be fused with a copy. Whether there are such."""
        found = {value: self.homes[value] for value in node.outputs if value in self.homes}
        self.tensors.update(found)
        return bool(found)

    def _call(self, function: NativeFunction, node: Node, inputs: Sequence[Tensor]) -> list[Instruction]:
        """A call on whole buffers; what is a slice of one (a step of a Scan) is copied first."""
        before: list[Instruction] = []
        buffers = []
        for tensor in inputs:
            if not tensor.whole:
                slice_ = Tensor(Buffer(self.names.fresh(f"{tensor.buffer.name}.step"), tensor.type))
                before.append(copy(tensor, slice_))
                tensor = slice_
            buffers.append(tensor.buffer)
        outputs = tuple(self._output(node, value).buffer for value in node.outputs)
        return [*before, Call(self._named(node), function, tuple(buffers), outputs)]

    def _named(self, node: Node) -> str:
        """A name for what computes a node."""
        name = self.kernels.fresh(node.operator.onnx.lower())
        self.origins[name] = node
        return name

    def _output(self, node: Node, value: Value) -> Tensor:
        self.tensors[value] = Tensor(Buffer(self.names.fresh(_hint(node, value)), value.type))
        return self.tensors[value]

    def _scan(self, scan: Scan, node: Node, inputs: Sequence[Tensor | None]) -> list[Instruction]:
        """A repeat over time steps, which fills the slots of states and the stacks; those of a state that keeps all its
        values anyway are read from its slots after it.
        """
        tensors = [tensor for tensor in inputs if tensor is not None]
        steps = scan.steps(*(value.type for value in node.inputs if value is not None))
        time, results = Index(steps, self.names.fresh("t")), list(scan.body.outputs.values())
        slots = [self._slots(scan, place, tensor, steps) for place, tensor in enumerate(tensors[: scan.num_states])]
        before = [copy(tensor, slot.at(0)) for tensor, slot in zip(tensors, slots, strict=False)]
        targets = [(value, slot.at(time + 1)) for value, slot in zip(results, slots, strict=False)]
        stacks = zip(results[len(slots) :], node.outputs[len(slots) :], scan.output_directions, strict=True)
        after: list[Instruction] = []
        for value, whole, direction in stacks:
            stack, kept = self._output(node, whole), _kept(scan, slots, value)
            if kept is None:
                targets.append((value, Tensor(stack.buffer, (_step(time, direction),))))
            else:
                after.append(_reread(stack, *kept, direction))
        after += [copy(slot.at(steps), self._output(node, v)) for slot, v in zip(slots, node.outputs, strict=False)]
        operands = [slot.at(time) for slot in slots]
        for place, direction in enumerate(scan.input_directions, len(slots)):
            operands.append(_slice(tensors[place], time, direction, scan.body.inputs[place] if scan.parts else None))
        operands += tensors[len(slots) + len(scan.input_directions) :]
        self.tensors.update(zip(scan.body.inputs, operands, strict=True))
        body = tuple(self._body(scan, targets))
        return [*before, Repeat(self.kernels.fresh("scan"), time, body, scan.parts), *after]

    def _body(self, scan: Scan, targets: Sequence[tuple[Value, Tensor]]) -> list[Instruction]:
        """The body's instructions, and copies of its results to their targets where they were not made there."""
        outside = self.homes
        self.homes = {value: target for value, target in reversed(targets) if not target.whole}
        body = [instruction for inner in scan.body.nodes for instruction in self._node(inner)]
        self.homes = outside
        return body + [copy(self._tensor(v), target) for v, target in targets if self._tensor(v) is not target]

    def _slots(self, scan: Scan, place: int, state: Tensor, steps: int) -> _Slots:
        """Where a state is kept: for all steps if what each step gets of it is stacked anyway."""
        if _stays(scan, place):
            return _Slots(Buffer(self.names.fresh("state"), state.type), every=False, stays=True)
        every = scan.body.inputs[place] in list(scan.body.outputs.values())[scan.num_states :]
        count = steps + 1 if every else 2
        return _Slots(Buffer(self.names.fresh("state"), state.type.with_shape((count, *state.shape))), every)


@dataclass(frozen=True)
class _Slots:
    """The values of a state: a step reads one slot and writes the next, of slots for ``every`` step or two in turns;
    or the state ``stays`` where it is, and a step writes it at its end."""

    buffer: Buffer
    every: bool
    stays: bool = False

    def at(self, time: Expr | int) -> Tensor:
        """The slot that a step reads."""
        if self.stays:
            return Tensor(self.buffer)
        if isinstance(time, int):
            return Tensor(self.buffer, (Const(time if self.every else time % 2, i64),))
        return Tensor(self.buffer, (time if self.every else time % 2,))


def _stays(scan: Scan, place: int) -> bool:
    """Whether a state can stay in its place: steps are whole programs, and nobody but what makes its next value reads
    it."""
    state, value = scan.body.inputs[place], list(scan.body.outputs.values())[place]
    return scan.parts and value.node is not None and scan.body.users.get(state, ()) == (value.node,)


def _slice(whole: Tensor, time: Index, direction: int, part: Value | None) -> Tensor:
    """What a step reads of a scan input: the slice of its position, or a part of as many rows as ``part`` has."""
    if part is None:
        return Tensor(whole.buffer, (*whole.prefix, _step(time, direction)))
    first = time * part.shape[0]
    return replace(whole, rows=Rows(first if whole.rows is None else whole.rows.first + first, part.shape[0]))


def _kept(scan: Scan, slots: Sequence[_Slots], value: Value) -> tuple[_Slots, int] | None:
    """The state that keeps a body's value of every step, and how many slots after the one that the step reads."""
    for place, slot in enumerate(slots):
        if slot.every and value is scan.body.inputs[place]:
            return slot, 0
        if slot.every and value is list(scan.body.outputs.values())[place]:
            return slot, 1
    return None


def _reread(stack: Tensor, slots: _Slots, later: int, direction: int) -> Kernel:
    """A kernel that takes a stack out of the slots of all steps."""
    time, *rest = indices = indices_of(stack.shape)
    step = _step(time, direction)
    value = Tensor(slots.buffer)[(step + later if later else step, *rest)]
    return Kernel("copy", (For(indices, (stack.store(indices, value),)),))


def _lowered(operator: Operator, outputs: tuple[Tensor, ...], inputs: Sequence[Any]) -> list[Statement]:
    """An operator's statements. Raises :class:`PluginError` where its class calls operators of graphs to make them."""
    try:
        return operator.lower(outputs, *inputs)
    except ShapeError as error:
        method = next((name for name in ("scalar", "source") if name in vars(type(operator))), "lower")
        raise PluginError(
            f"{operator.key()} cannot be compiled: {type(operator).__name__}.{method} raises {error}. Its operands are "
            'expressions of the loop language there, not values of a graph: use glowtrain.loops (call("exp", x), '
            f"select, cast) in place of gt.nn and operators, or write a decompose of these; see {page('operators.md')}"
        ) from error


def _hint(node: Node, value: Value) -> str:
    """What the buffer of a result is called, or nearly so."""
    return value.name or node.operator.onnx.lower()


def split(name: str, body: Sequence[Statement]) -> list[Instruction]:
    """A kernel for each top-level loop, to be fused and tiled by itself; one kernel if there are names."""
    if all(isinstance(statement, For) for statement in body):
        return [Kernel(name, (statement,)) for statement in body]
    return [Kernel(name, tuple(body))]


def copy(source: Tensor, target: Tensor, offsets: Sequence[int] = ()) -> Kernel:
    """A kernel that copies a tensor: to ``offsets`` of the target, one for each axis, where they are given."""
    indices = indices_of(source.shape)
    places = [i + offset if offset else i for i, offset in zip(indices, offsets, strict=True)] if offsets else indices
    return Kernel("copy", (For(indices, (target.store(places, source[indices]),)),))


def _step(time: Index, direction: int) -> Expr:
    """The position along the scanned axis: ONNX's direction 1 runs backwards."""
    return Const(time.extent - 1, i64) - time if direction else time
