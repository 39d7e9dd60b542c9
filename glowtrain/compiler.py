"""compile(): the compiler's table of contents, and the functions that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glowtrain.backends.base import Backend, Executable, Instance, State, check_inputs, shape_of
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.interpreter import Interpreter
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.fuse import fuse
from glowtrain.program.layout import assign_layouts
from glowtrain.program.plan import Plan, plan
from glowtrain.program.schedule import schedule
from glowtrain.types import Array

BACKENDS: dict[str, type[Backend]] = {backend.name: backend for backend in (Interpreter, Cpu)}


def compile_graph(graph: Graph, backend: Backend) -> Executable:
    """The walk: from a graph to what runs. Each stage has its own type, text and verifier."""
    return backend.compile(graph, lambda: planned(graph))


def planned(graph: Graph) -> Plan:
    """Graph -> simpler operators, optimized -> program -> laid out, fused and scheduled -> plan."""
    graph = optimize(expand(graph))
    program = lower(graph)
    program = assign_layouts(program)
    program = fuse(program)
    program = schedule(program)
    return plan(program)


def backend_of(backend: str | Backend) -> Backend:
    """A backend by name. Raises :class:`InputError` listing the ones there are."""
    if isinstance(backend, Backend):
        return backend
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; choose from {', '.join(BACKENDS)}")
    return BACKENDS[backend]()


def compile(model: Graph | Template, backend: str | Backend = "cpu", state: State | None = None) -> Function:
    """Compile a graph, or a template whose dimensions are bound by the shapes of each call.

    The result maps inputs by name to outputs by name. Functions compiled with the same ``state`` share their variables.
    """
    return Function(model, backend_of(backend), state)


class Function:
    """A compiled model: ``f({"x": x})["y"]``. One specialisation per binding of the dimensions, all over one state."""

    def __init__(self, model: Graph | Template, backend: Backend, state: State | None = None) -> None:
        if not isinstance(model, (Graph, Template)):
            raise InputError(f"compile takes a graph or a template, not {type(model).__name__}; see gt.load, gt.model")
        self.model = model
        self.backend = backend
        self.state = state if state is not None else State({})
        self._instances: dict[tuple[tuple[str, int], ...], tuple[Graph, Instance]] = {}
        if isinstance(model, Graph):
            self._specialise((), model)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name. Raises :class:`InputError` for a wrong name, shape or dtype."""
        with self.state.lock:
            graph, instance = self.instance_for(inputs)
            return instance.run(check_inputs(graph, inputs))

    def instance_for(self, inputs: Mapping[str, Any]) -> tuple[Graph, Instance]:
        """The specialisation that fits the inputs' shapes, compiled at its first use."""
        if isinstance(self.model, Graph):
            return self._instances[()]
        missing = [name for name in self.model.inputs if name not in inputs]
        if missing:
            raise InputError(f"{self.model.name}: input {', '.join(map(repr, missing))} is missing")
        dims = self.model.dims_for({name: shape_of(array) for name, array in inputs.items()})
        key = tuple(sorted(dims.items()))
        if key not in self._instances:
            self._specialise(key, self.model.bind(dims))
        return self._instances[key]

    def _specialise(self, key: tuple[tuple[str, int], ...], graph: Graph) -> None:
        executable = compile_graph(graph, self.backend)
        for variable in graph.variables:
            if variable.name not in self.state:
                self.state.add(variable.name, variable.initial)
        self._instances[key] = graph, executable.bind(self.state)
