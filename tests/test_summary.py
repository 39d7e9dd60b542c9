"""What models and results say of themselves: a table of layers, and one line each."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.data import digits
from glowtrain.verification import ladder, random_inputs


@gt.model(x=gt.f32["batch", 8])
def small(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 4, name="hidden")), 3, name="scores")


class TestSummary:
    def test_of_a_template(self) -> None:
        assert str(gt.summary(small)).splitlines() == [
            "layer   operator  result    parameters  multiply-adds",
            "hidden  Gemm      f32[1,4]          36             32",
            "        Relu      f32[1,4]",
            "scores  Gemm      f32[1,3]          15             12",
            "small: 51 parameters, 44 multiply-adds for batch = 1",
        ]

    def test_of_other_extents(self) -> None:
        assert gt.summary(small, {"batch": 5}).multiply_adds == 5 * 44
        assert gt.summary(small.bind({"batch": 5})).multiply_adds == 5 * 44

    def test_a_convolution(self) -> None:
        first = gt.summary(models.build("cnn", (3, 8, 8))).layers[0]
        assert (first.name, first.operator) == ("stage1.conv", "Conv")
        assert first.parameters == 32 * 3 * 9
        assert first.multiply_adds == first.parameters * 8 * 8

    def test_a_recurrence_counts_every_step(self) -> None:
        @gt.model(x=gt.f32["time", 2, 3])
        def recurrent(x: gt.Value) -> gt.Value:
            return gt.nn.lstm(x, 5)

        counts = [gt.summary(recurrent, {"time": steps}).multiply_adds for steps in (1, 2, 4)]
        assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
        assert counts[1] - counts[0] >= 2 * 4 * 5 * (3 + 5)

    def test_a_weight_that_is_read_twice_counts_once(self) -> None:
        weight = gt.Variable("w", np.ones((3, 3), np.float32))
        x = gt.Input(gt.f32[2, 3], "x")
        found = gt.summary(gt.Graph((x,), {"y": (x @ weight) @ weight}))
        assert [layer.parameters for layer in found.layers] == [9, 0]

    def test_in_a_notebook(self) -> None:
        page = gt.summary(small)._repr_html_()
        assert "<td" in page
        assert "51 parameters, 44 multiply-adds" in page

    def test_of_something_else(self) -> None:
        with pytest.raises(gt.GlowtrainError, match="a summary is of a graph or a template, not"):
            gt.summary(np.ones(3))  # type: ignore[arg-type]


class TestRepr:
    def test_models_and_data(self) -> None:
        assert repr(small) == "<Template small(x f32[batch,8])>"
        graph = small.bind({"batch": 2})
        assert repr(graph) == "<Graph small(x f32[2,8]) -> output f32[2,3]: 3 operators, 4 variables>"
        assert repr(digits()).startswith("<Dataset digits: 1,437 examples of x ")
        assert repr(digits()).endswith("; 360 for validation>")

    def test_training(self) -> None:
        trainer = gt.Trainer(small, gt.losses.mse(), gt.optim.SGD(lr=0.1))
        data = (np.ones((4, 8), np.float32), np.ones((4, 3), np.float32))
        assert repr(trainer.history) == "<History of 0 epochs>"
        history = trainer.fit(data, 2, 4, progress=False)
        assert repr(history).startswith(f"<History of 2 epochs; the last: loss {history.loss[-1]:.4f}")
        history.last["lr"] = 2e-5
        assert ", lr 2e-05" in repr(history)
        assert repr(trainer) == "<Trainer of small: 4 trained tensors, sgd on cpu; 2 epochs done>"
        assert history._repr_html_().count("<tr>") == 3

    def test_reports(self) -> None:
        quantized = gt.quantize(small, {"x": np.ones((4, 8), np.float32)})
        assert repr(quantized).startswith("<Quantized small: activations u8 ")
        report = gt.quantization.report(quantized, sensitivities=False)
        assert repr(report).startswith("<Report: small: activations u8 ")
        assert "<td" in report._repr_html_()
        assert repr(gt.gradcheck.check(small)).startswith("<Report: 5 checked by 2 oracles")
        assert repr(gt.gradcheck.check_registry(["Add"], 1, oracles=["types"])).startswith("<Report: 1 checked by")
        graph = small.bind({"batch": 2})
        assert repr(ladder(graph, random_inputs(graph, 0))) == "<Report on small: every rung agrees>"
