"""From a float model to an integer one that ONNX Runtime runs on its integer kernels, with the same results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import glowtrain as gt
from glowtrain.graph import Graph, Template
from glowtrain.models import build
from glowtrain.onnx_io.checks.other_runtimes import EXACT_WEIGHTS, outside_run
from glowtrain.quantization import Quantized, Recipe, Scheme
from glowtrain.quantization.improve.sensitivity import decibels
from glowtrain.types import Array, i4, i8, i16, u4, u8, u16
from tests.quantization.models import branches, images, matrices, mobile, state_of, transformer

X: dict[str, Array] = {
    "mobile": images(24),
    "branches": images(24),
    "transformer": np.random.default_rng(0).standard_normal((24, 6, 16)).astype(np.float32),
}
MODELS: dict[str, Callable[[], Template]] = {"mobile": mobile, "branches": branches, "transformer": transformer}


@cache
def quantized(name: str, recipe: Recipe = Recipe()) -> Quantized:  # noqa: B008  recipes are immutable
    model = MODELS[name]()
    profile = None if recipe == Recipe() else quantized(name).profile
    return gt.quantize(model, X[name], recipe, state=state_of(model), profile=profile, batch_size=24)


@cache
def ours(name: str, recipe: Recipe = Recipe()) -> dict[str, Array]:  # noqa: B008
    """The results of the compiled quantized model."""
    return gt.compile(quantized(name, recipe).model)({"x": X[name]})


@cache
def exactly(name: str) -> dict[str, Array]:
    """Those of the float model."""
    return gt.compile(quantized(name).exact)({"x": X[name]})


@dataclass
class Session:
    """A saved model in ONNX Runtime."""

    outputs: dict[str, Array]
    operators: Counter[str]


def onnx_runtime(graph: Graph, x: Array, folder: Path, opset: int | None = None) -> Session:
    """Results, and the operators that are left after ONNX Runtime's own optimizations."""
    path, optimized = folder / "model.onnx", folder / "optimized.onnx"
    proto = gt.save(graph, path, opset=opset)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(optimized)
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact sums on processors without VNNI
    options.add_session_config_entry(EXACT_WEIGHTS, "1")
    session = ort.InferenceSession(str(path), options)
    names = [output.name for output in session.get_outputs()]
    results = dict(zip(names, session.run(None, {"x": x}), strict=True))
    return Session(results, Counter(node.op_type for node in onnx.load(optimized).graph.node))


def noise(exact: Array, rounded: Array) -> float:
    wide = exact.astype(np.float64)
    return decibels(float((wide**2).sum()), float(((wide - rounded) ** 2).sum()))


@pytest.mark.parametrize(("name", "opset"), [("mobile", 13), ("mobile", 21), ("branches", 15), ("transformer", 17)])
def test_onnx_runtime_gives_the_same(name: str, opset: int, tmp_path: Path) -> None:
    """To the last bit but for the order of sums in kernels that are not integer ones."""
    found, x = quantized(name), X[name]
    theirs = onnx_runtime(found.model.bind({"batch": len(x)}), x, tmp_path, opset)
    for output, array in ours(name).items():
        np.testing.assert_allclose(theirs.outputs[output], array, atol=1e-5, rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_the_interpreter_and_the_prepared_model_give_the_same(name: str) -> None:
    """FakeQuantize computes in f32 what the integers stand for; sums of f32 may tip a rounding by one step."""
    found, x = quantized(name), X[name]
    for output, array in gt.compile(found.model, "interpreter")({"x": x}).items():
        np.testing.assert_allclose(ours(name)[output], array, atol=1e-5)
    for output, array in gt.compile(found.prepared)({"x": x}).items():
        assert noise(ours(name)[output], array) > 35


@pytest.mark.parametrize(
    ("name", "integer", "real"),
    [
        (
            "mobile",
            {"QLinearConv": 7, "QLinearAdd": 2, "QLinearGlobalAveragePool": 1, "QGemm": 1, "DequantizeLinear": 1},
            ("Conv", "Add", "Clip", "GlobalAveragePool", "Gemm"),
        ),
        (
            "branches",
            {"QLinearConv": 4, "QLinearConcat": 1, "QLinearAveragePool": 1, "QLinearSigmoid": 1, "QLinearMul": 1},
            ("Conv", "Concat", "AveragePool", "Sigmoid", "Relu"),
        ),
        (
            "transformer",
            {"QLinearMatMul": 1, "MatMulIntegerToFloat": 7, "QLinearAdd": 2, "QGemm": 1},
            ("MatMul", "Gemm"),
        ),
    ],
)
def test_onnx_runtime_fuses_to_its_integer_kernels(
    name: str, integer: dict[str, int], real: tuple[str, ...], tmp_path: Path
) -> None:
    found = quantized(name, Recipe(outputs=True))
    operators = onnx_runtime(found.model.bind({"batch": 4}), X[name][:4], tmp_path).operators
    assert {operator: operators[operator] for operator in integer if operator != "DequantizeLinear"} == {
        operator: count for operator, count in integer.items() if operator != "DequantizeLinear"
    }
    assert not [operator for operator in real if operators[operator]]


def test_max_pooling_is_done_on_integers(tmp_path: Path) -> None:
    x = images(4, channels=1)
    graph = gt.quantize(build("cnn", (1, 8, 8)), x).model.bind({"batch": 4})
    operators = onnx_runtime(graph, x, tmp_path).operators
    assert operators["NhwcMaxPool"] + operators["MaxPool"] == 2
    assert (operators["QuantizeLinear"], operators["DequantizeLinear"]) == (1, 0)


@pytest.mark.exhaustive
def test_a_convolution_is_done_on_integers_whoever_reads_it(tmp_path: Path) -> None:
    """Its patches go through Reshape and Transpose to a sum with a parameter, which stays in floats."""
    x = images(4, channels=1)
    graph = gt.quantize(build("transformer", (1, 8, 8)), x).model.bind({"batch": 4})
    operators = onnx_runtime(graph, x, tmp_path).operators
    assert (operators["QLinearConv"], operators["Conv"]) == (1, 0)


@pytest.mark.parametrize("name", MODELS)
def test_the_noise_is_that_of_bytes(name: str) -> None:
    for output, array in exactly(name).items():
        assert noise(array, ours(name)[output]) > 25


SCHEMES = {
    "i8 activations": Recipe(activations=Scheme(i8)),
    "symmetric i8": Recipe(activations=Scheme(i8, "symmetric"), weights=Scheme(i8, "symmetric")),
    "symmetric u8": Recipe(activations=Scheme(u8, "symmetric")),
    "positive u8": Recipe(activations=Scheme(u8, "positive")),
    "powers of two": Recipe(
        activations=Scheme(u8, power_of_two=True), weights=Scheme(i8, "symmetric", power_of_two=True)
    ),
    "u8 weights": Recipe(weights=Scheme(u8, "asymmetric")),
    "asymmetric weights": Recipe(weights=Scheme(i8, "asymmetric", "channel")),
    "i16 activations": Recipe(activations=Scheme(i16, "symmetric")),
    "u16 activations": Recipe(activations=Scheme(u16)),
    "i4 weights": Recipe(weights=Scheme(i4, "symmetric", "channel")),
    "u4 weights": Recipe(weights=Scheme(u4, "asymmetric", "channel")),
    "i4 blocks": Recipe(weights=Scheme(i4, "symmetric", "block", 8)),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("case", SCHEMES)
def test_every_scheme_is_saved_and_runs(case: str, tmp_path: Path) -> None:
    """ONNX Runtime has kernels for 16 bits and 4-bit weights in floating point only, so there sums differ in order."""
    recipe = SCHEMES[case]
    found, x = quantized("mobile", recipe), X["mobile"]
    scores = ours("mobile", recipe)["scores"]
    theirs = onnx_runtime(found.model.bind({"batch": len(x)}), x, tmp_path)
    np.testing.assert_allclose(theirs.outputs["scores"], scores, atol=np.abs(scores).max() / 100)
    version = onnx.load(tmp_path / "model.onnx").opset_import[0].version
    assert version >= max(recipe.least_opset, 17)
    assert noise(exactly("mobile")["scores"], scores) > (10 if recipe.weights.dtype in (i4, u4) else 20)


@pytest.mark.exhaustive
def test_wider_types_are_more_exact() -> None:
    recipes = (SCHEMES["i4 weights"], Recipe(), Recipe(Scheme(u16), Scheme(i16, "symmetric", "channel")))
    exact = exactly("mobile")["scores"]
    found = [noise(exact, ours("mobile", recipe)["scores"]) for recipe in recipes]
    assert found[0] + 6 < found[1] < found[2] - 20


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("granularity", ["channel", "block"])
def test_axes_of_weights(granularity: str, transposed: bool, tmp_path: Path) -> None:
    """Channels of very different size only survive if each has its own scale, along the right axis."""
    draw = np.random.default_rng(0)
    weight = (draw.standard_normal((16, 5)) * 10.0 ** np.arange(-3, 2)).astype(np.float32)
    x = draw.standard_normal((8, 16)).astype(np.float32)
    scheme = Scheme(i8, "symmetric", granularity, 4 if granularity == "block" else 0)  # type: ignore[arg-type]
    found = gt.quantize(matrices(weight, transposed=transposed), x, Recipe(Scheme(u16), scheme))
    y = gt.compile(found.model)({"x": x})["y"]
    for column in range(5):
        assert noise((x @ weight)[:, column], y[:, column]) > 35
    theirs = onnx_runtime(found.model.bind({"batch": 8}), x, tmp_path).outputs["y"]
    np.testing.assert_allclose(theirs, y, rtol=1e-4, atol=1e-4)


def test_the_batch_dimension_stays_symbolic(tmp_path: Path) -> None:
    gt.save(quantized("mobile").graph, tmp_path / "q.onnx")
    loaded = gt.load(tmp_path / "q.onnx")
    assert isinstance(loaded, Template)
    x = X["mobile"]
    whole = ours("mobile")["scores"]
    for count in (1, 5):
        np.testing.assert_array_equal(gt.compile(loaded)({"x": x[:count]})["scores"], whole[:count])


def test_weights_in_the_file_are_integers(tmp_path: Path) -> None:
    exact, small, tiny = (
        gt.save(graph).ByteSize()
        for graph in (
            gt.quantize(wide(), rows()).exact.bind({"batch": 1}),
            gt.quantize(wide(), rows()).graph,
            gt.quantize(wide(), rows(), Recipe(weights=Scheme(i4, "symmetric"))).graph,
        )
    )
    assert small < 0.27 * exact
    assert tiny < 0.15 * exact


def wide() -> Template:
    return matrices(np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32))


def rows() -> Array:
    return np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)


def test_a_profile_is_used_again() -> None:
    first = quantized("mobile")
    model = mobile()
    second = gt.quantize(model, X["mobile"][:1], state=state_of(model), profile=first.profile)
    for found in (first, second):
        assert found.profile is first.profile
    np.testing.assert_array_equal(gt.compile(second.model)({"x": X["mobile"]})["scores"], ours("mobile")["scores"])


def test_onnx_s_evaluator_runs_it_where_onnx_runtime_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has DequantizeLinear of newer operator sets only, so that the demo of a fresh install stopped."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found, x = quantized("mobile"), X["mobile"][:2]
    gt.save(found.model.bind({"batch": 2}), tmp_path / "model.onnx", opset=17)
    name, theirs = outside_run(tmp_path / "model.onnx", {"x": x})
    assert "evaluator" in name
    ours = gt.compile(found.model)({"x": x})["scores"]
    np.testing.assert_allclose(theirs["scores"], ours, atol=0.05 * np.abs(ours).max())
