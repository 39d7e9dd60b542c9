"""The top rung: what a backend made, run, and what it leaves in memory."""

from __future__ import annotations

import numpy as np

from glowtrain.backends.base import Artifact, Backend, Instance
from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import State
from glowtrain.graph import Graph
from glowtrain.loops import Buffer
from glowtrain.program.memory.plan import ALIGNMENT, Plan
from glowtrain.program.program import Program
from glowtrain.types import Array
from glowtrain.verification.exact import Arrays

THREADS = (2, 3, 7)
"""Beside one: an even number, and odd ones, so that few things are shared out evenly."""


def run_loaded(
    backend: Backend, artifact: Artifact, graph: Graph, inputs: Arrays, state: Arrays
) -> tuple[Arrays, Arrays, Instance]:
    """Outputs and updated variables of compiled code, and the instance that it ran in."""
    store = State({name: np.asarray(array) for name, array in state.items()})
    instance = backend.load(artifact).bind(store)
    outputs = instance.run(check_inputs(graph, inputs))
    return outputs, {v.name: store.read(v.name) for v in graph.updates}, instance


def other_on_threads(backend: Backend, artifact: Artifact, graph: Graph, inputs: Arrays, state: Arrays) -> str:
    """What has other bits on several threads than on one, in words; empty if nothing has."""
    wanted = results_loaded(backend.for_checks(1), artifact, graph, inputs, state)
    for threads in THREADS:
        found = results_loaded(backend.for_checks(threads), artifact, graph, inputs, state)
        for name, array in wanted.items():
            if found[name].tobytes() != array.tobytes():
                return f"{name} has other bits on {threads} threads than on one"
    return ""


def results_loaded(backend: Backend, artifact: Artifact, graph: Graph, inputs: Arrays, state: Arrays) -> Arrays:
    """What compiled code leaves, by what it is called in reports."""
    return named(*run_loaded(backend, artifact, graph, inputs, state)[:2])


def named(outputs: Arrays, variables: Arrays) -> Arrays:
    """Results by what they are called in reports."""
    return {**{f"output {n}": a for n, a in outputs.items()}, **{f"variable {n}": a for n, a in variables.items()}}


def unshared(program: Program) -> Plan:
    """A plan in which no two activations share memory."""
    offsets, end = {}, 0
    for buffer in program.buffers:
        if buffer.kind == "activation":
            offsets[buffer] = end
            end += -(-buffer.type.nbytes // ALIGNMENT) * ALIGNMENT
    return Plan(program, offsets, end, end)


def in_arena(arena: Array, plan: Plan, buffer: Buffer) -> Array:
    """The contents of an activation."""
    offset = plan.offsets[buffer]
    physical = [buffer.shape[axis] for axis in buffer.layout]
    memory = arena[offset : offset + buffer.type.nbytes].view(buffer.dtype.numpy)
    return np.ascontiguousarray(memory.reshape(physical).transpose(np.argsort(buffer.layout)))
