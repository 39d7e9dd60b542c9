"""Graph: the high-level IR. Values and nodes, graphs, their text, verifier and rewriting."""

from glowtrain.graph.graph import Graph, rebuild, topological
from glowtrain.graph.operator import OPERATORS, Draw, Operator, Sample, lookup, operator, registered, static
from glowtrain.graph.template import Template
from glowtrain.graph.value import Constant, Input, Node, Value, Variable, apply, constant

__all__ = [
    "OPERATORS",
    "Constant",
    "Draw",
    "Graph",
    "Input",
    "Node",
    "Operator",
    "Sample",
    "Template",
    "Value",
    "Variable",
    "apply",
    "constant",
    "lookup",
    "operator",
    "rebuild",
    "registered",
    "static",
    "topological",
]
