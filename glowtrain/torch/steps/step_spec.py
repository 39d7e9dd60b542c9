"""The arguments of a compiled step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from glowtrain.backends.base import Backend
from glowtrain.errors import InputError
from glowtrain.memory.resources import Resources
from glowtrain.settings import setting
from glowtrain.torch.module import check_module
from glowtrain.torch.steps.loss import check_loss_function

LossFunction = Callable[..., Any]


@dataclass(frozen=True)
class StepSpec(Resources):
    """The arguments of :func:`compile_step`. Raises :class:`InputError` for modules, losses and settings that do not
    fit."""

    module: torch.nn.Module
    loss_fn: LossFunction
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    targets: int = setting(
        1,
        "How many of a step's last arguments go to the loss, after what the module makes of the others.",
        "With 0 the loss is loss_fn(module, *batch): for losses that call the module themselves, several times or with "
        "gradients of it (torch.autograd.grad).",
    )
    clip_norm: float | None = setting(None, "What torch.nn.utils.clip_grad_norm_ does, to this norm.")
    clip_value: float | None = setting(None, "What torch.nn.utils.clip_grad_value_ does.")
    accumulate: int = setting(
        1,
        "How many calls make one update, of the mean of their gradients.",
        "What (loss / N).backward() in N calls and then optimizer.step() do. pending says how many calls wait, flush() "
        "makes their update.",
    )
    gradients: bool = setting(
        False,
        "Leave the gradients in the attribute grad of the optimizer's parameters, for logging.",
        "They are what the update is made of, clipped, in new tensors at each call, as zero_grad() and backward() "
        "leave them. Do not call optimizer.step() besides.",
    )
    backend: str | Backend = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_module(self.module)
        check_loss_function(self.loss_fn)
        if self.targets < 0:
            raise InputError(f"targets must be a number of arguments from 0 up, not {self.targets!r}")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InputError(f"accumulate must be a number of calls from 1 up, not {self.accumulate!r}")
        for name, bound in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if bound is not None and not 0 < bound < math.inf:
                raise InputError(f"{name} must be a positive number, not {bound!r}")
