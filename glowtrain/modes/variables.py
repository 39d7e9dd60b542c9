"""Values for the variables of a graph, by name: those of a trained model, given with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from glowtrain.grad.training import MICRO, STEP
from glowtrain.graph import Graph, Value, Variable, substituted
from glowtrain.modes.training_and_inference import COUNTER, SEED
from glowtrain.presentation.messages import unknown
from glowtrain.types import Array

COUNTERS = frozenset([SEED, COUNTER, STEP, MICRO])
"""The variables that training adds to a model, beside the optimizer's slots."""


def unknown_variables(graph: Graph, names: Iterable[str]) -> str:
    """Which names are of no variable of a graph, as a message; empty if all are known.

    What a training step adds to a model (counters, and the optimizer's ``<parameter>.<slot>``) is known too:
    ``trainer.variables()`` holds it beside the parameters.
    """
    known = [variable.name for variable in graph.variables]
    slots = tuple(f"{name}." for name in known)
    strange = [name for name in names if name not in COUNTERS and not (slots and name.startswith(slots))]
    problem = unknown(strange, known, "variable")
    return f"{graph.name} has {problem}" if problem else ""


def with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with other initial values of its variables, in what its template builds too."""
    return graph.map(partial(_with_values, values=values))


def _with_values(graph: Graph, *, values: Mapping[str, Array]) -> Graph:
    fresh: dict[Value, Value] = {
        variable: Variable(variable.name, values[variable.name], variable.trainable)
        for variable in graph.variables
        if variable.name in values
    }
    return substituted(graph, fresh)
