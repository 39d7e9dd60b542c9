"""Every ATen operator that can be read: results, types and gradients are those of PyTorch."""

from __future__ import annotations

import operator
from functools import reduce

import aten_samples_elementwise  # noqa: F401
import aten_samples_layers  # noqa: F401
import aten_samples_losses  # noqa: F401
import aten_samples_shapes  # noqa: F401
import numpy as np
import pytest
import torch
from aten_samples import SAMPLES, Eager, Sample
from opinfo import ENTRIES

import glowtrain as gt
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.torch.aten import TABLE
from glowtrain.torch.dtypes import THEIRS
from glowtrain.torch.memory import array_of
from glowtrain.types import Array, f32


@pytest.mark.parametrize("name", SAMPLES)
def test_results_and_gradients_are_pytorchs(name: str) -> None:
    sample = SAMPLES[name]
    graph, _ = sample.read
    eager = sample.eager()
    types = [(THEIRS[value.dtype], value.shape) for value in graph.outputs.values()]
    assert types == [(result.dtype, tuple(result.shape)) for result in eager.results]
    if sample.random:
        _check_moments(sample, graph, eager)
    else:
        _check_numbers(sample, graph, eager)


BY_NUMBERS = {
    "_linalg_slogdet.default", "_linalg_solve_ex.default", "special_erfinv.default", "xlogy.Scalar_Other",
    "xlogy.Scalar_Self",
}  # fmt: skip
"""Other names of operators that samples reach, or of them with a number: torch.compile comes to them."""


def test_a_sample_reaches_every_operator() -> None:
    reached = frozenset().union(*(sample.read[1] for sample in SAMPLES.values()))
    assert sorted(set(TABLE) - reached - set(ENTRIES) - BY_NUMBERS) == []


def _check_moments(sample: Sample, graph: Graph, eager: Eager) -> None:
    results = _run(graph, sample.inputs)
    for ours, theirs in zip((results[name] for name in graph.outputs), eager.results, strict=True):
        theirs = theirs.double()
        assert abs(ours.mean() - theirs.mean().item()) < 0.02 * (1 + theirs.std().item())
        assert abs(ours.std() - theirs.std().item()) < 0.03 * (1e-3 + theirs.std().item())


def _check_numbers(sample: Sample, graph: Graph, eager: Eager) -> None:
    """Against PyTorch in float64: results, gradients by inputs and parameters, new values of buffers."""
    generator = torch.Generator().manual_seed(sample.seed)
    cotangents = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in eager.results]
    exact = sample.eager(sample.reference)
    expected = exact.gradients(cotangents) if sample.gradient else {}
    results = _run(_with_gradients(graph, list(expected)), [*sample.inputs, *cotangents])
    for name, theirs in zip(graph.outputs, exact.results, strict=True):
        _assert_close(name, results[name], theirs, sample.tolerance)
    for name, theirs in expected.items():
        ours = results.get(_gradient_of(name), np.zeros(theirs.shape))
        _assert_close(_gradient_of(name), ours, theirs, sample.tolerance)
    for variable in graph.updates:
        buffers = dict(exact.module.named_buffers())
        if variable.name in buffers:
            _assert_close(variable.name, results[_new(variable.name)], buffers[variable.name], sample.tolerance)


def _with_gradients(graph: Graph, names: list[str]) -> Graph:
    """Also the new values of variables, and the gradients of the outputs' sum, weighted with cotangents as inputs.

    Inputs are named by number; what the graph does not contain has none.
    """
    cotangents = [Input(value.type, f"cotangent{i}") for i, value in enumerate(graph.outputs.values())]
    outputs = dict(graph.outputs)
    outputs |= {_new(variable.name): value for variable, value in graph.updates.items()}
    leaves = {str(i): each for i, each in enumerate(graph.inputs)} | {each.name: each for each in graph.variables}
    present = [name for name in names if name in leaves]
    if present:
        found = gt.gradients(_weighted(graph, cotangents), [leaves[name] for name in present])
        outputs |= {_gradient_of(name): value for name, value in zip(present, found, strict=True)}
    return Graph((*graph.inputs, *cotangents), outputs, {}, graph.name)


def _gradient_of(name: str) -> str:
    return f"gradient of {name}"


def _new(name: str) -> str:
    return f"new {name}"


def _weighted(graph: Graph, cotangents: list[Input]) -> Value:
    terms = [
        Cast(to=f32)(ReduceSum(axes=None, keepdims=False)(y * c))
        for y, c in zip(graph.outputs.values(), cotangents, strict=True)
        if y.dtype.is_float
    ]
    return reduce(operator.add, terms)


def _run(graph: Graph, tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> dict[str, Array]:
    arrays = [array_of(tensor.detach().contiguous()) for tensor in tensors]
    feed = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    return dict(gt.compile(graph, threads=1)(feed))


def _assert_close(what: str, ours: Array, theirs: torch.Tensor, tolerance: float) -> None:
    expected = theirs.detach().double().numpy()
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
    np.testing.assert_allclose(np.asarray(ours, np.float64), expected, rtol=0, atol=tolerance * scale, err_msg=what)
