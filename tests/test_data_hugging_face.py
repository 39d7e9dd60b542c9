"""Data sets of Hugging Face's library: trained on as their arrays are, columns named or found, what does not fit."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import glowtrain as gt
from glowtrain.datasets.stored import StoredArray
from glowtrain.errors import BatchError, DataError, InputError
from glowtrain.types import Array

COUNT = 50


@pytest.fixture(autouse=True)
def no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()


def arrays() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    return random.standard_normal((COUNT, 2, 3)).astype(np.float32), random.integers(0, 3, COUNT)


def dataset(**more: Any) -> datasets.Dataset:
    x, y = arrays()
    columns = {"title": [str(each) for each in y], "pixels": x.tolist(), "label": y}
    features = {
        "title": datasets.Value("string"),
        "pixels": datasets.Array2D((2, 3), "float32"),
        "label": datasets.ClassLabel(names=["ant", "bee", "fly"]),
    }
    return datasets.Dataset.from_dict({**columns, **more}, datasets.Features(features))


@gt.model(x=gt.f32["batch", 2, 3])
def net(x: gt.Value) -> dict[str, gt.Value]:
    return {"scores": gt.nn.linear(gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 5)), 3)}


def trainer() -> gt.Trainer:
    return gt.Trainer(net, "softmax_cross_entropy", gt.optim.Adam(1e-2), seed=3)


def test_training_has_the_bits_of_arrays() -> None:
    one, other = trainer(), trainer()
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "shuffle": False, "progress": False}
    one.fit(dataset(), **options)
    other.fit(arrays(), **options)
    assert all(array.tobytes() == other.variables()[name].tobytes() for name, array in one.variables().items())
    assert one.evaluate(dataset()) == other.evaluate(arrays())
    assert np.array_equal(one.predict(dataset())["scores"], other.predict(arrays()[0])["scores"])
    one.fit(dataset(), 1, validation=0.2, augment=["noise"], progress=False)


def test_columns_are_named_or_found() -> None:
    found = gt.data.hugging_face(dataset())
    assert found.classes == ("ant", "bee", "fly")
    assert set(found.train) == {"pixels", "y"}
    assert isinstance(found.train["pixels"], StoredArray)
    named = gt.data.hugging_face(dataset(), x="pixels", y="label")
    assert np.array_equal(named.x[[3, 40, 3]], arrays()[0][[3, 40, 3]])
    assert np.array_equal(named.y, arrays()[1])
    shuffled = dataset().shuffle(seed=1).select(range(20))
    assert np.array_equal(gt.data.hugging_face(shuffled).y, np.array(shuffled["label"]))


def test_parts_of_a_dict_are_trained_on_and_validated_on() -> None:
    parts = dataset().train_test_split(0.2, seed=0)
    one = trainer()
    history = one.fit(parts, 1, progress=False)
    assert history.last["val_loss"] == one.evaluate(parts)["loss"] == one.evaluate(parts["test"])["loss"]
    with pytest.raises(DataError, match="no part 'train'; it has 'test'"):
        one.fit(datasets.DatasetDict({"test": parts["test"]}), progress=False)


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5)])
def test_images_have_channels_first(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    found = gt.data.hugging_face(
        datasets.Dataset.from_dict({"image": [Image.fromarray(each) for each in pixels], "label": [0, 1] * 3})
    )
    expected = pixels[:, None] if len(shape) == 2 else pixels.transpose(0, 3, 1, 2)
    x = found.train["image"]
    assert (x.dtype, x.shape) == (np.float32, expected.shape)
    assert np.array_equal(x[:], expected / np.float32(255))


def images_of(*sizes: tuple[int, int]) -> datasets.Dataset:
    images = [Image.fromarray(np.zeros((*size, 3), np.uint8)) for size in sizes]
    return datasets.Dataset.from_dict({"image": images, "label": [0] * len(sizes)})


def test_examples_of_several_shapes_are_named_with_their_number() -> None:
    found = gt.data.hugging_face(images_of((4, 4), (4, 4), (4, 6)))
    with pytest.raises(DataError, match=r"'image': example 2 has the shape .4, 6, 3.* resize them with dataset.map"):
        found.train["image"][:]
    lengths = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 5 + [[1.0]], "y": [0] * 6})

    @gt.model(x=gt.f32["batch", 2])
    def rows(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3)

    one = gt.Trainer(rows, "softmax_cross_entropy", gt.optim.SGD())
    with pytest.raises(BatchError, match=r"epoch 1, from batch 1 on: column 'x': example 5 has the shape \[1\]"):
        one.fit(lengths, progress=False)


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ({"x": [1.0, None], "y": [0, 1]}, {}, r"column 'x': the value of example 1 is missing"),
        ({"x": [[1.0]] * 2, "y": [0, None]}, {}, r"column 'y': the value of example 1 is missing"),
        ({"x": ["a", "b"], "y": [0, 1]}, {"x": "x", "y": "y"}, r"column 'x' holds .*, which is no number"),
        ({"x": [1.0, 2.0], "y": [0, 1]}, {"x": "pixel", "y": "y"}, r"the data set has no column 'pixel'"),
        ({"x": [], "y": []}, {}, r"the data set has no examples"),
    ],
)
def test_columns_that_do_not_fit(columns: dict[str, list[Any]], names: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        gt.data.hugging_face(datasets.Dataset.from_dict(columns), **names)


def test_what_is_no_such_data_set() -> None:
    with pytest.raises(DataError, match="hugging_face takes a Dataset or a DatasetDict of datasets, not "):
        gt.data.hugging_face([1, 2])
    with pytest.raises(InputError, match="data has 'title'"):
        trainer().fit(dataset().remove_columns("pixels").to_dict(), progress=False)


def test_a_stream_is_a_loader() -> None:
    stream = dataset().select_columns(["pixels", "label"]).rename_columns({"pixels": "x", "label": "y"})
    one = trainer()
    one.fit(lambda: stream.to_iterable_dataset().with_format("numpy").iter(batch_size=10), 1, progress=False)
    assert np.isfinite(one.history.last["loss"])
