"""A graph of results and gradients, cut in two: the halves compute what the whole does, and keep little."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import GraphError
from glowtrain.grad.halves import Halves, halves
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Value, Variable, constant
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.tensor.move import Transpose
from glowtrain.optimize.pipeline import optimize
from glowtrain.types import Array, TensorType, f32


def cut(result: Value, *inputs: Input) -> tuple[Graph, Halves]:
    """The graph of a result and its gradients for all inputs, and its halves."""
    cotangent = Input(result.type, "cotangent")
    found = pullback([result], [cotangent], inputs)
    gradients = {f"d_{value.name}": g for value, g in zip(inputs, found, strict=True) if g is not None}
    joint = optimize(Graph((*inputs, cotangent), {"y": result, **gradients}, {}, "f"))
    return joint, halves(joint, list(gradients), [value for value in joint.inputs if value.name == "cotangent"])


def arrays(graph: Graph) -> dict[str, Array]:
    numbers = np.random.default_rng(0)
    return {value.name: numbers.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}


def check(joint: Graph, parts: Halves) -> None:
    """Both halves, one after the other, give what the whole does."""
    inputs = arrays(joint)
    expected = gt.compile(joint, backend="interpreter")(inputs)
    first = gt.compile(parts.forward, backend="interpreter")({v.name: inputs[v.name] for v in parts.forward.inputs})
    there = {**inputs, **first}
    last = gt.compile(parts.backward, backend="interpreter")({v.name: there[v.name] for v in parts.backward.inputs})
    for name, array in expected.items():
        np.testing.assert_array_equal({**first, **last}[name], array)


def kept(parts: Halves) -> list[str]:
    """The types of what only the backward half reads."""
    return [str(value.type) for name, value in parts.forward.outputs.items() if name != "y"]


def matrix(name: str, rows: int, columns: int) -> Input:
    return Input(TensorType(f32, (rows, columns)), name)


def test_two_layers_keep_what_is_between_them() -> None:
    x, a, b = matrix("x", 5, 4), matrix("a", 4, 3), matrix("b", 3, 2)
    joint, parts = cut(MatMul()(Relu()(MatMul()(x, a)), b), x, a, b)
    check(joint, parts)
    assert kept(parts) == ["f32[5,3]"]  # not what the relu read, nor where it was positive


def test_a_result_is_not_kept_twice() -> None:
    x = matrix("x", 5, 4)
    joint, parts = cut(Tanh()(x), x)
    check(joint, parts)
    assert kept(parts) == []
    assert [value.name for value in parts.backward.inputs] == ["cotangent", "y"]


def test_inputs_and_what_moves_their_elements_are_read_again() -> None:
    x, w = matrix("x", 5, 4), matrix("w", 3, 4)
    joint, parts = cut(MatMul()(x, Transpose(perm=(1, 0))(w)), x, w)
    check(joint, parts)
    assert kept(parts) == []


def test_cheap_chains_are_computed_again() -> None:
    x, a, b = matrix("x", 5, 4), matrix("a", 4, 3), matrix("b", 5, 3)
    h = MatMul()(x, a)
    joint, parts = cut((h * 2 + 1) * (h * 2 + 1) * b, x, a, b)
    check(joint, parts)
    assert kept(parts) == ["f32[5,3]"]


def test_variables_that_are_updated_are_kept_as_they_were() -> None:
    x, scale = matrix("x", 5, 4), Variable("scale", np.full((5, 4), 3, np.float32), trainable=False)
    cotangent = Input(x.type, "cotangent")
    joint = Graph((x, cotangent), {"y": x * scale, "d_x": cotangent * scale}, {scale: scale + 1}, "f")
    parts = halves(joint, ["d_x"], [cotangent])
    assert [value.name for value in parts.forward.variables] == ["scale"]
    assert parts.backward.variables == ()
    assert kept(parts) == ["f32[5,4]"]


def test_a_result_that_depends_on_a_cotangent_is_refused() -> None:
    x, cotangent = matrix("x", 5, 4), matrix("cotangent", 5, 4)
    joint = Graph((x, cotangent), {"y": x * cotangent, "d_x": cotangent * constant(2.0, f32)}, {}, "f")
    with pytest.raises(GraphError, match="f: a result depends on a cotangent"):
        halves(joint, ["d_x"], [cotangent])


def test_clips_with_one_bound_or_none() -> None:
    """Cheap arithmetic like any other: computed again."""
    x, b = matrix("x", 5, 4), matrix("b", 4, 3)
    for bounds in ((), (constant(0.0, f32),), (None, constant(0.5, f32))):
        joint, parts = cut(MatMul()(Clip()(x, *bounds), b), x, b)
        check(joint, parts)
