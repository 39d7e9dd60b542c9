"""Level 1: each operator of the registry on the backend, by family: results, and gradients in f32."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glowtrain.backends.base import Backend
from glowtrain.graph import Operator
from glowtrain.kit.operators import operators, use_of
from glowtrain.kit.refusals import ExpectedRefusals
from glowtrain.kit.report import FAILED, RAN, REFUSED
from glowtrain.types import f32


@pytest.mark.parametrize("operator", [pytest.param(cls, id=name) for name, cls in operators().items()])
def test_operator(
    operator: type[Operator],
    backend: Backend,
    expected_refusals: ExpectedRefusals | None,
    record_property: Callable[[str, object], None],
    pytestconfig: pytest.Config,
) -> None:
    """In each float type as in f64, as far as rounding explains."""
    problems: list[str] = []
    refusals: list[str] = []
    options = pytestconfig.option
    attempts = (use_of(operator, dtype, backend, options.examples) for dtype in options.types)
    results = [use for use in attempts if use is not None]
    for use in results:
        record_property("use", tuple(use))
        problems += use.details if use.outcome == FAILED else ()
        refusals += [] if use.outcome == FAILED else use.details
    if expected_refusals is not None:
        problems += [f"refused: {each}" for each in refusals if expected_refusals.reason(each) is None]
        missing = any(use.dtype == f32.name and use.outcome == REFUSED for use in results)
        if missing != (operator.key() in expected_refusals.operators):
            problems.append(f"{operator.key()} is {'refused' if missing else 'not refused'} in f32: see --refusals")
    assert not problems, "\n".join(problems)
    if refusals and not any(use.outcome == RAN for use in results):
        pytest.skip(refusals[0])
