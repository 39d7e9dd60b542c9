"""Metrics of all predictions together, in NumPy. Values are those of scikit-learn's functions of the same names.

Source of the definitions: scikit-learn's user guide, "Metrics and scoring"; the area under the ROC curve is that of
its trapezoids (Fawcett, An introduction to ROC analysis, 2006), average precision is not interpolated.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from glowtrain.errors import InputError
from glowtrain.metrics.base import NUMBERS, PredictionMetric
from glowtrain.types import Array

Average = Literal["micro", "macro", "weighted"]
AVERAGES: tuple[Average, ...] = ("micro", "macro", "weighted")


@dataclass(frozen=True)
class Decisions:
    """Predictions of classes or labels as questions of yes and no, one a column: ``scores`` [n, k], what was
    ``chosen``, what is the ``truth``. Where they are ``exclusive`` each row has one yes, as of classes."""

    scores: Array
    chosen: Array
    truth: Array
    exclusive: bool
    weights: Array | None = None
    """Of rows, [n, 1]; None where each counts 1."""

    @classmethod
    def of(cls, outputs: Array, targets: Array, weights: Array | None = None) -> Decisions:
        decisions = cls._unweighted(np.asarray(outputs, np.float64), np.asarray(targets))
        if weights is None:
            return decisions
        rows = np.repeat(np.asarray(weights, np.float64), len(decisions.truth) // max(len(weights), 1))
        return replace(decisions, weights=rows[:, None])

    @classmethod
    def _unweighted(cls, outputs: Array, targets: Array) -> Decisions:
        if outputs.shape != targets.shape:
            return cls.of_classes(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))
        columns = (-1, outputs.shape[1]) if outputs.ndim == 2 else (-1, 1)
        logits, truth = outputs.reshape(columns), np.asarray(targets.reshape(columns), np.float64) > 0.5
        if logits.shape[1] == 1:
            return cls.of_classes(np.hstack([np.zeros_like(logits), logits]), truth[:, 0].astype(np.int64))
        return cls(logits, logits > 0, truth, exclusive=False)

    @classmethod
    def of_classes(cls, scores: Array, labels: Array) -> Decisions:
        """Each class against the rest; scores are probabilities, but for two classes, which need only an order."""
        classes = np.arange(scores.shape[1])
        chosen, truth = scores.argmax(1)[:, None] == classes, labels[:, None] == classes
        if len(classes) == 2:
            return cls(scores - scores[:, ::-1], chosen, truth, exclusive=True)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return cls(powers / powers.sum(1, keepdims=True), chosen, truth, exclusive=True)

    def count(self, which: Array) -> Array:
        """How often each column is true, by the weights of rows."""
        return np.asarray(which.sum(0) if self.weights is None else (which * self.weights).sum(0))

    @property
    def two(self) -> bool:
        """Whether these are two classes, of which the second one is what is looked for."""
        return self.exclusive and self.truth.shape[1] == 2


@dataclass(frozen=True)
class AveragedMetric(PredictionMetric):
    """A metric of each class against the rest, or of each label. ``average``: ``"macro"`` is their mean, ``"weighted"``
    that by how often they are true, ``"micro"`` takes all decisions together. By default that of the second class
    where there are two (or one logit), else ``"macro"``."""

    average: Average | None = None
    better = "max"

    def __post_init__(self) -> None:
        if self.average not in (None, *AVERAGES):
            raise InputError(f"{type(self).__name__}: average must be one of {AVERAGES}, not {self.average!r}")

    @property
    def name(self) -> str:
        return self.title if self.average is None else f"{self.title}_{self.average}"

    @property
    @abstractmethod
    def title(self) -> str:
        """The name without an average."""


class CountMetric(AveragedMetric):
    """A ratio of counts of decisions; 0 where nothing is counted. Classes that are neither true nor chosen anywhere do
    not count in a mean."""

    @abstractmethod
    def ratio(self, right: Array, chosen: Array, true: Array) -> Array:
        """The metric from the numbers of what is chosen rightly, is chosen, and is true."""

    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> float:
        made = Decisions.of(outputs, targets, weights)
        counts = np.stack([made.count(each) for each in (made.truth & made.chosen, made.chosen, made.truth)])
        if self.average == "micro":
            return float(self.ratio(*counts.sum(1)))
        each, true = self.ratio(*counts), counts[2]
        if self.average is None and made.two:
            return float(each[1])
        if self.average == "weighted":
            return float(_ratio((each * true).sum(), true.sum()))
        return float(each[(made.chosen | made.truth).any(0)].mean() if made.exclusive else each.mean())


class Precision(CountMetric):
    """The share of what is chosen that is true."""

    title = "precision"

    def ratio(self, right: Array, chosen: Array, true: Array) -> Array:
        return _ratio(right, chosen)


class Recall(CountMetric):
    """The share of what is true that is chosen."""

    title = "recall"

    def ratio(self, right: Array, chosen: Array, true: Array) -> Array:
        return _ratio(right, true)


class F1(CountMetric):
    """The harmonic mean of precision and recall."""

    title = "f1"

    def ratio(self, right: Array, chosen: Array, true: Array) -> Array:
        return _ratio(2 * right, chosen + true)


class CurveMetric(AveragedMetric):
    """A metric of the order that scores bring examples into. Of two classes it is that of the second one, whatever the
    average."""

    @abstractmethod
    def area(self, true: Array, false: Array) -> float:
        """The metric, from the numbers of true and of false examples at each score, from the highest one down."""

    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> float:
        made = Decisions.of(outputs, targets, weights)
        scores, truth = (made.scores[:, 1:], made.truth[:, 1:]) if made.two else (made.scores, made.truth)
        mass = np.broadcast_to(1.0 if made.weights is None else made.weights, truth.shape)
        if np.isnan(scores).any():
            return float("nan")
        if self.average == "micro":
            scores, truth, mass = scores.reshape(-1, 1), truth.reshape(-1, 1), mass.reshape(-1, 1)
        each = np.array([self.area(*_by_score(*column)) for column in zip(scores.T, truth.T, mass.T, strict=True)])
        if self.average != "weighted" or made.two:
            return float(each.mean())
        true = (truth * mass).sum(0)
        return float(_ratio(np.where(true, each * true, 0.0).sum(), true.sum()))


class AUC(CurveMetric):
    """The area under the ROC curve; NaN where a class has no example, or all. Of several classes it is that of each
    against the rest."""

    title = "auc"

    def area(self, true: Array, false: Array) -> float:
        pairs = true.sum() * false.sum()
        ordered = (false * (true.cumsum() - true / 2)).sum()
        return float(ordered / pairs) if pairs else float("nan")


class AveragePrecision(CurveMetric):
    """The sum of precisions at each score, by the recall that it adds; 0 where nothing is true."""

    title = "average_precision"

    def area(self, true: Array, false: Array) -> float:
        precision = _ratio(true.cumsum(), (true + false).cumsum())
        return float(_ratio((precision * true).sum(), true.sum()))


@dataclass(frozen=True)
class ConfusionMatrix(PredictionMetric):
    """How many examples of each class (a row) were taken for each class (a column): [classes, classes]; of several
    labels [labels, 2, 2], of each whether it is true and whether it was chosen."""

    name = "confusion_matrix"

    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        made = Decisions.of(outputs, targets, weights)
        mass = np.int64(1) if made.weights is None else made.weights
        if made.exclusive:
            return np.asarray((made.truth * mass).T @ made.chosen)
        truth, chosen = (np.stack([~each, each]) for each in (made.truth, made.chosen))
        return np.asarray(np.einsum("tnk,cnk->ktc", truth * mass, chosen.astype(np.int64)))


@dataclass(frozen=True)
class PerClassAccuracy(PredictionMetric):
    """Of each class the share of its examples that are taken for it, NaN for one without any; of each of several
    labels the share of right decisions."""

    name = "per_class_accuracy"

    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> Array:
        made = Decisions.of(outputs, targets, weights)
        if not made.exclusive:
            return _ratio(made.count(made.truth == made.chosen), made.count(np.ones_like(made.truth)))
        return _ratio(made.count(made.truth & made.chosen), made.count(made.truth), undefined=float("nan"))


@dataclass(frozen=True)
class R2(PredictionMetric):
    """The share of the targets' variance that outputs explain: 1 - sum((output - target)²) / sum((target - mean)²), the
    mean over columns; of a constant column 1 where outputs are right, else 0. NaN for fewer than two examples."""

    tasks = NUMBERS
    name = "r2"
    better = "max"

    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> float:
        outputs, targets = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (outputs, targets))
        if len(targets) < 2:
            return float("nan")
        mass = np.ones(len(targets)) if weights is None else np.asarray(weights, np.float64)
        middle = _ratio(mass @ targets, mass.sum())
        left, total = mass @ (targets - outputs) ** 2, mass @ (targets - middle) ** 2
        return float(np.where(left == 0, 1.0, 1.0 - _ratio(left, total, undefined=1.0)).mean())


def _ratio(part: Array, whole: Array, undefined: float = 0.0) -> Array:
    """part / whole, and ``undefined`` where that is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, undefined), where=whole != 0))


def _by_score(scores: Array, truth: Array, mass: Array) -> tuple[Array, Array]:
    """What true and false examples count at each score that occurs, from the highest one down."""
    _, places = np.unique(-scores, return_inverse=True)
    true, false = (np.bincount(places, weights=mass * which) for which in (truth, ~truth))
    return true, false
