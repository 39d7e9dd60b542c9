"""What is run on every processor: each operator on a sample with its gradients, training steps, models in integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import glowtrain as gt
from glowtrain.errors import DifferentiationError, GlowtrainError
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.differences import Probe
from glowtrain.gradcheck.operators.edges import drawn_example
from glowtrain.gradcheck.operators.oracles import applied, converted, whole
from glowtrain.graph import Graph, Input, Operator, constant
from glowtrain.graph.registry import registered
from glowtrain.ops.elementwise.arithmetic import Mod
from glowtrain.ops.indexing.gather import Gather
from glowtrain.types import DType, f32
from tests.compiler.networks import steps
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
    tokens = np.array([2**32 + 1, 7 * 2**40 + 3, -1, 2**63 - 1, 5], np.int64)
    x = Input(gt.i64[5], "tokens")
    table = constant(np.arange(33, dtype=np.float32).reshape(11, 3))
    small = Mod()(x, constant(np.int64(11)))
    graph = Graph((x,), {"rows": Gather()(table, small), "quotient": x / x.shape[0], "products": x * 3 - 1})
    return Case("long integers", graph, {"tokens": tokens})


def in_integers() -> Iterator[Case]:
    """A quantized network, whose results are bytes: rescaled in floats, and by integers alone."""
    graph = network(np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(2, 4, 8, 8)).astype(np.float32)
    for fixed_point in (False, True):
        yield Case(f"quantized, fixed_point={fixed_point}", graph, {"x": x}, fixed_point=fixed_point)
