"""What a graph takes, gives and keeps, as a table: for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table

if TYPE_CHECKING:
    from glowtrain.graph.graph import Graph

LISTED = 40
"""Variables that are listed at most."""


def interface(graph: Graph, all_of_them: str) -> Iterator[str | Table]:
    """Inputs, outputs and the first variables, then sums; ``all_of_them`` says where the other variables are listed."""
    listed = [("input", given.name, given.type) for given in graph.inputs]
    listed += [("output", name, value.type) for name, value in graph.outputs.items()]
    listed += [("parameter" if v.trainable else "state", v.name, v.type) for v in graph.variables[:LISTED]]
    rows = ((kind, name, str(type_), f"{type_.nbytes:,}") for kind, name, type_ in listed)
    yield Table(("", "name", "type", "bytes>"), rows)
    if len(graph.variables) > LISTED:
        yield f"and {plural(len(graph.variables) - LISTED, 'more variable')} ({all_of_them})"
    parameters = sum(variable.type.size for variable in graph.variables if variable.trainable)
    state = sum(variable.type.nbytes for variable in graph.variables)
    yield f"{plural(parameters, 'parameter')}; {byte_text(state)} of state in all"
