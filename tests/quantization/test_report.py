"""Noise, sensitivities and the report, and quantized files in both forms."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from rich.console import Console

import glowtrain as gt
from glowtrain.errors import QuantizationError
from glowtrain.quantization import (
    Quantized,
    Recipe,
    Report,
    Scheme,
    accuracy,
    convert,
    prepare,
    qoperator,
    report,
    save_quantized,
)
from glowtrain.quantization.calibration.profile import Histogram, Observed, Profile
from glowtrain.quantization.improve.sensitivity import LayerNoise, decibels, sensitivity, signal_to_noise
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.quantization.report.html import draw_histogram, draw_noise, html_page, observed
from glowtrain.types import Array, i4, i16
from tests.quantization.models import branches, images, mobile, state_of, transformer

X = images(16)


@cache
def quantized() -> Quantized:
    model = mobile()
    return gt.quantize(model, X, Recipe(method="percentile", keep=["Add.1"]), state=state_of(model), batch_size=8)


@cache
def reported() -> Report:
    return report(quantized(), accuracies={"float": 0.9, "post-training": 0.89}, measured_on="ten images")


class TestAnalysis:
    @pytest.mark.exhaustive
    def test_noise_of_results_is_measured(self) -> None:
        found = quantized()
        rows = {row.name: row for row in signal_to_noise(found.exact, found.ready, found.data)}
        exact, rounded = (
            gt.compile(model)({"x": X})["scores"].astype(np.float64) for model in (found.exact, found.prepared)
        )
        assert rows["scores"].decibels == pytest.approx(
            decibels((exact**2).sum(), ((exact - rounded) ** 2).sum()), abs=0.1
        )
        assert (rows["x"].operator, rows["scores"].operator, rows["Add"].operator) == ("input", "output", "Add")

    @pytest.mark.exhaustive
    def test_noise_of_weights(self) -> None:
        found = quantized()
        rows = {row.name: row for row in signal_to_noise(found.exact, found.ready, found.data[:1])}
        weight = found.example.placement.graph.variable("stem.conv.weight").initial.astype(np.float64)
        rounded = found.example.parameters["stem.conv.weight"].rounded(weight.astype(np.float32))
        expected = decibels((weight**2).sum(), ((weight - rounded) ** 2).sum())
        assert rows["Clip"].weight_decibels == pytest.approx(expected, abs=1e-6)

    @pytest.mark.exhaustive
    def test_the_ranking_finds_the_layer_that_is_hurt(self) -> None:
        """One layer's weights span six orders of magnitude under one scale, so all but a few become 0."""
        model, state = mobile(), state_of(mobile())
        factors = 10.0 ** np.linspace(-3, 3, 24).astype(np.float32)
        state["block2.expand.norm.scale"] = factors
        state["block2.depthwise.norm.scale"] = np.ones(24, np.float32)
        found = gt.quantize(model, X, Recipe(weights=Scheme(gt.i8, "symmetric")), state=state, batch_size=16)
        rows = sensitivity(found.exact, found.ready, found.data)
        assert [row.alone for row in rows] == sorted(row.alone for row in rows)
        assert len(rows) == 11
        again = gt.quantize(model, X, found.recipe.with_(keep_sensitive=2), state=state, batch_size=16)
        assert {row.name for row in rows[:2]} <= {kept.name for kept in again.kept if kept.reason == "asked for"}
        exact, plain, better = (gt.compile(m)({"x": X})["scores"] for m in (found.exact, found.model, again.model))
        assert ((exact - better) ** 2).sum() < 0.5 * ((exact - plain) ** 2).sum()

    def test_layers_that_are_kept_are_not_ranked(self) -> None:
        assert "Add.1" not in {row.name for row in reported().sensitivities}

    def test_decibels(self) -> None:
        assert decibels(100, 1) == 20
        assert decibels(1, 0) == math.inf
        assert decibels(0, 1) == -math.inf

    @pytest.mark.exhaustive
    def test_accuracy(self) -> None:
        scores = gt.compile(quantized().model)({"x": X})["scores"]
        labels = scores.argmax(-1)
        labels[:4] += 1
        assert accuracy(quantized().model, [{"x": X[:10]}, {"x": X[10:]}], [labels[:10], labels[10:]]) == 12 / 16


class _Balanced(HTMLParser):
    """Raises for end tags that do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.open += [] if tag == "meta" else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


class TestReport:
    def test_summary(self) -> None:
        text = reported().summary()
        for part in (
            "mobile: activations u8",
            "method percentile",
            "accuracy on ten images, float: 90.00 %",
            "times larger",
            "Add.1",
        ):
            assert part in text
        assert "in floating point: 2 of the operators" in text

    @pytest.mark.parametrize(
        ("after", "said"), [(40, "2.50 times smaller"), (100, "1.00 times smaller"), (103, "1.03 times larger")]
    )
    def test_a_file_that_grew_is_not_smaller(self, after: int, said: str) -> None:
        assert f"instead of 100 ({said})" in replace(reported(), float_bytes=100, quantized_bytes=after).summary()

    def test_terminal(self) -> None:
        console = Console(width=118, record=True, file=io.StringIO())
        console.print(reported())
        text = console.export_text()
        for part in ("Signal to noise", "Sensitivity", "In floating point", "asked for", "block1.depthwise.norm"):
            assert part in text

    def test_json(self) -> None:
        plain = json.loads(json.dumps(reported().to_json(), allow_nan=False))
        assert plain["accuracies"] == {"float": 0.9, "post-training": 0.89}
        assert plain["measured_on"] == "ten images"
        assert plain["kept"][0] == {"name": "Add.1", "operator": "Add", "reason": "asked for"}
        assert {row["name"] for row in plain["layers"]} >= {"x", "Clip", "scores"}

    def test_the_page_is_whole(self, tmp_path: Path) -> None:
        reported().write_html(tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text()
        page = _Balanced()
        page.feed(text)
        assert not page.open
        histograms = sum(name in quantized().profile.values for name in reported().parameters)
        assert (page.seen.count("figure"), page.seen.count("svg")) == (histograms, histograms + 2)
        assert text.count("<table>") == 3
        for word in ("accuracy (%)", "post-training", "90.00", "signal to noise (dB)", "elements"):
            assert f">{word}</text>" in text
        ids = re.findall(r'\bid="([^"]*)"', text)
        assert len(ids) == len(set(ids))
        with pytest.raises(QuantizationError, match="cannot write the report"):
            reported().write_html(tmp_path / "no" / "such" / "folder.html")

    @pytest.mark.exhaustive
    def test_a_histogram_shows_what_is_cut_off(self) -> None:
        """u8 with scale 0.5 and zero point 10 stands for -5 to 122.5."""
        parameters = Parameters(np.array(0.5, np.float32), np.array(10, np.uint8))
        values = {"x": Observed(-8, 127, -8, 127, 10, 1, histogram=Histogram(-8, 127, np.array([4, 0, 6])))}
        found = replace(reported(), profile=Profile(values), parameters={"x": parameters, "unseen": parameters})
        ((name, histogram, ends),) = observed(found)
        figure = Figure()
        draw_histogram(histogram, ends, figure)
        lines = [line.get_xdata()[0] for line in figure.axes[0].lines]
        assert (name, lines) == ("x", [-5.0, 122.5])
        assert figure.axes[0].get_xlim()[0] < -8
        (steps,) = (patch for patch in figure.axes[0].patches if isinstance(patch, StepPatch))
        assert steps.get_data().values.sum() == 10
        assert "observed [-8, 127], quantized [-5, 122]" in html_page(found)

    def test_bars_are_as_long_as_the_numbers(self) -> None:
        layers = [LayerNoise("a", "Add", 30.0, 40.0), LayerNoise("$b$", "Add", -math.inf, None)]
        figure = Figure()
        draw_noise(replace(reported(), layers=layers), figure)
        axes = figure.axes[0]
        assert [bar.get_width() for bar in axes.patches] == [30.0, 0.0, 40.0, 0.0]
        assert [label.get_text() for label in axes.texts] == ["30.0", "-∞", "40.0", ""]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "$b$"]

    @pytest.mark.exhaustive
    def test_names_are_escaped(self) -> None:
        model = mobile()
        graph = model.bind({"batch": 8}).with_(name="<script>")
        found = report(gt.quantize(graph, X), sensitivities=False)
        assert "<script>" not in html_page(found)


class TestFiles:
    MODELS = {"mobile": mobile, "branches": branches, "transformer": transformer}  # noqa: RUF012
    EXPECTED = {  # noqa: RUF012
        "mobile": {"QLinearConv": 7, "QLinearAdd": 2, "QLinearGlobalAveragePool": 1, "QGemm": 1, "Conv": 0},
        "branches": {
            "QLinearConv": 3,
            "QLinearConcat": 1,
            "QLinearAveragePool": 1,
            "QLinearSigmoid": 1,
            "QLinearMul": 1,
        },
        "transformer": {"QLinearMatMul": 1, "MatMulIntegerToFloat": 7, "QLinearAdd": 2, "QGemm": 1, "MatMul": 0},
    }

    @staticmethod
    def data(name: str) -> Array:
        return X if name != "transformer" else np.random.default_rng(0).standard_normal((16, 6, 16)).astype(np.float32)

    @pytest.mark.spread(1)
    @pytest.mark.parametrize("name", MODELS)
    def test_operators_on_quantized_tensors(self, name: str, tmp_path: Path) -> None:
        model, x = self.MODELS[name](), self.data(name)
        found = gt.quantize(model, x, state=state_of(model), batch_size=16)
        path = tmp_path / "q.onnx"
        assert save_quantized(found.graph, path, form="qoperator") == path.stat().st_size
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        counts = {
            operator: sum(node.op_type == operator for node in proto.graph.node) for operator in self.EXPECTED[name]
        }
        assert counts == self.EXPECTED[name]
        ours = gt.compile(found.model)({"x": x})
        options = ort.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", "1")
        theirs = ort.InferenceSession(str(path), options).run(None, {"x": x})
        again = gt.compile(gt.load(path))({"x": x})
        for place, (output, array) in enumerate(ours.items()):
            np.testing.assert_allclose(theirs[place], array, atol=1e-5)
            np.testing.assert_allclose(again[output], array, atol=1e-5)

    @pytest.mark.exhaustive
    def test_clips_that_saturation_does_not_do(self) -> None:
        """Bounds within the range of the integers are bounds on the integers."""
        model = mobile()
        found = gt.quantize(model, 20 * X, Recipe(activations=Scheme(gt.i8, "symmetric")), state=state_of(model))
        plain, changed = (gt.compile(m)({"x": X})["scores"] for m in (found.model, qoperator(found.model)))
        np.testing.assert_allclose(changed, plain, atol=1e-6)
        graph = qoperator(found.graph)
        assert [node for node in graph.nodes if node.operator.key() == "Clip" and node.outputs[0].dtype == gt.i8]

    @pytest.mark.spread(1)
    @pytest.mark.parametrize(
        ("recipe", "opset", "message"),
        [
            (Recipe(), 12, "has a scale for each channel, which opset 12 cannot say: it needs opset 13"),
            (
                Recipe(weights=Scheme(i4, "symmetric")),
                20,
                "has numbers of i4, which opset 20 cannot say: it needs opset 21",
            ),
            (Recipe(activations=Scheme(i16)), 17, "has numbers of i16, which opset 17 cannot say: it needs opset 21"),
            (
                Recipe(weights=Scheme(i4, "symmetric", "block", 4)),
                19,
                "which opset 19 cannot say: it needs opset 21",
            ),
        ],
    )
    def test_opsets_that_are_too_old(self, recipe: Recipe, opset: int, message: str) -> None:
        found = gt.quantize(mobile().bind({"batch": 8}), X, recipe)
        with pytest.raises(QuantizationError, match=message):
            save_quantized(found.graph, opset=opset)

    @pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
    def test_scales_that_training_broke(self, scale: float) -> None:
        graph = mobile().bind({"batch": 2})
        ready = prepare(graph, quantized().profile, learn=True)
        with pytest.raises(QuantizationError, match=r"Clip.scale: a scale must be positive and finite, not"):
            convert(ready, state={"Clip.scale": np.array(scale, np.float32)})

    def test_what_is_not_quantized(self) -> None:
        with pytest.raises(QuantizationError, match="mobile is not quantized: it has no DequantizeLinear"):
            save_quantized(mobile().bind({"batch": 1}))
        with pytest.raises(QuantizationError, match="there is no form 'tflite'"):
            save_quantized(quantized().graph, form="tflite")  # type: ignore[arg-type]
        with pytest.raises(QuantizationError, match="mobile has no FakeQuantize: it was not prepared"):
            convert(mobile().bind({"batch": 1}))
        with pytest.raises(QuantizationError, match="nothing in mobile is quantized:\n  - stem"):
            gt.quantize(mobile(), X, Recipe(keep=["*"]))
