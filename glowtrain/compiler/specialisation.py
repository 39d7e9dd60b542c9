"""One graph, compiled: an executable, and as many instances as run it at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING, Any, TypeVar

from glowtrain.backends.base import Artifact, Backend, Batches, Executable, Instance
from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import key_of
from glowtrain.backends.inputs import check_batches, check_inputs
from glowtrain.backends.state import State
from glowtrain.deferred import Deferred
from glowtrain.errors import ArtifactError, CodegenError, InputError
from glowtrain.forks import renew_in_children
from glowtrain.graph import Graph
from glowtrain.stages import Options
from glowtrain.types import Array, type_of

if TYPE_CHECKING:
    from glowtrain.compiler import walk
else:
    walk = Deferred("glowtrain.compiler.walk")

Outputs = TypeVar("Outputs", dict[str, Array], dict[str, Array] | None, bool, float)

SMALL = 1 << 26
"""Bytes of a graph's tensors together below which it is not they for which memory does not suffice."""
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
            self.executable = executable_of(graph, backend, options)
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

    def run_at(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bool:
        """A run over memory at addresses, as :meth:`Instance.run_at` says; who calls has asked
        whether :meth:`indices_hold`."""
        return self._called(lambda instance: instance.run_at(inputs, outputs))

    def timed_at(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> float:
        """The seconds that :meth:`run_at` takes within the instance's code."""
        return self._called(lambda instance: instance.timed_at(inputs, outputs))

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


def executable_of(graph: Graph, backend: Backend, options: Options) -> Executable:
    """A graph, compiled and loaded; from the backend's cache where it is there."""
    cache, key = backend.cache, _key(graph, backend, options)
    if cache is None or key is None:
        return backend.load(_compiled(graph, backend, options))
    if (found := _kept(graph, backend, cache, key)) is not None:
        return found
    artifact = _compiled(graph, backend, options)
    if artifact.portable:
        cache.put(key, artifact.to_bytes())
    return backend.load(artifact)


def _compiled(graph: Graph, backend: Backend, options: Options) -> Artifact:
    """The artifact of a graph, which will be loaded."""
    backend.expect()
    artifact: Artifact = walk.arrive(graph, options, backend.stages(walk.WALK))
    return artifact


def _key(graph: Graph, backend: Backend, options: Options) -> str | None:
    """Under which key the code is kept, if it is.

    What operators and backends of other packages do can depend on more than their sources, so their code is kept only
    where someone asked for it.
    """
    if backend.cache is None:
        return None
    return key_of(graph, backend.fingerprint, options, [type(backend)], elsewhere=not backend.cache.own)


def _kept(graph: Graph, backend: Backend, cache: Cache, key: str) -> Executable | None:
    """The code that a cache has, loaded; None where there is none, or it is damaged or of another graph."""
    data = cache.get(key)
    if data is None:
        return None
    inputs, outputs = graph.input_types, graph.output_types
    variables = {name: type_of(initial) for name, initial in graph.initial_values.items()}
    try:
        artifact = backend.read(data)
        return backend.load(artifact) if artifact.fits(inputs, variables, outputs) else None
    except (ArtifactError, CodegenError):
        return None


@contextmanager
def enough_memory(graph: Graph) -> Iterator[None]:
    """Raise :class:`InputError` naming the largest tensor of a graph where memory does not suffice."""
    try:
        yield
    except MemoryError:
        raise too_large(graph) from None


def too_large(graph: Graph) -> InputError:
    """The error that names the largest tensor of a graph; of a small graph it says that others take the memory."""
    values = {*graph.inputs, *graph.variables, *(value for node in graph.nodes for value in node.outputs)}
    largest = max(values, key=lambda value: value.type.nbytes)
    needed = sum(value.type.nbytes for value in values)
    advice = "use smaller dimensions"
    if needed < SMALL:
        advice = f"all its tensors are {needed:,}: what else this process holds takes the memory, or a limit is too low"
    return InputError(
        f"{graph.name}: there is not enough memory: its largest tensor is {largest.type}, {largest.type.nbytes:,} "
        f"bytes; {advice}"
    )
