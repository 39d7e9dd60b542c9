"""Metrics of trainers: measured in evaluate, on validation and in steps, recorded, watched."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

import glowtrain as gt
from glowtrain.errors import BundleError, InputError, UnpicklableError
from tests.training.trainers import Points, trainer_of


@gt.model(x=gt.f32["batch", 4])
def scores(x: gt.Value) -> gt.Value:
    """Its outputs are its inputs, as long as nothing is trained."""
    return x * gt.nn.parameter("scale", (4,), gt.nn.ones)


@gt.model(x=gt.f32["batch", 5, 3])
def tokens(x: gt.Value) -> gt.Value:
    return x * gt.nn.parameter("scale", (3,), gt.nn.ones)


def tied(*shape: int) -> np.ndarray:
    return (np.random.default_rng(1).integers(-2, 3, shape) / 2).astype(np.float32)


LABELS = np.random.default_rng(2).integers(0, 4, 23)
STILL = gt.optim.SGD(lr=0.0)


def measured(loss: Any, metrics: list[Any], data: Points, model: gt.Template = scores, **settings: Any) -> Any:
    """What evaluate gives, in several batches of which the last is short."""
    trainer = trainer_of(model, loss=loss, optimizer=STILL, metrics=metrics, **settings)
    return trainer.evaluate(data, batch_size=None if isinstance(data, list) else 8)


def miss_rate(outputs: np.ndarray, targets: np.ndarray) -> float:
    return float((outputs.argmax(1) != targets).mean())


# --- values ----------------------------------------------------------------------------------------------------------


def test_metrics_of_classes(backend: str) -> None:
    x = tied(23, 4)
    powers = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    probabilities = powers / powers.sum(1, keepdims=True)
    names = ["accuracy", "top_2", "perplexity", "f1", "auc", "confusion_matrix", "per_class_accuracy", miss_rate]
    results = measured("softmax_cross_entropy", names, (x, LABELS), backend=backend)
    chosen = x.argmax(1)
    assert list(results) == ["loss", *names[:-1], "miss_rate"]
    assert results["accuracy"] == pytest.approx(sklearn.accuracy_score(LABELS, chosen))
    assert results["top_2"] == pytest.approx(sklearn.top_k_accuracy_score(LABELS, x, k=2))
    assert results["perplexity"] == pytest.approx(np.exp(sklearn.log_loss(LABELS, probabilities)), rel=1e-5)
    assert results["f1"] == pytest.approx(sklearn.f1_score(LABELS, chosen, average="macro"))
    assert results["auc"] == pytest.approx(sklearn.roc_auc_score(LABELS, probabilities, multi_class="ovr"))
    assert results["confusion_matrix"] == sklearn.confusion_matrix(LABELS, chosen).tolist()
    assert results["per_class_accuracy"] == pytest.approx(sklearn.recall_score(LABELS, chosen, average=None))
    assert results["miss_rate"] == miss_rate(x, LABELS) == pytest.approx(1 - results["accuracy"])


def test_ties_of_top_k() -> None:
    for k in (1, 2, 3):
        x, labels = np.repeat(tied(3, 4) * 0, 8, 0), np.arange(24) % 4
        results = measured("softmax_cross_entropy", [gt.metrics.TopK(k)], (x, labels))
        assert results[f"top_{k}"] == sklearn.top_k_accuracy_score(labels, x, k=k) == k / 4


def test_metrics_of_log_probabilities() -> None:
    x = tied(23, 4) - 3
    results = measured("nll", ["perplexity", "top_2"], (x, LABELS))
    assert results["perplexity"] == pytest.approx(np.exp(-x[np.arange(23), LABELS].mean()), rel=1e-6)
    assert results["perplexity"] == pytest.approx(np.exp(results["loss"]), rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_labels_count_nowhere(reduction: str, backend: str) -> None:
    """Batches have different numbers of labels that count, so the mean of their means would be another."""
    x, labels = tied(23, 5, 3), np.random.default_rng(3).integers(0, 3, (23, 5))
    labels[np.random.default_rng(4).random((23, 5)) < np.linspace(0, 0.9, 23)[:, None]] = -1
    loss = gt.losses.softmax_cross_entropy(ignore_index=-1, reduction=reduction)
    results = measured(loss, ["top_2", "perplexity", "f1", "confusion_matrix"], (x, labels), tokens, backend=backend)
    rows, counted = x[labels >= 0], labels[labels >= 0]
    log = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    assert results["top_2"] == pytest.approx(sklearn.top_k_accuracy_score(counted, rows, k=2))
    assert results["perplexity"] == pytest.approx(np.exp(-log[np.arange(len(counted)), counted].mean()), rel=1e-5)
    assert results["f1"] == pytest.approx(sklearn.f1_score(counted, rows.argmax(1), average="macro"))
    assert results["confusion_matrix"] == sklearn.confusion_matrix(counted, rows.argmax(1)).tolist()
    assert "counted_labels" not in results


def test_classes_on_another_axis() -> None:
    x, labels = tied(23, 5, 3), np.random.default_rng(3).integers(0, 5, (23, 3))
    loss = gt.losses.softmax_cross_entropy(axis=1)
    results = measured(loss, ["f1", "top_2", gt.metrics.custom(lambda o, t: [*o.shape, *t.shape], "shapes")],
                       (x, labels), tokens)  # fmt: skip
    rows, flat = np.moveaxis(x, 1, 2).reshape(-1, 5), labels.reshape(-1)
    assert results["f1"] == pytest.approx(sklearn.f1_score(flat, rows.argmax(1), average="macro"))
    assert results["top_2"] == pytest.approx(sklearn.top_k_accuracy_score(flat, rows, k=2))
    assert results["shapes"] == [23, 5, 3, 23, 3]


def test_metrics_of_yes_and_no(backend: str) -> None:
    x, truth = tied(23, 4), (np.random.default_rng(5).random((23, 4)) < 0.4).astype(np.float32)
    results = measured("bce_with_logits", ["f1_micro", "auc", "average_precision"], (x, truth), backend=backend)
    assert results["f1_micro"] == pytest.approx(sklearn.f1_score(truth, x > 0, average="micro"))
    assert results["auc"] == pytest.approx(sklearn.roc_auc_score(truth, x))
    assert results["average_precision"] == pytest.approx(sklearn.average_precision_score(truth, x))


def test_metrics_of_numbers(backend: str) -> None:
    x, target = tied(23, 4), tied(24, 4)[1:]
    results = measured("huber", ["mae", "mse", "rmse", "r2"], (x, target), backend=backend)
    assert list(results) == ["loss", "mae", "mse", "rmse", "r2"]
    assert results["mae"] == pytest.approx(sklearn.mean_absolute_error(target, x))
    assert results["mse"] == pytest.approx(sklearn.mean_squared_error(target, x))
    assert results["rmse"] == pytest.approx(results["mse"] ** 0.5)
    assert results["r2"] == pytest.approx(sklearn.r2_score(target, x))
    assert list(measured("mse", ["rmse"], (x, target))) == ["loss", "rmse"]


@pytest.mark.parametrize("dtype", [gt.f16, gt.bf16, gt.f64])
def test_outputs_of_other_types(dtype: gt.types.DType) -> None:
    @gt.model(x=dtype["batch", 4])
    def model(x: gt.Value) -> gt.Value:
        return x * gt.Variable("scale", np.ones(4, dtype.numpy))

    seen = []
    own = gt.metrics.custom(lambda outputs, targets: seen.append(outputs.dtype) or 0.0, "own")  # type: ignore[func-returns-value]
    results = measured("softmax_cross_entropy", ["top_2", "auc", own], (tied(23, 4), LABELS), model)
    expected = measured("softmax_cross_entropy", ["top_2", "auc"], (tied(23, 4), LABELS))
    assert {name: results[name] for name in ("top_2", "auc")} == pytest.approx(
        {name: expected[name] for name in ("top_2", "auc")}
    )
    assert seen == [np.float64 if dtype is gt.f64 else np.float32]


def test_a_function_of_a_loss_of_ones_own_takes_everything_by_name() -> None:
    def error(outputs: Any, inputs: Any) -> gt.Value:
        return gt.nn.mean((outputs["output"] - inputs["t"]) ** 2)

    def worst(outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> np.ndarray:
        assert (list(outputs), list(inputs)) == (["output"], ["x", "t"])
        assert (outputs["output"] == inputs["x"]).all()
        return np.abs(outputs["output"] - inputs["t"]).max(0)

    x, target = tied(23, 4), tied(24, 4)[1:]
    results = measured(gt.losses.custom(error, t=gt.f32["batch", 4]), [worst], {"x": x, "t": target})  # type: ignore[arg-type]
    assert results["worst"] == np.abs(x - target).max(0).tolist()


def test_weights_of_classes_do_not_count_in_metrics() -> None:
    """Nor do smoothed labels."""
    x = tied(23, 4)
    names = ["top_2", "perplexity", "auc", "confusion_matrix"]
    expected = measured("softmax_cross_entropy", names, (x, LABELS))
    loss = gt.losses.softmax_cross_entropy(class_weight=[1, 2, 3, 4], label_smoothing=0.1)
    results = measured(loss, names, (x, LABELS))
    assert results["loss"] != pytest.approx(expected["loss"])
    assert results["confusion_matrix"] == expected["confusion_matrix"]
    numbers = ("accuracy", "top_2", "perplexity", "auc")
    assert [results[name] for name in numbers] == pytest.approx([expected[name] for name in numbers])


def test_metrics_of_a_sum_of_losses_are_functions() -> None:
    loss = gt.losses.mse() + 0.5 * gt.losses.l1()
    x, target = tied(23, 4), tied(24, 4)[1:]
    own = gt.metrics.custom(lambda outputs, inputs: gt.metrics.R2()(outputs["output"], inputs["target"]), "r2")
    results = measured(loss, [own], {"x": x, "target": target})  # type: ignore[arg-type]
    assert results["r2"] == pytest.approx(sklearn.r2_score(target, x))


def test_batches_of_a_loader_are_measured_together() -> None:
    x = tied(23, 5, 3)
    labels = np.random.default_rng(3).integers(0, 3, (23, 5))
    trainer = trainer_of(tokens, optimizer=STILL, metrics=["auc"])
    together = trainer.evaluate([(x[:9], labels[:9]), (x[9:], labels[9:])])
    assert together == pytest.approx(trainer.evaluate((x, labels)))


# --- training --------------------------------------------------------------------------------------------------------


def test_records_have_what_is_listed(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    log, said = tmp_path / "log.jsonl", io.StringIO()
    trainer = trainer_of(mlp, metrics=["f1", "confusion_matrix", "top_2", miss_rate])
    table = gt.callbacks.CSV(tmp_path / "log.csv")
    history = trainer.fit(
        points, 2, 8, validation=points, log=log, progress=said, plot=tmp_path / "a.svg", callbacks=[table]
    )
    results = trainer.evaluate(points, batch_size=8)
    assert {name: history.last[f"val_{name}"] for name in results} == results
    assert [json.loads(line)["val_confusion_matrix"] for line in log.read_text().splitlines()] == history[
        "val_confusion_matrix"
    ]
    assert not [key for key in history.last if key.startswith("train_")]
    header = (tmp_path / "log.csv").read_text().splitlines()[0]
    assert "val_f1" in header
    assert "confusion" not in header
    for shown in (said.getvalue(), repr(history), history._repr_html_(), (tmp_path / "a.svg").read_text()):
        assert "confusion" not in shown
    assert f"val_f1 {history.last['val_f1']:.4f}  val_top_2" in said.getvalue()


def test_what_is_undefined_is_null_in_the_log(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """No example of class 2 is in the validation data."""
    log, few = tmp_path / "log.jsonl", points[1] < 2
    trainer = trainer_of(mlp, metrics=["auc", "per_class_accuracy"])
    history = trainer.fit(points, 1, 8, validation=(points[0][few], points[1][few]), log=log, progress=False)
    assert np.isnan(history.last["val_auc"])
    record = json.loads(log.read_text(), parse_constant=pytest.fail)
    assert (record["val_auc"], record["val_per_class_accuracy"][2]) == (None, None)
    assert record["val_loss"] == history.last["val_loss"]


def test_a_run_that_goes_on_has_the_same_records(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    def run(epochs: int, path: Path) -> gt.Trainer:
        trainer = trainer_of(mlp, metrics=["confusion_matrix", "auc"])
        trainer.fit(points, epochs, 8, validation=points, checkpoint=path, resume=True, progress=False)
        return trainer

    whole, _ = run(3, tmp_path / "whole"), run(1, tmp_path / "run")
    assert run(3, tmp_path / "run").history.deterministic() == whole.history.deterministic()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_steps_measure_what_is_a_mean(backend: str, micro_batches: int) -> None:
    """Parameters that no step changes: what is measured is that of the model on all examples."""
    x, target = tied(24, 4), tied(25, 4)[1:]
    settings = {"loss": "mse", "optimizer": STILL, "metrics": ["rmse", "r2"], "micro_batches": micro_batches}
    trainer = trainer_of(scores, backend, train_metrics=True, **settings)
    history = trainer.fit((x, target), 2, 8, progress=False)
    expected = trainer.evaluate((x, target))
    assert history["train_rmse"] == pytest.approx([expected["rmse"]] * 2)
    assert "train_r2" not in history.last
    assert "train_mse" not in history.last
    trainer.step({"x": x[:8], "target": target[:8]})
    assert trainer.measured == pytest.approx({"rmse": trainer.evaluate((x[:8], target[:8]))["rmse"]})
    assert trainer_of(scores, **settings).graph.outputs.keys() == {"loss"}


def test_metrics_that_began_later_than_an_epoch_wait_for_the_next(
    mlp: gt.Template, points: Points, tmp_path: Path
) -> None:
    first = trainer_of(mlp, train_metrics=True)

    def stop(moment: Any) -> None:
        if moment.batch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.fit(points, 2, 8, checkpoint=tmp_path / "c", callbacks=[stop], progress=False)
    second = trainer_of(mlp, train_metrics=True, metrics=["top_2"])
    history = second.fit(points, 2, 8, checkpoint=tmp_path / "c", resume=True, progress=False)
    assert ["train_top_2" in record for record in history] == [False, True]
    assert ["train_accuracy" in record for record in history] == [True, True]


@pytest.mark.parametrize(("better", "stops"), [("max", 2), ("min", 4)])
def test_patience_watches_a_metric(mlp: gt.Template, points: Points, better: Any, stops: int) -> None:
    """A metric that falls epoch after epoch."""
    falling = iter(range(100, 0, -1))
    metric = gt.metrics.custom(lambda outputs, targets: next(falling), "falling", better=better)
    trainer = trainer_of(mlp, metrics=[metric])
    before = trainer.variables()
    history = trainer.fit(
        points, 4, 8, validation=points, patience=1, monitor="val_falling", restore_best=True, progress=False
    )
    assert len(history) == stops
    back = "no progress in 1 epochs, back to the parameters of epoch 1"
    assert history.stopped == (back if stops == 2 else "4 epochs are done")
    assert before.keys() == trainer.variables().keys()


def test_a_known_metric_knows_its_direction(mlp: gt.Template, points: Points) -> None:
    trainer = trainer_of(mlp, metrics=["f1", "perplexity"], train_metrics=True)
    for monitor in ("val_f1", "val_accuracy", "train_perplexity", "loss", "val_loss", "train_accuracy"):
        history = trainer.fit(points, 3, 8, validation=points, patience=3, monitor=monitor, progress=False)
    assert len(history) == 18


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "val_f1"}, r"monitor='val_f1' goes with patience="),
        ({"monitor": "val_f2", "patience": 1}, r"monitor: records have no entry 'val_f2' \(the nearest is 'val_f1'\)"),
        ({"monitor": "train_f1", "patience": 1}, r"no entry 'train_f1'"),
        ({"monitor": "val_f1", "patience": 1, "validation": None}, r"no entry 'val_f1'; they have 'loss'"),
        ({"monitor": "val_confusion_matrix", "patience": 1}, r"'val_confusion_matrix' is no number"),
        ({"monitor": "val_miss_rate", "patience": 1}, r"gt.metrics.custom\(better=\) says no direction"),
    ],
)
def test_what_cannot_be_watched(mlp: gt.Template, points: Points, options: dict[str, Any], message: str) -> None:
    trainer = trainer_of(mlp, metrics=["f1", "confusion_matrix", miss_rate])
    with pytest.raises(InputError, match=message):
        trainer.fit(points, 3, 8, **{"validation": points, **options})
    assert not trainer.history.records


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "metrics", "message"),
    [
        ("mse", ["auc"], "'auc' is of scores of classes and labels or of logits .*; MSE compares numbers that"),
        ("mse", ["accuracy"], "'accuracy' is of"),
        ("softmax_cross_entropy", ["r2"], "'r2' is of numbers .*; SoftmaxCrossEntropy compares scores of classes"),
        ("bce_with_logits", ["top_3"], "'top_3' is of scores of classes and labels; BCEWithLogits compares logits"),
        ("softmax_cross_entropy", ["top_4"], "'top_4' is of more than 4 classes; the output has 4"),
        (lambda outputs, inputs: gt.nn.mean(outputs["output"]), ["rmse"], r"what Custom\(<lambda>.* 'rmse' cannot"),
        ("kl", ["mae"], r"what KL\(.* compares with targets is not known"),
        (gt.losses.mse() + gt.losses.l1(), ["mae"], "the loss is a sum, so 'mae' must say of which output"),
        ("softmax_cross_entropy", ["f1", gt.metrics.F1()], "several are called 'f1'"),
        ("softmax_cross_entropy", [gt.metrics.custom(miss_rate, "loss")], "several are called 'loss'"),
        ("softmax_cross_entropy", 3, r"metrics must be True, False or a list such as .*, not 3 \(int\)"),
    ],
)
def test_metrics_that_do_not_fit(loss: Any, metrics: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer_of(scores, loss=loss, metrics=metrics)


def test_functions_that_give_no_numbers() -> None:
    with pytest.raises(InputError, match=r"'own' must be a number or an array of numbers, not 'high' \(str\)"):
        measured("mse", [gt.metrics.custom(lambda outputs, targets: "high", "own")], (tied(5, 4), tied(5, 4)))


def test_examples_of_several_shapes_cannot_be_joined() -> None:
    @gt.model(x=gt.f32["batch", "time", 3])
    def open_model(x: gt.Value) -> gt.Value:
        return x * gt.nn.parameter("scale", (3,), gt.nn.ones)

    batches = [(tied(2, time, 3), np.arange(2 * time).reshape(2, time) % 3) for time in (3, 4)]
    flat = measured("softmax_cross_entropy", ["f1"], batches, open_model)  # type: ignore[arg-type]
    x, y = zip(*batches, strict=True)
    rows, labels = np.concatenate([each.reshape(-1, 3) for each in x]), np.concatenate([each.ravel() for each in y])
    assert flat["f1"] == pytest.approx(sklearn.f1_score(labels, rows.argmax(1), average="macro"))
    with pytest.raises(InputError, match=r"'output' of several batches cannot be joined: .* shapes \(3, 3\), \(4, 3\)"):
        measured("softmax_cross_entropy", [miss_rate], batches, open_model)  # type: ignore[arg-type]


# --- copies and bundles ----------------------------------------------------------------------------------------------


def test_copies_measure_the_same() -> None:
    trainer = trainer_of(scores, metrics=["auc", miss_rate])
    for twin in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        assert twin.evaluate((tied(23, 4), LABELS)) == trainer.evaluate((tied(23, 4), LABELS))
    with pytest.raises(UnpicklableError, match="the trainer's metrics"):
        pickle.dumps(trainer_of(scores, metrics=[gt.metrics.custom(lambda outputs, targets: 0.0, "own")]))


def test_a_bundle_measures_its_steps_alone() -> None:
    with pytest.raises(BundleError, match="a bundle measures nothing but its steps: train_metrics=True"):
        gt.bundle(scores, "out", loss="softmax_cross_entropy", metrics=["top_2"])
