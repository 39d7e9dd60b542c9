"""What a person calls the parts of a model: the modules that parameters and nodes belong to.

A parameter's name begins with its module's. A node that reads none may have a path as its name, which states the module
(``/stage1/relu/Relu``), as nodes have in files of PyTorch's exporters.
"""

from __future__ import annotations

from collections.abc import Iterable

from glowtrain.graph.value import Node, Value, Variable
from glowtrain.names import module_in, module_of


def modules_of(values: Iterable[Value | None]) -> list[str]:
    """The modules that the parameters among values belong to, each once, in order."""
    names = (value.name for value in values if isinstance(value, Variable) and value.trainable)
    return list(dict.fromkeys(filter(None, map(module_of, names))))


def path(module: str, name: str) -> str:
    """The name of a node that is in a module."""
    return f"/{module}/{name}"


def layer_name(node: Node) -> str:
    """What a node is called after: the module of its parameters or that it is in, else its own name or its result's."""
    module = next(iter(modules_of(node.inputs)), "") or module_in(node.name)
    return module or node.name or node.outputs[0].name
