"""Check a loss function, and what it returns."""

from __future__ import annotations

from typing import Any

import torch

from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.torch.aten.table import type_of_fake


def check_loss_function(loss_fn: Any) -> None:
    """Raise :class:`InputError` unless it is a function or a module."""
    if isinstance(loss_fn, type):
        raise InputError(f"loss_fn must be a loss, not a class of losses: create one, {loss_fn.__name__}()")
    if not callable(loss_fn):
        raise InputError(f"loss_fn must be a function or a module, not {type(loss_fn).__name__}")


def check_loss(loss: Any) -> None:
    """Raise :class:`InputError` unless what a loss function returned, a tensor or a value of a graph, is a float
    scalar."""
    if not isinstance(loss, (Value, torch.Tensor)):
        raise InputError("the loss function must return tensors: the loss, or a tuple or dict whose first one is it")
    type_ = loss.type if isinstance(loss, Value) else type_of_fake(loss)
    if type_.shape != () or not type_.dtype.is_float:
        advice = ": reduce it, for example by .mean()" if type_.shape else ""
        raise InputError(f"the loss must be a float scalar, not {type_}{advice}")
