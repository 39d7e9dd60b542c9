"""Metrics: numbers that say how good a model's outputs are, beside the loss.

Those that are sums over examples are graph code in the function that computes the loss (``means.py``); the others are
NumPy functions of the outputs and targets of a whole data set (``predictions.py``).
"""

from __future__ import annotations

from glowtrain.metrics.base import MeanMetric, Metric, PredictionMetric
from glowtrain.metrics.choose import NAMED, as_metric, by_name, custom
from glowtrain.metrics.means import (
    Accuracy,
    MeanAbsoluteError,
    MeanSquaredError,
    Perplexity,
    RootMeanSquaredError,
    TopK,
)
from glowtrain.metrics.predictions import (
    AUC,
    F1,
    R2,
    AveragePrecision,
    ConfusionMatrix,
    PerClassAccuracy,
    Precision,
    Recall,
)

__all__ = [
    "AUC",
    "F1",
    "NAMED",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "ConfusionMatrix",
    "MeanAbsoluteError",
    "MeanMetric",
    "MeanSquaredError",
    "Metric",
    "PerClassAccuracy",
    "Perplexity",
    "Precision",
    "PredictionMetric",
    "Recall",
    "RootMeanSquaredError",
    "TopK",
    "as_metric",
    "by_name",
    "custom",
]


def __dir__() -> list[str]:
    return __all__
