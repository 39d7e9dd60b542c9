"""Weights of examples and of classes: scikit-learn's values, means over batches, and the ways to give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn
from sklearn.utils.class_weight import compute_class_weight

import glowtrain as gt
from glowtrain.errors import BundleError, CheckpointError, DataError, InputError

Data = tuple[np.ndarray, np.ndarray, np.ndarray]
CLASSES = 4


@gt.model(x=gt.f32["batch", 5])
def scores(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, CLASSES)


@gt.model(x=gt.f32["batch", 5])
def numbers(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 2)


@gt.model(x=gt.f32["batch", 5])
def logit(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 1)


@gt.model(x=gt.f32["batch", "time", 5])
def tokens(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, CLASSES)


@pytest.fixture
def data(random: np.random.Generator) -> Data:
    """53 examples, some of which count nothing; labels of which the first class is rare."""
    x, weights = random.normal(size=(53, 5)).astype(np.float32), random.uniform(0, 3, 53).astype(np.float32)
    weights[::5] = 0
    labels = random.integers(1, CLASSES, 53)
    labels[1:3] = 0
    return x, labels, weights


def trainer_of(model: gt.Template = scores, loss: Any = "softmax_cross_entropy", **settings: Any) -> gt.Trainer:
    settings = {"optimizer": gt.optim.Adam(0.01), "backend": "interpreter", **settings}
    return gt.Trainer(model, loss, **settings)


def probabilities(trainer: gt.Trainer, x: np.ndarray) -> np.ndarray:
    powers = np.exp(trainer.predict(x)["output"].astype(np.float64))
    return np.asarray(powers / powers.sum(1, keepdims=True))


# --- examples --------------------------------------------------------------------------------------------------------


def test_metrics_of_classes_are_scikit_learns(data: Data) -> None:
    x, labels, weights = data
    names = [
        *("top_2", "perplexity", "f1", "f1_weighted", "precision_micro", "recall_weighted", "auc", "auc_weighted"),
        *("auc_micro", "average_precision", "average_precision_weighted", "confusion_matrix", "per_class_accuracy"),
    ]
    trainer = trainer_of(sample_weight=True, metrics=names)
    results = trainer.evaluate((x, labels, weights), batch_size=10)
    p, w, truth = probabilities(trainer, x), weights.astype(np.float64), np.eye(CLASSES)[labels]
    chosen, matrix = p.argmax(1), sklearn.confusion_matrix(labels, p.argmax(1), sample_weight=w)
    expected = {
        "loss": sklearn.log_loss(labels, p, sample_weight=w, labels=range(CLASSES)),
        "accuracy": sklearn.accuracy_score(labels, chosen, sample_weight=w),
        "top_2": sklearn.top_k_accuracy_score(labels, p, k=2, sample_weight=w, labels=range(CLASSES)),
        "perplexity": np.exp(sklearn.log_loss(labels, p, sample_weight=w, labels=range(CLASSES))),
        "f1": sklearn.f1_score(labels, chosen, average="macro", sample_weight=w),
        "f1_weighted": sklearn.f1_score(labels, chosen, average="weighted", sample_weight=w),
        "precision_micro": sklearn.precision_score(labels, chosen, average="micro", sample_weight=w),
        "recall_weighted": sklearn.recall_score(labels, chosen, average="weighted", sample_weight=w),
        "average_precision": sklearn.average_precision_score(truth, p, average="macro", sample_weight=w),
        "average_precision_weighted": sklearn.average_precision_score(truth, p, average="weighted", sample_weight=w),
    }
    for average in ("", "_weighted", "_micro"):
        kind = average.removeprefix("_") or "macro"
        expected[f"auc{average}"] = sklearn.roc_auc_score(truth, p, average=kind, sample_weight=w)
    assert {name: results[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(results["confusion_matrix"], matrix, rtol=1e-6)
    np.testing.assert_allclose(results["per_class_accuracy"], np.diag(matrix) / matrix.sum(1), rtol=1e-6)


def test_metrics_of_yes_and_no_are_scikit_learns(data: Data) -> None:
    x, labels, weights = data
    truth = (labels > 2).astype(np.float32)
    trainer = trainer_of(logit, "bce_with_logits", sample_weight=True, metrics=["f1", "auc", "average_precision"])
    results = trainer.evaluate((x, truth, weights), batch_size=10)
    z = trainer.predict(x)["output"][:, 0].astype(np.float64)
    expected = {
        "loss": sklearn.log_loss(truth, 1 / (1 + np.exp(-z)), sample_weight=weights),
        "accuracy": sklearn.accuracy_score(truth, z > 0, sample_weight=weights),
        "f1": sklearn.f1_score(truth, z > 0, sample_weight=weights),
        "auc": sklearn.roc_auc_score(truth, z, sample_weight=weights),
        "average_precision": sklearn.average_precision_score(truth, z, sample_weight=weights),
    }
    assert results == pytest.approx(expected, rel=1e-5)


def test_metrics_of_numbers_are_scikit_learns(data: Data, random: np.random.Generator) -> None:
    (x, _, weights), y = data, random.normal(size=(53, 2)).astype(np.float32)
    trainer = trainer_of(numbers, "mse", sample_weight=True, metrics=["mae", "rmse", "r2"])
    results = trainer.evaluate((x, y, weights), batch_size=10)
    found = trainer.predict(x)["output"]
    expected = {
        "loss": sklearn.mean_squared_error(y, found, sample_weight=weights),
        "mae": sklearn.mean_absolute_error(y, found, sample_weight=weights),
        "rmse": np.sqrt(sklearn.mean_squared_error(y, found, sample_weight=weights)),
        "r2": sklearn.r2_score(y, found, sample_weight=weights),
    }
    assert results == pytest.approx(expected, rel=1e-5)


def test_labels_of_an_example_have_its_weight(random: np.random.Generator) -> None:
    x, labels = random.normal(size=(12, 3, 5)).astype(np.float32), random.integers(0, CLASSES, (12, 3))
    weights = random.uniform(0, 2, 12)
    trainer = trainer_of(tokens, sample_weight=True, metrics=["auc", "top_2"])
    results = trainer.evaluate((x, labels, weights), batch_size=5)
    flat = trainer_of(scores, sample_weight=True, metrics=["auc", "top_2"])
    flat.set_variables(trainer.parameters())
    assert results == pytest.approx(flat.evaluate((x.reshape(-1, 5), labels.ravel(), weights.repeat(3))), rel=1e-5)


def test_means_of_an_epoch_are_by_weights(data: Data) -> None:
    """Nothing is learnt, so that the means of training are those of one evaluation."""
    still = {"optimizer": gt.optim.SGD(0.0), "sample_weight": True, "train_metrics": True}
    trainer = trainer_of(**still)
    history = trainer.fit(data, 1, 10, progress=False)
    expected = trainer.evaluate(data)
    found = {"loss": history.loss[0], "accuracy": history["train_accuracy"][0]}
    assert found == pytest.approx(expected, rel=1e-5)
    unweighted = trainer.evaluate(data[:2])
    assert unweighted["loss"] != pytest.approx(expected["loss"], rel=1e-2)
    assert unweighted == pytest.approx(trainer_of(optimizer="sgd").evaluate(data[:2]), rel=1e-5)


def test_the_ways_to_give_weights_are_one(data: Data) -> None:
    x, labels, weights = data

    def run(examples: Any, size: int | None = 10, **more: Any) -> bytes:
        trainer = trainer_of(sample_weight=True)
        trainer.fit(examples, 2, size, progress=False, **more)
        return b"".join(array.tobytes() for array in trainer.variables().values())

    first = run((x, labels, weights))
    assert run((x, labels), sample_weight=weights) == first
    assert run({"x": x, "y": labels, "sample_weight": weights}) == first
    assert run(gt.data.Dataset("own", {"x": x, "y": labels}), sample_weight=weights.tolist()) == first
    assert run((x, labels)) == run((x, labels, np.ones(53))) != first
    batches = [(x[at : at + 10], labels[at : at + 10], weights[at : at + 10]) for at in range(0, 50, 10)]
    names = [dict(zip(("x", "y", "sample_weight"), batch, strict=True)) for batch in batches]
    assert run(batches, None) == run(names, None) == run((x[:50], labels[:50], weights[:50]), shuffle=False)
    ones = [batch[:2] for batch in batches]
    assert run(ones, None) == run((x[:50], labels[:50]), shuffle=False)


def test_a_data_set_keeps_its_part_for_validation(data: Data) -> None:
    x, labels, weights = data
    part = {"x": x[:20], "y": labels[:20]}
    dataset = gt.data.Dataset("own", {"x": x, "y": labels}, part)
    trainer = trainer_of(sample_weight=True)
    history = trainer.fit(dataset, 1, 10, sample_weight=weights, progress=False)
    assert history.last["val_loss"] == trainer.evaluate(part, batch_size=10)["loss"]
    held = trainer_of(sample_weight=True).fit((x, labels, weights), 1, 10, validation=0.3, progress=False)
    assert "val_loss" in held.last


def test_a_resumed_run_has_the_bits_of_one_without_a_stop(data: Data, tmp_path: Path) -> None:
    def stop(moment: Any) -> None:
        if moment.epoch == 2 and moment.batch == 3 and moment.record is None:
            moment.stop("enough")

    def run(path: Path, *callbacks: Any) -> gt.Trainer:
        trainer = trainer_of(sample_weight=True, class_weight="balanced")
        trainer.fit(data, 3, 10, checkpoint=path, resume=True, callbacks=callbacks, progress=False)
        return trainer

    whole = run(tmp_path / "whole.safetensors")
    run(tmp_path / "run.safetensors", stop)
    again = run(tmp_path / "run.safetensors")
    assert again.history.deterministic() == whole.history.deterministic()
    assert all(array.tobytes() == again.variables()[name].tobytes() for name, array in whole.variables().items())
    with pytest.raises(CheckpointError, match="loss differs"):
        trainer_of().restore(tmp_path / "run.safetensors")


def test_a_batch_that_counts_nothing_changes_nothing(data: Data) -> None:
    x, labels, _ = data
    trainer = trainer_of(sample_weight=True, optimizer=gt.optim.SGD(0.1), metrics=["f1"])
    before = trainer.parameters()
    assert trainer.step({"x": x, "labels": labels, "sample_weight": np.zeros(53, np.float32)}) == 0
    assert all(np.array_equal(array, before[name]) for name, array in trainer.parameters().items())
    assert trainer.evaluate((x, labels, np.zeros(53)))["loss"] == 0


def test_custom_metrics_know_nothing_of_weights(data: Data) -> None:
    def count(outputs: np.ndarray, targets: np.ndarray) -> int:
        return len(targets)

    assert trainer_of(sample_weight=True, metrics=[count]).evaluate(data)["count"] == 53


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (np.ones(52), "different numbers of examples"),
        (-np.ones(53), r"'sample_weight' is -1.0 at \[0\]"),
        (np.full(53, np.nan), "must be finite"),
        (np.full(53, "1"), "not a number"),
        (np.ones((53, 2)), "sample_weight"),
    ],
)
def test_weights_that_cannot_be(weights: np.ndarray, expected: str, data: Data) -> None:
    with pytest.raises((InputError, DataError), match=expected):
        trainer_of(sample_weight=True).fit(data[:2], 1, 10, sample_weight=weights, progress=False)


def test_weights_without_a_loss_that_takes_them(data: Data) -> None:
    with pytest.raises(InputError, match=r"needs gt\.Trainer\(\.\.\., sample_weight=True\)"):
        trainer_of().fit(data[:2], sample_weight=data[2])
    with pytest.raises(InputError, match=r"has 3 arrays.*gt\.Trainer\(\.\.\., sample_weight=True\)"):
        trainer_of().fit(data)
    with pytest.raises(InputError, match="batches that come one by one have weights of their own"):
        trainer_of(sample_weight=True).fit([data[:2]], sample_weight=data[2])
    with pytest.raises(InputError, match="cannot be weighted"):
        trainer_of(loss=lambda outputs, inputs: gt.nn.mean(outputs["output"]), sample_weight=True)


# --- classes ---------------------------------------------------------------------------------------------------------


def test_balanced_weights_are_scikit_learns_and_train_alike(data: Data) -> None:
    expected = compute_class_weight("balanced", classes=np.arange(CLASSES), y=data[1])
    assert expected.max() > 5
    balanced, given = trainer_of(class_weight="balanced"), trainer_of(class_weight=expected)
    for trainer in (balanced, given):
        trainer.fit(data[:2], 2, 10, progress=False)
    np.testing.assert_allclose(balanced.variables()["labels.class_weight"], expected, rtol=1e-6)
    assert balanced.history.loss == pytest.approx(given.history.loss, rel=1e-6)
    assert balanced.evaluate(data[:2]) == pytest.approx(given.evaluate(data[:2]), rel=1e-6)
    assert trainer_of(loss=gt.losses.focal(class_weight="balanced")).fit(data[:2], 1, progress=False)


def test_what_is_held_out_and_ignored_is_not_counted(data: Data) -> None:
    x, labels, _ = data
    labels = np.where(labels == 3, -1, labels)
    trainer = trainer_of(loss=gt.losses.nll(class_weight="balanced", ignore_index=-1))
    trainer.fit((x, labels), 1, 10, validation=(x[:5], labels[:5]), progress=False)
    counted = labels[labels >= 0]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=counted)
    np.testing.assert_allclose(trainer.variables()["labels.class_weight"], [*expected, 1.0], rtol=1e-6)


def test_labels_are_counted_before_anything_is_weighted(data: Data, tmp_path: Path) -> None:
    x, labels, _ = data
    trainer = trainer_of(class_weight="balanced")
    for call in (trainer.evaluate, lambda data: trainer.step({"x": data[0], "labels": data[1]})):
        with pytest.raises(InputError, match="no labels have been counted"):
            call((x, labels))
    with pytest.raises(BundleError, match="give a trainer that was fitted"):
        gt.bundle(scores, tmp_path / "b", loss="softmax_cross_entropy", class_weight="balanced")
    trainer.balance((x, labels))
    assert np.isfinite(trainer.step({"x": x, "labels": labels}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"class_weight": [1, 2]}, "class_weight has 2 numbers, but output 'output' of scores has 4 classes"),
        ({"class_weight": "balance"}, "must be 'balanced' or a number for each class, not 'balance'"),
        ({"class_weight": [1, 2, 3, -1]}, "not negative, not -1"),
        ({"class_weight": {"a": 1}}, "class_weight must be"),
        ({"class_weight": "balanced", "loss": "mse"}, "class_weight is of labels of classes"),
        ({"class_weight": [1] * 4, "loss": gt.losses.nll(class_weight=[1] * 4)}, "given twice"),
        ({"class_weight": [1] * 4, "loss": gt.losses.mse() + gt.losses.l1()}, "0 losses of the sum have classes"),
    ],
)
def test_weights_of_classes_that_cannot_be(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        trainer_of(**settings)


def test_batches_that_come_one_by_one_are_not_counted(data: Data) -> None:
    with pytest.raises(InputError, match="counts labels of arrays, not of batches"):
        trainer_of(class_weight="balanced").fit([data[:2]], 1, progress=False)
    with pytest.raises(InputError, match="has no class_weight='balanced'"):
        trainer_of().balance(data[:2])
