"""Samples: losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from aten_samples import Draw, exactly, function, layer, positive, real, simplex, truth, whole
from torch import nn

aten = torch.ops.aten
REDUCTIONS = ("none", "mean", "sum")


def loss(name: str, make: Callable[[str], nn.Module], *draws: Draw) -> None:
    """A loss with each reduction."""
    layer(name, lambda: _Each([make(how) for how in REDUCTIONS]), *draws)


class _Each(nn.Module):
    def __init__(self, losses: list[nn.Module]) -> None:
        super().__init__()
        self.losses = nn.ModuleList(losses)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return [each(*inputs) for each in self.losses]


loss("nn.CrossEntropyLoss", lambda how: nn.CrossEntropyLoss(reduction=how), real(4, 5), whole(4))
loss("nn.CrossEntropyLoss of images", lambda how: nn.CrossEntropyLoss(reduction=how), real(2, 5, 3, 3), whole(2, 3, 3))
loss(
    "nn.CrossEntropyLoss weighted",
    lambda how: nn.CrossEntropyLoss(torch.tensor([0.5, 1, 2, 0.1, 3]), reduction=how),
    real(4, 5),
    whole(4),
)
loss(
    "nn.CrossEntropyLoss that ignores",
    lambda how: nn.CrossEntropyLoss(ignore_index=1, reduction=how),
    real(6, 5),
    exactly(0, 1, 2, 1, 4, 1),
)
loss(
    "nn.CrossEntropyLoss that ignores -100",
    lambda how: nn.CrossEntropyLoss(reduction=how),
    real(3, 5),
    exactly(0, -100, 2),
)
loss(
    "nn.CrossEntropyLoss smoothed",
    lambda how: nn.CrossEntropyLoss(label_smoothing=0.2, reduction=how),
    real(4, 5),
    whole(4),
)
loss(
    "nn.CrossEntropyLoss with everything",
    lambda how: nn.CrossEntropyLoss(
        torch.tensor([0.5, 1, 2, 0.1, 3]), ignore_index=1, label_smoothing=0.2, reduction=how
    ),
    real(6, 5),
    exactly(0, 1, 2, 1, 4, 3),
)
loss(
    "nn.CrossEntropyLoss with everything, of images",
    lambda how: nn.CrossEntropyLoss(torch.tensor([0.5, 1, 2]), ignore_index=1, label_smoothing=0.2, reduction=how),
    real(2, 3, 4),
    whole(2, 4, below=3),
)
loss(
    "nn.CrossEntropyLoss smoothed, ignoring -100",
    lambda how: nn.CrossEntropyLoss(torch.tensor([0.5, 1, 2]), label_smoothing=0.2, reduction=how),
    real(3, 3),
    exactly(0, -100, 2),
)
loss("nn.CrossEntropyLoss of probabilities", lambda how: nn.CrossEntropyLoss(reduction=how), real(4, 5), simplex(4, 5))
loss(
    "nn.CrossEntropyLoss of probabilities with everything",
    lambda how: nn.CrossEntropyLoss(torch.tensor([0.5, 1, 2, 0.1, 3]), label_smoothing=0.2, reduction=how),
    real(4, 5, 3),
    simplex(4, 5, 3),
)
loss("nn.CrossEntropyLoss of one example", lambda how: nn.CrossEntropyLoss(reduction=how), real(5), whole())
loss(
    "nn.CrossEntropyLoss of one example, smoothed",
    lambda how: nn.CrossEntropyLoss(label_smoothing=0.1, reduction=how),
    real(5),
    whole(),
)
loss(
    "nn.CrossEntropyLoss of one example's probabilities",
    lambda how: nn.CrossEntropyLoss(reduction=how),
    real(5),
    positive(5),
)
loss("nn.NLLLoss", lambda how: nn.NLLLoss(torch.tensor([0.5, 1, 2, 0.1, 3]), reduction=how), real(4, 5), whole(4))
loss("nn.NLLLoss of images", lambda how: nn.NLLLoss(ignore_index=1, reduction=how), real(2, 5, 3, 3), whole(2, 3, 3))
loss("nn.NLLLoss of one example", lambda how: nn.NLLLoss(reduction=how), real(5), whole())
for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"):
    loss(f"nn.{name}", lambda how, name=name: getattr(nn, name)(reduction=how), real(4, 3), real(4, 3))
loss("nn.SmoothL1Loss with beta", lambda how: nn.SmoothL1Loss(beta=0.3, reduction=how), real(4, 3), real(4, 3))
loss("nn.SmoothL1Loss without beta", lambda how: nn.SmoothL1Loss(beta=0, reduction=how), real(4, 3), real(4, 3))
loss("nn.HuberLoss with delta", lambda how: nn.HuberLoss(delta=0.3, reduction=how), real(4, 3), real(4, 3))
loss("nn.BCELoss", lambda how: nn.BCELoss(reduction=how), real(4, 3, low=0.05, high=0.95), real(4, 3, low=0, high=1))
loss(
    "nn.BCELoss weighted",
    lambda how: nn.BCELoss(torch.tensor([0.5, 1, 2]), reduction=how),
    real(4, 3, low=0.05, high=0.95),
    real(4, 3, low=0, high=1),
)
loss(
    "nn.BCEWithLogitsLoss",
    lambda how: nn.BCEWithLogitsLoss(reduction=how),
    real(4, 3, low=-9, high=9),
    real(4, 3, low=0, high=1),
)
loss(
    "nn.BCEWithLogitsLoss weighted",
    lambda how: nn.BCEWithLogitsLoss(torch.tensor([0.5, 1, 2]), pos_weight=torch.tensor([2.0, 1, 3]), reduction=how),
    real(4, 3),
    real(4, 3, low=0, high=1),
)
loss("nn.KLDivLoss", lambda how: nn.KLDivLoss(reduction=how), real(4, 3), simplex(4, 3))
loss("nn.KLDivLoss of logarithms", lambda how: nn.KLDivLoss(log_target=True, reduction=how), real(4, 3), real(4, 3))
loss(
    "nn.HingeEmbeddingLoss",
    lambda how: nn.HingeEmbeddingLoss(0.7, reduction=how),
    real(4),
    exactly(1.0, -1.0, -1.0, 1.0),
)
loss(
    "nn.MarginRankingLoss",
    lambda how: nn.MarginRankingLoss(0.3, reduction=how),
    real(4),
    real(4),
    exactly(1.0, -1.0, -1.0, 1.0),
)
loss(
    "nn.CosineEmbeddingLoss",
    lambda how: nn.CosineEmbeddingLoss(0.1, reduction=how),
    real(4, 3),
    real(4, 3),
    exactly(1, -1, -1, 1),
)
loss(
    "nn.TripletMarginLoss swapped",
    lambda how: nn.TripletMarginLoss(swap=True, p=1, reduction=how),
    real(4, 3),
    real(4, 3),
    real(4, 3),
)
loss("nn.MultiMarginLoss", lambda how: nn.MultiMarginLoss(reduction=how), real(4, 5), whole(4))
loss(
    "nn.MultiMarginLoss squared and weighted",
    lambda how: nn.MultiMarginLoss(2, 0.7, torch.tensor([0.5, 1, 2, 0.1, 3]), reduction=how),
    real(4, 5),
    whole(4),
)
loss(
    "nn.MultiLabelMarginLoss",
    lambda how: nn.MultiLabelMarginLoss(reduction=how),
    real(2, 4),
    exactly([3, 0, -1, 1], [1, -1, 2, 0]),
)
loss(
    "nn.MultiLabelMarginLoss of labels named twice",
    lambda how: nn.MultiLabelMarginLoss(reduction=how),
    real(2, 4),
    exactly([3, 3, 0, -1], [1, 1, 1, 1]),
)
loss(
    "nn.PoissonNLLLoss", lambda how: nn.PoissonNLLLoss(full=True, reduction=how), real(4, 3), real(4, 3, low=0, high=5)
)
loss(
    "nn.PoissonNLLLoss not of logarithms",
    lambda how: nn.PoissonNLLLoss(log_input=False, reduction=how),
    positive(4, 3),
    real(4, 3, low=0, high=5),
)
loss(
    "nn.GaussianNLLLoss",
    lambda how: nn.GaussianNLLLoss(full=True, reduction=how),
    real(4, 3),
    real(4, 3),
    positive(4, 3),
)
layer("nn.KLDivLoss by batch", lambda: nn.KLDivLoss(reduction="batchmean"), real(4, 3), simplex(4, 3))
function(
    "kl_div of zero probabilities",
    lambda x, y: F.kl_div(x, y, reduction="sum"),
    real(4),
    exactly(0.0, 0.5, 0.5, 0.0),
    gradient=False,
)
function("mse_loss broadcasts", F.mse_loss, real(4, 3), real(3))
function("mse_loss of integers", F.mse_loss, real(4), whole(4))
function(
    "bce of exact answers",
    F.binary_cross_entropy,
    exactly(0.0, 1.0, 0.5),
    exactly(0.0, 1.0, 1.0),
    gradient=False,
)
function(
    "bce of exact wrong answers",
    F.binary_cross_entropy,
    exactly(0.0, 1.0),
    exactly(1.0, 0.0),
    gradient=False,
)
function(
    "bce with logits of booleans", lambda x, y: F.binary_cross_entropy_with_logits(x, y.float()), real(4), truth(4)
)
function("nll_loss's own operators", lambda x, t: (aten.nll_loss(x, t), aten.nll_loss_nd(x, t)), real(4, 5), whole(4))
function("nll_loss2d", aten.nll_loss2d, real(2, 5, 3, 3), whole(2, 3, 3))
layer("nn.LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(8, 5), real(4, 8), whole(4))
function("soft_margin_loss far off", lambda x: F.soft_margin_loss(x, torch.tensor([-1.0, 1.0])), exactly(40.0, -9.0))
