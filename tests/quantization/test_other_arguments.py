"""Arguments of other kinds than are wanted: each is refused at once, in words that say what to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import QuantizationError
from glowtrain.graph import Value
from glowtrain.quantization import (
    Entropy,
    Profile,
    Quantized,
    Recipe,
    Scheme,
    accuracy,
    calibrate,
    convert,
    finetune,
    freeze,
    prepare,
    prepare_training,
    quantize,
    report,
    resume_training,
    save_quantized,
)
from glowtrain.types import f32, i4, i8

X = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)


@gt.model(x=f32["batch", 8])
def mlp(x: Value) -> dict[str, Value]:
    return {"y": nn.linear(nn.relu(nn.linear(x, 6, name="a")), 4, name="b")}


@gt.model(x=f32["batch", 8], z=f32["batch", 8])
def two(x: Value, z: Value) -> dict[str, Value]:
    return {"y": nn.linear(x + z, 4, name="a")}


class Unwilling:
    """Something with a shape that gives no array, as tensors of PyTorch that need gradients."""

    shape = (4, 8)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


DATA: dict[str, tuple[Any, Any, str]] = {
    "pairs": (mlp, [(X[:4], np.zeros(4))], r"batch 0 .* is a tuple of 2: give arrays by input name, {'x': array}"),
    "lists": (mlp, ([X[:4]] for _ in range(2)), r"batch 0 .* is a list of 1: give arrays by input name"),
    "pairs for two": (two, [(X, X)], r"give arrays by input name, {'x': array, 'z': array}"),
    "one for two": (two, X, "the model has the inputs x, z: give arrays by name"),
    "ragged": (mlp, {"x": [[1.0, 2.0], [1.0]]}, "data of the input 'x' are no array: .*inhomogeneous"),
    "gradients": (mlp, {"x": Unwilling()}, "data of the input 'x' are no array: .*requires grad"),
    "ended": (mlp, iter(()), "there are no calibration data"),
    "empty batch": (mlp, [X[:4], X[:0]], r"batch 1 of the calibration data has no examples: x \[0, 8\]"),
}


@pytest.mark.parametrize("case", DATA)
def test_calibration_data(case: str) -> None:
    model, given, said = DATA[case]
    with pytest.raises(QuantizationError, match=said):
        quantize(model, given)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "batch size": ({"batch_size": 4.5}, "batch_size is a whole number, not 4.5"),
    "examples": ({"examples": "10"}, "examples is a whole number, not '10'"),
    "recipe": ({"recipe": "int8"}, r"a recipe is a Recipe, not 'int8' \(str\)"),
    "empty recipe": ({"recipe": {}}, "a recipe is a Recipe, not dict"),
    "class": ({"recipe": Recipe}, "a recipe is a Recipe, not the class Recipe itself"),
    "profile": ({"profile": "p.json"}, r"a profile is a Profile, not 'p.json' \(str\)"),
    "all sensitive": ({"recipe": Recipe(keep_sensitive=2)}, "keep_sensitive is 2, and 2 are quantized"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str) -> None:
    settings, said = SETTINGS[case]
    with pytest.raises(QuantizationError, match=said):
        quantize(mlp, X, **settings)


RECIPES: dict[str, tuple[Callable[[], object], str]] = {
    "weights": (lambda: Recipe(weights="i4"), r"the scheme of weights is a Scheme, not 'i4' \(str\)"),  # type: ignore[arg-type]
    "type": (lambda: Recipe(weights=i4), "the scheme of weights is a Scheme, not DType"),  # type: ignore[arg-type]
    "activations": (lambda: Recipe(activations="u8"), "the scheme of activations is a Scheme"),  # type: ignore[arg-type]
    "keep": (lambda: Recipe(keep=None), "keep and only are lists of names, not None"),  # type: ignore[arg-type]
    "keep numbers": (lambda: Recipe(keep=[3]), r"keep and only are lists of names, not \[3\]"),  # type: ignore[list-item]
    "method": (lambda: Recipe(method=None), "a calibration method is one of minmax, .*, not None"),  # type: ignore[arg-type]
    "method's class": (lambda: Recipe(method=Entropy), r"such as MinMax\(\), not <class"),  # type: ignore[arg-type]
    "steps": (lambda: Recipe(round_weights=1.5), "round_weights is a whole number, not 1.5"),  # type: ignore[arg-type]
    "block": (lambda: Scheme(i8, "symmetric", "block", 2.5), "block is a whole number, not 2.5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes(case: str) -> None:
    build, said = RECIPES[case]
    with pytest.raises(QuantizationError, match=said):
        build()


@pytest.fixture(scope="module")
def small() -> Quantized:
    return quantize(mlp, X)


def tuned(model: Any) -> object:
    rule = gt.optim.SGD(lr=0.1)
    return finetune(model, {"x": X}, lambda outputs, _: nn.mean(outputs["y"]), rule, epochs=1, progress=False)


def graph_of(model: Any) -> gt.Graph:
    graph: gt.Graph = model.bind({"batch": 2})
    return graph


TYPO = {"a.wieght": np.zeros((8, 6), np.float32)}
NEAREST = r"state is for other variables: mlp has no variable 'a.wieght' \(the nearest is 'a.weight'\)$"
USES: dict[str, tuple[Callable[[Any], object], str]] = {
    "path": (lambda _: quantize("cnn.onnx", X), r"a model is a graph or a template, not 'cnn.onnx' \(str\)"),  # type: ignore[arg-type]
    "function": (lambda _: quantize(gt.compile(mlp), X), "a model is a graph or a template, not Function"),  # type: ignore[arg-type]
    "what is found": (lambda small: quantize(small, X), "not Quantized; give its .model"),
    "converted": (convert, "not Quantized; give its .model"),
    "resumed": (resume_training, "not Quantized; give its .model"),
    "calibrated": (lambda small: calibrate(small, X), "not Quantized; give its .model"),
    "saved": (
        save_quantized,
        r"a Graph, not Quantized; give its .model .*: .model.bind\(dims\), or its .graph",
    ),
    "reported": (lambda small: report(small.model), "a report is of what gt.quantize gives, not of a Template"),
    "tuned": (tuned, "not Quantized; give its .model"),
    "float": (lambda _: tuned(mlp), "mlp has no FakeQuantize: it was not prepared"),
    "integers": (lambda small: quantize(small.model, X), "quantized already .QuantizeLinear of .*resume_training"),
    "graph": (lambda small: quantize(small.graph, X), "mlp is quantized already .QuantizeLinear of"),
    "rounded": (lambda small: quantize(small.prepared, X), "mlp is quantized already .glowtrain.FakeQuantize of"),
    "again": (lambda small: prepare(small.graph, small.profile), "mlp is quantized already"),
    "trained": (lambda small: prepare_training(small.graph, small.profile), "mlp is quantized already"),
    "no profile": (lambda _: prepare(mlp, {}), "a profile is a Profile, not dict"),  # type: ignore[arg-type]
    "scales": (
        lambda small: prepare_training(mlp, small.profile, learn_scales=None).bind({"batch": 2}),  # type: ignore[arg-type,union-attr]
        "True, False or patterns of names, not None",
    ),
    "start": (
        lambda small: prepare_training(mlp, small.profile, weight_start="median"),  # type: ignore[arg-type]
        "weight_start is one of range, mean, not 'median'",
    ),
    "state to quantize": (lambda _: quantize(mlp, X, state=TYPO), NEAREST),
    "state to calibrate": (lambda _: calibrate(mlp, X, state=TYPO), NEAREST),
    "state to prepare": (lambda small: graph_of(prepare(mlp, small.profile, state=TYPO)), NEAREST),
    "state to train": (lambda small: graph_of(prepare_training(mlp, small.profile, state=TYPO)), NEAREST),
    "state to freeze": (lambda small: graph_of(freeze(small.prepared, state=TYPO)), NEAREST),
    "state to convert": (lambda small: graph_of(convert(small.prepared, state=TYPO)), NEAREST),
    "state to measure": (lambda _: accuracy(mlp, [{"x": X}], [np.zeros(12)], state=TYPO), NEAREST),
    "output": (lambda _: accuracy(mlp, [{"x": X}], [np.zeros(12)], output="z"), "mlp has no output 'z'; it has y"),
    "batches": (lambda _: accuracy(mlp, [{"x": X}], []), "one array for each batch: 0 for 1"),
    "shares": (lambda _: accuracy(mlp, [{"x": X}], [np.zeros((12, 4))]), r"scores \[12, 4\], labels \[12, 4\]"),
}


@pytest.mark.spread(9)
@pytest.mark.parametrize("case", USES)
def test_uses(case: str, small: Quantized) -> None:
    use, said = USES[case]
    with pytest.raises(QuantizationError, match=said):
        use(small)


def test_what_is_as_good() -> None:
    """One batch after another, other names beside the inputs, a graph of one batch size."""
    whole = quantize(mlp, X).profile["x"]
    for given in (iter([X[:5], X[5:]]), {"x": X, "labels": np.zeros(3)}, [{"x": X}]):
        assert quantize(mlp, given).profile["x"].high == whole.high
    assert isinstance(quantize(mlp.bind({"batch": 4}), X).profile, Profile)
