"""The learning-rate range test: its curve and suggestion, the trainer that stays as it is, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import BatchError, InputError
from glowtrain.models import build
from glowtrain.trainer.rate_range import RateRange, smooth
from tests.cli.commands import done, refused

CURVATURE = 4.0


@gt.model(x=gt.f64["batch", 1])
def bowl(x: gt.Value) -> dict[str, gt.Value]:
    """A loss of curvature 4, where SGD converges below a rate of 0.5 and best at 0.25, whatever the batch."""
    w = gt.Variable("w", np.ones(3))
    return {"loss": 0.5 * CURVATURE * gt.nn.total(w * w) + 0.0 * gt.nn.total(x)}


def trainer_of(rule: gt.optim.Optimizer | None = None, **settings: Any) -> gt.Trainer:
    return gt.Trainer(bowl, "loss", rule or gt.optim.SGD(1e-3), backend="interpreter", **settings)


DATA = {"x": np.zeros((40, 1))}


def test_the_curve_is_that_of_steps_at_rising_rates() -> None:
    found = gt.find_learning_rate(trainer_of(), DATA, lowest=1e-4, highest=1.0, updates=61, batch_size=8)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-4, 1.0, 61)[: len(found.rates)], rtol=1e-9)
    loss = 0.5 * CURVATURE * 3
    for rate, seen in zip(found.rates, found.losses, strict=True):
        assert seen == pytest.approx(loss, rel=1e-6, abs=1e-300)
        loss *= (1 - CURVATURE * rate) ** 2
    assert found.suggestion is not None
    assert 0.002 < found.suggestion < 0.25
    assert f"suggested: {found.suggestion:.2g}>" in repr(found)


def test_divergence_ends_it() -> None:
    found = gt.find_learning_rate(trainer_of(), DATA, lowest=1e-2, highest=1e6, batch_size=8)
    assert found.stopped == "the loss diverged"
    assert 0.5 < found.rates[-1] < 1e5
    assert found.suggestion is not None
    assert found.suggestion < 0.5
    flat = gt.find_learning_rate(trainer_of(), DATA, lowest=1.0, highest=1e300, updates=4, batch_size=8)
    assert flat.stopped == "the loss is NaN or infinite"
    assert flat.suggestion is None


def test_the_trainer_stays_as_it_is() -> None:
    trainer = trainer_of(gt.optim.Adam(schedule=gt.optim.Cosine(30), weight_decay=1e-3), ema=0.9)
    trainer.fit(DATA, 2, 8, progress=False)
    trainer.hyper["weight_decay"] = 0.5
    before, hyper, records = trainer.variables(), dict(trainer.hyper), len(trainer.history)
    found = gt.find_learning_rate(trainer, DATA, batch_size=8)
    assert found.losses[0] == pytest.approx(trainer.evaluate(DATA)["loss"])
    assert all(array.tobytes() == before[name].tobytes() for name, array in trainer.variables().items())
    assert (dict(trainer.hyper), len(trainer.history)) == (hyper, records)
    assert trainer.position.epoch == 2


def test_accumulated_batches_have_one_rate() -> None:
    found = gt.find_learning_rate(trainer_of(gt.optim.SGD(accumulate=2)), DATA, updates=5, highest=1e-2, batch_size=8)
    assert len(found.rates) == 10
    assert found.rates[::2] == found.rates[1::2]
    assert len(set(found.rates)) == 5


def test_a_model_is_no_trainer() -> None:
    with pytest.raises(InputError, match=r"takes a gt.Trainer\(model, loss, optimizer\), not Template"):
        gt.find_learning_rate(build("mlp"), DATA)  # type: ignore[arg-type]


def test_loaders_and_generators() -> None:
    batches = [{"x": np.zeros((8, 1))}] * 6
    trainer, settings = trainer_of(), {"updates": 12, "highest": 1e-2}
    listed = gt.find_learning_rate(trainer, batches, **settings)
    assert listed.losses == gt.find_learning_rate(trainer, (batch for batch in batches * 2), **settings).losses
    assert len(listed.losses) == 12
    with pytest.raises(BatchError, match="12"):
        gt.find_learning_rate(trainer, (batch for batch in batches), **settings)


def test_smoothing_has_no_lag(random: np.random.Generator) -> None:
    line = np.linspace(5, 1, 50).tolist()
    np.testing.assert_allclose(smooth(line)[10:-10], line[10:-10])
    noisy = (np.array(line) + random.normal(size=50) / 5).tolist()
    assert np.std(np.diff(smooth(noisy))) < 0.3 * np.std(np.diff(noisy))
    assert max(smooth([1.0] * 20 + [1e30])) <= 4
    assert (smooth([]), smooth([2.0])) == ([], [2.0])


def test_nothing_is_suggested_where_nothing_falls() -> None:
    assert RateRange([0.1, 0.2, 0.3, 0.4], [1.0, 1.0, 1.0, 1.0], "").suggestion is None
    assert RateRange([], [], "").suggestion is None
    assert "none suggested" in repr(RateRange([], [], "all rates were tried"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lowest": 0.0}, "rates rise from above 0"),
        ({"lowest": 1.0, "highest": 0.1}, "rates rise from above 0, not from 1.0 to 0.1"),
        ({"highest": float("nan")}, "rates rise"),
        ({"updates": 1}, "updates must be a whole number of at least 2"),
        ({"updates": 2.5}, "updates must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        gt.find_learning_rate(trainer_of(), DATA, **settings)


def test_a_picture(tmp_path: Path) -> None:
    found = gt.find_learning_rate(trainer_of(), DATA, batch_size=8)
    assert found.plot(tmp_path / "a.png")._repr_png_() == found.plot()._repr_png_()  # type: ignore[attr-defined]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    found.plot(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert all(
        each in text
        for each in (">learning rate<", ">each batch<", ">smoothed<", f">suggested: {found.suggestion:.2g}<")
    )
    assert ">0.01<" in text
    with pytest.raises(InputError, match="no rate was tried, so there is nothing to draw: the loss is NaN"):
        RateRange([], [], "the loss is NaN").plot()
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        found.plot(tmp_path / "a.gif")


@pytest.mark.exhaustive
def test_the_command(tmp_path: Path) -> None:
    picture, model = tmp_path / "a.png", tmp_path / "m.onnx"
    said = done("train", "mlp", "--data", "digits", "--find-lr", "--plot", picture, "--batch-size", "32")
    assert "suggested: --lr 0.0" in said
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [*tmp_path.iterdir()] == [picture]
    assert "trains nothing, so nothing is written for --log" in refused(
        "train", "mlp", "--data", "digits", "--find-lr", "--log", tmp_path / "log.jsonl"
    )
    for wrong in (("--find-lr", "--out", model), ()):
        assert "--out" in refused("train", "mlp", "--data", "digits", *wrong, status=2)
