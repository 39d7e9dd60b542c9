"""The gradient of an output as a model: what it takes and gives, its numbers, and what cannot be differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import DifferentiationError, InputError
from glowtrain.graph import Graph, Input, Template, Variable
from glowtrain.graph.retype import widened
from glowtrain.ops.elementwise.arithmetic import Round
from glowtrain.ops.indexing.gather import Gather

X = Input(gt.f64[2, 3], "x")


def weight(name: str, *shape: int) -> Variable:
    return Variable(name, np.random.default_rng(4).normal(size=shape))


def network() -> Graph:
    """scores = tanh(x w) v, the mean of them, and what was chosen."""
    scores = gt.nn.tanh(X @ weight("w", 3, 5)) @ weight("v", 5, 2)
    return Graph((X,), {"scores": scores, "mean": gt.nn.mean(scores, (0, 1))}, name="net")


def run(graph: Graph, **arrays: Any) -> dict[str, np.ndarray]:
    return gt.compile(graph, "interpreter")(arrays)


def differences(graph: Graph, of: str, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The gradient of the weighted sum of an output by x, by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[place] += step
            ends.append(float(np.sum(run(graph, x=moved)[of] * weights)))
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.fixture
def x(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(2, 3))


def test_a_scalar_output_needs_no_cotangent(x: np.ndarray) -> None:
    made = gt.gradient_model(network(), "mean", "x")
    assert [value.name for value in made.inputs] == ["x"]
    assert list(made.outputs) == ["mean", "x.gradient"]
    found = run(made, x=x)
    np.testing.assert_allclose(found["x.gradient"], differences(network(), "mean", x, np.ones(())), atol=1e-8)
    np.testing.assert_array_equal(found["mean"], run(network(), x=x)["mean"])


def test_a_tensor_is_multiplied_by_a_cotangent(x: np.ndarray, random: np.random.Generator) -> None:
    made = gt.gradient_model(network(), "scores", "x")
    assert [(value.name, value.type) for value in made.inputs[1:]] == [("scores.cotangent", gt.f64[2, 2])]
    weights = random.normal(size=(2, 2))
    found = run(made, x=x, **{"scores.cotangent": weights})
    np.testing.assert_allclose(found["x.gradient"], differences(network(), "scores", x, weights), atol=1e-8)
    np.testing.assert_array_equal(found["scores"], run(network(), x=x)["scores"])


def test_the_total_needs_none(x: np.ndarray) -> None:
    made = gt.gradient_model(network(), "scores", total=True)
    assert [value.name for value in made.inputs] == ["x"]
    ones = differences(network(), "scores", x, np.ones((2, 2)))
    np.testing.assert_allclose(run(made, x=x)["x.gradient"], ones, atol=1e-8)


def test_by_variables_and_patterns(x: np.ndarray) -> None:
    made = gt.gradient_model(network(), "mean", ["x", "[vw]"])
    assert list(made.outputs) == ["mean", "x.gradient", "w.gradient", "v.gradient"]
    hidden = np.tanh(x @ network().variable("w").initial)
    expected = np.repeat(hidden.sum(0)[:, None], 2, 1) / 4
    np.testing.assert_allclose(run(made, x=x)["v.gradient"], expected, rtol=1e-12)


def test_the_only_output_and_all_inputs_are_the_default() -> None:
    a, b, ids = Input(gt.f32[2], "a"), Input(gt.f32[2], "b"), Input(gt.i64[2], "ids")
    unused = Input(gt.f32[2], "unused")
    made = gt.gradient_model(Graph((a, b, ids, unused), {"y": a * b + Gather()(a, ids), "n": ids + 1}))
    assert list(made.outputs) == ["y", "a.gradient", "b.gradient"]


def test_a_template_stays_open_and_takes_any_batch() -> None:
    @gt.model(x=gt.f32["n", 3])
    def model(x: Any) -> Any:
        return gt.nn.softmax(gt.nn.linear(x, 2, name="head"))

    made = gt.gradient_model(model, "output", ["x", "head.*"])
    assert isinstance(made, Template)
    function = gt.compile(made, "interpreter")
    for n in (1, 4):
        found = function({"x": np.ones((n, 3), np.float32), "output.cotangent": np.ones((n, 2), np.float32)})
        assert found["x.gradient"].shape == (n, 3)
        assert found["head.weight.gradient"].shape == (3, 2)


def test_gradients_of_gradients(x: np.ndarray) -> None:
    """A Hessian-vector product, and names that do not clash."""
    first = gt.gradient_model(network(), "mean", "x")
    second = gt.gradient_model(first, "x.gradient", "x")
    assert [value.name for value in second.inputs] == ["x", "x.gradient.cotangent"]
    assert list(second.outputs) == ["x.gradient", "x.gradient_1"]
    vector = np.linspace(-1, 1, 6).reshape(2, 3)
    found = run(second, x=x, **{"x.gradient.cotangent": vector})["x.gradient_1"]
    np.testing.assert_allclose(found, differences(first, "x.gradient", x, vector), atol=1e-7)


def test_names_that_are_taken_are_not_given_again() -> None:
    taken = Input(gt.f32[2], "y.cotangent")
    x, w = Input(gt.f32[2], "x"), Variable("x.gradient", np.ones(2, np.float32))
    made = gt.gradient_model(Graph((x, taken), {"y": x * taken * w}), "y", "x")
    assert [value.name for value in made.inputs] == ["x", "y.cotangent", "y.cotangent_1"]
    assert list(made.outputs) == ["y", "x.gradient_1"]
    gt.save(made)


def test_the_state_of_a_model_is_not_updated() -> None:
    @gt.model(x=gt.f32["n", 3])
    def model(x: Any) -> Any:
        return gt.nn.batch_norm(x)

    trained = gt.onnx_io.make_trainable(model.bind({"n": 4}))
    assert trained.updates
    assert gt.gradient_model(trained).updates == {}


def tokens() -> Graph:
    ids, x = Input(gt.i64[2], "ids"), Input(gt.f64[2, 3], "x")
    table = weight("table", 5, 3)
    hidden = Gather(axis=0)(table, ids) * Round()(x)
    unused = Variable("unused", np.ones(3))
    return Graph((ids, x), {"y": hidden, "next": ids + 1, "other": unused * 2.0}, name="tokens")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"of": "yy"}, InputError, r"tokens has no output 'yy' \(the nearest is 'y'\)"),
        ({"of": "zzz"}, InputError, r"tokens has no output 'zzz'; it has 'y', 'next', 'other'"),
        ({}, InputError, "tokens has 2 outputs of floats; name one: y, other"),
        ({"of": "next"}, InputError, r"output 'next' is i64\[2\], which is not a float type"),
        ({"of": "y", "by": "tabel"}, InputError, r"no input or variable 'tabel' \(the nearest is 'table'\)"),
        ({"of": "y", "by": ["ids"]}, InputError, r"tokens: ids \(i64\[2\]\): not of a float type"),
        ({"of": "y", "by": "unused"}, DifferentiationError, "output 'y' does not depend on variable 'unused'$"),
        ({"of": "other", "by": "x"}, DifferentiationError, "output 'other' does not depend on input 'x'$"),
        (
            {"of": "y", "by": "x"},
            DifferentiationError,
            r"does not depend on input 'x' differentiably: cut by Round\(f64\[2,3\]\): it is piecewise constant",
        ),
        ({"of": "y"}, DifferentiationError, "output 'y' depends differentiably on no input of floats"),
    ],
)
def test_what_cannot_be_differentiated(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gt.gradient_model(tokens(), **arguments)


def test_a_template_is_checked_at_once() -> None:
    @gt.model(x=gt.f32["n", 3])
    def model(x: Any) -> Any:
        return gt.nn.relu(x)

    with pytest.raises(InputError, match="has no output 'score'"):
        gt.gradient_model(model, "score")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="gradient_model takes a graph or a template, not 'model.onnx'"):
        gt.gradient_model("model.onnx")  # type: ignore[type-var]


def test_it_is_the_gradient_in_f32_as_well(x: np.ndarray) -> None:
    """The compiled model in f32, beside the interpreter in f64."""

    @gt.model(x=gt.f32["n", 3])
    def model(x: Any) -> Any:
        return gt.nn.mean(gt.nn.gelu(gt.nn.linear(x, 4)), (0, 1))

    made = gt.gradient_model(model).bind({"n": 2})
    found = gt.compile(made)({"x": x.astype(np.float32)})["x.gradient"]
    expected = run(widened(made).graph, x=x.astype(np.float32).astype(np.float64))["x.gradient"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
