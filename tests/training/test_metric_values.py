"""Metrics of predictions: the values of scikit-learn's functions on the same outputs and targets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn

import glowtrain as gt
from glowtrain.errors import InputError

AVERAGES = ("micro", "macro", "weighted")
Predictions = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """scikit-learn warns of what is undefined, such as the precision of a class that is never chosen."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="sklearn")
        yield


@st.composite
def of_classes(draw: Any, least: int = 2) -> Predictions:
    """Scores with ties, and labels of which some classes, or all but one, may be absent."""
    count, classes = draw(st.integers(1, 30)), draw(st.integers(least, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    scores = random.integers(-3, 4, (count, classes)) / 2
    return scores.astype(np.float32), random.integers(0, draw(st.integers(1, classes)), count)


@st.composite
def of_labels(draw: Any, least: int = 1) -> Predictions:
    """Logits [n, labels] with ties, and targets of 0.0 and 1.0, of which any column may be constant."""
    count, labels = draw(st.integers(1, 30)), draw(st.integers(least, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    logits, share = random.integers(-3, 4, (count, labels)) / 2, draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    return logits.astype(np.float32), (random.random((count, labels)) < share).astype(np.float32)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def same(value: Any, expected: Any) -> None:
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)


COUNTED: dict[str, Callable[..., Any]] = {
    "precision": sklearn.precision_score,
    "recall": sklearn.recall_score,
    "f1": sklearn.f1_score,
}
CURVES: dict[str, Callable[..., Any]] = {
    "auc": sklearn.roc_auc_score,
    "average_precision": sklearn.average_precision_score,
}


@pytest.mark.parametrize("name", COUNTED)
@given(predictions=of_classes())
def test_counts_of_classes(name: str, predictions: Predictions) -> None:
    scores, labels = predictions
    for average in AVERAGES:
        expected = COUNTED[name](labels, scores.argmax(1), average=average)
        same(gt.metrics.by_name(f"{name}_{average}")(scores, labels), expected)  # type: ignore[operator]
    default = {"average": "binary"} if scores.shape[1] == 2 else {"average": "macro"}
    same(gt.metrics.by_name(name)(scores, labels), COUNTED[name](labels, scores.argmax(1), **default))  # type: ignore[operator]


@pytest.mark.parametrize("name", COUNTED)
@given(predictions=of_labels())
def test_counts_of_labels(name: str, predictions: Predictions) -> None:
    logits, targets = predictions
    one = logits.shape[1] == 1
    for average in AVERAGES:
        expected = COUNTED[name](targets.squeeze(1) if one else targets, logits > 0, average=average)
        same(gt.metrics.by_name(f"{name}_{average}")(logits, targets), expected)  # type: ignore[operator]
    expected = COUNTED[name](targets, logits > 0, average="binary" if one else "macro")
    same(gt.metrics.by_name(name)(logits, targets), expected)  # type: ignore[operator]


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("average", AVERAGES)
@given(predictions=of_classes(3))
def test_curves_of_classes(name: str, average: str, predictions: Predictions) -> None:
    scores, labels = predictions
    truth = labels[:, None] == np.arange(scores.shape[1])
    expected = CURVES[name](truth, softmax(scores), average=average)
    same(gt.metrics.by_name(f"{name}_{average}")(scores, labels), expected)  # type: ignore[operator]
    if len(set(labels)) == scores.shape[1] and name == "auc":
        own = sklearn.roc_auc_score(labels, softmax(scores), multi_class="ovr", average=average)
        same(expected, own)
    if average == "macro":
        same(gt.metrics.by_name(name)(scores, labels), expected)  # type: ignore[operator]


@pytest.mark.parametrize("name", CURVES)
@given(predictions=of_classes().filter(lambda each: each[0].shape[1] == 2), average=st.sampled_from([None, *AVERAGES]))
def test_curves_of_two_classes(name: str, predictions: Predictions, average: Any) -> None:
    scores, labels = predictions
    metric = gt.metrics.AUC(average) if name == "auc" else gt.metrics.AveragePrecision(average)
    same(metric(scores, labels), CURVES[name](labels, scores[:, 1] - scores[:, 0]))


@pytest.mark.parametrize("name", CURVES)
@given(predictions=of_labels())
def test_curves_of_labels(name: str, predictions: Predictions) -> None:
    logits, targets = predictions
    for average in AVERAGES:
        expected = CURVES[name](targets, logits, average=average)
        same(gt.metrics.by_name(f"{name}_{average}")(logits, targets), expected)  # type: ignore[operator]
    same(gt.metrics.by_name(name)(logits, targets), CURVES[name](targets, logits))  # type: ignore[operator]


@given(predictions=of_classes())
def test_tables_of_classes(predictions: Predictions) -> None:
    scores, labels = predictions
    classes = np.arange(scores.shape[1])
    table = gt.metrics.ConfusionMatrix()(scores, labels)
    np.testing.assert_array_equal(table, sklearn.confusion_matrix(labels, scores.argmax(1), labels=classes))
    expected = sklearn.recall_score(labels, scores.argmax(1), labels=classes, average=None, zero_division=np.nan)
    same(gt.metrics.PerClassAccuracy()(scores, labels), expected)


@given(predictions=of_labels(2))
def test_tables_of_labels(predictions: Predictions) -> None:
    logits, targets = predictions
    table = gt.metrics.ConfusionMatrix()(logits, targets)
    np.testing.assert_array_equal(table, sklearn.multilabel_confusion_matrix(targets, logits > 0))
    each = [sklearn.accuracy_score(*column) for column in zip(targets.T, (logits > 0).T, strict=True)]
    same(gt.metrics.PerClassAccuracy()(logits, targets), each)


@given(predictions=of_labels(1).filter(lambda each: each[0].shape[1] == 1))
def test_one_logit_is_two_classes(predictions: Predictions) -> None:
    logits, targets = predictions
    scores, labels = np.hstack([0 * logits, logits]), targets[:, 0].astype(np.int64)
    for name in ("f1", "precision_micro", "auc", "average_precision", "confusion_matrix", "per_class_accuracy"):
        metric: Any = gt.metrics.by_name(name)
        expected = metric(scores, labels)
        same(metric(logits, targets), expected)
        same(metric(logits[:, 0], targets[:, 0]), expected)


@given(st.integers(0, 2**16), st.integers(1, 20), st.integers(1, 3), st.booleans(), st.booleans())
def test_variance_that_is_explained(seed: int, count: int, columns: int, constant: bool, exact: bool) -> None:
    random = np.random.default_rng(seed)
    outputs, targets = random.integers(-2, 3, (2, count, columns)).astype(np.float64)
    targets[:, 0] = 1.0 if constant else targets[:, 0]
    outputs[:, 0] = targets[:, 0] if exact else outputs[:, 0]
    same(gt.metrics.R2()(outputs, targets), sklearn.r2_score(targets, outputs))


def test_elements_of_more_axes_are_examples() -> None:
    random = np.random.default_rng(0)
    masks, truth = random.standard_normal((2, 3, 4, 5)), random.random((2, 3, 4, 5)) < 0.5
    same(gt.metrics.F1()(masks, truth), sklearn.f1_score(truth.ravel(), masks.ravel() > 0))
    tokens, labels = random.standard_normal((2, 7, 4)), random.integers(0, 4, (2, 7))
    same(gt.metrics.F1()(tokens, labels), sklearn.f1_score(labels.ravel(), tokens.argmax(-1).ravel(), average="macro"))


def test_scores_that_are_no_numbers_have_no_order() -> None:
    scores, labels = np.array([[0, np.nan], [1, 0]]), np.array([0, 1])
    assert np.isnan(gt.metrics.AUC()(scores, labels))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gt.metrics.by_name("acc"), r"no metric 'acc' \(the nearest is 'accuracy'\)"),
        (lambda: gt.metrics.by_name("f1_makro"), r"the nearest is 'f1_macro'"),
        (
            lambda: gt.metrics.by_name("zzz"),
            r"no metric 'zzz'; there are accuracy, .*, auc, average_precision, and averages",
        ),
        (lambda: gt.metrics.by_name("top_0"), r"no metric 'top_0'"),
        (lambda: gt.metrics.TopK(0), r"k must be a whole number of at least 1, not 0"),
        (lambda: gt.metrics.F1("binary"), r"average must be one of .*, not 'binary'"),  # type: ignore[arg-type]
        (lambda: gt.metrics.custom(lambda outputs, targets: 0.0), r"<lambda> needs a name"),
        (lambda: gt.metrics.custom(max, better="more"), r"better must be 'max' or 'min'"),  # type: ignore[arg-type]
        (lambda: gt.metrics.as_metric(gt.metrics.F1), r"call it, F1\(\)"),
        (lambda: gt.metrics.as_metric(3), r"not 3 \(int\)"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_every_name_is_that_of_its_metric() -> None:
    assert all(metric.name == name == gt.metrics.by_name(name).name for name, metric in gt.metrics.NAMED.items())
    assert gt.metrics.by_name("top_17") == gt.metrics.TopK(17)
