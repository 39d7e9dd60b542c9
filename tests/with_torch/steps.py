"""Steps compiled by compile_step that tests share: every optimizer, and what is said of a step that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain as gt
import glowtrain.torch as gtt

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.05),
    "sgd, momentum": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=1e-3),
    "sgd, nesterov": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, nesterov=True),
    "sgd, dampening": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, dampening=0.5),
    "sgd, maximize": lambda ps: torch.optim.SGD(ps, 1e-3, maximize=True),
    "adam": lambda ps: torch.optim.Adam(ps, 1e-2, weight_decay=1e-3),
    "adam, decoupled": lambda ps: torch.optim.Adam(ps, 1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "adam, tensor": lambda ps: torch.optim.Adam(ps, torch.tensor(1e-2)),
    "adamw": lambda ps: torch.optim.AdamW(ps, 1e-2, betas=(0.8, 0.99), weight_decay=0.1),
    "amsgrad": lambda ps: torch.optim.Adam(ps, 1e-2, betas=(0.9, 0.9), amsgrad=True),
    "adamw, amsgrad": lambda ps: torch.optim.AdamW(ps, 1e-2, amsgrad=True),
    "nadam": lambda ps: torch.optim.NAdam(ps, 1e-2, momentum_decay=0.01, weight_decay=1e-3),
    "radam": lambda ps: torch.optim.RAdam(ps, 1e-2, weight_decay=1e-3),
    "adamax": lambda ps: torch.optim.Adamax(ps, 1e-2, maximize=False, weight_decay=1e-3),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, 0.5, rho=0.8, weight_decay=1e-3),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 1e-3),
    "rmsprop, all": lambda ps: torch.optim.RMSprop(ps, 1e-3, momentum=0.9, centered=True, weight_decay=1e-3),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
}


def compiled(module: nn.Module, loss: Any = cross_entropy, **options: Any) -> gtt.CompiledStep:
    return gtt.compile_step(module, loss, torch.optim.SGD(module.parameters(), 0.1), **options)


def refusal(make: Callable[[], Any]) -> str:
    with pytest.raises(gt.GlowtrainError) as caught:
        make()
    return str(caught.value)
