"""Metrics by name, functions as metrics, and what a trainer takes for some."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.losses.base import Loss
from glowtrain.metrics.base import Direction, Metric, PredictionMetric
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
    AVERAGES,
    F1,
    R2,
    Average,
    AveragedMetric,
    AveragePrecision,
    ConfusionMatrix,
    PerClassAccuracy,
    Precision,
    Recall,
)
from glowtrain.presentation.messages import kind_of, nearest
from glowtrain.types import Array

MetricFunction = Callable[[Any, Any], Any]
Named = str | Metric | MetricFunction

_AVERAGED: tuple[type[AveragedMetric], ...] = (Precision, Recall, F1, AUC, AveragePrecision)
_AVERAGES: tuple[Average | None, ...] = (None, *AVERAGES)
_SINGLE: tuple[Metric, ...] = (
    Accuracy(), TopK(3), TopK(5), PerClassAccuracy(), ConfusionMatrix(), Perplexity(),
    MeanAbsoluteError(), MeanSquaredError(), RootMeanSquaredError(), R2(),
)  # fmt: skip

NAMED: Mapping[str, Metric] = {
    metric.name: metric for metric in (*_SINGLE, *(kind(average) for kind in _AVERAGED for average in _AVERAGES))
}
"""The metrics by name; ``top_N`` is there for any N."""


@dataclass(frozen=True)
class CustomMetric(PredictionMetric):
    """A person's function of outputs and targets."""

    function: MetricFunction
    label: str
    direction: Direction | None = None

    @property
    def name(self) -> str:
        return self.label

    @property
    def better(self) -> Direction | None:
        return self.direction

    def __call__(self, outputs: Any, targets: Any, weights: Array | None = None) -> Any:
        """It knows nothing of weights."""
        return self.function(outputs, targets)

    def check(self, loss: Loss) -> None:
        """It may be of anything."""


def custom(function: MetricFunction, name: str | None = None, *, better: Direction | None = None) -> Metric:
    """A function ``(outputs, targets)`` of NumPy arrays, all of a data set, that gives a number or an array, as a
    metric; by default under its own name.

    The arrays are the output and the target that the loss compares. Of a loss that is a function or an output of the
    model, they are dicts of all outputs and of all inputs by name. ``better`` says whether ``fit(monitor=)`` looks for
    the largest value ("max") or the smallest ("min").
    """
    name = getattr(function, "__name__", "<unnamed>") if name is None else name
    if not name.isidentifier():
        raise InputError(f"metrics: {name} needs a name: gt.metrics.custom(function, 'name')")
    if better not in (None, "max", "min"):
        raise InputError(f"metrics: better must be 'max' or 'min', not {better!r}")
    return CustomMetric(function, name, better)


def by_name(name: str) -> Metric:
    """The metric of that name in :data:`NAMED`. Raises :class:`InputError` for an unknown one."""
    if top := re.fullmatch(r"top_([1-9]\d*)", name):
        return TopK(int(top[1]))
    if name not in NAMED:
        names = ", ".join(known for known in NAMED if not known.endswith(AVERAGES))
        near = f" (the nearest is {near!r})" if (near := nearest(name, NAMED)) else ""
        averages = ", ".join(f"f1_{average}" for average in AVERAGES)
        raise InputError(f"there is no metric {name!r}{near}; there are {names}, and averages such as {averages}")
    return NAMED[name]


def as_metric(metric: Named) -> Metric:
    """A metric from what a trainer takes: a metric, its name, or a function. Raises :class:`InputError`."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        return by_name(metric)
    if isinstance(metric, type) and issubclass(metric, Metric):
        raise InputError(f"metrics: {kind_of(metric)} makes metrics and is none: call it, {metric.__name__}()")
    if callable(metric):
        return custom(metric)
    raise InputError(f"metrics: one of gt.metrics, the name of one or a function, not {kind_of(metric)}")


@dataclass(frozen=True)
class OfOutput(Metric):
    """A metric of one output of several that have losses."""

    output: str
    metric: Metric

    @property
    def name(self) -> str:
        return f"{self.output}_{self.metric.name}"

    @property
    def better(self) -> Direction | None:
        return self.metric.better


def as_metrics(metrics: bool | Iterable[Named] | Mapping[str, Iterable[Named]]) -> tuple[Metric, ...]:
    """The metrics that a trainer's ``metrics`` names: none for True and False. Raises :class:`InputError`."""
    if isinstance(metrics, (bool, np.bool_)):
        return ()
    if isinstance(metrics, Mapping):
        return tuple(OfOutput(output, each) for output, several in metrics.items() for each in as_metrics(several))
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InputError(f"metrics must be True, False or a list such as ['f1', 'auc'], not {kind_of(metrics)}")
    chosen = tuple(map(as_metric, metrics))
    counts = Counter(["loss", *(metric.name for metric in chosen)])
    if several := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"metrics: several are called {several[0]!r}; gt.metrics.custom gives a function another name")
    return chosen


def metrics_in(texts: Sequence[str]) -> bool | Sequence[str] | Mapping[str, Sequence[str]]:
    """The metrics that the command line names, ``f1`` or, of an output of several, ``digit=f1``. Raises
    :class:`InputError`."""
    of_outputs: dict[str, list[str]] = {}
    for output, name in (text.split("=", 1) for text in texts if "=" in text):
        of_outputs.setdefault(output, []).append(name)
    if of_outputs and (others := [text for text in texts if "=" not in text]):
        raise InputError(f"--metric {others[0]}: others are of outputs, so say of which it is: OUTPUT={others[0]}")
    return of_outputs or texts or False
