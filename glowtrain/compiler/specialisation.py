"""One graph, compiled: an executable, and as many instances as run it at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Condition
from typing import Any, TypeVar

from glowtrain.backends.base import Backend, Batches, Completed, Instance
from glowtrain.backends.inputs import check_batches, check_inputs
from glowtrain.backends.state import State
from glowtrain.compiler.service import build, enough_memory, too_large
from glowtrain.forks import renew_in_children
from glowtrain.graph import Graph
from glowtrain.stages import Options
from glowtrain.types import Array

Outputs = TypeVar("Outputs", dict[str, Array], dict[str, Array] | None, float | None)

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
            self.options = options
            self.state = state
            self.executable = build(graph, backend, options)
            state.add(graph.initial_values)
            self._indexing = graph.indexed_inputs
            """The inputs whose elements must be looked at before the rest goes to an instance as it is."""
            self._updated, self._reads = graph.updated_names, bool(graph.initial_values)
            self._moves = -1
            """The moves of the state's storage after which variables were known to lie as the executable wants."""
            self._idle: list[Instance] = [self.executable.bind(state)]
            self.renew()
            renew_in_children(self)

    def renew(self) -> None:
        """The count of instances, without those that a child of fork has lost."""
        self._given_back, self._waiting, self._made = Condition(), 0, len(self._idle)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name. Raises :class:`InputError` for inputs that do not fit the graph, or memory."""
        outputs = self.run_fitting(inputs)
        if outputs is not None:
            return outputs
        with enough_memory(self.graph):
            arrays = check_inputs(self.graph, inputs)
        return self._called(lambda instance: instance.run(arrays))

    def run_fitting(self, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
        """What :meth:`run` gives, or ``None``: for inputs that have to be converted, or do not fit."""
        if not self.indices_hold(inputs):
            return None
        return self._called(lambda instance: instance.run_fitting(inputs))

    def indices_hold(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the inputs that are indices are arrays whose values are certainly allowed."""
        return not self._indexing or all(use.holds(inputs) for use in self._indexing)

    def run_at(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], completed: Completed | None = None
    ) -> float | None:
        """A run over memory at addresses, as :meth:`Instance.run_at` says; who calls has asked
        whether :meth:`indices_hold`."""
        return self._called(lambda instance: instance.run_at(inputs, outputs, completed))

    def _called(self, call: Callable[[Instance], Outputs]) -> Outputs:
        """A call of an instance, alone or beside others."""
        try:
            if self._updated:
                return self._alone(call)
            return self._beside_others(call) if self._reads else self._taking(call)
        except MemoryError:
            raise too_large(self.graph) from None

    def run_many(self, batches: Batches) -> dict[str, Array]:
        """The outputs of runs in a row, which nothing else over the same state comes between, one behind the other on a
        first axis (see :class:`Batches`). Raises :class:`InputError` as :meth:`run` does, before the first of them."""
        try:
            batches = check_batches(self.graph, batches)
            return self._alone(lambda instance: instance.run_many(batches))
        except MemoryError:
            raise too_large(self.graph) from None

    def _alone(self, call: Callable[[Instance], Outputs]) -> Outputs:
        """A call of an instance while nothing else runs over the same state."""
        lock = self.state.lock
        lock.begin_writing()
        try:
            if self._updated:
                self.state.changed(self._updated)
            return self._taking(call)
        finally:
            lock.end_writing()

    def _beside_others(self, call: Callable[[Instance], Outputs]) -> Outputs:
        """A call that changes no variables, beside others of its kind; alone where one has to be laid out otherwise."""
        lock = self.state.lock
        lock.begin_reading()
        try:
            if self._moves == self.state.moves or self.state.fits(self.executable.layouts):
                self._moves = self.state.moves
                return self._taking(call)
        finally:
            lock.end_reading()
        return self._alone(call)

    def _taking(self, call: Callable[[Instance], Outputs]) -> Outputs:
        """A call of an instance that nobody else uses meanwhile."""
        instance = self._take()
        try:
            return call(instance)
        finally:
            self._give_back(instance)

    def _take(self) -> Instance:
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait_or_make()

    def _wait_or_make(self) -> Instance:
        with self._given_back:
            self._waiting += 1  # said before looking again: who gives back looks at it afterwards
            try:
                while not self._idle and self._made >= IDLE:
                    self._given_back.wait()
            finally:
                self._waiting -= 1
            if self._idle:
                return self._idle.pop()
            self._made += 1
        try:
            return self.executable.bind(self.state)
        except BaseException:
            with self._given_back:  # whoever waits may try to make one
                self._made -= 1
                self._given_back.notify()
            raise

    def _give_back(self, instance: Instance) -> None:
        self._idle.append(instance)
        if self._waiting:
            with self._given_back:
                self._given_back.notify()
