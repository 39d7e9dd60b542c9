"""Each optimizer and schedule against PyTorch's, 100 steps in f64, for the settings that both have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import glowtrain as gt
from glowtrain.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Muon,
    NAdam,
    OneCycle,
    Optimizer,
    Polynomial,
    RAdam,
    RMSProp,
    Step,
    Warmup,
)

STEPS, SHAPES = 100, {"w": (3, 4), "b": (5,)}
RANDOM = np.random.default_rng(5)
START = {name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RANDOM.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]
RATE = 0.1

Peer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def peer(name: str, **settings: Any) -> Peer:
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=RATE, **settings)


CASES: dict[str, tuple[Optimizer, Peer]] = {
    "sgd": (SGD(RATE), peer("SGD")),
    "sgd momentum": (SGD(RATE, momentum=0.9), peer("SGD", momentum=0.9)),
    "sgd dampening": (SGD(RATE, momentum=0.9, dampening=0.3), peer("SGD", momentum=0.9, dampening=0.3)),
    "sgd nesterov": (SGD(RATE, momentum=0.9, nesterov=True), peer("SGD", momentum=0.9, nesterov=True)),
    "sgd decay": (
        SGD(RATE, momentum=0.5, weight_decay=0.01), peer("SGD", momentum=0.5, weight_decay=0.01)
    ),
    "adam": (Adam(RATE), peer("Adam")),
    "adam betas": (Adam(RATE, beta1=0.5, beta2=0.9, eps=1e-3), peer("Adam", betas=(0.5, 0.9), eps=1e-3)),
    "adam decay": (Adam(RATE, weight_decay=0.01), peer("Adam", weight_decay=0.01)),
    "adamw": (AdamW(RATE), peer("AdamW")),
    "adamw decay": (AdamW(RATE, weight_decay=0.1), peer("AdamW", weight_decay=0.1)),
    "rmsprop": (RMSProp(RATE), peer("RMSprop")),
    "rmsprop decay": (RMSProp(RATE, weight_decay=0.01), peer("RMSprop", weight_decay=0.01)),
    "rmsprop momentum": (RMSProp(RATE, alpha=0.9, momentum=0.5), peer("RMSprop", alpha=0.9, momentum=0.5)),
    "rmsprop centered": (
        RMSProp(RATE, centered=True, momentum=0.5), peer("RMSprop", centered=True, momentum=0.5)
    ),
    "adagrad": (Adagrad(RATE), peer("Adagrad")),
    "adagrad decay": (
        Adagrad(RATE, lr_decay=0.1, initial=0.5, weight_decay=0.01),
        peer("Adagrad", lr_decay=0.1, initial_accumulator_value=0.5, weight_decay=0.01),
    ),
    "amsgrad": (Adam(RATE, amsgrad=True, weight_decay=0.01), peer("Adam", amsgrad=True, weight_decay=0.01)),
    "amsgrad, decoupled": (AdamW(RATE, beta2=0.9, amsgrad=True), peer("AdamW", betas=(0.9, 0.9), amsgrad=True)),
    "nadam": (NAdam(RATE), peer("NAdam")),
    "nadam decay": (
        NAdam(RATE, beta1=0.8, momentum_decay=0.1, weight_decay=0.01),
        peer("NAdam", betas=(0.8, 0.999), momentum_decay=0.1, weight_decay=0.01),
    ),
    "radam": (RAdam(RATE), peer("RAdam")),
    "radam decay": (RAdam(RATE, beta2=0.95, weight_decay=0.01), peer("RAdam", betas=(0.9, 0.95), weight_decay=0.01)),
    "adamax": (Adamax(RATE), peer("Adamax")),
    "adamax decay": (Adamax(RATE, beta1=0.5, weight_decay=0.01), peer("Adamax", betas=(0.5, 0.999), weight_decay=0.01)),
    "adadelta": (Adadelta(RATE), peer("Adadelta")),
    "adadelta decay": (Adadelta(RATE, rho=0.7, weight_decay=0.01), peer("Adadelta", rho=0.7, weight_decay=0.01)),
}  # fmt: skip

SCHEDULES: dict[str, tuple[gt.optim.Schedule, Scheduler]] = {
    "constant": (Constant(0.3), lambda rule: lr_scheduler.ConstantLR(rule, 0.3, total_iters=STEPS + 1)),
    "step": (Step(30, 0.5), lambda rule: lr_scheduler.StepLR(rule, 30, 0.5)),
    "exponential": (Exponential(0.97), lambda rule: lr_scheduler.ExponentialLR(rule, 0.97)),
    "cosine": (Cosine(STEPS, 0.1), lambda rule: lr_scheduler.CosineAnnealingLR(rule, STEPS, 0.1 * RATE)),
    "linear": (Linear(STEPS - 20, 0.1), lambda rule: lr_scheduler.LinearLR(rule, 1.0, 0.1, total_iters=STEPS - 20)),
    "polynomial": (Polynomial(STEPS - 20, 3), lambda rule: lr_scheduler.PolynomialLR(rule, STEPS - 20, 3)),
    "one cycle": (OneCycle(STEPS), lambda rule: lr_scheduler.OneCycleLR(rule, RATE, STEPS, cycle_momentum=False)),
    "one cycle, symmetric": (
        OneCycle(STEPS, 0.5, 0.1, 0.001),
        lambda rule: lr_scheduler.OneCycleLR(
            rule, RATE, STEPS, pct_start=0.5, div_factor=10, final_div_factor=100, cycle_momentum=False
        ),
    ),
    "warmup": (Warmup(20), lambda rule: lr_scheduler.LinearLR(rule, 1 / 20, total_iters=19)),
    "product": (
        Warmup(20) * Step(50),
        lambda rule: lr_scheduler.ChainedScheduler(
            [lr_scheduler.LinearLR(rule, 1 / 20, total_iters=19), lr_scheduler.StepLR(rule, 50)]
        ),
    ),
    "chain": (
        Warmup(20).then(Cosine(STEPS - 20)),
        lambda rule: lr_scheduler.SequentialLR(
            rule,
            [lr_scheduler.LinearLR(rule, 1 / 20, total_iters=19), lr_scheduler.CosineAnnealingLR(rule, STEPS - 20)],
            [20],
        ),
    ),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip value": {"clip_value": 0.5},
    "clip norm": {"clip_norm": 2.0},
    "accumulate": {"accumulate": 4},
    "all": {"clip_value": 0.9, "clip_norm": 1.5, "accumulate": 2, "schedule": "chain"},
}


@pytest.fixture(autouse=True)
def f64_scalars() -> Iterator[None]:
    """PyTorch keeps scalar state, such as NAdam's product, in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trained(optimizer: Optimizer, backend: str) -> dict[str, np.ndarray]:
    """Parameters after all steps; their gradients are what is fed: the loss is the sum of p * g."""
    feeds = {name: gt.Input(gt.f64[shape], f"g.{name}") for name, shape in SHAPES.items()}
    terms = [gt.nn.total(gt.Variable(name, START[name]) * feed) for name, feed in feeds.items()]
    graph = gt.Graph(tuple(feeds.values()), {"loss": terms[0] + terms[1]})
    trainer = gt.Trainer(graph, "loss", optimizer, backend=backend)
    for gradients in GRADIENTS:
        trainer.step({f"g.{name}": gradient for name, gradient in gradients.items()})
    return trainer.parameters()


def expected(make: Peer, optimizer: Optimizer, scheduler: Scheduler | None) -> dict[str, np.ndarray]:
    """The same in PyTorch, as its users write it: accumulate, clip by value, clip by norm, step, schedule."""
    parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in START.items()}
    leaves = list(parameters.values())
    rule = make(leaves)
    plan = scheduler(rule) if scheduler else None
    for step, gradients in enumerate(GRADIENTS, start=1):
        loss = torch.stack([(parameters[name] * torch.tensor(g)).sum() for name, g in gradients.items()]).sum()
        (loss / optimizer.accumulate).backward()  # type: ignore[no-untyped-call]
        if step % optimizer.accumulate:
            continue
        if optimizer.clip_value is not None:
            torch.nn.utils.clip_grad_value_(leaves, optimizer.clip_value)
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(leaves, optimizer.clip_norm)
        rule.step()
        rule.zero_grad()
        if plan:
            plan.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def agree(optimizer: Optimizer, make: Peer, scheduler: Scheduler | None, backend: str) -> None:
    found, wanted = trained(optimizer, backend), expected(make, optimizer, scheduler)
    for name, array in wanted.items():
        assert math.isfinite(float(np.abs(array - START[name]).max()))
        assert np.abs(array - START[name]).max() > 1e-3
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", CASES)
def test_100_steps_agree(name: str, option: str) -> None:
    (optimizer, make), settings = CASES[name], dict(OPTIONS[option])
    schedule, scheduler = SCHEDULES[settings.pop("schedule")] if "schedule" in settings else (None, None)
    agree(replace(optimizer, schedule=schedule, **settings), make, scheduler, "interpreter")


@pytest.mark.parametrize("name", SCHEDULES)
def test_100_scheduled_steps_agree(name: str) -> None:
    schedule, scheduler = SCHEDULES[name]
    agree(SGD(RATE, schedule=schedule), peer("SGD"), scheduler, "interpreter")


@pytest.mark.parametrize("name", ["sgd nesterov", "adamw", "rmsprop centered", "adagrad decay"])
def test_100_compiled_steps_agree_with_every_option(name: str) -> None:
    (optimizer, make), settings = CASES[name], dict(OPTIONS["all"])
    schedule, scheduler = SCHEDULES[settings.pop("schedule")]
    agree(replace(optimizer, schedule=schedule, **settings), make, scheduler, "cpu")


def test_muon_moves_weights_as_pytorchs_does_in_bf16() -> None:
    """PyTorch takes the Newton-Schulz steps in bf16, so that only 2 or 3 digits of a step are to be expected alike."""
    start, gradient = START["w"], GRADIENTS[0]["w"]
    feed = gt.Input(gt.f64[start.shape], "g")
    graph = gt.Graph((feed,), {"loss": gt.nn.total(gt.Variable("w", start) * feed)})
    trainer = gt.Trainer(graph, "loss", Muon(RATE), backend="interpreter")
    parameter = torch.nn.Parameter(torch.tensor(start))
    peer = torch.optim.Muon([parameter], lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    parameter.grad = torch.tensor(gradient)
    peer.step()
    trainer.step({"g": gradient})
    step, expected = trainer.parameters()["w"] - start, parameter.detach().numpy() - start
    np.testing.assert_allclose(step, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())
