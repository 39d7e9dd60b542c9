"""compile(): the compiler's table of contents, and the functions that it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from glowtrain.backends.base import Backend, Executable, Instance, State, as_array, check_inputs, shape_of
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.interpreter import Interpreter
from glowtrain.errors import InputError, UnknownValueError
from glowtrain.graph import Binding, Graph, Template, no_model
from glowtrain.graph.binding import Key, collected, spread
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower
from glowtrain.optimize.fixed_point import in_fixed_point
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.loop_fusion.fuse import fuse
from glowtrain.program.passes.schedule import schedule
from glowtrain.program.program import Program
from glowtrain.program.verify import verify
from glowtrain.types import Array, TensorType
from glowtrain.words import kind_of

BACKENDS: dict[str, type[Backend]] = {backend.name: backend for backend in (Interpreter, Cpu)}


def compile_graph(graph: Graph, backend: Backend, *, fixed_point: bool = False) -> Executable:
    """The walk: from a graph to what runs. Each stage has its own type, text and verifier."""
    graph = in_fixed_point(graph) if fixed_point else in_integers(graph)
    return backend.compile(graph, lambda: planned(graph))


def planned(graph: Graph, *, check: bool = False) -> Plan:
    """Graph -> simpler operators, optimized -> program -> laid out, fused and scheduled -> plan.

    With ``check`` the verifier of each stage runs on what it made; it raises :class:`GraphError`.
    """
    graph = optimize(expand(graph), check=check)
    program = lower(graph)
    program = scheduled(program, check=check)
    result = plan(program)
    if check:
        verify_plan(result)
    return result


def scheduled(program: Program, *, check: bool = False) -> Program:
    """A lowered program, laid out, fused and scheduled; with ``check`` verified at first and after each stage."""
    if check:
        verify(program, "lower")
    for name, stage in (("assign_layouts", assign_layouts), ("fuse", fuse), ("schedule", schedule)):
        program = stage(program)
        if check:
            verify(program, name)
    return program


def backend_of(backend: str | Backend) -> Backend:
    """A backend by name. Raises :class:`InputError` listing the ones there are."""
    if isinstance(backend, Backend):
        return backend
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; choose from {', '.join(BACKENDS)}")
    return BACKENDS[backend]()


def compile(
    model: Graph | Template, backend: str | Backend = "cpu", state: State | None = None, *, fixed_point: bool = False
) -> Function:
    """Compile a graph, or a template that each call's inputs bind.

    The result maps inputs by name to outputs by name. Functions compiled with the same ``state`` share their variables.
    With ``fixed_point`` the sums of quantized products are rescaled by integers alone, as processors without floating
    point do; results can be one unit from those without it.
    """
    return Function(model, backend_of(backend), state, fixed_point=fixed_point)


class Function:
    """A compiled model: ``f({"x": x})["y"]``. One specialisation for each binding of a template, all over one state."""

    def __init__(
        self, model: Graph | Template, backend: Backend, state: State | None = None, *, fixed_point: bool = False
    ) -> None:
        if not isinstance(model, (Graph, Template)):
            raise InputError(f"compile takes a graph or a template, {no_model(model)}")
        if state is not None and not isinstance(state, State):
            raise InputError(f"compile takes variables as a State, not {kind_of(state)}; see backends.base.State")
        self.model = model
        self.backend = backend
        self.fixed_point = fixed_point
        self.state = state if state is not None else State({})
        self._instances: dict[Key, tuple[Graph, Instance]] = {}
        self._decisive: tuple[str, ...] = ()
        """Inputs whose elements decide about shapes, as far as they were met."""
        if isinstance(model, Graph):
            self._specialise((), model)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name: arrays, lists of arrays for sequences.

        Raises :class:`InputError` for a wrong name, shape or dtype.
        """
        with self.state.lock:
            graph, instance = self.instance_for(inputs)
            with enough_memory(graph):
                outputs = instance.run(check_inputs(graph, self._feeds(graph, inputs)))
            return outputs if graph.results is None else collected(graph.results, outputs)

    def _feeds(self, graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the graph reads of a call's inputs."""
        if isinstance(self.model, Graph):
            return inputs
        rest = {name: value for name, value in inputs.items() if name not in graph.binding.values}
        return dict(spread(self.model.structures, rest))

    def instance_for(self, inputs: Mapping[str, Any]) -> tuple[Graph, Instance]:
        """The specialisation that the inputs bind, compiled at its first use.

        Which inputs' elements decide about shapes is learnt from the errors of building without them.
        """
        if isinstance(self.model, Graph):
            return self._instances[()]
        binding = self._binding(self.model, inputs)
        while True:
            binding = binding.with_values({name: _value(self.model, name, inputs) for name in self._decisive})
            if binding.key in self._instances:
                return self._instances[binding.key]
            try:
                self._specialise(binding.key, self.model.bound(binding))
            except UnknownValueError as error:
                self._decisive += error.names

    def _binding(self, template: Template, inputs: Mapping[str, Any]) -> Binding:
        missing = [name for name in (*template.inputs, *template.structures) if name not in inputs]
        if missing:
            raise InputError(f"{template.name}: input {', '.join(map(repr, missing))} is missing")
        dims = template.dims_for({name: shape_of(inputs[name]) for name in template.inputs})
        parts = {name: structure.parts(name, inputs[name]) for name, structure in template.structures.items()}
        return Binding(dims, {}, parts)

    def _specialise(self, key: Key, graph: Graph) -> None:
        with enough_memory(graph):
            executable = compile_graph(graph, self.backend, fixed_point=self.fixed_point)
            for variable in graph.variables:
                if variable.name not in self.state:
                    self.state.add(variable.name, variable.initial)
            self._instances[key] = graph, executable.bind(self.state)


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


def _value(template: Template, name: str, inputs: Mapping[str, Any]) -> Array:
    """The elements of an input. Raises :class:`InputError` for another dtype than the model declares."""
    dtype = template.inputs[name].dtype
    array = as_array(inputs[name], TensorType(dtype))
    if array.dtype != dtype.numpy:
        raise InputError(
            f"{template.name}: {name!r} must be {template.inputs[name]}, not {array.dtype}{list(array.shape)}"
        )
    return array
