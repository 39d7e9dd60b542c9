"""Attribute the kernels of a program to the nodes and layers of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.graph import Graph, Node, Value
from glowtrain.lower.lower import nodes_by_kernel, values_by_buffer
from glowtrain.names import module_of
from glowtrain.program.program import Instruction

_PART = re.compile(r"\.(parts\d*|pack|again)$")
"""What is added to the name of a kernel that computes a sum in parts, packs what a repeat reads, or makes something
once more."""


@dataclass(frozen=True)
class KernelProvenance:
    """A kernel's name, the layers that it computes a part of, and the nodes of the simplified graph."""

    name: str
    layers: tuple[str, ...]
    nodes: tuple[str, ...]


def provenance_of(
    graph: Graph, instructions: Sequence[Instruction], outputs: Mapping[str, str]
) -> Iterator[KernelProvenance]:
    """What each of the instructions computes that a simplified graph was lowered to; ``outputs`` are names of its
    outputs by those of their buffers.

    A kernel's layers are the modules of the parameters that it updates, the layers of the nodes in its name and of
    those whose results it writes, and the modules of parameters that it reads.
    """
    nodes, values = nodes_by_kernel(graph), values_by_buffer(graph)
    values |= {buffer: graph.outputs[name] for buffer, name in outputs.items()}
    parameters = {variable.name for variable in graph.variables if variable.trainable}
    modules = sorted(set(map(module_of, parameters)) - {""}, key=len, reverse=True)
    for instruction in instructions:
        found = dict.fromkeys([*_named(instruction, nodes), *_written(instruction, values)])
        updated = [_module(buffer.name, modules) for buffer in instruction.writes if buffer.kind == "variable"]
        read = [module_of(buffer.name) for buffer in instruction.reads if buffer.name in parameters]
        layers = dict.fromkeys(filter(None, [*updated, *(node.layer for node in found), *read]))
        yield KernelProvenance(instruction.name, tuple(layers), tuple(map(_described, found)))


def _named(instruction: Instruction, nodes: dict[str, Node]) -> Iterator[Node]:
    """The nodes that a kernel is named after."""
    for part in instruction.name.split("+"):
        if (node := nodes.get(_PART.sub("", part))) is not None:
            yield node


def _written(instruction: Instruction, values: dict[str, Value]) -> Iterator[Node]:
    """The nodes whose results an instruction writes."""
    for buffer in instruction.writes:
        value = values.get(buffer.name)
        if value is not None and value.node is not None:
            yield value.node


def _module(variable: str, modules: Sequence[str]) -> str:
    """The module of a parameter, or of what an optimizer keeps for one: ``conv`` of ``conv.weight.adam.m``."""
    return next((module for module in modules if variable.startswith(f"{module}.")), "")


def _described(node: Node) -> str:
    """``Conv stage1.conv``: operator and name, or layer."""
    return " ".join(filter(None, (node.operator.onnx, node.name or node.layer)))
