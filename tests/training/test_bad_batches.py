"""What is said of batches that do not fit: which one, of which epoch, and what is kept from before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import BatchError
from glowtrain.ops.indexing.gather import Gather
from glowtrain.trainer.fitting import pace
from tests.training.loaders import FakeTensor, bits, cut
from tests.training.trainers import Points, trainer_of


def bad(points: Points, number: int, change: Callable[[np.ndarray, np.ndarray], Any]) -> list[Any]:
    """Batches of which one, counted from 1, is another."""
    batches: list[Any] = cut(points)
    batches[number - 1] = change(*batches[number - 1])
    return batches


WRONG: dict[str, tuple[Callable[[np.ndarray, np.ndarray], Any], str]] = {
    "dtype": (
        lambda x, y: (x.astype(np.float64), y),
        r"'x' is float64\[4,6\], where float32\[\*,6\] is expected, as in the first batch",
    ),
    "dtype of targets": (
        lambda x, y: (x, y.astype(np.int32)),
        r"'labels' is int32\[4\], where int64\[\*\] is expected",
    ),
    "shape": (lambda x, y: (x[:, :5], y), r"'x' is float32\[4,5\], where float32\[\*,6\] is expected"),
    "rank": (lambda x, y: (x, y[:, None]), r"'labels' is int64\[4,1\], where int64\[\*\] is expected"),
    "fewer labels": (lambda x, y: (x, y[:3]), r"'labels' must be i64\[4\], not int64\[3\]"),
    "a label out of range": (lambda x, y: (x, y + 3), r"'labels' must hold classes from 0 to 2"),
    "too many arrays": (
        lambda x, y: (x, y, y),
        "the batch has 3 arrays, but the model and its loss take 'x', 'labels'",
    ),
    "names": (lambda x, y: {"x": x, "z": y}, "data has 'x', 'z', but the model and its loss take 'x', 'labels'"),
    "no batch": (lambda x, y: 7, "the batch is a int, but"),
    "no examples": (lambda x, y: (x[:0], y[:0]), "the batch has no examples"),
    "ragged": (lambda x, y: ([[1.0], [1.0, 2.0]], y), "'x' cannot be read as an array"),
    "on a GPU": (
        lambda x, y: (FakeTensor(x, device="cuda:0"), y),
        r"'x' is a tensor on cuda:0, but glowtrain computes on the CPU: give it .cpu\(\) of it",
    ),
    "requires grad": (
        lambda x, y: (FakeTensor(x, requires_grad=True), y),
        r"'x' is a tensor that requires grad.*: give it .detach\(\) of it",
    ),
}

OF_INPUTS = ("dtype", "shape", "no batch", "no examples", "ragged", "on a GPU", "requires grad")


@pytest.mark.spread(8)
@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("what", WRONG)
def test_a_batch_that_does_not_fit_is_named(
    mlp: gt.Template, points: Points, what: str, prefetch: int | None, tmp_path: Path
) -> None:
    """The batches before it are trained on, and the last checkpoint is whole."""
    change, message = WRONG[what]
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    trainer.fit(cut(points), 1, progress=False, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(BatchError, match=f"epoch 2, batch 4: .*({message})") as told:
        trainer.fit(bad(points, 4, change), 1, progress=False, checkpoint=path, prefetch=prefetch)
    assert str(told.value).endswith(f"; the parameters are from before it, and {path} holds the last good checkpoint")
    assert (told.value.epoch, told.value.batch) == (2, 4)
    stepped = trainer_of(mlp)
    for x, y in cut(points) + cut(points)[:3]:
        stepped.step({"x": x, "labels": y})
    assert bits(trainer) == bits(stepped)
    assert (trainer.position.epoch, trainer.position.batch, trainer.whole) == (1, 3, True)
    assert path.read_bytes() == before
    for measure in (trainer.evaluate, trainer.predict) if what in OF_INPUTS else (trainer.evaluate,):
        with pytest.raises(BatchError, match=f"^batch 4: .*({message})") as told:
            measure(bad(points, 4, change), prefetch=prefetch)
        assert (told.value.epoch, told.value.batch) == (None, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, :5], y), r"'x' must be f32\[batch,6\], not float32\[4,5\]"),
        (lambda x, y: (x.astype(str), y), r"'x' must be f32\[batch,6\], not <U32\[4,6\]; convert it"),
        (lambda x, y: (x, y.astype(np.float32)), "'labels' must be i64"),
    ],
)
def test_the_first_batch_must_be_what_the_inputs_take(
    mlp: gt.Template, points: Points, change: Callable[..., Any], message: str
) -> None:
    with pytest.raises(BatchError, match=f"epoch 1, batch 1: .*{message}"):
        trainer_of(mlp).fit(bad(points, 1, change), 1, progress=False)


def test_what_the_first_batch_was_holds_for_all_epochs(mlp: gt.Template, points: Points) -> None:
    def by_epoch(epoch: int) -> Any:
        return bad(points, 2, lambda x, y: (x.astype(np.float64), y)) if epoch else cut(points)

    with pytest.raises(BatchError, match=r"epoch 2, batch 2: 'x' is float64"):
        trainer_of(mlp).fit(by_epoch, 2, progress=False)


def test_a_bad_batch_in_a_row_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the native call finds: an index out of range is told with its own batch's number."""

    @gt.model(x=gt.f32["batch", 4], pick=gt.i64["batch"])
    def model(x: gt.Value, pick: gt.Value) -> gt.Value:
        return gt.nn.linear(Gather(axis=0)(x, pick), 1)

    monkeypatch.setattr(pace, "SECONDS", 1e3)
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal((4, 4), np.float32), rng.integers(0, 4, 4), rng.standard_normal((4, 1), np.float32))
        for _ in range(40)
    ]
    batches[29][1][2] = 9
    fitted, stepped = (trainer_of(model, "cpu", loss="mse") for _ in range(2))
    with pytest.raises(BatchError, match=r"epoch 1, batch 30: .*'pick' must hold numbers .* has 9 at \[2\]"):
        fitted.fit(batches, 1, progress=False)
    for x, pick, y in batches[:29]:
        stepped.step({"x": x, "pick": pick, "target": y})
    assert bits(fitted) == bits(stepped)


def test_a_loss_that_is_not_finite_is_told_as_for_arrays(mlp: gt.Template, points: Points) -> None:
    x, y = points[0].copy(), points[1]
    x[14, 1] = np.nan
    messages = []
    for source, size in (((x, y), 4), (cut((x, y)), None)):
        with pytest.raises(gt.errors.NonFiniteError) as told:
            trainer_of(mlp, "cpu").fit(source, 1, size, shuffle=False, progress=False)
        messages.append(str(told.value))
    assert messages[0] == messages[1]
    assert "(epoch 1, batch 4)" in messages[0]


def test_validation_from_a_loader_that_fails(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """It is the validation that is named, and the parameters are those of the epoch."""
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    batches = bad(points, 4, lambda x, y: (x.astype(np.float64), y))
    with pytest.raises(BatchError, match=r"^validation of epoch 1, batch 4: 'x' is float64\[4,6\]") as told:
        trainer.fit(points, 2, 4, batches, checkpoint=path, progress=False)
    assert "from before it" not in str(told.value)
    assert not path.exists()
    assert trainer.position.batch == 6
