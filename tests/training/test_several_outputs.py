"""Several outputs, each with a loss and metrics of its own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

import glowtrain as gt
from glowtrain.errors import InputError, UntrainedWarning
from glowtrain.losses.choose import losses_in
from tests.cli.commands import done, refused

Data = tuple[np.ndarray, np.ndarray, np.ndarray]


@gt.model(x=gt.f32["batch", 5])
def two(x: gt.Value) -> dict[str, gt.Value]:
    x = gt.nn.tanh(gt.nn.linear(x, 8, name="trunk"))
    return {"kind": gt.nn.linear(x, 3, name="kind"), "size": gt.nn.linear(x, 2, name="size")}


@pytest.fixture
def data(random: np.random.Generator) -> Data:
    x = random.normal(size=(47, 5)).astype(np.float32)
    return x, random.integers(0, 3, 47), random.normal(size=(47, 2)).astype(np.float32)


def trainer_of(loss: Any = None, **settings: Any) -> gt.Trainer:
    loss = {"kind": "softmax_cross_entropy", "size": 0.5 * gt.losses.mse("size_of")} if loss is None else loss
    return gt.Trainer(two, loss, **{"optimizer": "adam", "backend": "interpreter", **settings})


METRICS = {
    "kind": ["f1", "top_2", "confusion_matrix"],
    "size": ["mae", "r2", gt.metrics.custom(lambda o, t: len(t), "n")],
}


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_each_are_scikit_learns(weighted: bool, data: Data, random: np.random.Generator) -> None:
    x, kinds, sizes = data
    weights = random.uniform(0, 2, 47).astype(np.float32) if weighted else np.ones(47, np.float32)
    trainer = trainer_of(metrics=METRICS, sample_weight=weighted)
    assert (
        trainer.loss.targets == ("kind_target", "sample_weight", "size_of") if weighted else ("kind_target", "size_of")
    )
    named = {"x": x, "kind_target": kinds, "size_of": sizes} | ({"sample_weight": weights} if weighted else {})
    results = trainer.evaluate(named, batch_size=10)
    outputs = trainer.predict(x)
    chosen, w = outputs["kind"].argmax(1), weights.astype(np.float64)
    powers = np.exp(outputs["kind"].astype(np.float64))
    cross_entropy = sklearn.log_loss(kinds, powers / powers.sum(1, keepdims=True), sample_weight=w)
    expected = {
        "loss": cross_entropy + 0.5 * sklearn.mean_squared_error(sizes, outputs["size"], sample_weight=w),
        "accuracy": sklearn.accuracy_score(kinds, chosen, sample_weight=w),
        "kind_f1": sklearn.f1_score(kinds, chosen, average="macro", sample_weight=w),
        "kind_top_2": sklearn.top_k_accuracy_score(kinds, outputs["kind"], k=2, sample_weight=w),
        "size_mae": sklearn.mean_absolute_error(sizes, outputs["size"], sample_weight=w),
        "size_r2": sklearn.r2_score(sizes, outputs["size"], sample_weight=w),
        "size_n": 47,
    }
    matrix = results.pop("kind_confusion_matrix")
    np.testing.assert_allclose(matrix, sklearn.confusion_matrix(kinds, chosen, sample_weight=w), rtol=1e-6)
    assert results == pytest.approx(expected, rel=1e-5)
    assert [name for name in results if "_" in name] == ["kind_f1", "kind_top_2", "size_mae", "size_r2", "size_n"]


def test_both_are_trained_and_measured_in_steps(data: Data) -> None:
    trainer = trainer_of(metrics={"kind": ["accuracy", "top_2"], "size": ["rmse"]}, train_metrics=True)
    before = trainer.parameters()
    history = trainer.fit(data, 3, 10, validation=0.3, patience=2, monitor="val_size_rmse", progress=False)
    assert {"train_kind_top_2", "train_size_rmse", "val_kind_accuracy", "val_size_rmse"} <= set(history.last)
    assert history.last["train_kind_accuracy"] == pytest.approx(history.last["train_accuracy"])
    assert not any(np.array_equal(array, before[name]) for name, array in trainer.parameters().items())
    again = pickle.loads(pickle.dumps(trainer))
    assert again.evaluate(data) == trainer.evaluate(data)


def test_a_dict_is_the_sum(data: Data) -> None:
    sum_of_both = gt.losses.softmax_cross_entropy("kind_target", "kind") + 0.5 * gt.losses.mse("size_of", "size")
    assert trainer_of().loss == sum_of_both
    single = trainer_of({"size": gt.losses.mse("t")}, trainable=["trunk.*", "size.*"], metrics=["r2"])
    assert single.loss == gt.losses.mse("t", "size")
    assert set(single.evaluate((data[0], data[2]))) == {"loss", "r2"}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["mse"], gt.losses.mse()),
        (["size=mse"], gt.losses.mse(output="size")),
        (["size=2*mse"], 2 * gt.losses.mse("size_target", "size")),
        (
            ["kind=softmax_cross_entropy", "size=0.5*mse", "size=l1"],
            gt.losses.softmax_cross_entropy("kind_target", "kind")
            + 0.5 * gt.losses.mse("size_target", "size")
            + gt.losses.l1("size_target", "size"),
        ),
    ],
)
def test_losses_as_the_command_line_has_them(texts: list[str], expected: gt.losses.Loss) -> None:
    assert losses_in(texts) == expected


@pytest.mark.parametrize(
    ("texts", "output", "expected"),
    [
        (["kind=nll", "mse"], None, "'mse' says of which it is not"),
        (["kind=nll"], "kind", "--output is of one loss"),
        (["kind=half*nll"], None, "kind=half[*]nll: 'half' is no number, as in kind=0.5[*]mse"),
        (["kind=hinge", "size=mse"], None, "'kind' must have a loss that compares one output"),
    ],
)
def test_texts_that_are_no_losses(texts: list[str], output: str | None, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        losses_in(texts, output)


def test_the_command_trains_and_measures_both(data: Data, tmp_path: Path) -> None:
    gt.save(two.bind({"batch": 8}), tmp_path / "two.onnx")
    np.savez(tmp_path / "data.npz", x=data[0], kind_target=data[1], size_target=data[2])
    said = done(
        *("train", tmp_path / "two.onnx", "--data", tmp_path / "data.npz", "--validation", "0.25", "--epochs", "2"),
        *("--loss", "kind=softmax_cross_entropy", "--loss", "size=0.5*mse", "--metric", "kind=f1"),
        *("--metric", "size=r2", "--out", tmp_path / "out.onnx", "--log", tmp_path / "log.jsonl"),
    )
    assert "val_kind_f1 " in said
    losses = {"kind": "softmax_cross_entropy", "size": 0.5 * gt.losses.mse("size_target")}
    same = gt.Trainer(gt.load(tmp_path / "two.onnx"), losses, "adam", metrics={"kind": ["f1"], "size": ["r2"]})
    history = same.fit(
        {"x": data[0], "kind_target": data[1], "size_target": data[2]}, 2, validation=0.25, progress=False
    )
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["val_size_r2"] for record in logged] == history["val_size_r2"]
    assert [record["val_loss"] for record in logged] == history["val_loss"]
    common = ("train", tmp_path / "two.onnx", "--data", tmp_path / "data.npz", "--out", tmp_path / "out.onnx")
    assert "say of which it is: OUTPUT=f1" in refused(*common, "--metric", "f1", "--metric", "kind=f1")
    (tmp_path / "part").mkdir()
    np.savez(tmp_path / "part" / "data.npz", x=data[0], kind_target=data[1])
    common = ("train", tmp_path / "two.onnx", "--data", tmp_path / "part" / "data.npz", "--out", tmp_path / "out.onnx")
    assert refused(*common, "--loss", "kind=nll", "--loss", "size=mse").endswith("no 'size_target' for the loss ")


def test_one_loss_says_what_is_not_trained() -> None:
    with pytest.warns(UntrainedWarning, match=r"does not depend on 'size.weight', 'size.bias'.*losses by their names"):
        trainer_of("softmax_cross_entropy")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loss": {}}, "the dict by outputs is empty"),
        ({"loss": {"knid": "mse"}}, "two has no output 'knid'; it has 'kind', 'size'"),
        ({"loss": {"kind": "triplet"}}, "'kind' must have a loss that compares one output with a target"),
        ({"loss": {"kind": 3}}, r"not 3 \(int\)"),
        ({"loss": {"kind": "mes"}}, "'kind' must have a loss that compares one output"),
        ({"metrics": {"knid": ["f1"]}}, r"no output 'knid' \(the nearest is 'kind'\)"),
        ({"metrics": {"size": ["f1"]}}, "'f1' is of scores of classes and labels or of logits"),
        ({"metrics": {"size": "mae"}}, "must be True, False or a list"),
        ({"metrics": {"kind": ["nope"]}}, "there is no metric 'nope'"),
        ({"metrics": ["f1"]}, r"'f1' must say of which output it is.*\{'output': \['f1'\]\}"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        trainer_of(**settings)
