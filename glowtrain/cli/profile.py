"""``inspect --stage profile``: the processor's cycles in each kernel of a compiled step."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict

import numpy as np

from glowtrain.backends.cpu.backend import NativeGraph, NativeInstance
from glowtrain.backends.cpu.step import ENTRY, generate
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.cli.console import out, seconds, table
from glowtrain.compiler import planned
from glowtrain.graph import Graph
from glowtrain.optim import HYPER
from glowtrain.types import Array, TensorType
from glowtrain.words import plural

RUNS = 20
SHARE_LISTED = 0.002
"""Kernels with a smaller share of the time are added up in one line."""


def profile(graph: Graph, runs: int = RUNS) -> None:
    """Run a graph on made-up inputs and print where the time goes, the most expensive kernels first."""
    calls, cycles, elapsed = measure(graph, runs)
    spent: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for name, value in zip(calls, cycles, strict=True):
        spent[name] += value
        count[name] += 1
    total = sum(spent.values())
    listed = table("share>", "time>", "cycles>", "calls>", "kernel")
    rest = 0.0
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        if value < SHARE_LISTED * total:
            rest += value
            continue
        listed.add_row(
            f"{value / total:.1%}", seconds(elapsed * value / total), f"{value:,.0f}", str(count[name]), name
        )
    if rest:
        listed.add_row(f"{rest / total:.1%}", seconds(elapsed * rest / total), f"{rest:,.0f}", "", "all others")
    out.print(listed)
    called = plural(len(calls), "kernel call")
    out.print(f"{called}, {seconds(elapsed)} a run (the fastest of {runs} on made-up inputs)")


def measure(graph: Graph, runs: int = RUNS) -> tuple[tuple[str, ...], Array, float]:
    """The kernel of each call, its cycles in the fastest of ``runs`` runs, and that run's seconds."""
    native = NativeGraph(graph, lambda: planned(graph), Target.host())
    instance = native.bind(native.initial_state())
    assert isinstance(instance, NativeInstance)
    inputs = made_up(graph)
    instance.run(inputs)
    code = generate(native.plan, native.target, profile=True)
    step = toolchain.build(code.text, native.target, [ENTRY]).function(ENTRY, 1)
    counters = np.zeros(max(1, len(code.calls)), np.int64)
    slots = toolchain.pointer_table([*instance.table, counters.ctypes.data])
    best, fastest = counters.copy(), float("inf")
    for _ in range(runs):
        counters[:] = 0
        began = time.perf_counter()
        step(ctypes.addressof(slots))
        elapsed = time.perf_counter() - began
        if elapsed < fastest:
            best, fastest = counters.copy(), elapsed
    return code.calls, best[: len(code.calls)], fastest


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
