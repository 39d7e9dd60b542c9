"""One graph, compiled: an executable, and as many instances as run it at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Semaphore
from typing import Any

from glowtrain.backends.base import Backend, Executable, Instance
from glowtrain.backends.cache import key_of
from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import State
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.errors import ArtifactError, InputError
from glowtrain.forks import renew_in_children
from glowtrain.graph import Graph
from glowtrain.stages import Options
from glowtrain.types import Array

IDLE = os.cpu_count() or 1
"""Instances of one specialisation at most: more of them would not run at once, each with memory of its own."""


class Specialisation:
    """A graph compiled over a state.

    Calls of a graph that updates nothing run beside each other, each in an instance of its own; calls of one that
    updates variables take turns with all others over the same state.
    """

    def __init__(self, graph: Graph, backend: Backend, options: Options, state: State) -> None:
        with enough_memory(graph):
            self.graph = graph
            self.state = state
            self.executable = executable_of(graph, backend, options)
            for variable in graph.variables:
                state.add(variable.name, variable.initial)
            self._idle: list[Instance] = [self.executable.bind(state)]
            self.renew()
            renew_in_children(self)

    def renew(self) -> None:
        """The count of free instances, without those that a child of fork has lost."""
        self._free = Semaphore(IDLE)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name. Raises :class:`InputError` for inputs that do not fit the graph, or memory."""
        with enough_memory(self.graph):
            arrays = check_inputs(self.graph, inputs)
            with self._turn(), self.instance() as instance:
                return instance.run(arrays)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the state's lock: alone where variables change, or have to be laid out otherwise first."""
        lock = self.state.lock
        if not self.graph.updates:
            with lock.reading():
                if self.state.fits(self.executable.layouts):
                    yield
                    return
        with lock.writing():
            yield

    @contextmanager
    def instance(self) -> Iterator[Instance]:
        """An instance that nobody else uses meanwhile; waits where as many as there are cores are in use."""
        with self._free:
            try:
                instance = self._idle.pop()
            except IndexError:
                instance = self.executable.bind(self.state)
            try:
                yield instance
            finally:
                self._idle.append(instance)


def executable_of(graph: Graph, backend: Backend, options: Options) -> Executable:
    """A graph, compiled and loaded; from the backend's cache where it is there."""
    if backend.cache is None:
        return backend.load(arrive(graph, options, backend.stages(WALK)))
    key = key_of(graph, backend.fingerprint, options)
    data = backend.cache.get(key)
    if data is not None:
        try:
            return backend.load(backend.read(data))
        except ArtifactError:
            data = None  # damaged: it is made again, and written over
    artifact = arrive(graph, options, backend.stages(WALK))
    if artifact.portable:
        backend.cache.put(key, artifact.to_bytes())
    return backend.load(artifact)


@contextmanager
def enough_memory(graph: Graph) -> Iterator[None]:
    """Raise :class:`InputError` naming the largest tensor of a graph where memory does not suffice."""
    try:
        yield
    except MemoryError:
        values = (value for node in graph.nodes for value in node.outputs)
        largest = max((*graph.inputs, *graph.variables, *values), key=lambda value: value.type.nbytes)
        raise InputError(
            f"{graph.name}: there is not enough memory: its largest tensor is {largest.type}, {largest.type.nbytes:,} "
            "bytes; use smaller dimensions"
        ) from None
