from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import DifferentiationError, PluginError
from glowtrain.grad import gradients, reached, stop_gradient, training_graph
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.arg_extrema import ArgMax


def run(value: gt.Value, **arrays: np.ndarray) -> np.ndarray:
    leaves = {leaf: arrays[leaf.name] for leaf in gt.Graph((), {"y": value}).leaves if leaf.name in arrays}
    graph = gt.Graph(tuple(leaf for leaf in leaves if isinstance(leaf, gt.Input)), {"y": value})
    return evaluate(graph, arrays, arrays)[value]


def inputs(*names: str, shape: tuple[int, ...] = (2, 3)) -> list[gt.Input]:
    return [gt.Input(gt.TensorType(gt.f64, shape), name) for name in names]


def difference(loss: gt.Value, name: str, arrays: dict[str, np.ndarray], step: float = 1e-6) -> np.ndarray:
    """Central differences."""
    result = np.zeros_like(arrays[name])
    for place in np.ndindex(result.shape):
        ends = []
        for sign in (1, -1):
            moved = {key: array.copy() for key, array in arrays.items()}
            moved[name][place] += sign * step
            ends.append(float(run(loss, **moved)))
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


def test_values_used_many_times_accumulate() -> None:
    x, y = inputs("x", "y")
    h = gt.nn.tanh(x * y + x)
    loss = gt.nn.total(h * x + gt.nn.exp(h) * h - y)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((2, 3)), "y": rng.standard_normal((2, 3))}
    for name, gradient in zip("xy", gradients(loss, [x, y]), strict=True):
        np.testing.assert_allclose(run(gradient, **arrays), difference(loss, name, arrays), rtol=1e-6, atol=1e-8)


def test_gradients_can_be_differentiated_again() -> None:
    (x,) = inputs("x")
    (first,) = gradients(gt.nn.total(x * x * x), [x])
    (second,) = gradients(gt.nn.total(first), [x])
    point = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(run(second, x=point), 6 * point)


def test_unreachable_values_have_zero_gradients() -> None:
    x, y, z = inputs("x", "y", "z")
    loss = gt.nn.total(x * x)
    found = gradients(loss, [x, y])
    assert found[1].type == y.type
    assert not run(found[1]).any()
    assert not run(gradients(loss, [z])[0]).any()
    assert list(reached(loss, [x, y])) == [x]


def test_stop_gradient_passes_the_value_and_no_gradient() -> None:
    (x,) = inputs("x")
    stopped = stop_gradient(x * 2.0)
    point = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(run(stopped, x=point), 2 * point)
    np.testing.assert_allclose(run(gradients(gt.nn.total(stopped * x), [x])[0], x=point), 2 * point)
    assert not run(gradients(gt.nn.total(stopped), [x])[0], x=point).any()


def test_the_loss_must_be_a_float_scalar() -> None:
    (x,) = inputs("x")
    with pytest.raises(DifferentiationError, match=r"scalar of a float type, its type is f64\[2,3\]"):
        gradients(x * x, [x])
    with pytest.raises(DifferentiationError, match=r"its type is i64\[\]; cast it"):
        gradients(gt.nn.total(Cast(to=gt.i64)(x)), [x])


def test_integers_have_no_gradients() -> None:
    (x,) = inputs("x")
    labels = gt.Input(gt.i64[3], "labels")
    with pytest.raises(DifferentiationError, match="labels.*float type"):
        gradients(gt.nn.total(x), [labels])


def test_the_operator_that_cuts_the_path_is_named() -> None:
    (x,) = inputs("x")
    best = ArgMax(axis=1, keepdims=False)(gt.nn.tanh(x))
    loss = gt.nn.mean(Cast(to=gt.f64)(best))
    with pytest.raises(DifferentiationError, match=r"reaches x: .*ArgMax\{axis=1,keepdims=false\}\(f64\[2,3\]\)"):
        gradients(loss, [x])


def model_of(*names: str) -> tuple[gt.Graph, list[gt.Variable]]:
    x = gt.Input(gt.f32[4], "x")
    parameters = [gt.Variable(name, np.ones(4, np.float32)) for name in names]
    value = x
    for parameter in parameters:
        value = value * parameter
    return gt.Graph((x,), {"y": gt.nn.total(value)}), parameters


def test_a_step_without_parameters_is_refused() -> None:
    graph, parameters = model_of("w")
    with pytest.raises(DifferentiationError, match="no trainable parameter"):
        training_graph(graph, graph.outputs["y"], (), [], gt.optim.SGD())
    other = gt.Variable("other", np.ones(4, np.float32))
    with pytest.raises(DifferentiationError, match="does not depend on any trainable"):
        training_graph(graph, graph.outputs["y"], (), [other], gt.optim.SGD())
    assert training_graph(graph, graph.outputs["y"], (), [*parameters, other], gt.optim.SGD()).updates.keys() >= {
        parameters[0]
    }


def test_frozen_parameters_add_no_nodes() -> None:
    graph, parameters = model_of("first", "second", "third")
    loss = graph.outputs["y"]
    both = training_graph(graph, loss, (), parameters, gt.optim.SGD())
    last = training_graph(graph, loss, (), parameters[2:], gt.optim.SGD())
    assert [variable.name for variable in last.updates] == ["third", "optimizer.step"]
    extra = {node.operator.key() for node in last.nodes if node not in graph.nodes}
    assert len(last.nodes) < len(both.nodes)
    assert "Where" in extra
    only_third = gradients(loss, parameters[2:])
    backward = [node for node in gt.Graph(graph.inputs, {"g": only_third[0]}).nodes if node.operator.key() == "Mul"]
    assert len(backward) <= 3  # x * first * second, and that times the cotangent


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_changes_nothing(bad: float, backend: str) -> None:
    graph, parameters = model_of("w")
    step = gt.compile(training_graph(graph, graph.outputs["y"], (), parameters, gt.optim.Adam()), backend)
    hyper = {f"hyper.{name}": np.float32(value) for name, value in gt.optim.Adam().hyper().items()}
    step({"x": np.ones(4, np.float32), **hyper})
    before = {name: step.state.read(name) for name in step.state.names}
    step({"x": np.array([1, bad, 1, 1], np.float32), **hyper})
    for name, array in before.items():
        np.testing.assert_array_equal(step.state.read(name), array)
    assert before["optimizer.step"] == 1


@dataclass(frozen=True)
class Half(Elementwise):
    """x / 2, with a rule that forgets its tuple, and nothing to compile it by."""

    domain = "test"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x / 2

    def vjp(self, g: gt.Value, y: gt.Value, x: gt.Value) -> tuple[gt.Value, ...]:
        return g * 0.5  # type: ignore[return-value]


def test_a_rule_without_its_tuple_is_told_so() -> None:
    (x,) = inputs("x")
    with pytest.raises(DifferentiationError, match=r"the vjp of test\.\w* must return a tuple with .* not Value"):
        gradients(gt.nn.total(Half()(x)), [x])


def test_an_operator_that_cannot_be_compiled_is_told_what_it_lacks() -> None:
    (x,) = inputs("x")
    with pytest.raises(
        PluginError, match=r"cannot be compiled: give the class Half a scalar .*see .*docs/operators.md"
    ):
        gt.compile(gt.Graph((x,), {"y": Half()(x)}))
