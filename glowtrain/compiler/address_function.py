"""A graph, compiled to run on memory that each call names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glowtrain.backends.base import AddressInstance, Backend
from glowtrain.compiler.service import build, enough_memory
from glowtrain.graph import Graph
from glowtrain.stages import Options


class AddressFunction:
    """``f(addresses)``: the graph over memory at the addresses of its inputs, variables and outputs, in the order of
    ``names``. Variables are read and updated in place.

    Calls from several threads run beside each other, each in an instance of its own; who calls sees to it that what one
    writes no other reads meanwhile. Raises :class:`BackendError` for a backend without addresses.
    """

    def __init__(self, graph: Graph, backend: Backend, names: Sequence[str]) -> None:
        self.graph = graph
        self.names = tuple(names)
        options = replace(Options(facts=backend.facts), row_major_variables=True)
        with enough_memory(graph):
            self._executable = build(graph, backend, options)
            self._idle: list[AddressInstance] = [self._executable.at_addresses(self.names)]

    def __call__(self, addresses: Sequence[int]) -> None:
        try:
            instance = self._idle.pop()
        except IndexError:
            instance = self._executable.at_addresses(self.names)
        try:
            instance.run(addresses)
        finally:
            self._idle.append(instance)
