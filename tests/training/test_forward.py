"""Forward mode: Jacobian-vector products as graph code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import DifferentiationError
from glowtrain.grad.reverse import pullback
from glowtrain.gradcheck.operators.oracles import applied, drawn
from glowtrain.graph import OPERATORS, Graph, Input, Value
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.arg_extrema import ArgMax


def run(values: Sequence[Value], **arrays: np.ndarray) -> list[np.ndarray]:
    leaves = Graph((), {f"y{k}": value for k, value in enumerate(values)}).leaves
    graph = Graph(tuple(v for v in leaves if isinstance(v, Input)), {f"y{k}": value for k, value in enumerate(values)})
    known = evaluate(graph, {v.name: arrays[v.name] for v in graph.inputs})
    return [known[value] for value in values]


def inputs(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[Input]:
    return [Input(gt.TensorType(gt.f64, shape), name) for name in names]


def points(*names: str, shape: tuple[int, ...] = (2, 3)) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape) for name in names}


def test_slopes_of_several_outputs_along_several_values() -> None:
    x, y, dx, dy = inputs("x", "y", "dx", "dy")
    outputs = [gt.nn.tanh(x) * y, gt.nn.total(x * x), y * 2.0]
    a = points("x", "y", "dx", "dy")
    found = run(gt.jvp(outputs, [x, y], [dx, dy]), **a)
    slope = 1 - np.tanh(a["x"]) ** 2
    np.testing.assert_allclose(found[0], slope * a["dx"] * a["y"] + np.tanh(a["x"]) * a["dy"], rtol=1e-12)
    np.testing.assert_allclose(found[1], 2 * np.sum(a["x"] * a["dx"]), rtol=1e-12)
    np.testing.assert_allclose(found[2], 2 * a["dy"], rtol=1e-12)


def test_arrays_are_tangents_and_intermediate_values_can_move() -> None:
    (x,) = inputs("x")
    h = x * 3.0
    a = points("x")
    (found,) = run(gt.jvp([h * h * x], [h], [np.ones((2, 3))]), **a)
    np.testing.assert_allclose(found, 6 * a["x"] ** 2)


def test_what_does_not_move_has_zero_slopes() -> None:
    x, y = inputs("x", "y")
    best = ArgMax(axis=1, keepdims=False)(x)
    stopped = gt.stop_gradient(x)
    outputs = [y, best, stopped, Cast(to=gt.f64)(best), x]
    found = gt.jvp(outputs, [x], [np.ones((2, 3))])
    assert [value.type for value in found] == [value.type for value in outputs]
    results = run(found, **points("x"))
    assert not any(array.any() for array in results[:4])
    assert (results[4] == 1).all()


@pytest.mark.parametrize("key", ["Scan", "LSTM", "Conv", "GridSample", "TopK", "Attention", "BatchNormalization"])
def test_transpose_of_reverse_mode(key: str) -> None:
    """<J u, v> = <u, J^T v>. (gradcheck's oracle "forward" does the same for every operator.)"""
    random, compared = np.random.default_rng(0), 0
    for example in range(4):
        probe = applied(drawn(OPERATORS[key], 1, example)).probe
        wrt = [probe.inputs[k] for k in probe.wanted]
        tangents = [Input(value.type, f"t{k}") for k, value in enumerate(wrt)]
        seeds = [Input(value.type, f"c{k}") for k, value in enumerate(probe.sources)]
        arrays = {v.name: a for v, a in zip(probe.inputs, probe.arrays, strict=True)}
        arrays |= {v.name: random.standard_normal(v.shape) for v in (*tangents, *seeds)}
        forward = run(gt.jvp(probe.sources, wrt, tangents), **arrays)
        pairs = [(g, t) for g, t in zip(pullback(probe.sources, seeds, wrt), tangents, strict=True) if g is not None]
        reverse = run([g for g, _ in pairs], **arrays)
        by_forward = sum(np.vdot(y, arrays[c.name]) for y, c in zip(forward, seeds, strict=True))
        by_reverse = sum(np.vdot(g, arrays[t.name]) for g, (_, t) in zip(reverse, pairs, strict=True))
        assert by_forward == pytest.approx(by_reverse, rel=1e-9, abs=1e-9)
        compared += abs(by_forward) > 1e-3
    assert compared


def test_hessian_vector_product_both_ways() -> None:
    x, d = inputs("x", "d")
    loss = gt.nn.total(gt.nn.exp(gt.nn.tanh(x * x) * x))
    (gradient,) = gt.gradients(loss, [x])
    (forward_over_reverse,) = gt.jvp([gradient], [x], [d])
    (reverse_over_reverse,) = gt.gradients(gt.nn.total(gradient * d), [x])
    (slope,) = gt.jvp([loss], [x], [d])
    (reverse_over_forward,) = gt.gradients(slope, [x])
    first, second, third = run([forward_over_reverse, reverse_over_reverse, reverse_over_forward], **points("x", "d"))
    np.testing.assert_allclose(first, second, rtol=1e-10)
    np.testing.assert_allclose(third, second, rtol=1e-10)


def test_forward_mode_costs_a_small_multiple() -> None:
    """Nothing of the pullback that it is made by is left: a chain of n operators has at most a few n nodes."""
    (x,) = inputs("x")
    value: Value = x
    for _ in range(40):
        value = gt.nn.tanh(value) * x
    graph = Graph((x,), {"y": gt.jvp([value], [x], [np.ones((2, 3))])[0]})
    assert len(graph.nodes) < 6 * len(Graph((x,), {"y": value}).nodes)
    assert not [leaf for leaf in graph.leaves if leaf.name.startswith("cotangent")]


def test_compiled_slopes(backend: str) -> None:
    x = Input(gt.f32[4], "x")
    (slope,) = gt.jvp([gt.nn.tanh(x)], [x], [np.full(4, 2.0, np.float32)])
    found = gt.compile(Graph((x,), {"slope": slope}), backend)({"x": np.zeros(4, np.float32)})["slope"]
    np.testing.assert_allclose(found, 2.0)


def test_tangents_that_do_not_fit_are_refused() -> None:
    x, y = inputs("x", "y")
    labels = Input(gt.i64[3], "labels")
    with pytest.raises(DifferentiationError, match="1 tangents were given for 2 values"):
        gt.jvp([x * y], [x, y], [x])
    with pytest.raises(DifferentiationError, match=r"tangent of .*x.* is f64\[3\]; it must be f64\[2,3\]"):
        gt.jvp([x * y], [x], [np.ones(3)])
    with pytest.raises(DifferentiationError, match="labels.*not of a float type"):
        gt.jvp([x], [labels], [np.ones(3, np.int64)])
    with pytest.raises(DifferentiationError, match="occurs twice"):
        gt.jvp([x], [x, x], [y, y])
