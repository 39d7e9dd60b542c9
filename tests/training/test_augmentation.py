"""Augmentation: what each does to examples, that nothing but seed, epoch and example decides, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.data import Augmentation, Crop, CutMix, ExampleDraws, Flip, MixUp, Noise
from glowtrain.errors import InputError
from glowtrain.types import Array

ALL = (Flip(), Flip("vertical", 0.25), Crop(2), Noise(0.1), MixUp(0.4), CutMix())
COUNT = 37


def draw(numbers: Sequence[int] | Array, epoch: int = 0, stream: int = 0, seed: int = 7) -> ExampleDraws:
    return ExampleDraws(seed, epoch, stream, np.asarray(numbers))


def images(count: int = COUNT) -> dict[str, Array]:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, count)
    return {"x": random.standard_normal((count, 2, 6, 5)).astype(np.float32), "y": np.eye(3, dtype=np.float32)[labels]}


def test_flips_mirror_some_images_whole() -> None:
    found = Flip("horizontal", 0.5)(images(400), ["x"], draw(range(400)))["x"]
    x = images(400)["x"]
    mirrored = [np.array_equal(a, b[..., ::-1]) for a, b in zip(found, x, strict=True)]
    same = [np.array_equal(a, b) for a, b in zip(found, x, strict=True)]
    assert np.logical_xor(mirrored, same).all()
    assert 150 < sum(mirrored) < 250
    assert np.array_equal(Flip("vertical", 1.0)(images(), ["x"], draw(range(COUNT)))["x"], images()["x"][:, :, ::-1])
    assert np.array_equal(Flip(probability=0.0)(images(), ["x"], draw(range(COUNT)))["x"], images()["x"])


def test_crops_shift_by_up_to_the_padding_in_all_directions() -> None:
    x = np.arange(1, 31, dtype=np.float32).reshape(1, 1, 6, 5).repeat(500, axis=0)
    found = Crop(1, value=-1.0)({"x": x}, ["x"], draw(range(500)))["x"]
    padded = np.pad(x[0, 0], 1, constant_values=-1)
    possible = [padded[down : down + 6, right : right + 5] for down in range(3) for right in range(3)]
    counts = [sum(np.array_equal(each[0], image) for each in found) for image in possible]
    assert sum(counts) == 500
    assert min(counts) > 30


def test_masks_follow_their_images() -> None:
    arrays = {"x": images()["x"], "mask": (images()["x"][:, 0] > 0).astype(np.int64)}
    for each in (Flip(), Flip("vertical"), CutMix()):
        found = each(arrays, ["x"], draw(range(COUNT)))
        assert np.array_equal(found["mask"], found["x"][:, 0] > 0)
        assert not np.array_equal(found["mask"], arrays["mask"])
    inside = Crop(2)(arrays, ["x"], draw(range(COUNT)))
    assert np.array_equal(inside["mask"][:, 2:4, 2:3], inside["x"][:, 0, 2:4, 2:3] > 0)


def test_noise_is_normal_and_of_all_inputs() -> None:
    zeros = {name: np.zeros((500, 4, 5), np.float32) for name in ("a", "b")} | {"y": np.zeros(500, np.float32)}
    found = Noise(0.5)(zeros, ["a", "b"], draw(range(500)))
    values = np.stack([found["a"], found["b"]]).reshape(2, -1)
    assert np.abs(values.mean(axis=1)).max() < 0.02
    assert np.abs(values.std(axis=1) - 0.5).max() < 0.02
    assert abs(np.corrcoef(values)[0, 1]) < 0.05
    assert 0.04 < (np.abs(values) > 1).mean() < 0.051  # 4.55 % are beyond two deviations
    assert not found["y"].any()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    found = draw(range(20000)).beta(alpha)
    expected = np.random.default_rng(0).beta(alpha, alpha, 100000)
    quantiles = np.linspace(0.05, 0.95, 19)
    assert np.abs(np.quantile(found, quantiles) - np.quantile(expected, quantiles)).max() < 0.02


def test_mixup_takes_shares_of_pairs() -> None:
    found, whole, share = MixUp(0.4)(images(), ["x"], draw(range(COUNT))), images(), draw(range(COUNT)).beta(0.4)
    for number in range(COUNT):
        partner = min(number ^ 1, COUNT - 1)
        for name, array in whole.items():
            expected = share[number] * array[number] + (1 - share[number]) * array[partner]
            assert np.allclose(found[name][number], expected, atol=1e-6)
    assert np.allclose(found["y"].sum(axis=1), 1)


def test_cutmix_pastes_rectangles_and_mixes_targets_by_their_areas() -> None:
    found, whole = CutMix()(images(200), ["x"], draw(range(200))), images(200)
    areas = []
    for number in range(200):
        partner = number ^ 1
        pasted = (found["x"][number] == whole["x"][partner]).all(axis=0)
        rows, columns = pasted.any(axis=1), pasted.any(axis=0)
        assert np.array_equal(pasted, rows[:, None] & columns)
        assert np.array_equal(found["x"][number][:, ~pasted], whole["x"][number][:, ~pasted])
        areas.append(pasted.mean())
        expected = (1 - areas[-1]) * whole["y"][number] + areas[-1] * whole["y"][partner]
        assert np.allclose(found["y"][number], expected, atol=1e-6)
    assert 0.2 < np.mean(areas) < 0.5
    assert len(np.unique(areas)) > 8


@pytest.mark.parametrize("each", ALL, ids=str)
def test_only_seed_epoch_stream_and_number_decide(each: Augmentation) -> None:
    whole = each(images(), ["x"], draw(range(COUNT)))
    part = each({name: array[10:20] for name, array in images().items()}, ["x"], draw(range(10, 20)))
    for name, array in part.items():
        assert np.array_equal(array, whole[name][10:20])
    for other in (draw(range(COUNT), epoch=1), draw(range(COUNT), stream=1), draw(range(COUNT), seed=8)):
        assert not np.array_equal(each(images(), ["x"], other)["x"], whole["x"])


def test_draws_are_the_same_in_every_release() -> None:
    assert draw([0, 5, 2**40]).integers(2).tolist() == [
        [8585400256167245584, 13310186647495392141],
        [4621133370438858743, 16466208000510157702],
        [5629153058799258797, 13215821503176367162],
    ]


@gt.model(x=gt.f32["batch", 2, 6, 5])
def net(x: gt.Value) -> dict[str, gt.Value]:
    return {"scores": gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 8)), 0.1), 3)}


def trainer(loss: str = "soft_target_cross_entropy", seed: int = 2, **settings: Any) -> gt.Trainer:
    return gt.Trainer(net, loss, gt.optim.SGD(0.1), seed=seed, **settings)


def labelled() -> tuple[Array, Array]:
    return images()["x"], images()["y"].argmax(axis=1)


@dataclass(frozen=True)
class Spy(Augmentation):
    """Keeps what it is given, by number of the example."""

    seen: dict[tuple[int, int], Array]

    def __call__(self, arrays: Any, inputs: Any, draw: ExampleDraws) -> dict[str, Array]:
        for number, x in zip(draw.numbers, arrays["x"], strict=True):
            self.seen[draw.epoch, int(number)] = x
        return dict(arrays)


def test_batch_size_threads_and_prefetching_change_nothing() -> None:
    found: list[dict[tuple[int, int], Array]] = []
    for size, options in ((8, {}), (5, {"threads": 1}), (64, {"prefetch": 0}), (3, {"prefetch": 4})):
        found.append({})
        prefetch = options.pop("prefetch", None)
        trainer(**options).fit(labelled(), 2, size, augment=[*ALL, Spy(found[-1])], prefetch=prefetch, progress=False)
    for other in found[1:]:
        assert other.keys() == found[0].keys() == {(epoch, number) for epoch in (0, 1) for number in range(COUNT)}
        assert all(np.array_equal(array, found[0][key]) for key, array in other.items())


def test_shards_are_augmented_as_arrays_are(tmp_path: Path) -> None:
    x, y = labelled()
    for number, part in enumerate(np.array_split(np.arange(COUNT), 3)):
        np.save(tmp_path / f"x-{number}.npy", x[part])
        np.save(tmp_path / f"y-{number}.npy", y[part])
    one, other = trainer(), trainer()
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "shuffle": False, "augment": ALL, "progress": False}
    one.fit((x, y), **options)
    other.fit(gt.data.shards(tmp_path), **options)
    assert all(array.tobytes() == other.variables()[name].tobytes() for name, array in one.variables().items())


@pytest.mark.parametrize("size", [7, 8])
def test_a_run_goes_on_to_the_same_bits(tmp_path: Path, size: int) -> None:
    whole, stopped, again = trainer(), trainer(), trainer()
    options: dict[str, Any] = {"epochs": 3, "batch_size": size, "augment": ALL, "progress": False}
    whole.fit(labelled(), **options)

    def stop(moment: gt.callbacks.Moment) -> None:
        if (moment.epoch, moment.batch) == (2, 3):
            moment.stop("enough")

    options["checkpoint"] = tmp_path / "run.safetensors"
    stopped.fit(labelled(), callbacks=[stop], **options)
    again.fit(labelled(), resume=True, **options)
    assert all(array.tobytes() == again.variables()[name].tobytes() for name, array in whole.variables().items())


def test_validation_is_never_augmented() -> None:
    one = trainer()
    history = one.fit(labelled(), 1, validation=labelled(), augment=[Noise(100.0)], progress=False)
    measured = one.evaluate(labelled())
    assert history.last["val_loss"] == measured["loss"]


def test_names_stand_for_augmentations() -> None:
    one, other = trainer(), trainer()
    one.fit(labelled(), augment=["flip=vertical", "crop=2", "noise", "mixup=0.4"], progress=False)
    other.fit(labelled(), augment=(Flip("vertical"), Crop(2), Noise(), MixUp(0.4)), progress=False)
    assert all(array.tobytes() == other.variables()[name].tobytes() for name, array in one.variables().items())


def test_soft_targets_and_labels_give_the_same_loss() -> None:
    x, labels = labelled()
    soft, hard = trainer(), trainer("softmax_cross_entropy")
    found, expected = soft.evaluate((x, labels)), hard.evaluate((x, labels))
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert soft.evaluate((x, images()["y"])) == found
    shares = np.random.default_rng(3).dirichlet([1, 1, 1], COUNT).astype(np.float32)
    scores = soft.predict(x)["scores"].astype(np.float64)
    log_prob = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    assert soft.evaluate((x, shares))["loss"] == pytest.approx(-(shares * log_prob).sum(axis=1).mean(), rel=1e-5)
    assert trainer().fit([(x[:5], labels[:5])], 1, progress=False).last["loss"] > 0


@pytest.mark.parametrize(
    ("augment", "loss", "message"),
    [
        (["mixup"], "softmax_cross_entropy", r"MixUp\(alpha=0.2\) mixes targets, and 'labels' is int64: .*soft_target"),
        (["cutmix"], "softmax_cross_entropy", r"CutMix\(alpha=1.0\) mixes targets"),
        (["blur"], "soft_target_cross_entropy", r"no 'blur': choose from flip, crop, noise"),
        (["crop=two"], "soft_target_cross_entropy", r"'crop=two': padding is a number, as in crop=4"),
        (["crop=0"], "soft_target_cross_entropy", r"Crop takes a padding of at least one pixel"),
        (["flip=upside"], "soft_target_cross_entropy", r'Flip takes direction "horizontal" or "vertical"'),
        (["mixup=0"], "soft_target_cross_entropy", r"MixUp takes an alpha above 0"),
        (["noise=nan"], "soft_target_cross_entropy", r"Noise takes a standard deviation"),
        (3, "soft_target_cross_entropy", r"augment is a list of augmentations"),
    ],
)
def test_what_does_not_fit_is_said_before_training(augment: Any, loss: str, message: str) -> None:
    one = trainer(loss)
    before = one.variables()
    with pytest.raises(InputError, match=message):
        one.fit(labelled(), augment=augment, progress=False)
    assert all(np.array_equal(array, before[name]) for name, array in one.variables().items())


def test_batches_and_other_inputs_are_refused() -> None:
    with pytest.raises(InputError, match=r"augment= is for arrays, images and shards"):
        trainer().fit([labelled()], augment=["flip"], progress=False)

    @gt.model(x=gt.f32["batch", 4])
    def rows(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3)

    flat = gt.Trainer(rows, "mse", gt.optim.SGD())
    examples = np.zeros((6, 4), np.float32), np.zeros((6, 3), np.float32)
    with pytest.raises(InputError, match=r"Flip.* is for images \[batch, channels, height, width\]"):
        flat.fit(examples, augment=["flip"], progress=False)
    flat.fit(examples, augment=["noise", "mixup"], progress=False)


def test_labels_out_of_range_are_named() -> None:
    x, labels = labelled()
    with pytest.raises(InputError, match=r"'labels' must be classes from 0 to 2 .*, but is 3 at \[0\]"):
        trainer().fit((x, np.where(np.arange(COUNT) == 0, 3, labels)), progress=False)
    with pytest.raises(InputError, match=r"'labels' holds -1 to 2, but labels are from 0 to 2"):
        trainer().step({"x": x, "labels": np.where(np.arange(COUNT) == 0, -1, labels)})
    with pytest.raises(InputError, match=r"must be probabilities for soft_target_cross_entropy, but is 1.5"):
        trainer().step({"x": x, "labels": images()["y"] * np.float32(1.5)})


def test_the_command_line(tmp_path: Path) -> None:
    call = ["train", "cnn", "--data", "digits", "--epochs", "1", "--out", str(tmp_path / "net.onnx")]
    augment = ["--augment", "crop=1", "--augment", "mixup=0.2"]
    refused = CliRunner().invoke(app, [*call, *augment])
    assert refused.exit_code == 1
    assert "soft_target_cross_entropy" in refused.output
    result = CliRunner().invoke(app, [*call, *augment, "--loss", "soft_target_cross_entropy"])
    assert result.exit_code == 0, result.output
