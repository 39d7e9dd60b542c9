"""What a person calls the parts of a model: the modules that parameters belong to."""

from __future__ import annotations

from collections.abc import Iterable

from glowtrain.graph.value import Node, Value, Variable


def module_of(parameter: str) -> str:
    """``stage1.conv`` of ``stage1.conv.weight``; empty for a parameter of no module."""
    return parameter.rpartition(".")[0]


def modules_of(values: Iterable[Value | None]) -> list[str]:
    """The modules that the parameters among values belong to, each once, in order."""
    names = (value.name for value in values if isinstance(value, Variable) and value.trainable)
    return list(dict.fromkeys(filter(None, map(module_of, names))))


def layer_name(node: Node) -> str:
    """What a node is called after: the module of its parameters, else its own name or that of its result."""
    return next(iter(modules_of(node.inputs)), "") or node.name or node.outputs[0].name
