"""The pytest plugin: the fixture checks operators and models, and fails the test that finds something."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import numpy as np
import glowtrain as gt
from dataclasses import dataclass
from glowtrain.graph import OPERATORS
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.transcendental import Tanh

class Cubed(Elementwise):
    domain = "test.plugin"

    def reference(self, x):
        return x * x * x

    def vjp(self, g, y, x):
        return (g * x * x * FACTOR,)

    def scalar(self, x):
        return x * x * x

FACTOR = {factor}
if "test.plugin.Cubed" not in OPERATORS:
    Cubed = gt.operator(dataclass(frozen=True)(Cubed))
else:
    Cubed = OPERATORS["test.plugin.Cubed"]

def test_operator(gradcheck):
    assert gradcheck.operator(Cubed, examples=4).passed

def test_sample(gradcheck):
    gradcheck.sample(Tanh(), np.linspace(-1, 1, 5), oracles=["jacobian", "evaluator"])

def test_model(gradcheck):
    x = gt.Input(gt.f32[3], "x")
    w = gt.Variable("w", np.ones(3, np.float32))
    gradcheck.model(gt.Graph((x,), {{"y": Cubed()(x * w)}}), compiled=False)
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> object:
    def run(factor: float, *options: str) -> pytest.RunResult:
        pytester.makepyfile(TESTS.format(factor=factor))
        return pytester.runpytest_subprocess(
            "-p", "glowtrain.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider", *options
        )

    return run


def test_what_is_right_passes(run: object, pytester: pytest.Pytester) -> None:
    run(3.0, "--gradcheck-report", "pages").assert_outcomes(passed=3)  # type: ignore[operator]
    page = (pytester.path / "pages" / "test_operator.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "test.plugin.Cubed" in page


@pytest.mark.exhaustive
def test_what_is_wrong_fails_and_is_named(run: object) -> None:
    result = run(3.3, "--gradcheck-examples", "2", "--gradcheck-seed", "5")  # type: ignore[operator]
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*test.plugin.Cubed, jacobian: smallest: *", "*the rule of test.plugin.Cubed(f64*3*"])
