"""What a person says of training, as records: a :class:`TrainingSpec` is the one list of a trainer's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.errors import InputError
from glowtrain.fleet.spec import FleetSpec
from glowtrain.graph import Graph, Template, no_model
from glowtrain.losses import Loss, LossFunction
from glowtrain.losses.classification import BALANCED, ClassWeights
from glowtrain.memory.resources import TRAINING, Resources
from glowtrain.metrics.choose import NAMED, Named, as_metrics, metrics_in
from glowtrain.optim import Optimizer, as_optimizer
from glowtrain.optim.per_parameter import Constraints, Groups, Penalties, PerParameter
from glowtrain.optim.texts import constraints_in, groups_in, penalties_in
from glowtrain.settings import setting
from glowtrain.trainer.micro_batches.split import MicroBatches, checked_count
from glowtrain.trainer.selection.patterns import Trainable


def _parts_of_batches(text: str) -> MicroBatches:
    return checked_count(int(text) if text.isdecimal() else text)


SAMPLE_WEIGHT = "sample_weight"
"""The name of the array of weights of examples."""


def class_weights_in(text: str | None) -> ClassWeights | None:
    """Weights of classes from the command line. Raises :class:`InputError` for what is neither a word for some nor
    numbers."""
    if text is None or text == BALANCED:
        return text  # type: ignore[return-value]
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise InputError(f"--class-weight must be {BALANCED} or numbers such as 1,2,0.5, not {text!r}") from None


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
    class_weight: ClassWeights | None = setting(
        None,
        "What a label of each class counts in the loss: balanced, or numbers, e.g. 1,2,0.5.",
        "balanced: as many as there are labels, by the number of classes times that of the class, counted in the "
        "examples that fit trains on.",
        metavar="W",
        type=str | None,
        parse=class_weights_in,
        panel=TRAINING,
    )
    sample_weight: bool = setting(
        False,
        "Data may have a weight for each example, as a last array, sample_weight.",
        "The loss, metrics and means over batches are weighted by it; where data have none, each example counts 1. "
        "gt.losses.weighted does it for a part of a loss.",
        listed=False,
    )
    metrics: bool | Sequence[Named] | Mapping[str, Sequence[Named]] = setting(
        False,
        "Measure this, too, after each epoch (repeatable), e.g. f1, auc, top_5; of an output of several, digit=f1.",
        "A list of names, of gt.metrics and of functions (outputs, targets): what evaluate measures beside the "
        "loss and its accuracy, or such lists by outputs. True is train_metrics=True.",
        metavar="NAME",
        flag="--metric",
        type=list[str],
        parse=metrics_in,
        choices=NAMED,
        panel=TRAINING,
    )
    train_metrics: bool = setting(
        False,
        "Measure accuracy on the training batches, too.",
        "Each step gives the metrics of the loss (accuracy), and the listed ones that are means over examples, as "
        "measured, and records of epochs have those of the epoch (train_accuracy): of the training form, each batch "
        "before its update. This takes no second forward pass, but some time with many classes.",
        panel=TRAINING,
    )
    micro_batches: MicroBatches = setting(
        1,
        "Take each batch in N equal parts, one after the other, or in as few as --memory needs (auto).",
        "Gradients of the parts are added up, as an optimizer does that accumulates as many batches, in less memory "
        "(to the bit where both steps take their sums in one order). The loss must be a mean or a sum over examples, "
        "and no example's outputs may depend on its batch.",
        metavar="N",
        type=str,
        parse=_parts_of_batches,
        panel=TRAINING,
    )
    fleet: FleetSpec | None = setting(
        None,
        "Train together with other processes (gt.fleet.mpi()), to the same bits with any number of them.",
        listed=False,
    )
    groups: Groups | None = setting(
        None,
        "Numbers of the optimizer for matching parameters (repeatable), e.g. 'trunk.*:lr_factor=0.1'.",
        "A dict of numbers by patterns, in place of the optimizer's; lr_factor multiplies the rate. They stay as they "
        "are.",
        metavar="PATTERN:N=V",
        flag="--group",
        type=list[str],
        parse=groups_in,
        panel=TRAINING,
    )
    regularize: Penalties | None = setting(
        None,
        "Penalize values of matching parameters (repeatable), e.g. 'head.*:l1=1e-4'.",
        "gt.optim.L1 and L2, or a list of such, by patterns. Their gradients are added; the reported loss is without "
        "them.",
        metavar="PATTERN:N=V",
        type=list[str],
        parse=penalties_in,
        panel=TRAINING,
    )
    constraints: Constraints | None = setting(
        None,
        "Project matching parameters after each update (repeatable), e.g. 'head.*:max_norm=3'.",
        "gt.optim.MaxNorm and NonNegative, or a list of such, by patterns.",
        metavar="PATTERN:N=V",
        flag="--constrain",
        type=list[str],
        parse=constraints_in,
        panel=TRAINING,
    )
    ema: float | None = setting(
        None,
        "Keep exponential means of the parameters with this decay, e.g. 0.999; train writes a model of them.",
        "In Python, trainer.averaged() puts them in place of the parameters for a while.",
        metavar="DECAY",
        panel=TRAINING,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_count(self.micro_batches)
        as_metrics(self.metrics)

    def weighted(self, loss: Loss) -> Loss:
        """The loss with the weights of classes and of examples. Raises :class:`InputError` for one that has none."""
        loss = loss if self.class_weight is None else loss.by_classes(self.class_weight)
        return loss.weighted(SAMPLE_WEIGHT) if self.sample_weight else loss

    def per_parameter(self, optimizer: Optimizer) -> PerParameter:
        """The optimizer with what is special of some parameters. Raises :class:`InputError`."""
        rules = self.groups or {}, self.regularize or {}, self.constraints or {}
        return PerParameter(optimizer, *rules, self.ema)

    @property
    def measured_in_steps(self) -> bool:
        """Whether steps give metrics beside the loss."""
        return bool(self.train_metrics or (isinstance(self.metrics, (bool, np.bool_)) and self.metrics))


@dataclass(frozen=True)
class TrainingSpec(TrainingSettings):
    """A training: model, loss and optimizer, on a backend, with its settings.

    Raises :class:`InputError` for what is no model and no optimizer, too.
    """

    model: Graph | Template
    loss: str | Loss | LossFunction | Mapping[str, str | Loss]
    optimizer: str | Optimizer
    _: KW_ONLY
    backend: str | Backend = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, (Graph, Template)):
            raise InputError(f"Trainer takes a graph or a template, {no_model(self.model)}")
        self.per_parameter(as_optimizer(self.optimizer))
