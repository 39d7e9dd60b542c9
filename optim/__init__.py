"""Optimizers, schedules and clipping, as graph code. Imported as ``glowtrain.optim``."""

from glowtrain.optim.optimizer import HYPER, Optimizer, vectors
from glowtrain.optim.rules import SGD, Adagrad, Adam, AdamW, RMSProp
from glowtrain.optim.schedules import Constant, Cosine, Exponential, Schedule, Step, Warmup

OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.__name__.lower(): optimizer for optimizer in (SGD, Adam, AdamW, RMSProp, Adagrad)
}
"""The optimizers by their names in lower case."""

__all__ = [
    "HYPER",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Exponential",
    "Optimizer",
    "RMSProp",
    "Schedule",
    "Step",
    "Warmup",
    "vectors",
]


def __dir__() -> list[str]:
    return __all__
