"""Folders of images by class: pixels, sizes, channels, classes in saved models, and what is wrong with files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.datasets import images
from glowtrain.errors import BatchError, DataError, MissingExtraError
from glowtrain.types import Array


def pixels(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def store(path: Path, array: Array, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Bright and dark images, six of each."""
    folder = tmp_path / "photos"
    for number in range(6):
        store(folder / "night" / f"{number}.png", pixels(number, 8, 6, 3) // 4)
        store(folder / "day" / "more" / f"{number}.bmp", 255 - pixels(number, 8, 6, 3) // 4)
    (folder / "night" / "notes.txt").write_text("cold")
    (folder / ".cache").mkdir()
    (folder / "empty").mkdir()
    return folder


def test_pixels_and_classes(photos: Path) -> None:
    found = gt.data.load(photos)
    assert found.classes == ("day", "night")
    assert (found.x.dtype, found.x.shape) == (np.float32, (12, 3, 8, 6))
    assert found.y.tolist() == [0] * 6 + [1] * 6
    for number in range(6):
        dark = (pixels(number, 8, 6, 3) // 4).transpose(2, 0, 1)
        assert np.array_equal(found.x[6 + number], dark.astype(np.float32) / np.float32(255))


def test_grey_where_all_are(tmp_path: Path) -> None:
    store(tmp_path / "a" / "0.png", pixels(0, 4, 4))
    store(tmp_path / "b" / "0.png", pixels(1, 4, 4))
    assert gt.data.images(tmp_path).x.shape == (2, 1, 4, 4)
    assert gt.data.images(tmp_path, channels=3).x.shape == (2, 3, 4, 4)
    store(tmp_path / "b" / "1.png", pixels(2, 4, 4, 4))
    found = gt.data.images(tmp_path)
    assert found.x.shape == (3, 3, 4, 4)
    assert np.array_equal(found.x[2], pixels(2, 4, 4, 4)[..., :3].transpose(2, 0, 1) / np.float32(255))
    assert gt.data.images(tmp_path, channels=1).x.shape == (3, 1, 4, 4)


def test_resizing_stretches_to_height_and_width(tmp_path: Path) -> None:
    store(tmp_path / "a" / "0.png", np.repeat(np.repeat(pixels(0, 2, 3), 4, axis=0), 4, axis=1))
    store(tmp_path / "a" / "1.png", np.full((5, 9), 77, np.uint8))
    found = gt.data.images(tmp_path, size=(2, 3))
    assert found.x.shape == (2, 1, 2, 3)
    assert np.abs(found.x[0, 0] * 255 - pixels(0, 2, 3)).mean() < 16  # neighbours count a little
    assert np.array_equal(found.x[1, 0], np.full((2, 3), 77, np.float32) / np.float32(255))
    assert gt.data.images(tmp_path, size=4).x.shape == (2, 1, 4, 4)


def test_the_way_up_is_followed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter
    store(tmp_path / "a" / "0.png", pixels(0, 2, 3), exif=exif)
    assert np.array_equal(gt.data.images(tmp_path).x[0, 0] * 255, np.rot90(pixels(0, 2, 3), -1))


def test_two_parts(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for name in "ab":
            for number in range(count):
                store(tmp_path / part / name / f"{number}.png", pixels(number, 5, 5))
    found = gt.data.images(tmp_path)
    assert (len(found), len(found.valid["x"])) == (6, 2)
    store(tmp_path / "val" / "c" / "0.png", pixels(0, 5, 5))
    with pytest.raises(DataError, match=r"val: 'c' is none of the classes that are trained on: 'a', 'b'"):
        gt.data.images(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda path: store(path, pixels(0, 9, 6, 3)),
            r"0.png is 9x6, but .*0.bmp is 8x6: give the size .*--image-size",
        ),
        (cut, r"night/0.png: cannot be read as an image: .*truncated"),
        (lambda path: path.write_bytes(b""), r"night/0.png: cannot be read as an image"),
        (lambda path: path.write_text("<svg/>"), r"night/0.png: cannot be read as an image: cannot identify"),
        (lambda path: store(path, pixels(0, 8, 6).astype(np.uint16)), r"night/0.png: pixels of mode 'I;16'.* 8-bit"),
    ],
)
def test_files_that_do_not_fit_are_named(photos: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(photos / "night" / "0.png")
    with pytest.raises(DataError, match=message):
        gt.data.images(photos)


@pytest.mark.parametrize(("size", "channels"), [(0, None), ((1, 2, 3), None), ("8", None), (None, 2), (2.5, None)])
def test_sizes_and_channels_that_cannot_be(photos: Path, size: object, channels: int | None) -> None:
    with pytest.raises(DataError, match=r"size of images is|have 1 channel"):
        gt.data.images(photos, size, channels=channels)  # type: ignore[arg-type]


def test_folders_without_images(tmp_path: Path) -> None:
    store(tmp_path / "0.png", pixels(0, 4, 4))
    with pytest.raises(DataError, match=r"there are no images; they are expected in a folder for each class"):
        gt.data.load(tmp_path)
    with pytest.raises(DataError, match=r"none: cannot be read: No such file"):
        gt.data.images(tmp_path / "none")


def test_more_images_than_memory_are_decoded_batch_by_batch(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of images in memory."""

    @gt.model(x=gt.f32["batch", 3, 8, 6])
    def net(x: gt.Value) -> dict[str, gt.Value]:
        return {"scores": gt.nn.linear(gt.nn.flatten(x), 2)}

    there = gt.data.images(photos)
    monkeypatch.setattr(images, "IN_MEMORY", 1000)
    found = gt.data.images(photos)
    assert isinstance(found.x, images.ImageFiles)
    assert np.array_equal(found.x[[7, 2, 2]], there.x[[7, 2, 2]])
    first, second = (gt.Trainer(net, "softmax_cross_entropy", "adam", backend="interpreter") for _ in range(2))
    for trainer, examples in ((first, there), (second, found)):
        trainer.fit(examples, 2, 5, validation=0.25, augment=["flip"], progress=False)
    assert first.history.deterministic() == second.history.deterministic()
    assert first.evaluate(there) == second.evaluate(found)
    assert np.array_equal(first.predict(there)["scores"], second.predict(found)["scores"])
    store(photos / "night" / "3.png", pixels(3, 4, 4, 3))
    with pytest.raises(BatchError, match=r"3.png is 4x4, but .*0.bmp is 8x6"):
        second.fit(found, 1, 5, progress=False)


def test_without_pillow_the_extra_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"reading images needs Pillow: pip install -e '.\[images\]'"):
        gt.data.images(photos)


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_line_keeps_the_classes(photos: Path, tmp_path: Path) -> None:
    store(photos / "night" / "tall.png", pixels(9, 20, 6, 3) // 4)
    command = ("train", "cnn", "--data", photos, "--epochs", 8, "--batch-size", 4, "--out", tmp_path / "net.onnx")
    status, said = call(*command)
    assert status == 1
    assert "--image-size HxW" in said
    assert not (tmp_path / "net.onnx").exists()
    status, said = call(*command, "--image-size", "8x6", "--channels", 1)
    assert status == 0, said
    model = onnx.load(tmp_path / "net.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["glowtrain.classes"]) == ["day", "night"]
    assert [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim[1:]] == [1, 8, 6]
    (photos / "day").rename(photos / "noon")
    trained = ("train", tmp_path / "net.onnx", "--data", photos, "--image-size", "8x6", "--channels", 1)
    status, said = call(*trained, "--out", tmp_path / "again.onnx")
    assert status == 1
    assert "'noon' is none of the classes that are trained on: 'day', 'night'" in said


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("digits", ["--image-size", "8"], "--image-size and --channels are for folders of images, which digits is not"),
        ("photos", ["--image-size", "8 by 8"], "--image-size 8 by 8: write HEIGHTxWIDTH"),
        ("photos", ["--drop", "a"], "--drop leaves columns of a table out"),
    ],
)
def test_options_that_do_not_fit(photos: Path, data: str, options: list[str], message: str) -> None:
    status, said = call(
        "train", "cnn", "--data", photos if data == "photos" else data, *options, "--out", photos / "n.onnx"
    )
    assert status == 1
    assert message in said


def test_other_images_are_numbered_by_the_classes_of_those_trained_on(photos: Path, tmp_path: Path) -> None:
    classes = gt.data.images(photos).classes
    store(tmp_path / "more" / "night" / "0.png", pixels(0, 8, 6, 3))
    assert gt.data.images(tmp_path / "more", classes=classes).y.tolist() == [1]
    store(tmp_path / "more" / "noon" / "0.png", pixels(0, 8, 6, 3))
    with pytest.raises(DataError, match=r"more: 'noon' is none of the classes that are trained on: 'day', 'night'"):
        gt.data.images(tmp_path / "more", classes=classes)
