from __future__ import annotations

import math
import pickle
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import BindingError, GraphError, InputError, ShapeError
from glowtrain.nn.initializers import Request
from glowtrain.onnx_io import make_trainable


def names(graph: gt.Graph) -> list[str]:
    return [variable.name for variable in graph.variables]


def predict(template: gt.Template, **arrays: np.ndarray) -> np.ndarray:
    (value,) = gt.compile(template, "interpreter")(arrays).values()
    return value


def test_an_mlp_in_a_few_lines(backend: str) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def mlp(x: gt.Value) -> gt.Value:
        for width in (8, 5):
            x = gt.nn.relu(gt.nn.linear(x, width))
        return gt.nn.linear(x, 3)

    graph = mlp.bind({"batch": 4})
    gt.verify(graph)
    assert graph.name == "mlp"
    assert names(graph) == [f"linear{n}.{part}" for n in ("", "2", "3") for part in ("weight", "bias")]
    parameters = {variable.name: variable.initial for variable in graph.variables}
    x = h = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for layer in ("linear", "linear2"):
        h = np.maximum(h @ parameters[f"{layer}.weight"] + parameters[f"{layer}.bias"], 0)
    expected = h @ parameters["linear3.weight"] + parameters["linear3.bias"]
    np.testing.assert_allclose(gt.compile(graph, backend)({"x": x})["output"], expected, rtol=1e-5, atol=1e-6)


def test_all_bindings_have_the_same_variables(cnn: gt.Template) -> None:
    small, large = cnn.bind({"batch": 2}), cnn.bind({"batch": 7})
    assert small.variables == large.variables
    assert small.outputs["output"].shape == (2, 3)
    assert large.outputs["output"].shape == (7, 3)


def test_initial_values_are_a_function_of_seed_and_name() -> None:
    def build(seed: int, first: str) -> dict[str, np.ndarray]:
        with gt.nn.build(seed) as store:
            gt.nn.linear(gt.nn.linear(gt.Input(gt.f32[2, 3], "x"), 4, name=first), 5, name="last")
        return {name: variable.initial for name, variable in store.variables.items()}

    one, again, other = build(0, "first"), build(0, "renamed"), build(1, "first")
    np.testing.assert_array_equal(one["last.weight"], again["last.weight"])
    assert (one["first.weight"] != again["renamed.weight"]).all()
    assert (one["last.weight"] != other["last.weight"]).all()
    # Fixed for ever: a model written today has the same weights tomorrow.
    np.testing.assert_allclose(one["last.bias"][:3], [-0.32251301, -0.2932519, -0.20478016], rtol=1e-6)


@pytest.mark.parametrize(
    ("initializer", "std"),
    [
        (gt.nn.Kaiming(), math.sqrt(2 / 300)),
        (gt.nn.Kaiming(distribution="normal"), math.sqrt(2 / 300)),
        (gt.nn.Xavier(), math.sqrt(2 / 500)),
        (gt.nn.Xavier(2.0, "normal"), 2 * math.sqrt(2 / 500)),
        (gt.nn.Normal(0.3), 0.3),
        (gt.nn.FanIn(), 1 / math.sqrt(3 * 300)),
    ],
    ids=str,
)
def test_the_spread_of_initial_values(initializer: gt.nn.Initializer, std: float) -> None:
    values = initializer(Request(0, "w", (300, 200), 300, 200))
    assert values.shape == (300, 200)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert abs(values.mean()) < 5 * std / math.sqrt(values.size)
    uniform = getattr(initializer, "distribution", "normal") == "uniform" or isinstance(initializer, gt.nn.FanIn)
    assert (np.abs(values).max() < std * math.sqrt(3)) == uniform


def test_constant_initial_values_and_wrong_distributions() -> None:
    request = Request(0, "w", (2,), 2, 2)
    assert (gt.nn.zeros(request) == 0).all()
    assert (gt.nn.ones(request) == 1).all()
    with pytest.raises(InputError, match="distribution"):
        gt.nn.Kaiming(distribution="cauchy")


def test_initial_values_are_in_memory_while_somebody_looks_at_them() -> None:
    with gt.nn.build() as store:
        gt.nn.parameter("w", (30, 20))
    (variable,) = store.variables.values()
    values = variable.initial
    assert variable.initial is values
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0
    copy, seen = values.copy(), weakref.ref(values)
    del values
    assert seen() is None
    np.testing.assert_array_equal(variable.initial, copy)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(variable.source)), copy)


@dataclass(frozen=True)
class Counted(gt.nn.FanIn):
    """Other numbers each time."""

    drawn: list[int]

    def __call__(self, request: Request) -> np.ndarray:
        self.drawn.append(len(self.drawn))
        return np.full(request.shape, len(self.drawn))


def test_initial_values_that_would_be_others_the_next_time_are_kept() -> None:
    rule = Counted([])
    with gt.nn.build() as store:
        gt.nn.parameter("w", (3, 2), rule)
    (variable,) = store.variables.values()
    assert (variable.initial[0, 0], variable.initial[0, 0], rule.drawn) == (1, 1, [0])


def test_names_follow_scopes() -> None:
    with gt.nn.build() as store:
        x = gt.Input(gt.f32[2, 3], "x")
        for _ in range(2):
            with gt.nn.scope("block"):
                x = gt.nn.linear(x, 3, bias=False)
        x = gt.nn.linear(x, 3, bias=False, name="head")
    assert list(store.variables) == ["block.linear.weight", "block2.linear.weight", "head.weight"]


def test_layers_need_a_place_for_their_variables() -> None:
    with pytest.raises(GraphError, match=r"no place for them here; call it in a function decorated with @gt\.model"):
        gt.nn.linear(gt.Input(gt.f32[2, 3], "x"), 4)


def test_a_parameter_is_made_once() -> None:
    with gt.nn.build():
        gt.nn.parameter("table", (2, 3))
        with pytest.raises(GraphError, match="'table' is made twice"):
            gt.nn.parameter("table", (2, 3))


def test_a_parameter_cannot_depend_on_the_batch() -> None:
    @gt.model(x=gt.f32["batch", 2])
    def wrong(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.transpose(x), 3)

    wrong.bind({"batch": 4})
    with pytest.raises(BindingError, match="must not depend on a symbolic dimension"):
        wrong.bind({"batch": 5})


def test_a_model_returns_values() -> None:
    @gt.model(x=gt.f32[2])
    def wrong(x: gt.Value) -> dict[str, object]:
        return {"a": x, "b": 1.0}

    with pytest.raises(GraphError, match="'b' is a float"):
        wrong.bind({})
    with pytest.raises(InputError, match="declare the inputs"):
        gt.model()


def test_batch_norm_has_statistics_that_no_optimizer_touches(cnn: gt.Template) -> None:
    graph = cnn.bind({"batch": 4})
    frozen = [variable.name for variable in graph.variables if not variable.trainable]
    assert frozen == ["batch_norm.mean", "batch_norm.variance"]
    updated = {variable.name for variable in make_trainable(graph).updates}
    assert {"batch_norm.mean", "batch_norm.variance"} <= updated


def test_layer_norm_and_embedding() -> None:
    @gt.model(tokens=gt.i64["n"])
    def model(tokens: gt.Value) -> gt.Value:
        return gt.nn.layer_norm(gt.nn.embedding(tokens, 10, 16))

    table = model.bind({"n": 1}).variable("embedding.weight").initial
    rows = table[[3, 9]]
    expected = (rows - rows.mean(axis=1, keepdims=True)) / np.sqrt(rows.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(predict(model, tokens=np.array([3, 9])), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_looks_ahead_unless_causal(causal: bool) -> None:
    @gt.model(x=gt.f32["batch", "time", 8])
    def model(x: gt.Value) -> gt.Value:
        return gt.nn.attention(x, 2, causal=causal)

    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    later = x.copy()
    later[:, 3:] += 1
    before, after = predict(model, x=x), predict(model, x=later)
    assert np.array_equal(before[:, :3], after[:, :3]) == causal
    assert not np.allclose(before[:, 3:], after[:, 3:])


def test_attention_is_what_the_formula_says() -> None:
    @gt.model(x=gt.f32[1, 4, 6])
    def model(x: gt.Value) -> gt.Value:
        return gt.nn.attention(x, 3)

    p = {variable.name: variable.initial.astype(np.float64) for variable in model.bind({}).variables}
    x = np.random.default_rng(1).standard_normal((1, 4, 6)).astype(np.float32)
    q, k, v = np.split(x[0] @ p["attention.qkv.weight"] + p["attention.qkv.bias"], 3, axis=1)
    heads = []
    for cut in (slice(0, 2), slice(2, 4), slice(4, 6)):
        weights = np.exp(q[:, cut] @ k[:, cut].T / math.sqrt(2))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, cut])
    expected = np.concatenate(heads, axis=1) @ p["attention.output.weight"] + p["attention.output.bias"]
    np.testing.assert_allclose(predict(model, x=x)[0], expected, rtol=1e-4, atol=1e-5)
    with gt.nn.build(), pytest.raises(ShapeError, match="6 features do not divide into 4 heads"):
        gt.nn.attention(gt.Input(gt.f32[1, 4, 6], "x"), 4)


def test_a_bidirectional_lstm_is_two_lstms() -> None:
    @gt.model(x=gt.f32["batch", 5, 3])
    def model(x: gt.Value) -> gt.Value:
        return gt.nn.lstm(x, 4, direction="bidirectional")

    x = np.random.default_rng(2).standard_normal((2, 5, 3)).astype(np.float32)
    y = predict(model, x=x)
    assert y.shape == (2, 5, 8)
    changed = x.copy()
    changed[:, 4] += 1
    moved = predict(model, x=changed)
    np.testing.assert_array_equal(y[:, :4, :4], moved[:, :4, :4])
    assert (y[:, :, 4:] != moved[:, :, 4:]).all()


def test_convolutions_and_pools_have_the_expected_shapes() -> None:
    with gt.nn.build():
        x = gt.Input(gt.f32[2, 4, 9, 9], "x")
        assert gt.nn.conv(x, 8, padding="same").shape == (2, 8, 9, 9)
        assert gt.nn.conv(x, 8, 5, padding="same", dilation=2).shape == (2, 8, 9, 9)
        assert gt.nn.conv(x, 8, stride=2, groups=4, bias=False).shape == (2, 8, 4, 4)
        assert gt.nn.conv(gt.Input(gt.f32[2, 4, 9], "x"), 8, 3, padding=1).shape == (2, 8, 9)
        assert gt.nn.max_pool(x, 3).shape == (2, 4, 3, 3)
        assert gt.nn.average_pool(x, 3, stride=2, padding=1).shape == (2, 4, 5, 5)
        assert gt.nn.global_average_pool(x).shape == (2, 4)
        with pytest.raises(ShapeError, match="odd kernels"):
            gt.nn.conv(x, 8, 2, padding="same")


def test_shape_errors_name_the_operator() -> None:
    with gt.nn.build(), pytest.raises(ShapeError, match="MatMul"):
        gt.nn.linear(gt.Input(gt.f32[2, 3], "x"), 4) @ gt.nn.parameter("w", (5, 4))


def test_a_saved_model_from_python_is_standard_onnx(cnn: gt.Template) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = cnn.bind({"batch": 4})
    x = np.random.default_rng(0).standard_normal((4, 1, 4, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(gt.save(graph, opset=17).SerializeToString())
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, gt.compile(graph, "interpreter")({"x": x})["output"], rtol=1e-5, atol=1e-5)
