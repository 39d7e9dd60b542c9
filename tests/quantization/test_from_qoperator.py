"""Training goes on from files in QOperator form: theirs and ours, and what is written again is right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template, Value
from glowtrain.ops.elementwise.activation import LeakyRelu, Sigmoid
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.tensor.move import Concat
from glowtrain.quantization import FORMATS, Recipe, convert, finetune, resume_training, save_quantized
from glowtrain.types import Array, f32

IMAGES = np.random.default_rng(5).standard_normal((16, 3, 8, 8)).astype(np.float32)


@gt.model(x=f32["batch", 3, 8, 8])
def kinds(x: Value) -> dict[str, Value]:
    """One operator of each kind that has a form on quantized tensors."""
    x = nn.relu(nn.conv(x, 6, 3, padding=1, name="first"))
    left = LeakyRelu(0.1)(nn.conv(x, 6, 3, padding=1, groups=3, name="left"))
    gate = Sigmoid()(nn.conv(x, 6, 1, name="gate"))
    x = Concat(axis=1)(left * gate + x, nn.max_pool(x, 3, stride=1, padding=1))
    x = AveragePool(kernel_shape=(2, 2), strides=(2, 2))(x)
    x = nn.flatten(GlobalAveragePool()(nn.relu(nn.conv(x, 8, 3, name="last"))))
    return {"scores": nn.softmax(nn.linear(nn.relu(nn.linear(x, 8, name="hidden")), 4, name="scores"))}


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """The images for ONNX Runtime's quantizer."""

    def __init__(self) -> None:
        self.batches = iter([{"x": IMAGES}])

    def get_next(self) -> dict[str, Array] | None:
        """The next batch; ``None`` after the last."""
        return next(self.batches, None)


def float_file(path: Path) -> Path:
    gt.save(kinds.bind({"batch": 16}), path, opset=17)
    return path


def theirs(path: Path) -> Array:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    found: Array = ort.InferenceSession(path, options).run(["scores"], {"x": IMAGES})[0]
    return found


def run(model: Graph | Template) -> Array:
    model = gt.onnx_io.inference(model)
    found: Array = gt.compile(model.template or model if isinstance(model, Graph) else model)({"x": IMAGES})["scores"]
    return found


def trained_on(model: Graph | Template) -> gt.Trainer:
    def loss(outputs: Mapping[str, Value], inputs: Mapping[str, Value]) -> Value:
        return nn.mean(outputs["scores"] * outputs["scores"])

    return finetune(model, {"x": IMAGES}, loss, gt.optim.Adam(lr=1e-3), epochs=2, batch_size=16, progress=False)


def check_cycle(path: Path, tmp_path: Path) -> Graph | Template:
    """Loaded, resumed, trained, written and loaded by ONNX Runtime again; gives the model that was trained."""
    model = resume_training(gt.load(path))
    np.testing.assert_allclose(run(model), theirs(path), atol=0.02)
    trainer = trained_on(model)
    again = convert(trainer.model())
    for form in FORMATS:
        save_quantized(again, tmp_path / f"{form}.onnx", form=form)
        np.testing.assert_allclose(theirs(tmp_path / f"{form}.onnx"), run(again), atol=0.02)
    assert np.abs(run(again) - theirs(path)).max() > 0  # it was trained
    return model


@pytest.mark.exhaustive
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
def test_a_file_of_onnx_runtime(per_channel: bool, tmp_path: Path) -> None:
    path = tmp_path / "theirs.onnx"
    quantize_static(
        float_file(tmp_path / "float.onnx"), path, Batches(), quant_format=QuantFormat.QOperator,
        per_channel=per_channel, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    model = check_cycle(path, tmp_path)
    graph = model if isinstance(model, Graph) else model.bind({"batch": 16})
    names = {variable.name for variable in graph.variables if variable.trainable}
    assert {f"{layer}.weight" for layer in ("first", "left", "gate", "last", "hidden", "scores")} <= names
    assert {node.operator.domain for node in graph.nodes} <= {"", "glowtrain"}  # nothing of com.microsoft is left
    rounded = [node for node in graph.nodes if isinstance(node.operator, FakeQuantize)]
    assert len({node.inputs[0] for node in rounded}) == len(rounded)  # one for all who read a value


@pytest.mark.exhaustive
def test_a_file_of_our_own(tmp_path: Path) -> None:
    path = tmp_path / "ours.onnx"
    small = gt.quantize(kinds, IMAGES, Recipe(outputs=True))
    save_quantized(small.graph, path, form="qoperator")
    check_cycle(path, tmp_path)


def test_scales_that_are_found_while_running(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(float_file(tmp_path / "float.onnx"), path)
    with pytest.raises(QuantizationError, match=r"quantizes its activations while it runs \(.*DynamicQuantizeLinear"):
        run(resume_training(gt.load(path)))
    with pytest.raises(QuantizationError, match=r"already \(DynamicQuantizeLinear of .*: give the float model$"):
        gt.quantize(gt.load(path), {"x": IMAGES})
