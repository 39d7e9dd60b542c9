"""The gradients of ONNX's own node tests: a part of them here, all by ``glowtrain conformance --gradients``."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.gradcheck.operators.node_tests import Outcome, matching, run_named, section
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.reduce.softmax import Softmax

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
SHARE = 10
"""One test in so many is checked here."""


@pytest.mark.exhaustive
def test_a_part_is_right() -> None:
    chosen = [name for name in matching() if crc32(name.encode()) % SHARE == 0]
    found = [run_named(name) for name in chosen]
    smooth = [outcome for outcome in found if not outcome.reason]
    assert len(smooth) > 100
    assert all(outcome.checked for outcome in smooth), section(found)


def test_the_page_says_that_all_are_right() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("### Gradients that are not right")[2]
    assert text.strip().startswith("All are.")


@pytest.mark.parametrize("name", ["test_elu_example", "test_reduce_max_do_not_keepdims_example", "test_acosh_example"])
def test_data_on_a_kink_are_moved_off_it(name: str) -> None:
    outcome = run_named(name)
    assert outcome.checked
    assert (outcome.nudged > 0) == (name != "test_reduce_max_do_not_keepdims_example")  # its data have no ties


def test_what_has_no_gradient_says_why() -> None:
    assert run_named("test_floor").reason.startswith("Floor: it is piecewise constant")
    assert run_named("test_add_int8").reason == "no input of floats with elements"
    assert run_named("test_isnan").reason == "no output of floats with elements"
    assert "StringConcat" in run_named("test_string_concat").reason


def test_a_wrong_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Softmax, g: Value, y: Value, x: Value) -> tuple[Value]:
        return (g * y,)

    monkeypatch.setattr(Softmax, "vjp", wrong)
    outcome = run_named("test_softmax_axis_0")
    assert not outcome.checked
    assert "jacobian: input 0" in outcome.problem
    assert f"- `test_softmax_axis_0`: {outcome.problem}" in section([outcome])


def test_a_section_counts() -> None:
    text = section(
        [
            Outcome("test_a", ("Add", "Mul"), ("f32",)),
            Outcome("test_b", ("Add",), ("f64",), nudged=0.01),
            Outcome("test_c", reason="test_c: no gradient"),
        ]
    )
    assert "3 node tests, 2 of them with a gradient (1 in f32),\nthrough 2 operators" in text
    assert "| Add | 2 | 1 | 1 | 0 |" in text
    assert "- `test_c`: the model: no gradient" in text


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_a_masked_row_that_is_replaced_has_no_gradient(backend: str) -> None:
    """Exporters write Where(masked, 0, Softmax(scores)): the scores of a row that is masked whole are not read."""
    scores = Input(gt.f32[2, 3], "scores")
    bias = constant(np.array([[0, 0, -np.inf], [-np.inf] * 3], np.float32))
    masked = constant(np.array([[False], [True]]))
    safe = Where()(masked, constant(0.0, scores.dtype), Softmax()(scores + bias))
    weights = constant(np.array([1, 2, 3], np.float32))
    loss = ReduceSum(axes=(0, 1), keepdims=False)(safe * weights)
    (gradient,) = gt.grad.gradients(loss, [scores])
    data = {"scores": np.array([[1, 1, 1], [1, 2, 3]], np.float32)}
    found = gt.compile(Graph((scores,), {"d": gradient}), backend=backend)(data)["d"]
    np.testing.assert_allclose(found, [[-0.25, 0.25, 0.0], [0.0, 0.0, 0.0]], atol=1e-6)
