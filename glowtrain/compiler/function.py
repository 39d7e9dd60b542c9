"""compile(), and the functions that it returns: models that calls' inputs specialise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from threading import RLock
from typing import Any

import numpy as np

from glowtrain.backends.base import Artifact, Backend, Batches, Completed, one_by_one
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.inputs import check_inputs, shape_of
from glowtrain.backends.state import State, address_of
from glowtrain.bounded_cache import BoundedCache
from glowtrain.compiler import service
from glowtrain.compiler.memory_use import MemoryUse, memory_use
from glowtrain.compiler.specialisation import Specialisation
from glowtrain.errors import InputError, UnknownValueError
from glowtrain.forks import renew_in_children
from glowtrain.graph import Binding, Graph, HostedModel, Template, no_graph, no_model
from glowtrain.graph.input_arrays import as_array
from glowtrain.graph.specialise.binding import collected, spread
from glowtrain.memory.resources import Resources
from glowtrain.pickling import check_pickles
from glowtrain.presentation.messages import kind_of
from glowtrain.settings import setting, takes
from glowtrain.stages import Options
from glowtrain.types import Array, Shape, TensorType

SPECIALISATIONS = 32
"""Bindings of a template that a function keeps compiled, unless it is told another number."""


@dataclass(frozen=True)
class CompileSpec(Resources):
    """The arguments of :func:`compile`."""

    model: Graph | Template | HostedModel
    backend: str | Backend = "cpu"
    state: State | None = None
    _: KW_ONLY
    specialisations: int = setting(
        SPECIALISATIONS,
        "Bindings of a template that are kept compiled.",
        "The one that was used longest ago goes first.",
    )


@takes(CompileSpec)
def compile(spec: CompileSpec) -> Function:
    """Compile a graph, or a template that each call's inputs bind, or a model of which parts run on the host.

    The result maps inputs by name to outputs by name. Functions compiled with the same ``state`` share their variables.
    A template is compiled anew for each binding. Without ``state`` and ``memory`` the function may read weights from
    copies of its own, in a layout that suits the processor.

    Raises :class:`InputError` for what cannot be a number of threads, a budget of memory or a type of residuals,
    :class:`BackendError` for more threads than the backend has, :class:`MemoryBudgetError` for a budget that cannot be
    kept.
    """
    backend = backend_of(spec.backend, spec.threads)
    model = spec.model.model if isinstance(spec.model, HostedModel) else spec.model
    if not isinstance(model, (Graph, Template)):
        raise InputError(f"compile takes a graph or a template, {no_model(model)}")
    alone = spec.state is None and spec.memory is None
    options = replace(service.options_for(model, spec, backend.facts), pack_variables=alone)
    return _function(spec.model, backend, spec.state, options, spec.specialisations)


def compile_artifact(
    graph: Graph, backend: str | Backend = "cpu", *, prefix: str = "", fixed_point: bool = False
) -> Artifact:
    """What a backend makes of a graph, without loading it: for any processor, to be kept or linked.

    ``prefix`` begins all exported symbols, so that several artifacts can be linked into one program. Raises
    :class:`InputError` for a prefix that cannot begin a C identifier, and for what is no graph.
    """
    if not isinstance(graph, Graph):
        raise InputError(f"compile_artifact takes a graph, {no_graph(graph)}")
    resolved = backend_of(backend)
    options = Options(facts=resolved.facts, fixed_point=fixed_point, prefix=prefix, linkable=True)
    return service.artifact(graph, resolved, options)


class Function:
    """A compiled model: ``f({"x": x})["y"]``. One specialisation for each binding of a template, all over one state.

    It can be called from several threads: calls run at the same time where the model updates nothing.
    """

    def __init__(
        self,
        model: Graph | Template,
        backend: Backend,
        state: State | None = None,
        options: Options | None = None,
        specialisations: int = SPECIALISATIONS,
    ) -> None:
        if not isinstance(model, (Graph, Template)):
            raise InputError(f"compile takes a graph or a template, {no_model(model)}")
        if state is not None and not isinstance(state, State):
            raise InputError(f"compile takes variables as a State, not {kind_of(state)}; see backends.state.State")
        self.model = model
        self.backend = backend
        self.options = options or Options(facts=backend.facts)
        self.state = state if state is not None else State({})
        self.limit = _limit(specialisations)
        self._kept: BoundedCache[Specialisation] = BoundedCache(self.limit)
        self.renew()
        renew_in_children(self)
        self._decisive: tuple[str, ...] = ()
        """Inputs whose elements decide about shapes, as far as they were met."""
        self._latest: tuple[tuple[Shape, ...], Specialisation] | None = None
        """The latest call's shapes and specialisation, where shapes alone decide."""
        self._direct: Specialisation | None = None
        """The latest call's specialisation, where it reads the call's inputs and gives its outputs as they are."""
        if isinstance(model, Graph):
            special = self._specialise(model)
            self._kept.put((), special)
            self._direct = special if model.results is None else None

    def renew(self) -> None:
        """The lock, free of threads that a child of fork does not have."""
        self._lock = RLock()

    def __reduce__(self) -> tuple[Callable[..., Function], tuple[Any, ...]]:
        """Model, backend, options and the variables' values: it is compiled anew where it is read.

        What a graph was bound from stays behind. Raises :class:`UnpicklableError` for a model without a name.
        """
        model = self.model.with_(template=None) if isinstance(self.model, Graph) else self.model
        check_pickles(model, "the compiled model", "save it (gt.save) and compile what gt.load reads")
        return _rebuild, (model, self.backend, self.state, self.options, self.limit)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        """The same model, which is immutable, over variables of its own."""
        return Function(self.model, self.backend, deepcopy(self.state, memo), self.options, self.limit)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name: arrays, lists of arrays for sequences.

        Raises :class:`InputError` for a wrong name, shape or dtype.
        """
        if (direct := self._direct) is not None and (outputs := direct.run_fitting(inputs)) is not None:
            return outputs
        special = self.specialised(inputs)
        graph = special.graph
        outputs = special.run(self._feeds(graph, inputs))
        return outputs if graph.results is None else collected(graph.results, outputs)

    def write(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Array], completed: Completed | None = None
    ) -> None:
        """Run, and write what comes out into contiguous arrays of the outputs' types, which overlap with nothing; in
        segments where ``completed`` is to be called between them.

        Raises :class:`InputError` for inputs that do not fit.
        """
        special = self.specialised(inputs)
        arrays = check_inputs(special.graph, self._feeds(special.graph, inputs))
        read, written = ({name: address_of(a) for name, a in each.items()} for each in (arrays, outputs))
        if special.run_at(read, written, completed) is None:
            for name, array in special.run(arrays).items():
                outputs[name][...] = array
            if completed is not None:
                completed(tuple(outputs))

    def memory(self, inputs: Mapping[str, Any] | None = None) -> MemoryUse:
        """The bytes that calls with such ``inputs`` take, for which it is compiled if need be; by default, those of the
        latest call. They are what the compiled code allocates.

        Raises :class:`InputError` where nothing has been compiled yet, and for inputs that do not fit;
        :class:`BackendError` for a backend that plans no memory.
        """
        special = self.latest() if inputs is None else self.specialised(inputs)
        graph = special.graph
        if inputs is not None and isinstance(self.model, Graph):
            check_inputs(graph, self._feeds(graph, inputs))
        sizes = {variable.name: variable.type.nbytes for variable in graph.variables}
        parameters = {variable.name for variable in graph.variables if variable.trainable}
        return memory_use(_called(graph), special.executable.memory).with_variables(sizes, parameters)

    @property
    def is_compiled(self) -> bool:
        """Whether anything has been compiled yet."""
        return bool(self._kept)

    def latest(self) -> Specialisation:
        """What was compiled for the latest call. Raises :class:`InputError` where nothing has been compiled yet."""
        with self._lock:
            if not self._kept:
                raise InputError(
                    f"{self.model.name} has not been compiled yet, so its memory is not known: run it first, or give "
                    "memory() a batch"
                )
            return self._kept.values()[-1]

    def run_many(self, batches: Batches) -> dict[str, Array]:
        """The outputs of calls in a row, for a model whose outputs are arrays of fixed sizes, one behind the other on a
        first axis (see :class:`Batches`). Raises :class:`InputError` before the first of them; where elements decide
        what is compiled, what is wrong with a later one ends the row (:func:`one_by_one`)."""
        special = self.specialised(batches[0])
        if isinstance(self.model, Graph) or not (self._decisive or self.model.structures):
            return special.run_many(batches)
        return one_by_one(self, batches)

    def _feeds(self, graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the graph reads of a call's inputs."""
        if isinstance(self.model, Graph) or not (self.model.structures or graph.binding.values):
            return inputs
        rest = {name: value for name, value in inputs.items() if name not in graph.binding.values}
        return dict(spread(self.model.structures, rest))

    def specialised(self, inputs: Mapping[str, Any]) -> Specialisation:
        """The specialisation that the inputs bind, compiled at its first use.

        Which inputs' elements decide about shapes is learnt from the errors of building without them.
        """
        if isinstance(self.model, Graph):
            return self.latest()
        shapes, latest = self._shapes(self.model, inputs), self._latest
        if shapes is not None and latest is not None and latest[0] == shapes:
            return latest[1]
        with self._lock:
            special = self._bound(self.model, inputs)
            self._latest = None if shapes is None else (shapes, special)
            plain = shapes is not None and special.graph.results is None and not special.graph.binding.values
            self._direct = special if plain else None
        return special

    def _shapes(self, template: Template, inputs: Mapping[str, Any]) -> tuple[Shape, ...] | None:
        """The shapes of a call's arrays, where they alone decide about the specialisation."""
        if self._decisive or template.structures or not isinstance(inputs, dict):
            return None
        arrays = [inputs.get(name) for name in template.inputs]
        shapes = tuple(array.shape for array in arrays if isinstance(array, np.ndarray))
        return shapes if len(shapes) == len(arrays) else None

    def _bound(self, template: Template, inputs: Mapping[str, Any]) -> Specialisation:
        binding = self._binding(template, inputs)
        while True:
            binding = binding.with_values({name: _value(template, name, inputs) for name in self._decisive})
            if (special := self._kept.get(binding.key)) is not None:
                return special
            try:
                special = self._specialise(template.bound(binding))
            except UnknownValueError as error:
                self._decisive += error.names
            else:
                self._kept.put(binding.key, special)
                return special

    def _binding(self, template: Template, inputs: Mapping[str, Any]) -> Binding:
        missing = [name for name in (*template.inputs, *template.structures) if name not in inputs]
        if missing:
            raise InputError(f"{template.name}: input {', '.join(map(repr, missing))} is missing")
        dims = template.dims_for({name: shape_of(inputs[name]) for name in template.inputs})
        parts = {name: structure.parts(name, inputs[name]) for name, structure in template.structures.items()}
        return Binding(dims, {}, parts)

    def _specialise(self, graph: Graph) -> Specialisation:
        return Specialisation(graph, self.backend, self.options, self.state)


class HostedFunction(Function):
    """A compiled model with its parts on the host: calls take and give all of it, and what else a function has is that
    of the compiled part."""

    def __init__(self, hosted: HostedModel, *arguments: Any) -> None:
        super().__init__(hosted.model, *arguments)
        self.hosted = hosted

    def __reduce__(self) -> tuple[Callable[..., Function], tuple[Any, ...]]:
        rebuild, (model, *rest) = super().__reduce__()
        return rebuild, (replace(self.hosted, model=model), *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> HostedFunction:
        return HostedFunction(self.hosted, self.backend, deepcopy(self.state, memo), self.options, self.limit)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name. Raises :class:`InputError`."""
        return self.hosted.run(inputs, super().__call__)


def _function(model: Graph | Template | HostedModel, *arguments: Any) -> Function:
    return HostedFunction(model, *arguments) if isinstance(model, HostedModel) else Function(model, *arguments)


def _called(graph: Graph) -> str:
    """A graph's name, and what its dimensions are bound to."""
    bound = ", ".join(f"{name}={extent}" for name, extent in graph.binding.dims.items())
    return f"{graph.name}, {bound}" if bound else graph.name


def _rebuild(
    model: Graph | Template | HostedModel, backend: Backend, state: State, options: Options, limit: int
) -> Function:
    """A function as it was pickled, by the facts of the backend that is here."""
    return _function(model, backend, state, replace(options, facts=backend.facts), limit)


def _limit(count: Any) -> int:
    if not isinstance(count, int) or count < 1:
        raise InputError(f"a function keeps at least 1 specialisation, not {count!r}")
    return count


def _value(template: Template, name: str, inputs: Mapping[str, Any]) -> Array:
    """The elements of an input. Raises :class:`InputError` for another dtype than the model declares."""
    dtype = template.inputs[name].dtype
    array = as_array(inputs[name], TensorType(dtype), name)
    if array.dtype != dtype.numpy:
        raise InputError(
            f"{template.name}: {name!r} must be {template.inputs[name]}, not {array.dtype}{list(array.shape)}"
        )
    return array
