"""Optimizers, schedules and clipping, as graph code. Imported as ``glowtrain.optim``."""

from typing import Any

from glowtrain.errors import InputError
from glowtrain.optim.adam_variants import Adamax, Lion, Muon, NAdam, RAdam
from glowtrain.optim.optimizer import HYPER, Optimizer, vectors
from glowtrain.optim.per_parameter import L1, L2, MaxNorm, NonNegative
from glowtrain.optim.rules import SGD, Adadelta, Adagrad, Adam, AdamW, RMSProp
from glowtrain.optim.schedules import (
    Constant,
    Cosine,
    Exponential,
    Linear,
    OneCycle,
    Polynomial,
    Schedule,
    Step,
    Warmup,
)
from glowtrain.presentation.messages import kind_of, nearest

OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.__name__.lower(): optimizer
    for optimizer in (SGD, Adam, AdamW, RMSProp, Adagrad, NAdam, RAdam, Adamax, Adadelta, Lion, Muon)
}
"""The optimizers by their names in lower case."""


def by_name(name: str, **settings: Any) -> Optimizer:
    """An optimizer by its name in :data:`OPTIMIZERS`. Raises :class:`InputError` for an unknown one."""
    if name not in OPTIMIZERS:
        near = nearest(name, OPTIMIZERS)
        hint = f" (the nearest is {near!r})" if near else ""
        raise InputError(f"there is no optimizer {name!r}{hint}; choose from {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](**settings)


def as_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """An optimizer from what a trainer takes: an optimizer, or its name. Raises :class:`InputError` for all else."""
    if isinstance(optimizer, str):
        return by_name(optimizer)
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"optimizer must be one of gt.optim, such as gt.optim.Adam(lr=1e-3), or its name, not {kind_of(optimizer)}"
        )
    return optimizer


__all__ = [
    "HYPER",
    "L1",
    "L2",
    "OPTIMIZERS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Constant",
    "Cosine",
    "Exponential",
    "Linear",
    "Lion",
    "MaxNorm",
    "Muon",
    "NAdam",
    "NonNegative",
    "OneCycle",
    "Optimizer",
    "Polynomial",
    "RAdam",
    "RMSProp",
    "Schedule",
    "Step",
    "Warmup",
    "as_optimizer",
    "by_name",
    "vectors",
]


def __dir__() -> list[str]:
    return __all__
