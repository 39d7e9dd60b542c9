"""What a graph computes as a short text: equal for graphs that are built alike, whatever their values are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from glowtrain.graph.graph import Graph
from glowtrain.graph.operator import Operator
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.types import Array

DIGITS = 16
"""Length of the digests that are written down."""


def digest(roots: Mapping[str, Value], fixed: Mapping[Value, str] | None = None) -> str:
    """16 hexadecimal digits for what ``roots`` are computed by, down to the leaves and to the values of ``fixed``.

    Operators, attributes, types, operands and constants count; so do the names of roots, inputs and variables, and the
    texts in ``fixed``. Names of other values and of nodes do not, nor do initial values of variables.
    """
    return _Digest(fixed or {}).of(roots)[:DIGITS]


def structural_key(graph: Graph) -> str:
    """64 hexadecimal digits for all that decides what a graph computes: :func:`digest` of outputs and updates, and the
    inputs in their order."""
    hasher = _Digest({})
    hasher.line("inputs", [(value.name, str(value.type)) for value in graph.inputs])
    updates = {f"update {variable.name}": value for variable, value in graph.updates.items()}
    return hasher.of({**{f"output {name}": value for name, value in graph.outputs.items()}, **updates})


def positional_key(body: Graph) -> str:
    """64 hexadecimal digits for what a graph that is an attribute computes: its inputs and outputs count by position,
    whatever they are called."""
    outputs, inputs = _positions(body)
    return hashlib.sha256(f"{_types(body.inputs)} {_Digest(inputs).of(outputs)}".encode()).hexdigest()


def _positions(body: Graph) -> tuple[dict[str, Value], dict[Value, str]]:
    """Outputs by their position, and the positions of inputs."""
    outputs = {str(index): value for index, value in enumerate(body.outputs.values())}
    return outputs, {value: str(index) for index, value in enumerate(body.inputs)}


class _Digest:
    """Numbers values in the order in which they are met, and collects a line for each leaf and node."""

    def __init__(self, fixed: Mapping[Value, str]) -> None:
        self.hash = hashlib.sha256()
        self.numbers: dict[Value, int] = {}
        self.fixed = fixed

    def of(self, roots: Mapping[str, Value]) -> str:
        for node in topological(roots.values(), self.fixed):
            self.node(node)
        for name, value in roots.items():
            self.line("root", name, self.number(value))
        return self.hash.hexdigest()

    def node(self, node: Node) -> None:
        operands = [None if value is None else self.number(value) for value in node.inputs]
        self.line(node.operator.key(), _attributes(node.operator), operands, _types(node.outputs))
        for output in node.outputs:
            self.numbers.setdefault(output, len(self.numbers))

    def number(self, value: Value) -> int:
        if value not in self.numbers:
            self.line(*self.leaf(value))
            self.numbers[value] = len(self.numbers)
        return self.numbers[value]

    def leaf(self, value: Value) -> tuple[Any, ...]:
        if value in self.fixed:
            return "given", self.fixed[value], str(value.type)
        match value:
            case Input():
                return "input", value.name, str(value.type)
            case Variable():
                return "variable", value.name, str(value.type), value.trainable
            case Constant():
                return "constant", str(value.type), _content(value.array)
        raise AssertionError(f"{value!r} is computed by a node that was not visited")

    def line(self, *parts: Any) -> None:
        self.hash.update(f"{parts!r}\n".encode())


def _attributes(operator: Operator) -> list[tuple[str, str]]:
    """The attributes that are not at their defaults, so that new ones with defaults change nothing."""
    stated = operator.stated()
    return [(name, _attribute(stated[name])) for name in sorted(stated)] if stated else []


def _attribute(value: Any) -> str:
    if isinstance(value, Graph):
        return f"{_types(value.inputs)} {digest(*_positions(value))}"
    if isinstance(value, tuple):
        return f"[{','.join(map(_attribute, value))}]"
    return repr(value)


def _types(values: Iterable[Value]) -> list[str]:
    return [value.type.text for value in values]


def _content(array: Array) -> str:
    """The hash of an array's elements, which are not copied for it."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
