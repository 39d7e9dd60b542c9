"""What made a value: by it the profile of one model is told from that of another.

Only what is the same for every batch size is looked at: the operator, the rank, and the parameters, which are known by
their types and a digest of their elements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Graph, Value, Variable, topological
from glowtrain.quantization.export.constants import constant_values

DIGITS = 16
"""Hexadecimal digits of a digest that are kept."""


@dataclass(frozen=True)
class Provenance:
    """The operator with the types of its parameters and the rank of the result, and a digest of the parameters; both
    empty where they are not known, the digest also where there are no parameters."""

    made_by: str = ""
    weights: str = ""


def provenances(graph: Graph, values: Mapping[str, Value]) -> dict[str, Provenance]:
    """What makes each value of a graph."""
    constants, digests = constant_values(graph), dict[Variable, str]()
    return {name: _provenance(value, _parameters(value, constants), digests) for name, value in values.items()}


def _parameters(value: Value, constants: set[Value]) -> list[Variable]:
    """The variables among a value's operands, or behind operands that no input reaches."""
    operands = () if value.node is None else value.node.inputs
    found: dict[Variable, None] = {}
    for operand in operands:
        if operand is not None and operand in constants:
            leaves = (operand, *(leaf for node in topological([operand]) for leaf in node.inputs))
            found.update((leaf, None) for leaf in leaves if isinstance(leaf, Variable))
    return list(found)


def _provenance(value: Value, parameters: list[Variable], digests: dict[Variable, str]) -> Provenance:
    types = ", ".join(str(parameter.type) for parameter in parameters)
    maker = "an input" if value.node is None else f"{value.node.operator.key()}({types})"
    made_by = f"{maker} of {value.dtype}, rank {value.rank}"
    if not parameters:
        return Provenance(made_by)
    parts = "".join(digests.setdefault(parameter, _digest(parameter)) for parameter in parameters)
    return Provenance(made_by, hashlib.sha256(parts.encode()).hexdigest()[:DIGITS])


def _digest(parameter: Variable) -> str:
    elements = np.ascontiguousarray(parameter.initial).reshape(-1)
    return hashlib.sha256(elements.view(np.uint8).data).hexdigest()
