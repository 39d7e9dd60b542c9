"""A person's own model: the node to blame is named, kinks are no failures, bad input is told."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import Change, constant, keep, scale
from matplotlib.figure import Figure
from mistakes import known

import glowtrain as gt
from glowtrain.errors import DifferentiationError, InputError
from glowtrain.gradcheck import GradcheckReport, check
from glowtrain.gradcheck.report.html import draw, html_page, write_html
from glowtrain.gradcheck.report.junit import junit_xml, write_junit
from glowtrain.gradcheck.report.report import Check
from glowtrain.graph import Graph, Input, Variable
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.presentation.figures import LIMIT
from glowtrain.types import f32, i64

Patch = pytest.MonkeyPatch


def network() -> Graph:
    """x -> w1 -> relu -> w2 -> softmax, with a skip connection around the relu: fan-out."""
    random = np.random.default_rng(3)
    x = Input(f32[4, 6], "x")
    w1, w2 = (Variable(n, random.standard_normal(s).astype(np.float32)) for n, s in (("w1", (6, 5)), ("w2", (5, 3))))
    h = x @ w1
    return Graph((x,), {"y": gt.nn.softmax((gt.nn.relu(h) + 0.1 * gt.nn.tanh(h)) @ w2)}, name="network")


def of(report: GradcheckReport, subject: str, oracle: str = "gradient") -> Check:
    return next(check for check in report.of(subject) if check.oracle == oracle)


def test_progress_is_told() -> None:
    seen: list[tuple[str, int, int]] = []
    check(network(), progress=lambda *step: seen.append(step))
    assert seen == [("w1", 1, 4), ("w2", 2, 4), ("x", 3, 4), ("native code", 4, 4)]
    seen.clear()
    check(network(), compiled=False, progress=lambda *step: seen.append(step))
    assert seen[-1] == ("x", 3, 3)


# --- Who is to blame


@pytest.mark.parametrize(
    ("rule", "change", "told"),
    [
        (Relu.vjp, keep("Where()(_, X, 0.0)"), "the rule of Relu(f64[4,5]) is wrong"),
        (Tanh.vjp, scale("X - _", 1.5), "the rule of Tanh(f64[4,5]) is wrong"),
        (Softmax.vjp, constant("self.axis", 0), "the rule of Softmax"),
    ],
)
def test_the_node_with_the_wrong_rule_is_named(rule: Any, change: Change, told: str, monkeypatch: Patch) -> None:
    assert check(network(), compiled=False).passed
    change.plant(rule, monkeypatch)
    report = check(network(), compiled=False)
    assert not report.passed
    assert all(told in failure.detail for failure in report.failures)
    assert ("w2" in {failure.subject for failure in report.failures}) == (rule is Softmax.vjp)


def test_names_of_nodes_from_a_file_are_told(tmp_path: Path, monkeypatch: Patch) -> None:
    gt.save(network(), tmp_path / "network.onnx")
    assert check(tmp_path / "network.onnx", compiled=False).passed
    known("missing mask").plant(monkeypatch)
    report = check(str(tmp_path / "network.onnx"), compiled=False)
    assert "of node" in of(report, "w1").detail or "Relu(f64[4,5])" in of(report, "w1").detail


def test_a_wrong_sum_is_told_where_every_rule_is_right(monkeypatch: Patch) -> None:
    known("lost accumulation").plant(monkeypatch)
    detail = of(check(network(), compiled=False), "w1").detail
    assert "gradients for the result of MatMul(f64[4,6], f64[6,5]) are summed wrongly over its 2 readers" in detail


def test_the_node_with_wrong_native_code_is_named(monkeypatch: Patch) -> None:
    scalar = Relu.scalar
    monkeypatch.setattr(Relu, "scalar", lambda self, x: scalar(self, x) * 1.001)
    report = check(network())
    assert {failure.oracle for failure in report.failures} == {"compiled"}
    assert all("the native code of Relu(f64[4,5]) is wrong by itself" in each.detail for each in report.failures)


# --- What is no failure


def test_a_kink_is_reported_as_such() -> None:
    random = np.random.default_rng(0)
    x, w = Input(f32[3, 4], "x"), Variable("w", random.standard_normal((4, 5)).astype(np.float32))
    report = check(Graph((x,), {"y": gt.nn.relu(x @ w)}), {"x": np.zeros((3, 4), np.float32)}, compiled=False)
    assert report.passed
    assert of(report, "x").status == "kink"
    assert "slopes" in of(report, "x").detail


@pytest.mark.exhaustive
@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_many_kinks_together_are_no_failure(scale: float) -> None:
    """Equal elements in every window of a pool: the slopes' errors add up and cancel, and small ones count as well."""
    x, w = Input(f32[2, 2, 8, 8], "x"), Variable("w", np.random.default_rng(1).standard_normal(32).astype(np.float32))
    pooled = gt.nn.flatten(gt.nn.max_pool(gt.nn.relu(x), 2))
    for seed in range(5):
        report = check(Graph((x,), {"y": pooled * w * scale}), {"x": np.ones((2, 2, 8, 8), np.float32)}, seed=seed)
        assert report.passed, report.failures
        assert of(report, "x").status == "kink"


def test_stopped_gradients_are_meant() -> None:
    x, w = Input(f32[4], "x"), Variable("w", np.linspace(0.5, 2, 4).astype(np.float32))
    v = Variable("v", np.ones(4, np.float32))
    held = gt.stop_gradient(gt.nn.tanh(w) * v)
    report = check(Graph((x,), {"y": held * w * x}))
    assert report.passed
    assert (of(report, "w").status, of(report, "v").status) == ("passed", "absent")
    assert "StopGradient" in of(report, "v").detail


# --- Bad input


def test_the_operator_that_cuts_a_path_is_named() -> None:
    x, w = Input(f32[4], "x"), Variable("w", np.linspace(0.5, 2, 4).astype(np.float32))
    report = check(Graph((x,), {"y": Floor()(x * w) + x}), compiled=False)
    assert [(c.subject, c.status) for c in report.checks] == [("w", "failed"), ("x", "passed")]
    assert "no gradient reaches it; it is cut by Floor(f64[4])" in of(report, "w").detail


def test_an_input_that_is_cut_is_no_failure() -> None:
    x, w = Input(f32[4], "x"), Variable("w", np.ones(4, np.float32))
    report = check(Graph((x,), {"y": Floor()(x) * w}), compiled=False)
    assert report.passed
    assert of(report, "x").status == "absent"


def test_integer_parameters_are_refused() -> None:
    x, k = Input(f32[4], "x"), Variable("k", np.arange(4))
    with pytest.raises(InputError, match=r"k \(i64\[4\]\): trainable, but not of a float type.*trainable=False"):
        check(Graph((x,), {"y": x * Cast(to=f32)(k)}))


def test_a_model_with_nothing_to_check_is_refused() -> None:
    k = Input(i64[3], "k")
    with pytest.raises(InputError, match="no trainable parameter and no float input"):
        check(Graph((k,), {"y": Cast(to=f32)(k)}, name="flat"))


def test_a_loss_that_is_not_scalar_is_refused() -> None:
    for loss in ("y", lambda outputs, inputs: outputs["y"]):
        with pytest.raises(DifferentiationError, match=r"must be a scalar to be a loss, its type is f32\[4,3\]"):
            check(network(), loss=loss)


def test_an_operator_without_a_rule_is_named_with_what_to_do() -> None:
    @dataclass(frozen=True)
    class Opaque(gt.Operator):
        domain = "test.model"
        onnx = "Opaque"

        def infer(self, *inputs: Any) -> Any:
            return inputs[0]

        def reference(self, *inputs: Any) -> Any:
            return inputs[0]

    x = Input(f32[4], "x")
    with pytest.raises(DifferentiationError, match=r"Opaque\(f64\[4\]\) has no gradient rule.*class Opaque a vjp"):
        check(Graph((x,), {"y": Opaque()(x)}))


def test_an_output_can_be_chosen() -> None:
    x, w = Input(f32[4], "x"), Variable("w", np.ones(4, np.float32))
    graph = Graph((x,), {"a": x * 2.0, "b": gt.nn.tanh(w * x)})
    assert of(check(graph, output="a", compiled=False), "x").status == "passed"
    assert "w" in check(graph, output="b", compiled=False).subjects
    with pytest.raises(InputError, match="no output 'c'; it has 'a', 'b'"):
        check(graph, output="c")
    with pytest.raises(InputError, match="not both"):
        check(graph, output="a", loss="b")


# --- Reports


CHECKS = (
    Check("layer.weight", "gradient", "passed", 5, 3e-9, 0.02),
    Check("layer.bias", "gradient", "failed", 5, 0.5, 5e4, "rule 1 <b>, differences 2\x00 & more\nsecond line"),
    Check("x", "gradient", "kink", 0, 0.0, 0.0, "slopes 0 and 1"),
    Check("x", "compiled", "failed", 1, float("inf"), float("inf"), "shape"),
    Check("k", "compiled", "absent", 0, 0.0, 0.0),
)


def test_junit_holds_every_check(tmp_path: Path) -> None:
    write_junit(GradcheckReport(CHECKS, 7, 5, 1.5), tmp_path / "report.xml")
    root = ET.fromstring((tmp_path / "report.xml").read_bytes())
    assert (root.get("tests"), root.get("failures"), root.get("skipped"), root.get("time")) == ("5", "2", "2", "1.500")
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("gradient", "3"), ("compiled", "2")]
    failure = root.find("testsuite/testcase[@name='layer.bias']/failure")
    assert failure is not None
    assert failure.get("message") == "rule 1 <b>, differences 2? & more"
    assert "second line" in (failure.text or "")
    assert junit_xml(GradcheckReport(CHECKS)).startswith("<?xml")


def test_html_is_one_page_with_a_mark_for_each_comparison(tmp_path: Path) -> None:
    write_html(GradcheckReport(CHECKS, 7, 5, 1.5), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == html_page(GradcheckReport(CHECKS, 7, 5, 1.5))
    assert "rule 1 &lt;b&gt;" in page
    assert "<b>" not in page
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    texts = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"layer.weight", "layer.bias", "x", "k", "gradient", "compiled", "worst error / allowed error"} <= texts
    assert not re.search(r"<script|<link|@import|(href|src)=\"[^#]|url\([^#]", page)


def test_marks_stand_at_errors_over_what_is_allowed() -> None:
    figure = Figure()
    draw(GradcheckReport(CHECKS), figure)
    (axes,) = figure.axes
    marks = [
        (line.get_label(), *xy) for line in axes.lines for xy in line.get_xydata() if line.get_label() != "allowed"
    ]
    assert [mark[1:] for mark in marks] == [(0.02, 0), (5e4, 1), (1e6, 2)]
    assert marks[0][0] == "gradient"
    assert [line.get_xdata() for line in axes.lines if line.get_label() == "allowed"] == [[1.0, 1.0]]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["layer.weight", "layer.bias", "x", "k"]
    colours = [label.get_color() == LIMIT for label in axes.get_yticklabels()]
    assert colours == [False, True, True, False]
