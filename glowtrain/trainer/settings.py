"""What a person says of training, as records: a :class:`TrainingSpec` is the one list of a trainer's arguments."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template, no_model
from glowtrain.losses import Loss, LossFunction
from glowtrain.memory.resources import TRAINING, Resources
from glowtrain.optim import Optimizer, as_optimizer
from glowtrain.settings import setting
from glowtrain.trainer.micro_batches.split import MicroBatches, checked_count
from glowtrain.trainer.selection.patterns import Trainable


def _parts_of_batches(text: str) -> MicroBatches:
    return checked_count(int(text) if text.isdecimal() else text)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Resources):
    """Settings of training, whatever is trained. Raises :class:`InputError` for what they cannot be."""

    trainable: Trainable = setting(
        None,
        "Train only parameters whose names match (repeatable), e.g. 'head.*', or 32 rows of them: 'conv.*[:32]'.",
        "A list of such patterns, or a function of a name; None: all parameters. Gradients of the others are not "
        "computed; running statistics keep adapting, as in PyTorch.",
        metavar="PATTERN",
        type=list[str],
        parse=lambda patterns: patterns or None,
        panel=TRAINING,
    )
    seed: int = setting(0, "Fixes initial values, the order of examples and dropout.", metavar="N", least=0)
    unbiased: bool = setting(
        False,
        "The running variance of BatchNormalization as PyTorch estimates it, not as ONNX does.",
        panel=TRAINING,
        listed=False,
    )
    freeze_statistics: bool = setting(
        False,
        "Keep the running statistics of BatchNormalization whose scale is not trained, and normalise with them.",
        panel=TRAINING,
    )
    metrics: bool = setting(
        False,
        "Measure accuracy on the training batches, too.",
        "Each step gives the metrics of the loss (accuracy) as measured, and records of epochs have their means "
        "(train_accuracy): those of the training form, each batch before its update. This takes no second forward "
        "pass, but some time with many classes.",
        flag="--train-metrics",
        panel=TRAINING,
    )
    micro_batches: MicroBatches = setting(
        1,
        "Take each batch in N equal parts, one after the other, or in as few as --memory needs (auto).",
        "Gradients of the parts are added up, as an optimizer does that accumulates as many batches, in less memory "
        "(to the bit where both steps take their sums in one order). The loss must be a mean or a sum over examples, "
        "and nothing may take statistics of a batch.",
        metavar="N",
        type=str,
        parse=_parts_of_batches,
        panel=TRAINING,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count(self.micro_batches)
        if not isinstance(self.metrics, (bool, np.bool_)):
            raise InputError(
                f"metrics must be True or False, not {self.metrics!r}: whether each step measures what its loss has, "
                "which is accuracy for classes and nothing for others; take others of trainer.predict"
            )


@dataclass(frozen=True)
class TrainingSpec(TrainingSettings):
    """A training: model, loss and optimizer, on a backend, with its settings.

    Raises :class:`InputError` for what is no model and no optimizer, too.
    """

    model: Graph | Template
    loss: str | Loss | LossFunction
    optimizer: str | Optimizer
    _: KW_ONLY
    backend: str | Backend = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, (Graph, Template)):
            raise InputError(f"Trainer takes a graph or a template, {no_model(self.model)}")
        as_optimizer(self.optimizer)
