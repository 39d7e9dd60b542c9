"""Attributes of parameters and buffers, and settings of optimizers: what code reads there counts in the next step, and
what it assigns is assigned by each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import data, eager_step
from steps import refusal
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.optim.lr_scheduler import StepLR

import glowtrain.torch as gtt

Use = Callable[[Any, torch.Tensor], torch.Tensor]


class Labelled(nn.Module):
    """A layer whose parameters and buffer have attributes; ``use`` prepares its inputs."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.use, self.linear = use, nn.Linear(6, 3)
        self.register_buffer("mean", torch.ones(6))
        self.outside = torch.ones(6)
        for tensor in (self.linear.weight, self.mean, self.outside):
            tensor.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.use(self, x))
        return result

    @property
    def labels(self) -> list[dict[str, Any]]:
        return [vars(self.linear.weight), vars(self.linear.bias), vars(self.mean), vars(self.outside)]


def rescale(tensor: torch.Tensor) -> None:
    tensor.scale = 3.0


def counted(tensor: Any) -> int:
    tensor.count = (getattr(tensor, "count", 0) + 1) % 3
    count: int = tensor.count
    return count


def penalized(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x + sum(p.norm() for p in m.parameters() if getattr(p, "decays", False))


def anchored(m: Any, x: torch.Tensor) -> torch.Tensor:
    start = getattr(m.linear.weight, "start", None)
    return x if start is None else x + (m.linear.weight - start).square().sum()


def tried(m: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * m.linear.bias.scale
    except AttributeError:
        return x


def nothing(_: Any) -> None:
    """Between steps all stays as it is."""


READS: dict[str, tuple[Use, Callable[[Any], object]]] = {
    "parameter": (lambda m, x: linear(x, m.linear.weight * m.linear.weight.scale)[:, :1] + x,
                  lambda m: rescale(m.linear.weight)),
    "buffer": (lambda m, x: x * m.mean.scale, lambda m: rescale(m.mean)),
    "tensor that is none": (lambda m, x: x * m.outside * m.outside.scale, lambda m: rescale(m.outside)),
    "one that was not there": (penalized, lambda m: setattr(m.linear.bias, "decays", True)),
    "one that was not there, and is tried": (tried, lambda m: rescale(m.linear.bias)),
    "tensor": (anchored, lambda m: setattr(m.linear.weight, "start", torch.ones(3, 6))),
    "assigned, of a parameter": (lambda m, x: x * (1 + counted(m.linear.weight)), nothing),
    "assigned, of a buffer": (lambda m, x: x * (1 + counted(m.mean)) * m.mean.mul_(0.9), nothing),
    "assigned, of a tensor that is none": (lambda m, x: x * (1 + counted(m.outside)) * m.outside, nothing),
}  # fmt: skip


def run(use: Use, change: Callable[[Any], object], *, compiles: bool) -> tuple[list[float], list[dict[str, Any]]]:
    torch.manual_seed(0)
    module = Labelled(use)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = gtt.compile_step(module, cross_entropy, optimizer) if compiles else None
    losses = []
    for number, batch in enumerate(data(4)):
        if number == 2:
            change(module)
        losses.append(float(step(*batch) if step else eager_step(module, cross_entropy, optimizer, batch)))
    return losses, [{name: each for name, each in label.items() if name != "start"} for label in module.labels]


@pytest.mark.filterwarnings("error::glowtrain.torch.UnkeptAttributeWarning")
@pytest.mark.parametrize("name", READS)
def test_what_code_reads_and_assigns(name: str) -> None:
    use, change = READS[name]
    losses, labels = run(use, change, compiles=True)
    expected, left = run(use, change, compiles=False)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert labels == left
    if change is not nothing:
        assert expected != pytest.approx(run(use, nothing, compiles=False)[0], rel=1e-5)


def test_what_a_step_does_not_leave_is_named() -> None:
    def kept(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.linear.weight.last = x.detach()
        return x

    with pytest.warns(gtt.UnkeptAttributeWarning, match=r"\(Linear\.weight\.last\)"):
        _, (labels, *_) = run(kept, nothing, compiles=True)
    assert labels == {"scale": 2.0}


def test_a_tensor_that_goes_from_call_to_call() -> None:
    def averaged(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.linear.weight.scale = 0.9 * m.linear.weight.scale + x.detach().mean()
        return x * m.linear.weight.scale

    module = Labelled(averaged)
    module.linear.weight.scale = before = torch.ones(())
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    assert "reads and assigns Linear.weight.scale" in refusal(lambda: step(*data(1)[0]))
    assert module.linear.weight.scale is before


class Scheduled:
    """A loss that reads and assigns settings of optimizers; its own is that of the step."""

    def __init__(self, change: Callable[[Any], float]) -> None:
        torch.manual_seed(0)
        self.change, self.module = change, nn.Linear(6, 3)
        groups = [{"params": [self.module.weight], "momentum": 0.9}, {"params": [self.module.bias]}]
        self.own = torch.optim.SGD(groups, 0.1)
        self.other = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        self.scheduler = StepLR(self.own, 2)
        self.calls = 0

    def __call__(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(scores, labels) * self.change(self)

    def run(self, *, compiles: bool) -> tuple[list[float], list[float]]:
        step = gtt.compile_step(self.module, self, self.own) if compiles else None
        losses = [float(step(*batch) if step else eager_step(self.module, self, self.own, batch)) for batch in data(5)]
        return losses, [group[name] for group in self.own.param_groups for name in ("lr", "momentum")]


def warmed_up(loss: Scheduled) -> float:
    loss.calls += 1
    for group in loss.own.param_groups:
        group["lr"] = 0.1 * min(1.0, loss.calls / 8)
    return 1.0


def decayed(loss: Scheduled) -> float:
    loss.own.param_groups[1]["lr"] *= 0.9
    loss.own.param_groups[0]["momentum"] = 0.5
    rate: float = loss.own.param_groups[1]["lr"]
    return 1 + rate


def scheduled(loss: Scheduled) -> float:
    loss.scheduler.step()
    rate: float = loss.own.param_groups[0]["lr"]
    return 1 + rate


@pytest.mark.filterwarnings("ignore::glowtrain.torch.UnkeptAttributeWarning", "ignore:Detected call of")
@pytest.mark.parametrize("change", [warmed_up, decayed, scheduled])
def test_settings_that_a_loss_assigns(change: Callable[[Any], float]) -> None:
    losses, settings = Scheduled(change).run(compiles=True)
    expected, left = Scheduled(change).run(compiles=False)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert settings == pytest.approx(left)
    assert settings != pytest.approx(Scheduled(lambda _: 1.0).run(compiles=False)[1])


def grown(loss: Scheduled) -> float:
    loss.own.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    return 1.0


def decayed_elsewhere(loss: Scheduled) -> float:
    loss.other.param_groups[0]["lr"] *= 0.9
    return 1.0


@pytest.mark.parametrize("change", [grown, decayed_elsewhere])
def test_settings_that_a_step_does_not_leave(change: Callable[[Any], float]) -> None:
    loss = Scheduled(change)
    with pytest.warns(gtt.UnkeptAttributeWarning, match="param_groups"):
        loss.run(compiles=True)
    assert len(loss.own.param_groups) == 2
    assert loss.other.param_groups[0]["lr"] == 0.1
