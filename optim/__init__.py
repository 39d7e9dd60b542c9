"""Optimizers, schedules and clipping, as graph code. Imported as ``glowtrain.optim``."""

from glowtrain.optim.adam_variants import Adamax, Lion, Muon, NAdam, RAdam
from glowtrain.optim.optimizer import HYPER, Optimizer, vectors
from glowtrain.optim.rules import SGD, Adadelta, Adagrad, Adam, AdamW, RMSProp
from glowtrain.optim.schedules import Constant, Cosine, Exponential, Schedule, Step, Warmup

OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.__name__.lower(): optimizer
    for optimizer in (SGD, Adam, AdamW, RMSProp, Adagrad, NAdam, RAdam, Adamax, Adadelta, Lion, Muon)
}
"""The optimizers by their names in lower case."""

__all__ = [
    "HYPER",
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
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSProp",
    "Schedule",
    "Step",
    "Warmup",
    "vectors",
]


def __dir__() -> list[str]:
    return __all__
