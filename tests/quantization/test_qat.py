"""Quantization-aware training: what is trained is what is exported, BatchNormalization and scales are trained right,
and training goes on from a quantized file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import glowtrain as gt
from glowtrain import data, nn
from glowtrain.errors import QuantizationError
from glowtrain.gradcheck import check
from glowtrain.graph import Graph, Template, Value
from glowtrain.ops.elementwise.arithmetic import Div
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.quantization import Profile, Recipe, Scheme, calibrate, convert, prepare
from glowtrain.quantization.calibration.profile import Observed
from glowtrain.quantization.training.batch_norm import freeze
from glowtrain.quantization.training.qat import frozen_trainer, learn, prepare_training, resume_training
from glowtrain.types import Array, i4, i8

LOSS = gt.losses.softmax_cross_entropy("y", output="scores")
INT4 = Recipe(weights=Scheme(i4, "symmetric", "channel"))


@gt.model(x=gt.f32["batch", 1, 8, 8])
def digits_net(x: Value) -> dict[str, Value]:
    """Two convolutions with BatchNormalization, the first with a bias too, the second depthwise."""
    x = nn.relu(nn.batch_norm(nn.conv(x, 8, 3, padding="same", name="conv1"), name="norm1"))
    x = nn.max_pool(x, 2)
    x = nn.conv(x, 16, 3, padding="same", groups=8, bias=False, name="conv2")
    x = nn.relu(nn.batch_norm(x, name="norm2"))
    return {"scores": nn.linear(nn.flatten(x), 10, name="scores")}


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.digits()


@pytest.fixture(scope="module")
def trained(digits: data.Dataset) -> dict[str, Array]:
    """The state of the float model after some epochs."""
    return finetuned(digits_net, digits, 8, lr=5e-3).variables()


@pytest.fixture(scope="module")
def profile(digits: data.Dataset, trained: dict[str, Array]) -> Profile:
    return calibrate(digits_net, {"x": digits.x[:256]}, state=trained, backend="interpreter")


def run(model: Graph | Template, images: Array | None, backend: str = "interpreter") -> Array:
    """The scores of the inference form."""
    assert images is not None
    plain = gt.onnx_io.inference(model)
    open_model = plain if isinstance(plain, Template) or plain.template is None else plain.template
    scores: Array = gt.compile(open_model, backend)({"x": images})["scores"]
    return scores


def cross_entropy(scores: Array, labels: Array | None) -> float:
    """The mean loss of the scores."""
    assert labels is not None
    shares = Softmax().reference(scores.astype(np.float64))
    return float(-np.log(shares[np.arange(len(labels)), labels]).mean())


def bound(model: Graph | Template) -> Graph:
    """The graph for two examples."""
    return model if isinstance(model, Graph) else model.bind({"batch": 2})


def accuracy(scores: Array, labels: Array | None) -> float:
    """The share of labels that have the highest score."""
    assert labels is not None
    return float(np.mean(scores.argmax(1) == labels))


def finetuned(
    model: Graph | Template, digits: data.Dataset, epochs: int, lr: float = 1e-3, backend: str = "interpreter"
) -> gt.Trainer:
    trainer = gt.Trainer(model, LOSS, gt.optim.Adam(lr=lr), backend=backend)
    trainer.fit({"x": digits.x, "y": digits.y}, epochs, 32, drop_last=True, progress=False)
    return trainer


def operators(graph: Graph, kind: type) -> int:
    return sum(isinstance(node.operator, kind) for node in graph.nodes)


# --- what training begins with ----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("recipe", [Recipe(), INT4], ids=["int8", "int4"])
def test_begins_as_the_calibrated_model(
    recipe: Recipe, digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    """The inference form of the model with folded BatchNormalization is the one without, up to rounding in f32."""
    images = digits.x_valid
    calibrated = run(prepare(digits_net, profile, recipe, state=trained), images)
    training = prepare_training(digits_net, profile, recipe, state=trained)
    assert operators(bound(training), BatchNormalization) == 2
    for model in (
        training,
        freeze(training),
        prepare_training(digits_net, profile, recipe, state=trained, batch_statistics=False),
    ):
        scores = run(model, images)
        assert np.mean(np.abs(scores - calibrated) > 1e-3) < 0.01
        assert np.mean(scores.argmax(1) == calibrated.argmax(1)) > 0.99


@pytest.mark.exhaustive
def test_folded_statistics_train_as_unfolded_ones(
    digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    """With steps so small that rounding vanishes, a training step is that of the float model: loss, gradients, running
    statistics."""
    batch = {"x": digits.x[:32], "y": digits.y[:32]}
    recipe = Recipe(activations=Scheme(gt.u16, "asymmetric"), weights=Scheme(gt.i16, "symmetric", "channel"))
    wide = Profile({name: widened(value) for name, value in profile.values.items()}, profile.model, profile.examples)
    training = prepare_training(digits_net, wide, recipe, state=trained, learn_scales=False)
    own = gt.Trainer(training, LOSS, gt.optim.SGD(lr=0.1), backend="interpreter")
    plain = gt.Trainer(digits_net, LOSS, gt.optim.SGD(lr=0.1), backend="interpreter")
    for name, array in trained.items():
        if name in plain.variables():
            plain.state.write(name, array)
    for name, gradient in plain.gradients(batch).items():
        if name != "conv1.bias":  # BatchNormalization takes it away, so it is not trained
            np.testing.assert_allclose(own.gradients(batch)[name], gradient, rtol=0.02, atol=2e-3)
    assert own.step(batch) == pytest.approx(plain.step(batch), rel=1e-3)
    after, expected = own.variables(), plain.variables()
    for name in ("norm2.mean", "norm1.variance", "norm2.variance"):
        np.testing.assert_allclose(after[name], expected[name], rtol=1e-3, atol=1e-4)


def widened(observed: Observed) -> Observed:
    """A range that is never left, whatever the batch's statistics make of it."""
    return replace(observed, low=4 * observed.low, high=4 * observed.high)


def test_gradient_of_the_whole_step() -> None:
    @gt.model(x=gt.f32["batch", 1, 4, 4])
    def tiny(x: Value) -> dict[str, Value]:
        x = nn.relu(nn.batch_norm(nn.conv(x, 2, 3, padding="same", name="conv"), name="norm"))
        return {"scores": nn.linear(nn.flatten(x), 3, name="scores")}

    images = np.random.default_rng(0).standard_normal((32, 1, 4, 4)).astype(np.float32)
    training = prepare_training(tiny, calibrate(tiny, {"x": images}, backend="interpreter"), INT4)
    report = check(training, {"x": images[:3], "y": np.array([0, 2, 1])}, LOSS, directions=2, compiled=False)
    assert not [entry for entry in report.checks if entry.status == "failed"], str(report)
    checked = {entry.subject for entry in report.checks if entry.status == "passed"}
    assert {"conv.weight", "norm.scale", "norm.bias", "conv.weight.log_scale", "Relu.log_scale"} <= checked


# --- training, freezing, converting -----------------------------------------------------------------------------------


def test_what_is_trained_is_what_is_exported(digits: data.Dataset, trained: dict[str, Array], profile: Profile) -> None:
    images, labels = digits.x_valid, digits.y_valid
    assert images is not None
    assert labels is not None
    calibrated = convert(prepare(digits_net, profile, INT4, state=trained))
    training = prepare_training(digits_net, profile, INT4, state=trained)
    statistics = finetuned(training, digits, 4, backend="cpu")
    frozen = finetuned(freeze(training, statistics.variables()), digits, 2, lr=5e-4)
    before, after = (run(statistics.model(), images), run(freeze(statistics.model()), images))
    assert np.mean(before.argmax(1) == after.argmax(1)) > 0.99
    model = frozen.model()
    integers = convert(model)
    scores, exported = run(model, images), run(integers, images, "cpu")
    assert np.mean(scores.argmax(1) == exported.argmax(1)) > 0.99
    assert np.mean(np.abs(scores - exported) > 0.05 * np.abs(scores).max()) < 0.01
    assert accuracy(exported, labels) > 0.95
    # So few images are left over that accuracies hardly differ; the loss is what training lowers.
    first, last = (cross_entropy(run(model, digits.x, "cpu"), digits.y) for model in (calibrated, integers))
    assert last < 0.5 * first
    moved = [np.abs(value).max() for name, value in frozen.variables().items() if name.endswith(".log_scale")]
    assert min(moved) > 1e-3


@pytest.mark.exhaustive
def test_running_statistics_stay_once_frozen(digits: data.Dataset, trained: dict[str, Array], profile: Profile) -> None:
    frozen = freeze(prepare_training(digits_net, profile, state=trained))
    assert operators(bound(frozen), BatchNormalization) == 0
    trainer = finetuned(frozen, digits, 1)
    after = trainer.variables()
    for name in ("norm1.variance", "norm2.mean", "norm2.variance"):
        np.testing.assert_array_equal(after[name], trained[name])
    assert np.abs(after["norm2.scale"] - trained["norm2.scale"]).max() > 1e-4


@pytest.mark.exhaustive
def test_a_frozen_trainer_measures_what_the_one_before_it_did(
    digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    model, rule = prepare_training(digits_net, profile, state=trained), gt.losses.softmax_cross_entropy()
    trainer = frozen_trainer(gt.Trainer(model, rule, gt.optim.SGD(lr=0.0), metrics=True))
    assert 0.5 < trainer.fit(digits.train, 1, progress=False)["train_accuracy"][0] <= 1


@pytest.mark.exhaustive
def test_statistics_that_were_never_frozen_are_exported_folded(
    digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    """What is written is one contraction of integers with a bias, without a BatchNormalization in floats behind it."""
    trainer = finetuned(prepare_training(digits_net, profile, state=trained), digits, 1)
    exported = convert(trainer.model())
    assert not {BatchNormalization, Div, Where} & {type(node.operator) for node in bound(exported).nodes}
    before = freeze(trainer.model())
    assert isinstance(before, Graph)
    np.testing.assert_array_equal(run(exported, digits.x_valid), run(convert(before), digits.x_valid))


def test_channels_that_are_switched_off_make_no_infinities(
    digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    off = {**trained, "norm1.scale": trained["norm1.scale"].copy(), "norm2.scale": -trained["norm2.scale"]}
    off["norm1.scale"][:3] = 0.0, -0.0, 1e-12
    training = prepare_training(
        digits_net, calibrate(digits_net, {"x": digits.x[:64]}, state=off, backend="interpreter"), state=off
    )
    trainer = finetuned(training, digits, 1)
    assert all(np.isfinite(array).all() for array in trainer.variables().values())
    frozen, own = run(freeze(trainer.model()), digits.x[:64]), run(trainer.model(), digits.x[:64])
    assert np.mean(frozen.argmax(1) == own.argmax(1)) > 0.95


# --- scales -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_learned_scales_begin_where_they_were(
    digits: data.Dataset, trained: dict[str, Array], profile: Profile
) -> None:
    plain = prepare(digits_net, profile, state=trained)
    np.testing.assert_array_equal(run(plain, digits.x[:32]), run(learn(plain), digits.x[:32]))


@pytest.mark.exhaustive
def test_chosen_scales_are_learned(trained: dict[str, Array], profile: Profile) -> None:
    def names(which: bool | list[str]) -> set[str]:
        model = prepare_training(digits_net, profile, state=trained, learn_scales=which)
        found = {v.name.removesuffix(".log_scale") for v in bound(model).variables if "log_scale" in v.name}
        return {name for name in found if not name.startswith(("Relu", "Reshape", "Flatten", "MaxPool"))}

    weights = {"conv1.weight", "conv2.weight", "scores.weight"}
    assert names(True) == weights
    assert names(["x", "conv*"]) == {"x", "conv1.weight", "conv2.weight"}
    assert names(False) == set()
    with pytest.raises(QuantizationError, match="no scale of digits_net is called 'conv3"):
        names(["conv3.weight"])


@pytest.mark.exhaustive
def test_weights_begin_at_scales_from_their_mean(trained: dict[str, Array], profile: Profile) -> None:
    graph = bound(prepare_training(digits_net, profile, INT4, state=trained, weight_start="mean", learn_scales=False))
    scales = {value.name: value.array for value in graph.constants if value.name.endswith(".scale")}
    weights = trained["scores.weight"]
    np.testing.assert_allclose(scales["scores.weight.scale"], 2 * np.abs(weights).mean(0) / np.sqrt(7), rtol=1e-5)
    factor = trained["norm2.scale"] / np.sqrt(trained["norm2.variance"] + 1e-5)
    folded = np.abs(trained["conv2.weight"] * factor[:, None, None, None]).mean((1, 2, 3))
    np.testing.assert_allclose(scales["conv2.weight.scale"], 2 * folded / np.sqrt(7), rtol=1e-4)


def test_rate_of_scales() -> None:
    x = gt.Input(gt.f32[4, 3], "x")
    rounded = FakeQuantize()(x * gt.Variable("w", np.ones(3, np.float32)), np.float32(0.25), np.int8(0))
    graph = gt.Graph((x,), {"y": rounded})
    batch = {"x": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32) * 40}
    for rate in (1.0, 0.25):
        trainer = gt.Trainer(
            learn(graph, rate=rate), lambda outputs, _: nn.mean(outputs["y"] * outputs["y"]), gt.optim.Adam(lr=0.01)
        )
        trainer.step(batch)
        (name,) = (name for name in trainer.variables() if name.endswith(".log_scale"))
        assert abs(rate * trainer.variables()[name]) == pytest.approx(0.01 * rate, rel=1e-3)
    with pytest.raises(QuantizationError, match="must be a positive number, not 0"):
        learn(graph, rate=0.0)


# --- from a quantized file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [Scheme(i8, "symmetric", "channel"), Scheme(i8, "asymmetric"), Scheme(i4, "symmetric", "channel")],
    ids=str,
)
def test_training_goes_on_from_a_file(
    weights: Scheme, digits: data.Dataset, trained: dict[str, Array], profile: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "int8.onnx"
    quantized = convert(prepare(digits_net, profile, Recipe(weights=weights), state=trained))
    gt.save(bound(quantized), path)
    loaded = gt.load(path)
    resumed = resume_training(loaded)
    graph = bound(resumed)
    assert not operators(graph, QuantizeLinear)
    assert not operators(graph, DequantizeLinear)
    assert {"conv1.weight", "conv2.weight", "scores.weight"} <= {v.name for v in graph.variables if v.trainable}
    images = digits.x_valid
    assert images is not None
    scores, expected = run(resumed, images), run(loaded, images)
    assert np.mean(scores.argmax(1) == expected.argmax(1)) > 0.99
    assert np.mean(np.abs(scores - expected) > 0.05 * np.abs(expected).max()) < 0.01
    trainer = finetuned(resumed, digits, 2, lr=5e-4)
    assert trainer.evaluate(digits, batch_size=64)["accuracy"] > 0.95
    again = convert(trainer.model())
    assert np.mean(run(again, images).argmax(1) == trainer.predict(images)["scores"].argmax(1)) > 0.99


@pytest.mark.exhaustive
def test_scales_that_a_move_passes_on_stay_one(trained: dict[str, Array], profile: Profile) -> None:
    """A pooled activation has the scale of what is pooled, so that integers pool; also when the scale is learned."""
    quantized = bound(convert(prepare(digits_net, profile, state=trained)))
    graph = bound(resume_training(quantized))
    rounded = {node.outputs[0].name: node for node in graph.nodes if isinstance(node.operator, FakeQuantize)}
    pooled = [node for name, node in rounded.items() if name.startswith("MaxPool")]
    assert pooled
    assert all(node.inputs[1] is rounded["Relu.rounded"].inputs[1] for node in pooled)


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Images for ONNX Runtime's quantizer."""

    def __init__(self, images: Array) -> None:
        self.batches = iter([{"x": images}])

    def get_next(self) -> dict[str, Array] | None:
        """The next batch; ``None`` after the last."""
        return next(self.batches, None)


@pytest.mark.exhaustive
def test_training_goes_on_from_a_file_of_onnx_runtime(
    digits: data.Dataset, trained: dict[str, Array], tmp_path: Path
) -> None:
    """BatchNormalization may stand beside quantized operators there: its statistics are state again."""
    before, after = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    gt.save(bound(gt.onnx_io.inference(digits_net)), before, state=trained, opset=17)
    quantize_static(before, after, Batches(digits.x[:64]), quant_format=QuantFormat.QDQ, per_channel=True)
    loaded = gt.load(after)
    resumed = resume_training(loaded)
    images = digits.x_valid
    assert np.mean(run(resumed, images).argmax(1) == run(loaded, images).argmax(1)) > 0.99
    names = {v.name for v in bound(resumed).variables if v.trainable}
    assert {"conv1.weight", "conv2.weight", "scores.weight", "scores.bias", "scores.weight.log_scale"} <= names
    trainer = finetuned(resumed, digits, 1)
    assert accuracy(run(convert(trainer.model()), images), digits.y_valid) > 0.9


def test_float_model_is_no_quantized_one() -> None:
    with pytest.raises(QuantizationError, match="digits_net is not quantized"):
        bound(resume_training(digits_net))
