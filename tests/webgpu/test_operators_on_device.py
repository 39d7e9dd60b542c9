"""Every operator with a gradient, results and gradients in f32, and random training steps: on an adapter, as in f64.

What the backend refuses it must refuse with one of the reasons of :data:`REFUSED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pytest

from glowtrain.backends.discovery import backend_of
from glowtrain.errors import CodegenError, ShapeError
from glowtrain.gradcheck.operators.edges import drawn_example
from glowtrain.gradcheck.operators.ladder import run_by
from glowtrain.gradcheck.operators.oracles import applied, described, narrowed
from glowtrain.gradcheck.operators.registry import verified
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, Rungs
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph.registry import lookup
from glowtrain.types import f32

BACKEND = backend_of("webgpu")
SAMPLES = 6
"""Samples of an operator of which one at least must run."""
PROGRAMS = 24

REFUSED = {
    r"WGSL has no (f8\w+|[uif]\d)\b": "element types that are only stored",
    r"function \w+ of f64 is not written": "functions of f64 other than sums, products, quotients, comparisons",
    r"function pow of b?f(32|16) is not written": "a recipe in f64",
    r"subscripts are computed in 32 bits": "subscripts that may be larger",
    r"runs a function of this process": "native functions",
}
"""Why something may be refused, by what the error says."""
WHOLLY = frozenset(
    {
        "SimplifiedLayerNormalization", "ai.onnx.preview.training.Adam",
        "com.microsoft.SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip
"""Operators of which nothing runs in f32: all of their samples here have a power of floats."""


def attempted(run: Callable[[], Iterable[Measure]]) -> tuple[list[Measure], str]:
    """The measures of a run, and what the backend says that it cannot."""
    try:
        return list(run()), ""
    except CodegenError as error:
        return [], str(error)


def reason(refusal: str) -> str | None:
    """What of :data:`REFUSED` an error says."""
    return next((why for pattern, why in REFUSED.items() if re.search(pattern, refusal)), None)


def test_a_reason_that_is_not_in_the_table_is_none() -> None:
    assert reason("kernel mul: WGSL has no f8e5m2: ...") is not None
    assert reason("kernel mul: it is too late today") is None


@pytest.mark.parametrize("key", sorted(verified()))
def test_every_operator_with_a_gradient(key: str) -> None:
    operator, refusals = lookup(key), []
    assert operator is not None
    for example in range(SAMPLES):
        use, random = applied(drawn_example(operator, 0, example)), np.random.default_rng(0)
        run = partial(narrowed, "webgpu", use, f32, random, gradients=True, run=run_by(BACKEND))
        measures, refusal = attempted(run)
        assert [m.detail for m in measures if m.status == "failed"] == [], described(use.sample)
        if measures:
            break
        assert not refusal or reason(refusal) is not None, refusal
        refusals.append(refusal)
    assert (len(refusals) == SAMPLES) == (key in WHOLLY), refusals


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_random_training_steps(number: int) -> None:
    """In f32 beside other types; what is refused is refused before anything runs."""
    case = drawn_case(0, number)
    try:
        case = case.in_type(f32)
    except ShapeError:
        pytest.skip("it has an operator that takes f64 only")
    run = partial(PROGRAM_ORACLES["compiled"], Rungs(case, backend="webgpu"), np.random.default_rng(0))
    measures, refusal = attempted(run)
    assert measures or reason(refusal) is not None, refusal
    assert [f"{m.detail}\n{case}" for m in measures if m.status == "failed"] == []
