"""What is run on every processor: each operator on a sample with its gradients, training steps, models in integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from glowtrain.errors import DifferentiationError, GlowtrainError
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.differences import Probe
from glowtrain.gradcheck.operators.edges import drawn_example
from glowtrain.gradcheck.operators.oracles import applied, converted, whole
from glowtrain.graph import Operator
from glowtrain.graph.registry import registered
from glowtrain.loops import Accumulate, Buffer, Const, For, Load, Store, indices_of
from glowtrain.types import DType, f32, i64
from tests.compiler.networks import steps
from tests.cpu.native_program import spread
from tests.cpu.nests import program
from tests.optimize.test_fixed_point import network
from tests.targets.emulated import Case


def operators(dtype: DType = f32) -> Iterator[Case]:
    """Each operator that is lowered and takes the type, on a sample: results and gradients."""
    for operator in sorted(registered(), key=lambda operator: operator.key()):
        probe = sampled(operator, dtype)
        if probe is not None:
            yield Case(operator.key(), probe.graph, ladder.feeds(probe.graph, probe.arrays))


def sampled(operator: type[Operator], dtype: DType) -> Probe | None:
    """An operator as a function of a sample's operands and of cotangents; ``None`` where it does not take the type."""
    sample = drawn_example(operator, 0, 0)
    try:
        given, own = applied(sample).probe, applied(converted(sample, dtype)).probe
    except GlowtrainError:
        return None
    found = replace(own, wanted=given.wanted, results=given.results)
    try:
        found = whole(found, np.random.default_rng(0), gradients=operator.differentiable)
    except DifferentiationError:  # there is none for these attributes
        found = own
    pairs = zip(found.arrays, found.inputs, strict=True)
    return replace(found, arrays=tuple(np.asarray(array).astype(value.dtype.numpy) for array, value in pairs))


def training() -> Iterator[Case]:
    """Three steps of each small network."""
    for name, (graph, feeds) in steps().items():
        yield Case(name, graph, feeds, times=3)


def long_integers() -> Case:
    """Integers that no index of 32 bits holds, in subscripts: they are brought into range before they are one, and
    what is out of range stays so."""
    places = Buffer("places", i64[6], "input")
    table = Buffer("table", f32[5], "input")
    rows, sums = Buffer("rows", f32[6], "output"), Buffer("sums", f32[5], "output")
    (n,), (k,), (m,) = indices_of((6,), "n"), indices_of((5,), "k"), indices_of((6,), "m")
    at = Load(places, (n,))
    read = For((n,), (Store(rows, (n,), Load(table, (at % 5,)) + Load(table, (at,), 0.5)),))
    clear = For((k,), (Store(sums, (k,), Const(0.0, f32)),))
    count = For((m,), (Accumulate("add", sums, (Load(places, (m,)),), Const(1.0, f32)),))
    kernels = [read], [clear, count]
    feeds = {
        "places": np.array([2**32 + 1, 7 * 2**40 + 3, -1, 2**63 - 1, 4, 2], np.int64),
        "table": np.arange(1, 6, dtype=np.float32),
    }
    return Case("long integers", spread(program(*kernels)), feeds)


def in_integers() -> Iterator[Case]:
    """A quantized network, whose results are bytes: rescaled in floats, and by integers alone."""
    graph = network(np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(2, 4, 8, 8)).astype(np.float32)
    for fixed_point in (False, True):
        yield Case(f"quantized, fixed_point={fixed_point}", graph, {"x": x}, fixed_point=fixed_point)
