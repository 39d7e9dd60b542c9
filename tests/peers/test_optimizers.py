"""Each optimizer's update against PyTorch's, for the settings that both have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import glowtrain as gt
from glowtrain.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSProp

STEPS, SHAPE = 100, (3, 4)
START = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
GRADIENTS = np.random.default_rng(6).standard_normal((STEPS, *SHAPE)).astype(np.float32)


def trainer_of(optimizer: Optimizer) -> gt.Trainer:
    """A parameter w whose gradient is what is fed: the loss is sum(w * g)."""
    feed, w = gt.Input(gt.f32[SHAPE], "g"), gt.Variable("w", START)
    return gt.Trainer(gt.Graph((feed,), {"loss": gt.nn.total(w * feed)}), "loss", optimizer)


@pytest.mark.parametrize(
    ("optimizer", "name", "settings"),
    [
        (SGD(0.1, momentum=0.9, dampening=0.3), "SGD", {"momentum": 0.9, "dampening": 0.3}),
        (SGD(0.1, weight_decay=0.01), "SGD", {"weight_decay": 0.01}),
        (SGD(0.1, momentum=0.9, nesterov=True), "SGD", {"momentum": 0.9, "nesterov": True}),
        (Adam(0.1, weight_decay=0.01), "Adam", {"weight_decay": 0.01}),
        (AdamW(0.1), "AdamW", {}),
        (RMSProp(0.1, centered=True, momentum=0.5), "RMSprop", {"centered": True, "momentum": 0.5}),
        (Adagrad(0.1, lr_decay=0.1, initial=0.5), "Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_100_steps_agree(optimizer: Optimizer, name: str, settings: dict[str, Any]) -> None:
    trainer = trainer_of(optimizer)
    w = torch.nn.Parameter(torch.tensor(START))
    peer = getattr(torch.optim, name)([w], lr=0.1, **settings)
    for gradient in GRADIENTS:
        w.grad = torch.tensor(gradient)
        peer.step()
        trainer.step({"g": gradient})
    np.testing.assert_allclose(trainer.parameters()["w"], w.detach().numpy(), rtol=2e-5, atol=2e-5)
