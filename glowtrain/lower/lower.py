"""Graph to Program: every node becomes loop nests over buffers, every Scan a repeat.

Operators without ``lower`` were replaced by their decomposition before. Nothing is optimised here: each node writes its
own buffers; fusion removes most of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glowtrain.graph import Constant, Graph, Node, Value, Variable
from glowtrain.loops import Buffer, Const, Expr, For, Index, Statement, Tensor, indices_of
from glowtrain.names import Names
from glowtrain.native import NativeFunction
from glowtrain.ops.control.scan import Scan
from glowtrain.program.program import Call, Instruction, Kernel, Program, Repeat
from glowtrain.types import i64


@dataclass(frozen=True)
class Lower:
    """The pass from a graph to a program."""

    def run(self, graph: Graph) -> Program:
        """The program that computes a graph, every value in a buffer of its own.

        Raises :class:`PluginError` for an operator that has no lowering (:class:`~glowtrain.lower.expand.Expand`
        replaces those that have a decomposition).
        """
        return _Lowering(graph).program()


def values_by_buffer(graph: Graph) -> dict[str, Value]:
    """The value that each buffer of the lowered graph holds, by the buffer's name; values inside of Scans have none."""
    lowering = _Lowering(graph)
    lowering.program()
    values = (*graph.leaves, *(value for node in graph.nodes for value in node.outputs))
    return {lowering.tensors[value].buffer.name: value for value in values}


def nodes_by_kernel(graph: Graph) -> dict[str, Node]:
    """The node that each kernel and call of the lowered graph computes, by its name; copies belong to none."""
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
    origins: dict[str, Node] = field(default_factory=dict)

    def program(self) -> Program:
        inputs = {value.name: self._leaf(value) for value in self.graph.inputs}
        variables = {value.name: self._leaf(value) for value in self.graph.variables}
        instructions = [instruction for node in self.graph.nodes for instruction in self._node(node)]
        outputs = {}
        for name, value in self.graph.outputs.items():
            outputs[name] = Buffer(self.names.fresh(name), value.type, "output")
            instructions.append(copy(self._tensor(value), Tensor(outputs[name])))
        staged = [
            (variable, self._stage(value, variable, instructions)) for variable, value in self.graph.updates.items()
        ]
        instructions += [copy(tensor, self._tensor(variable)) for variable, tensor in staged]
        updates = tuple(variable.name for variable in self.graph.updates)
        return Program(
            self.graph.name,
            inputs,
            outputs,
            variables,
            tuple(instructions),
            updates,
            tuple(self.constants),
            tuple(self.preferences),
        )

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
            buffer = Buffer(self.names.fresh(value.name), value.type, "variable", initial=value.initial)
        else:
            buffer = Buffer(self.names.fresh(value.name), value.type, "input")
        self.tensors[value] = Tensor(buffer)
        return buffer

    def _node(self, node: Node) -> list[Instruction]:
        operator = node.operator
        inputs = [None if value is None else self._tensor(value) for value in node.inputs]
        if isinstance(operator, Scan):
            return self._scan(operator, node, inputs)
        function = operator.called(*node.inputs)
        if function is not None:
            return self._call(function, node, [tensor for tensor in inputs if tensor is not None])
        outputs = tuple(self._output(node, value) for value in node.outputs)
        kernels = split(self._named(node), operator.lower(outputs, *inputs))
        wishes = operator.layouts(*(None if value is None else value.type for value in node.inputs))
        for tensor, layout in zip((*outputs, *inputs), wishes, strict=False):
            if tensor is not None and layout is not None and not tensor.prefix:
                self.preferences.append((tensor.buffer, layout))
        return kernels

    def _call(self, function: NativeFunction, node: Node, inputs: Sequence[Tensor]) -> list[Instruction]:
        """A call on whole buffers; what is a slice of one (a step of a Scan) is copied first."""
        before: list[Instruction] = []
        buffers = []
        for tensor in inputs:
            if tensor.prefix:
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
        hint = value.name or node.operator.onnx.lower()
        self.tensors[value] = Tensor(Buffer(self.names.fresh(hint), value.type))
        return self.tensors[value]

    def _scan(self, scan: Scan, node: Node, inputs: Sequence[Tensor | None]) -> list[Instruction]:
        """A repeat over time steps. A state is a buffer of two slots: step t reads slot t % 2 and writes the other."""
        tensors = [tensor for tensor in inputs if tensor is not None]
        steps, states = scan.steps(*(value.type for value in node.inputs if value is not None)), scan.num_states
        time = Index(steps, self.names.fresh("t"))
        slots = [self._slots(tensor) for tensor in tensors[:states]]
        before: list[Instruction] = [copy(t, Tensor(s, (Const(0, i64),))) for t, s in zip(tensors, slots, strict=False)]
        operands = [Tensor(slot, (_parity(time),)) for slot in slots]
        for tensor, direction in zip(tensors[states:], scan.input_directions, strict=False):
            operands.append(Tensor(tensor.buffer, (*tensor.prefix, _step(time, direction))))
        operands += tensors[states + len(scan.input_directions) :]
        self.tensors.update(zip(scan.body.inputs, operands, strict=True))
        body = [instruction for inner in scan.body.nodes for instruction in self._node(inner)]
        targets = [Tensor(slot, (_parity(time + 1),)) for slot in slots]
        for value, direction in zip(node.outputs[states:], scan.output_directions, strict=True):
            targets.append(Tensor(self._output(node, value).buffer, (_step(time, direction),)))
        results = scan.body.outputs.values()
        body += [copy(self._tensor(value), target) for value, target in zip(results, targets, strict=True)]
        last = (Const(steps % 2, i64),)
        after = [copy(Tensor(slot, last), self._output(node, v)) for slot, v in zip(slots, node.outputs, strict=False)]
        return [*before, Repeat(self.kernels.fresh("scan"), time, tuple(body)), *after]

    def _slots(self, state: Tensor) -> Buffer:
        return Buffer(self.names.fresh("state"), state.type.with_shape((2, *state.shape)))


def split(name: str, body: Sequence[Statement]) -> list[Instruction]:
    """A kernel for each top-level loop, to be fused and tiled by itself; one kernel if there are names."""
    if all(isinstance(statement, For) for statement in body):
        return [Kernel(name, (statement,)) for statement in body]
    return [Kernel(name, tuple(body))]


def copy(source: Tensor, target: Tensor) -> Kernel:
    """A kernel that copies a tensor."""
    indices = indices_of(target.shape)
    return Kernel("copy", (For(indices, (target.store(indices, source[indices]),)),))


def _parity(time: Expr) -> Expr:
    return time % 2


def _step(time: Index, direction: int) -> Expr:
    """The position along the scanned axis: ONNX's direction 1 runs backwards."""
    return Const(time.extent - 1, i64) - time if direction else time
