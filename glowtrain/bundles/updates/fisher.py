"""How much the loss depends on each element of a model's parameters: squared gradients on some batches.

The mean of squared gradients is the diagonal of the empirical Fisher information, by which parts of networks are chosen
for training and pruning (Theis et al. 2018, Faster Gaze Prediction With Dense Networks and Fisher Pruning,
arXiv:1801.05787; Kwon et al. 2024, TinyTrain, arXiv:2307.09988). It is that of the model as it is before training, and
takes no notice of how parts act together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from glowtrain.trainer.steps import Steps
from glowtrain.types import Array


def fisher(steps: Steps, batches: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
    """f64: the mean over batches of the squared gradient of each element, by the parameter's name."""
    sums: dict[str, Array] = {}
    count = 0
    for batch in batches:
        count += 1
        for name, gradient in steps.gradients(batch).items():
            squares = np.square(gradient.astype(np.float64))
            sums[name] = sums[name] + squares if name in sums else squares
    return {name: total / count for name, total in sums.items()}
