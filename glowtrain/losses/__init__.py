"""Losses: what a model's output is compared with, and how, as graph code.

A loss declares the inputs that hold its targets, gives a scalar value and metrics beside it (accuracy), and checks
targets before a step runs. Every loss is the mean over the batch unless ``reduction="sum"``. Outputs in f16 and bf16
are compared in f32: the loss and float targets are f32 then, in which sums over a batch neither overflow nor lose
terms.
"""

from __future__ import annotations

from glowtrain.losses.base import Attached, Loss, LossFunction, OutputLoss, output_of, scalar
from glowtrain.losses.choose import NAMED, Custom, ModelOutput, as_loss, by_name, custom
from glowtrain.losses.classification import (
    NLL,
    BCEWithLogits,
    ClassLoss,
    SoftmaxCrossEntropy,
    bce_with_logits,
    nll,
    softmax_cross_entropy,
)
from glowtrain.losses.regression import L1, MSE, Huber, huber, l1, mse

__all__ = [
    "L1",
    "MSE",
    "NAMED",
    "NLL",
    "Attached",
    "BCEWithLogits",
    "ClassLoss",
    "Custom",
    "Huber",
    "Loss",
    "LossFunction",
    "ModelOutput",
    "OutputLoss",
    "SoftmaxCrossEntropy",
    "as_loss",
    "bce_with_logits",
    "by_name",
    "custom",
    "huber",
    "l1",
    "mse",
    "nll",
    "output_of",
    "scalar",
    "softmax_cross_entropy",
]


def __dir__() -> list[str]:
    return __all__
