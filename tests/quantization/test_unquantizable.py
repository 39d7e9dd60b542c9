"""Models and recipes that no integer model can be made of, and what the command line says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain import nn
from glowtrain.cli import app
from glowtrain.errors import GlowtrainError, QuantizationError
from glowtrain.graph import Template, Value, Variable
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.quantization import Recipe, Scheme, calibrate
from glowtrain.types import Array, f32, f64, i4, i8, u8
from tests.quantization.models import chain, rows
from tests.quantization.one_operator import quantize, scalar

TINY = np.float32(1e-44)


def gemm(weight: Array, bias: Array | None = None) -> Template:
    parameters = [Variable("weight", weight), *([] if bias is None else [Variable("bias", bias)])]

    @gt.model(x=f32["batch", weight.shape[0]])
    def gemm(x: Value) -> dict[str, Value]:
        return {"y": Gemm()(x, *parameters)}

    return gemm


class TestModels:
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_weights_that_diverged(self, bad: float) -> None:
        weight = np.ones((4, 3), np.float32)
        with pytest.raises(QuantizationError, match="bias: weights are NaN or infinite; a model that diverged"):
            gt.quantize(gemm(weight, np.array([0, bad, 0], np.float32)), rows())
        weight[1, 1] = bad
        with pytest.raises(QuantizationError, match="weight: weights are NaN or infinite; a model that diverged"):
            gt.quantize(gemm(weight), rows())

    def test_weights_without_a_scale(self) -> None:
        weight = np.ones((4, 3), np.float32)
        with pytest.raises(QuantizationError, match=r"weight: the range .* is beyond what a scale in f32 can say"):
            gt.quantize(gemm(weight * TINY), rows())
        found = gt.quantize(gemm(weight * np.array([1, 0, 1], np.float32)), rows())
        assert not gt.compile(found.model)({"x": rows()})["y"][:, 1].any()

    def test_tensors_without_elements(self) -> None:
        with pytest.raises(QuantizationError, match="weight: a tensor without elements has no range"):
            gt.quantize(gemm(np.ones((4, 0), np.float32)), rows())
        with pytest.raises(QuantizationError, match="x: no element was observed, so it has no range; calibrate with"):
            gt.quantize(gemm(np.ones((0, 3), np.float32)), np.zeros((8, 0), np.float32))

    def test_nothing_to_quantize(self) -> None:
        @gt.model(x=f32["batch", 4])
        def exponentials(x: Value) -> Value:
            result: Value = Exp()(x)
            return result

        @gt.model(x=f64["batch", 4])
        def wide(x: Value) -> Value:
            return nn.relu(x) * 2

        with pytest.raises(QuantizationError, match=r"exponentials has nothing to quantize: .*\(it has Exp\)"):
            gt.quantize(exponentials, rows())
        with pytest.raises(
            QuantizationError, match="wide has nothing to quantize: it computes in f64, and only .* f32"
        ):
            gt.quantize(wide, rows().astype(np.float64))
        with pytest.raises(QuantizationError, match=r"nothing in chain is quantized:(\n  - \S+ \(\w+\): asked for){3}"):
            gt.quantize(chain(), rows(), Recipe(keep=["*"]))

    def test_an_operator_without_an_integer_form_is_listed(self) -> None:
        @gt.model(x=f32["batch", 4])
        def mixed(x: Value) -> dict[str, Value]:
            return {"y": nn.linear(Exp()(x), 3, name="y")}

        kept = gt.quantize(mixed, rows()).kept
        assert [(row.name, row.operator, row.reason) for row in kept] == [("Exp", "Exp", "has no integer form")]

    def test_signs_that_no_runtime_multiplies(self) -> None:
        with pytest.raises(QuantizationError, match="signed activations with unsigned weights: no runtime multiplies"):
            Recipe(activations=Scheme(i8), weights=Scheme(u8))

    @pytest.mark.parametrize(
        ("weights", "opset", "said"),
        [
            (Scheme(i8, "symmetric", "channel"), 12, "opset 12 cannot say i8 symmetric per channel: it needs opset 13"),
            (Scheme(i4, "symmetric"), 20, "opset 20 cannot say i4 symmetric per tensor: it needs opset 21"),
            (Scheme(i8, "symmetric", "block", 2), 20, "opset 20 cannot say i8 symmetric per block of 2: it needs"),
        ],
    )
    def test_opsets_that_are_too_old(self, weights: Scheme, opset: int, said: str, tmp_path: Path) -> None:
        recipe = Recipe(weights=weights)
        with pytest.raises(QuantizationError, match=said):
            recipe.check_opset(opset)
        recipe.check_opset(weights.least_opset)
        with pytest.raises(GlowtrainError, match=f"opset {opset}"):
            gt.save(gt.quantize(chain(), rows(), recipe).graph, tmp_path / "q.onnx", opset=opset)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    x, y = rows(), np.arange(16) % 3
    spoilt = x.copy()
    spoilt[3, 1] = np.nan
    data = {"good": x, "empty": x[:0], "nan": spoilt, "wide": np.zeros((16, 5), np.float32)}
    for name, array in data.items():
        np.savez(folder / f"{name}.npz", x=array, y=y[: len(array)])
    for name, network in {"net": chain(), "other": chain(9), "retrained": chain(seed=1)}.items():
        gt.save(network.bind({"batch": 2}), folder / f"{name}.onnx")
    calibrate(gt.load(folder / "net.onnx"), x).save(folder / "net.json")
    (folder / "scale0.onnx").write_bytes(quantize(scalar(0)).SerializeToString())
    return folder


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("network", "data", "options", "said"),
    [
        ("net", "empty", "", "the arrays 'x', 'y' are empty"),
        ("net", "nan", "", "x: 1 of 64 observed elements are NaN or infinite"),
        ("net", "wide", "", "input x has shape (16, 5) but axis 1 is 4"),
        ("other", "good", "--profile net.json", "is of another model than chain: 'Gemm' is made by Gemm(f32[4,8])"),
        ("retrained", "good", "--profile net.json", "was taken with other weights"),
        ("net", "good", "--opset 12", "opset 12 cannot say i8 symmetric per channel narrow: it needs opset 13"),
        ("net", "good", "--opset 19 --weights i4", "it needs opset 21 or newer"),
        ("net", "good", "--activations i8 --weights u8", "signed activations with unsigned weights"),
        ("scale0", "good", "", "node 'it' (QuantizeLinear): "),
    ],
)
def test_the_command_line_says_it(
    network: str, data: str, options: str, said: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    arguments = ["quantize", f"{network}.onnx", "--calibrate", f"{data}.npz", "--out", "q.onnx", *options.split()]
    result = CliRunner().invoke(app, arguments)
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "error: " in text
    assert said in text
    assert "Traceback" not in text
    assert not (files / "q.onnx").exists()
