"""Losses: what a model's output is compared with, and how, as graph code.

A loss declares the inputs that hold its targets, gives a scalar value and metrics beside it (accuracy), and checks
targets before a step runs. Every loss is the mean over the batch unless ``reduction="sum"``; ``a + 0.5 * b`` is a sum
of losses. Outputs in f16 and bf16 are compared in f32: the loss and float targets are f32 then, in which sums over a
batch neither overflow nor lose terms.
"""

from __future__ import annotations

from glowtrain.losses.base import (
    Attached,
    ElementLoss,
    Elements,
    Loss,
    LossFunction,
    LossSum,
    OutputLoss,
    Weighted,
    output_of,
    scalar,
)
from glowtrain.losses.choose import NAMED, Custom, ModelOutput, as_loss, by_name, custom, weighted
from glowtrain.losses.classification import (
    NLL,
    BCEWithLogits,
    ClassLoss,
    Focal,
    SoftmaxCrossEntropy,
    SoftTargetCrossEntropy,
    bce_with_logits,
    focal,
    nll,
    soft_target_cross_entropy,
    softmax_cross_entropy,
)
from glowtrain.losses.embedding import CosineDistance, CosineEmbedding, Triplet, cosine, cosine_embedding, triplet
from glowtrain.losses.regression import KL, L1, MSE, Huber, huber, kl, l1, mse

__all__ = [
    "KL",
    "L1",
    "MSE",
    "NAMED",
    "NLL",
    "Attached",
    "BCEWithLogits",
    "ClassLoss",
    "CosineDistance",
    "CosineEmbedding",
    "Custom",
    "ElementLoss",
    "Elements",
    "Focal",
    "Huber",
    "Loss",
    "LossFunction",
    "LossSum",
    "ModelOutput",
    "OutputLoss",
    "SoftTargetCrossEntropy",
    "SoftmaxCrossEntropy",
    "Triplet",
    "Weighted",
    "as_loss",
    "bce_with_logits",
    "by_name",
    "cosine",
    "cosine_embedding",
    "custom",
    "focal",
    "huber",
    "kl",
    "l1",
    "mse",
    "nll",
    "output_of",
    "scalar",
    "soft_target_cross_entropy",
    "softmax_cross_entropy",
    "triplet",
    "weighted",
]


def __dir__() -> list[str]:
    return __all__
