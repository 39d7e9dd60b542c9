"""A graph of results and their gradients, cut in two: forward with residuals, and backward.

What depends on the results' cotangents is the backward half, everything else that it reads is made before it: inputs
are read again, some values are computed again, the others are residuals. A value is computed again where that costs
less than to keep it: where nothing would store it in the forward half (all that reads it there is elementwise, and so
in one loop with it) or it only moves elements, and where nothing larger than itself must be kept in its place.

That what is fused is better computed again is the idea of the min-cut partitioner of PyTorch's functorch; the rule is
our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.errors import GraphError
from glowtrain.graph import Constant, Graph, Input, Node, Value, Variable, rebuild
from glowtrain.loops.functions import FUNCTIONS, Cost
from glowtrain.loops.language import Apply, Const, walk
from glowtrain.ops.core.family import Elementwise

RESIDUAL = "residual"
"""Residuals are called ``residual0`` ..., after this; no result may be."""


@dataclass(frozen=True)
class Halves:
    """``forward`` has the results, the updates and residuals; ``backward`` reads cotangents, inputs and residuals, by
    the same names. A result that backward reads is one of its inputs, too."""

    forward: Graph
    backward: Graph


def halves(joint: Graph, gradients: Collection[str], cotangents: Collection[Input]) -> Halves:
    """Cut a graph in two, by the names of its outputs that are ``gradients``.

    Variables that the graph updates are residuals where backward reads them, as they were before. Raises
    :class:`GraphError` where another output or an update depends on ``cotangents``.
    """
    after = _depending(joint, cotangents)
    results = {name: value for name, value in joint.outputs.items() if name not in gradients}
    if any(value in after for value in (*results.values(), *joint.updates.values())):
        raise GraphError(f"{joint.name}: a result depends on a cotangent")
    wanted = [joint.outputs[name] for name in joint.outputs if name in gradients]
    needed = _Needed(joint, after, wanted).chosen()
    residuals = _named(needed, results, joint.updates)
    stand_ins = {value: Input(value.type, name) for name, value in residuals.items()}
    roots = rebuild(wanted, stand_ins)
    inputs = (*cotangents, *(value for value in joint.inputs if value not in cotangents), *stand_ins.values())
    backward = Graph(inputs, dict(zip(gradients, roots, strict=True)), {}, f"{joint.name}.backward")
    backward = backward.with_(inputs=_read(backward))
    own = {name: value for name, value in residuals.items() if name not in results}
    first = tuple(value for value in joint.inputs if value not in cotangents)
    return Halves(Graph(first, {**results, **own}, joint.updates, f"{joint.name}.forward"), backward)


def _depending(graph: Graph, cotangents: Collection[Input]) -> set[Value]:
    found: set[Value] = set(cotangents)
    for node in graph.nodes:
        if any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _read(graph: Graph) -> tuple[Input, ...]:
    """The inputs that a graph reads."""
    leaves = set(graph.leaves)
    return tuple(value for value in graph.inputs if value in leaves)


def _named(
    needed: Sequence[Value], results: Mapping[str, Value], updates: Mapping[Variable, Value]
) -> dict[str, Value]:
    """Residuals by name: those that are results under theirs; not what inputs hold still."""
    names = {value: name for name, value in reversed(list(results.items()))}
    residuals: dict[str, Value] = {}
    for value in needed:
        if not isinstance(value, (Constant, Input)) and (value.node is not None or value in updates):
            residuals[names.get(value, f"{RESIDUAL}{len(residuals)}")] = value
    return residuals


class _Needed:
    """The values of the forward half that the backward one begins with."""

    def __init__(self, joint: Graph, after: Collection[Value], gradients: Sequence[Value]) -> None:
        self.joint = joint
        self.after = after
        reads = (value for node in joint.nodes if _is_after(node, after) for value in node.inputs)
        self.values = dict.fromkeys(value for value in (*reads, *gradients) if value is not None and value not in after)
        self.again: set[Node] = set()
        """Nodes that are computed again."""

    def chosen(self) -> list[Value]:
        """In order of first use. The last node is looked at first, so that chains are computed again from their
        beginning."""
        for node in reversed(self.joint.nodes):
            if any(output in self.values for output in node.outputs) and self._is_better_again(node):
                self.again.add(node)
                for output in node.outputs:
                    self.values.pop(output, None)
                self.values.update(dict.fromkeys(value for value in node.inputs if value is not None))
        return list(self.values)

    def _is_better_again(self, node: Node) -> bool:
        operator = node.operator
        costly = is_costly(node)
        if costly is None or operator.random:
            return operator.from_type
        if not operator.moves and any(self._is_stored(output) for output in node.outputs):
            return False
        more = sum(value.type.nbytes for value in {*node.inputs} if value is not None and not self._is_there(value))
        return more <= (0 if costly else sum(output.type.nbytes for output in node.outputs))

    def _is_there(self, value: Value) -> bool:
        """Whether keeping a value takes no memory of its own."""
        return value in self.values or (value.node is None and value not in self.joint.updates)

    def _is_stored(self, value: Value) -> bool:
        """Whether the forward half has the value in memory anyway: as a result, or for what cannot be in one loop."""
        if value in self.joint.roots:
            return True
        readers = (node for node in self.joint.users.get(value, ()) if not _is_after(node, self.after))
        return any(is_costly(node) is None for node in readers)


def _is_after(node: Node, after: Collection[Value]) -> bool:
    return any(output in after for output in node.outputs)


def is_costly(node: Node) -> bool | None:
    """Whether an elementwise function takes more than a few cycles per element; None for what is not elementwise, nor
    moves elements."""
    if node.operator.moves:
        return False
    if not isinstance(node.operator, Elementwise):
        return None
    arguments = [None if value is None else Const(1, value.dtype) for value in node.inputs]
    parts = walk(node.operator.scalar(*arguments))
    return any(isinstance(part, Apply) and FUNCTIONS[part.function].cost == Cost.EXPENSIVE for part in parts)
