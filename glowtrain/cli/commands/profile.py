"""``inspect --stage profile``: the processor's cycles in each kernel of a compiled step."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from glowtrain.backends.base import Backend, KernelProfile
from glowtrain.backends.state import State
from glowtrain.cli.terminal.console import out, seconds
from glowtrain.compiler.specialisation import executable_of
from glowtrain.compiler.walk import WALK, until, walk
from glowtrain.graph import Graph
from glowtrain.graph.modules import module_in, module_of
from glowtrain.lower.lower import values_by_buffer
from glowtrain.optim import HYPER
from glowtrain.presentation.tables import table
from glowtrain.presentation.words import plural
from glowtrain.program.program import Program
from glowtrain.stages import Options
from glowtrain.types import Array, TensorType

RUNS = 20
SHARE_LISTED = 0.002
"""Kernels with a smaller share of the time are added up in one line."""


def profile(graph: Graph, backend: Backend, runs: int = RUNS) -> None:
    """Run a graph on made-up inputs and print where the time goes, the most expensive kernels first."""
    found = measure(graph, backend, runs)
    calls, cycles, elapsed = found.calls, found.cycles, found.seconds
    spent: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for name, value in zip(calls, cycles, strict=True):
        spent[name] += value
        count[name] += 1
    total = sum(spent.values())
    listed, modules = (
        table(("share>", "time>", "cycles>", "calls>", "module", "kernel")),
        modules_by_kernel(graph, backend),
    )
    rest = 0.0
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        if value < SHARE_LISTED * total:
            rest += value
            continue
        numbers = (f"{value / total:.1%}", seconds(elapsed * value / total), f"{value:,.0f}", str(count[name]))
        listed.add_row(*numbers, ", ".join(modules[name]), name.replace("+", " + "))
    if rest:
        listed.add_row(f"{rest / total:.1%}", seconds(elapsed * rest / total), f"{rest:,.0f}", "", "", "all others")
    out.print(listed)
    called = plural(len(calls), "kernel call")
    out.print(f"{called}, {seconds(elapsed)} a run (the fastest of {runs} on made-up inputs)")


def modules_by_kernel(graph: Graph, backend: Backend) -> dict[str, list[str]]:
    """The modules whose parameters a kernel reads or updates, and of the nodes whose results it writes, by its name."""
    arrivals = walk(graph, Options(facts=backend.facts), until("plan", backend.stages(WALK)))
    *results, plan = (arrival.result for arrival in arrivals)
    simplified = [result for result in results if isinstance(result, Graph)][-1]
    parameters = {variable.name: module_of(variable.name) for variable in graph.variables if variable.trainable}
    nodes = modules_by_buffer(simplified, plan.program)
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for kernel in plan.program.kernels:
        named = [parameters.get(buffer.name, "") for buffer in kernel.operands]
        named += [nodes.get(buffer.name, "") for buffer in kernel.writes]
        found[kernel.name] |= dict.fromkeys(filter(None, named))
    return defaultdict(list, {name: list(modules) for name, modules in found.items()})


def modules_by_buffer(graph: Graph, program: Program) -> dict[str, str]:
    """The modules that nodes are in, by the names of the buffers that hold their results in the lowered program."""
    values = values_by_buffer(graph) | {buffer.name: graph.outputs[name] for name, buffer in program.outputs.items()}
    return {name: module_in(value.node.name) for name, value in values.items() if value.node is not None}


def measure(graph: Graph, backend: Backend, runs: int = RUNS) -> KernelProfile:
    """The fastest of ``runs`` runs of a graph, counted."""
    options = Options(facts=backend.facts, profile=True)
    state = State({variable.name: variable.initial for variable in graph.variables})
    return executable_of(graph, backend, options).bind(state).profile(made_up(graph), runs)


def made_up(graph: Graph) -> dict[str, Array]:
    """Inputs of the right types: small normal numbers, integers 0 and 1, hyperparameters of 0.001."""
    generator = np.random.Generator(np.random.Philox(0))
    return {value.name: _array(value.name, value.type, generator) for value in graph.inputs}


def _array(name: str, type_: TensorType, generator: np.random.Generator) -> Array:
    if name.startswith(HYPER):
        return np.full(type_.shape, 1e-3, type_.dtype.numpy)
    if type_.dtype.is_float:
        return np.asarray(generator.standard_normal(type_.shape)).astype(type_.dtype.numpy)
    return np.asarray(generator.integers(0, 2, type_.shape)).astype(type_.dtype.numpy)
