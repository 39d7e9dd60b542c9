"""What can be set in a trainer beside its data: parameters, the rate, what stays frozen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from tests.training.trainers import Points, images, trainer_of


def test_parameters_can_be_set_from_a_dict(mlp: gt.Template, points: Points) -> None:
    first, second = trainer_of(mlp), trainer_of(mlp)
    first.fit(points, 2, 8)
    second.set_variables({name: array.astype(np.float64) for name, array in first.parameters().items()})
    np.testing.assert_array_equal(second.predict(points[0])["output"], first.predict(points[0])["output"])
    assert second.variables()["optimizer.step"] == 0
    before = second.parameters()
    good = np.ones_like(before["second.bias"])
    for wrong, message in (
        ({"second.bais": good}, r"no variable 'second.bais' \(the nearest is 'second.bias'\)"),
        ({"second.bias": good, "first.bias": good}, r"'first.bias' is f32\[8\], not float32\[3\]"),
        ({"second.bias": good, "first.bias": np.array(["a"] * 8)}, "'first.bias' is f32.8., not <U1"),
    ):
        with pytest.raises(gt.GlowtrainError, match=message):
            second.set_variables(wrong)
    for name, array in second.parameters().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_rate_can_be_set(mlp: gt.Template, points: Points) -> None:
    by_name, by_hyper = trainer_of(mlp), trainer_of(mlp)
    by_name.lr = 0.1
    by_hyper.hyper["lr"] = 0.1
    assert by_name.lr == by_name.hyper["lr"] == 0.1
    assert by_name.fit(points, 2, 8).loss == by_hyper.fit(points, 2, 8).loss != trainer_of(mlp).fit(points, 2, 8).loss
    with pytest.raises(InputError, match="lr must be"):
        by_name.lr = -1.0


def test_the_log_has_the_rate_of_each_epoch(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    optimizer = gt.optim.SGD(lr=0.5, schedule=gt.optim.Warmup(2) * gt.optim.Exponential(0.9))
    trainer_of(mlp, optimizer=optimizer).fit(points, 3, 8, log=log)  # 3 updates an epoch
    rates = [json.loads(line)["lr"] for line in log.read_text().splitlines()]
    assert rates == pytest.approx([0.5 * 0.9**2, 0.5 * 0.9**5, 0.5 * 0.9**8])
    constant = trainer_of(mlp, optimizer=gt.optim.SGD(lr=0.5))
    assert constant.fit(points, 2, 8)["lr"] == [0.5, 0.5]


def test_accuracy_of_training_is_the_mean_over_examples(
    mlp: gt.Template, points: Points, backend: str, tmp_path: Path
) -> None:
    """Parameters that no step changes: the accuracy is that of the model on all 22 examples."""
    trainer = trainer_of(mlp, backend, optimizer=gt.optim.SGD(lr=0.0), metrics=True)
    history = trainer.fit(points, 2, 8, log=tmp_path / "log.jsonl")
    right = trainer.predict(points[0])["output"].argmax(1) == points[1]
    assert history["train_accuracy"] == pytest.approx([right.mean()] * 2)
    logged = [json.loads(line)["train_accuracy"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged == history["train_accuracy"]
    trainer.step({"x": points[0][:5], "labels": points[1][:5]})
    assert trainer.measured == pytest.approx({"accuracy": right[:5].mean()})


def test_accuracy_of_training_is_measured_where_it_is_asked_for(mlp: gt.Template, points: Points) -> None:
    plain, measured = trainer_of(mlp, "cpu"), trainer_of(mlp, "cpu", metrics=True)
    assert plain.fit(points, 3, 8).loss == measured.fit(points, 3, 8).loss
    assert (plain.measured, plain.history["train_accuracy"]) == ({}, [])
    assert list(plain.graph.outputs) == ["loss"]
    assert list(measured.graph.outputs) == ["loss", "accuracy"]
    assert "accuracy" not in str(trainer_of(mlp, loss=gt.losses.mse(), metrics=True).graph)


# --- frozen BatchNormalization ---------------------------------------------------------------------------------------


def _statistics(trainer: gt.Trainer) -> dict[str, np.ndarray]:
    return {name: trainer.variables()[f"batch_norm.{name}"] for name in ("mean", "variance")}


@pytest.mark.spread(2)
@pytest.mark.parametrize("frozen", [False, True])
def test_running_statistics_of_a_frozen_trunk(cnn: gt.Template, points: Points, frozen: bool, backend: str) -> None:
    first = trainer_of(cnn, backend)
    first.fit(images(points), 2, 8)
    trainer = trainer_of(first.model(), backend, trainable="linear.*", freeze_statistics=frozen)
    before = _statistics(trainer)
    trainer.fit(images(points), 2, 8)
    same = all(np.array_equal(array, before[name]) for name, array in _statistics(trainer).items())
    assert same == frozen


def test_a_frozen_layer_computes_as_in_inference(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 1, 4, 4])
    def normal(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.flatten(gt.nn.batch_norm(x)), 3)

    x, y = images(points)
    trainer = trainer_of(normal, trainable="linear.*", freeze_statistics=True)
    trainer.set_variables({"batch_norm.mean": [0.5], "batch_norm.variance": [4.0]})
    assert trainer.step({"x": x, "labels": y}) == pytest.approx(trainer_loss(trainer, x, y), rel=1e-5)


def trainer_loss(trainer: gt.Trainer, x: np.ndarray, y: np.ndarray) -> float:
    """The loss before the one step that was made, by the inference form."""
    other = trainer_of(trainer.graphs.model)
    other.set_variables({name: array for name, array in trainer.variables().items() if name.startswith("batch_norm")})
    return other.evaluate((x, y))["loss"]


def test_trained_normalization_goes_on_adapting(cnn: gt.Template, points: Points) -> None:
    for trainable in (None, ["batch_norm.scale", "linear.*"]):
        trainer = trainer_of(cnn, trainable=trainable, freeze_statistics=True)
        before = _statistics(trainer)
        trainer.fit(images(points), 1, 8)
        assert (_statistics(trainer)["mean"] != before["mean"]).any()
