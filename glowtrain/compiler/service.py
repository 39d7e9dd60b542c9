"""The compile service: from graphs to plans, to artifacts, and to code that runs in this process.

    build      a graph, for this process: from the backend's cache, or compiled, kept there and loaded
    artifact   a graph, for any processor: nothing is loaded
    module     functions over the same variables, for any processor, as a module for an object file
    plans_of   the plans of functions over the same variables, which lie in memory as the first of them wants
    options_for  how something is compiled, from a person's settings
    in_bytes   a share of memory as bytes, of all that functions over the same variables need

All of them go through the table of stages in :mod:`glowtrain.compiler.walk`. What shows stages to people, or runs one
plan on several processors (``profile``, ``inspect``, ``doctor``), takes the walk itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from glowtrain import compiler
from glowtrain.backends.base import Artifact, Backend, Executable
from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import key_of
from glowtrain.backends.table import LinkableModule
from glowtrain.errors import ArtifactError, CodegenError, InputError
from glowtrain.graph import Graph, Template
from glowtrain.lower.forward_updates import residuals_for
from glowtrain.lower.precision import factors_for
from glowtrain.memory.budget import KEEP, Budget
from glowtrain.memory.resources import Resources
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Facts, Options, Stage
from glowtrain.types import type_of

SMALL = 1 << 26
"""Bytes of a graph's tensors together below which it is not they for which memory does not suffice."""


def options_for(model: Graph | Template, resources: Resources, facts: Facts) -> Options:
    """How a model or a training step is compiled with a person's settings, by the facts of a backend."""
    return Options(
        facts=facts, fixed_point=resources.fixed_point, memory=resources.budget,
        precision=factors_for(model, resources.precision, facts), residuals=residuals_for(model, resources.residuals),
    )  # fmt: skip


def build(graph: Graph, backend: Backend, options: Options) -> Executable:
    """A graph, compiled and loaded; from the backend's cache where it is there."""
    cache, key = backend.cache, _cache_key(graph, backend, options)
    if cache is None or key is None:
        return backend.load(_for_this_process(graph, backend, options))
    if (found := _cached(graph, backend, cache, key)) is not None:
        return found
    compiled = _for_this_process(graph, backend, options)
    if compiled.portable:
        cache.put(key, compiled.to_bytes())
    return backend.load(compiled)


def artifact(graph: Graph, backend: Backend, options: Options) -> Artifact:
    """What a backend makes of a graph."""
    compiled: Artifact = compiler.walk.arrive(graph, options, backend.stages(compiler.walk.WALK))
    return compiled


def module(graphs: Mapping[str, Graph], backend: Backend, options: Options) -> LinkableModule:
    """Functions over the same variables as one module. Raises what :func:`plans_of` and :meth:`Backend.module` do."""
    return backend.module(plans_of(graphs, options, backend.stages(compiler.walk.WALK)), options)


def plans_of(graphs: Mapping[str, Graph], options: Options, stages: Sequence[Stage] | None = None) -> dict[str, Plan]:
    """The plan of each function, by its name. Variables lie in memory as the first function that has them wants.
    ``stages``: those of a backend, by default the neutral ones.

    Raises :class:`MemoryBudgetError` for a limit that one of them cannot keep.
    """
    walk = compiler.walk.until("plan", stages or compiler.walk.WALK)
    found: dict[str, Plan] = {}
    layouts: dict[str, tuple[int, ...]] = {}
    for name, graph in graphs.items():
        shared = replace(options, variable_layouts=tuple(sorted(layouts.items())))
        found[name] = compiler.walk.arrive(graph, shared, walk)
        layouts = {v: buffer.layout for v, buffer in found[name].program.variables.items()} | layouts
    return found


def needed(plans: Mapping[str, Plan]) -> int:
    """The bytes of all variables of functions over the same ones, and of the one arena that they share."""
    sizes = {name: b.type.nbytes for plan in plans.values() for name, b in plan.program.variables.items()}
    return sum(sizes.values()) + max(plan.arena for plan in plans.values())


def in_bytes(graphs: Mapping[str, Graph], options: Options, stages: Sequence[Stage] | None = None) -> Options:
    """The options with a share of memory as bytes: of what the functions need where everything is kept and nothing
    rounded."""
    budget = options.memory
    if budget.share is None or budget == KEEP:
        return options
    kept = plans_of(graphs, replace(options, memory=KEEP, residuals=None), stages)
    return replace(options, memory=Budget(nbytes=budget.limit(needed(kept))))


def _for_this_process(graph: Graph, backend: Backend, options: Options) -> Artifact:
    backend.expect()
    return artifact(graph, backend, options)


def _cache_key(graph: Graph, backend: Backend, options: Options) -> str | None:
    """The key of the code on disk; None if it is not kept.

    What operators and backends of other packages do can depend on more than their sources, so their code is kept only
    where someone asked for it.
    """
    if backend.cache is None:
        return None
    return key_of(graph, backend.fingerprint, options, [type(backend)], foreign=not backend.cache.private)


def _cached(graph: Graph, backend: Backend, cache: Cache, key: str) -> Executable | None:
    """The code that a cache has, loaded; None where there is none, or it is damaged or of another graph."""
    data = cache.get(key)
    if data is None:
        return None
    inputs, outputs = graph.input_types, graph.output_types
    variables = {name: type_of(initial) for name, initial in graph.initial_values.items()}
    try:
        read = backend.read(data)
        return backend.load(read) if read.fits(inputs, variables, outputs) else None
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
    total = sum(value.type.nbytes for value in values)
    advice = "use smaller dimensions"
    if total < SMALL:
        advice = f"all its tensors are {total:,}: what else this process holds takes the memory, or a limit is too low"
    return InputError(
        f"{graph.name}: there is not enough memory: its largest tensor is {largest.type}, {largest.type.nbytes:,} "
        f"bytes; {advice}"
    )
