"""Graph: the high-level IR. Values and nodes, graphs, their text, verifier and rewriting."""

from glowtrain.graph.attributes import attribute
from glowtrain.graph.graph import Graph, bodies_of
from glowtrain.graph.hosted import HostedModel
from glowtrain.graph.operator import Draw, Operator, Sample, static
from glowtrain.graph.registry import OPERATORS, Named, class_of, lookup, operator, registered
from glowtrain.graph.rewriting import Change, Replacements, rebuild, rewrite, substituted, translate
from glowtrain.graph.specialise.binding import Binding, Structure
from glowtrain.graph.specialise.ragged import Operand, Ragged
from glowtrain.graph.specialise.template import Model, Template, no_graph, no_model
from glowtrain.graph.text import arrays_of, parse, to_text
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Constant, Input, Node, Value, Variable, apply, constant
from glowtrain.graph.verify import verify

__all__ = [
    "OPERATORS",
    "Binding",
    "Change",
    "Constant",
    "Draw",
    "Graph",
    "HostedModel",
    "Input",
    "Model",
    "Named",
    "Node",
    "Operand",
    "Operator",
    "Ragged",
    "Replacements",
    "Sample",
    "Structure",
    "Template",
    "Value",
    "Variable",
    "apply",
    "arrays_of",
    "attribute",
    "bodies_of",
    "class_of",
    "constant",
    "lookup",
    "no_graph",
    "no_model",
    "operator",
    "parse",
    "rebuild",
    "registered",
    "rewrite",
    "static",
    "substituted",
    "to_text",
    "topological",
    "translate",
    "verify",
]
