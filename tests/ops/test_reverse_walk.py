"""The reverse walk: sums where values fan out, stops at boundaries, messages for missing rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.errors import DifferentiationError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Constant, Input, Operator
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.elementwise.logic import Greater
from glowtrain.ops.reduce.reduction import unbroadcast
from glowtrain.types import f64
from tests.ops.rules import run


def test_reverse_walk_adds_where_a_value_fans_out() -> None:
    x = Input(f64[3], "x")
    y = x * x
    (gradient,) = pullback([y * y + y, x], [Constant(np.ones(3)), Constant(np.full(3, 7.0))], [x])
    assert gradient is not None
    values = np.array([1.0, 2.0, -3.0])
    np.testing.assert_allclose(run([gradient], {x: values})[0], 4 * values**3 + 2 * values + 7)


def test_reverse_walk_takes_intermediate_values_and_boundaries() -> None:
    x = Input(f64[2], "x")
    y = x * 3.0
    z = y * y + x
    one = Constant(np.ones(2))
    by_x, by_y = pullback([z], [one], [x, y])
    assert by_x is not None
    assert by_y is not None
    np.testing.assert_allclose(run([by_x, by_y], {x: np.array([1.0, 2.0])}), [[19, 37], [6, 12]])
    (direct,) = pullback([z], [one], [x], boundary=[y])
    assert direct is one


def test_reverse_walk_stops_at_comparisons_and_unreached_values() -> None:
    x, other = Input(f64[2], "x"), Input(f64[2], "other")
    mask = Greater()(x, 0.0)
    assert pullback([x * 1.0], [Constant(np.ones(2))], [other]) == (None,)
    assert pullback([mask], [None], [x]) == (None,)


def test_unbroadcast_sums_what_was_repeated() -> None:
    g = Input(f64[2, 3, 4], "g")
    summed = unbroadcast(g, (3, 1))
    np.testing.assert_allclose(run([summed], {g: np.ones((2, 3, 4))})[0], np.full((3, 1), 8.0))


def test_missing_rule_names_operator_and_node() -> None:
    class Opaque(Operator):
        onnx = "Opaque"

        def infer(self, *inputs: Any) -> Any:
            return inputs[0]

        def __str__(self) -> str:
            return "Opaque"

    x = Input(f64[2], "x")
    y = Opaque()(x)
    y.node.name = "layer3"
    with pytest.raises(DifferentiationError, match=r"Opaque\(f64\[2\]\) of node 'layer3' has no gradient rule"):
        pullback([y], [Constant(np.ones(2))], [x])


def test_wrong_cotangent_type_is_caught() -> None:
    x = Input(f64[2], "x")
    with pytest.raises(DifferentiationError, match=r"cotangent of type f64\[3\]"):
        pullback([Add()(x, x)], [Constant(np.ones(3))], [x])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda g: g, "not Constant"),
        (lambda g: (g,), "not 1 of them"),
        (lambda g: (g, g, None), "not 3 of them"),
        (lambda g: (g, np.ones(2)), "not ndarray among them"),
        (lambda g: None, "not NoneType"),
    ],
)
def test_rules_that_do_not_give_a_cotangent_for_each_operand(
    given: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Add, "vjp", lambda self, g, y, a, b: given(g))
    x = Input(f64[2], "x")
    with pytest.raises(DifferentiationError, match=rf"the vjp of Add must return a tuple.*{told}"):
        pullback([x + x * 1.0], [Constant(np.ones(2))], [x])
