"""Every differentiable operator against PyTorch's autograd in f64, on samples of its own domain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from against_pytorch import BOUND, WITHOUT, check, differentiable, operator_of
from counterparts import COUNTERPARTS

from glowtrain import stop_gradient
from glowtrain.ops.elementwise.transcendental import Tanh

EXAMPLES = 40
APART = {"LSTM": {7}}
"""Operands that PyTorch's function lacks: the peepholes."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("key", sorted(COUNTERPARTS))
def test_results_gradients_and_second_derivatives_agree(key: str) -> None:
    tally = check(operator_of(key), EXAMPLES)
    assert max(tally.errors.values()) <= BOUND, tally.worst
    assert tally.examples >= 4, f"only {tally.examples} of {EXAMPLES} examples could be compared"
    assert tally.operands == tally.drawn - APART.get(key, set())


def test_each_differentiable_operator_has_a_counterpart_or_a_reason() -> None:
    known = differentiable()
    assert sorted({*COUNTERPARTS, *WITHOUT}) == known
    assert not set(COUNTERPARTS) & set(WITHOUT)
    assert len(COUNTERPARTS) >= 150


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tanh, "vjp", lambda self, g, y, x: (g * (1.0 - y),))
    assert check(Tanh, 3).errors["gradient"] > BOUND


def test_a_rule_that_cannot_be_differentiated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def vjp(self: Tanh, g: Any, y: Any, x: Any) -> Any:
        fixed = stop_gradient(y)
        return (g * (1.0 - fixed * fixed),)

    monkeypatch.setattr(Tanh, "vjp", vjp)
    errors = check(Tanh, 3).errors
    assert errors["gradient"] <= BOUND < errors["second"]


def test_a_lost_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tanh, "vjp", lambda self, g, y, x: (None,))
    tally = check(Tanh, 3)
    assert not tally.operands
