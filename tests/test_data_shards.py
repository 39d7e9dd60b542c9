"""Shards: read as their arrays are, shuffled by blocks, resumed to the same bits, what is wrong with files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.datasets.shards import ShardedArray
from glowtrain.datasets.stored import StoredArray
from glowtrain.errors import BatchError, DataError, InputError
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.sources import windows
from glowtrain.trainer.sources.cut import ArraySource
from glowtrain.types import Array

SIZES = (40, 7, 53)


@pytest.fixture
def examples() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((sum(SIZES), 3, 2)).astype(np.float32), "y": random.integers(0, 4, sum(SIZES))}


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 5 blocks of 4 examples of ``x``, rows of 96 bytes."""
    monkeypatch.setattr(windows, "BLOCK", 4 * 24)
    monkeypatch.setattr(windows, "WINDOW", 5 * 4 * 24)
    monkeypatch.setattr(windows, "ROW", 20 * 24)


def write(folder: Path, arrays: dict[str, Array], kind: str = "npy") -> Path:
    folder.mkdir(exist_ok=True)
    cuts = np.cumsum(SIZES)[:-1]
    for number, parts in enumerate(zip(*(np.split(array, cuts) for array in arrays.values()), strict=True)):
        shard = dict(zip(arrays, parts, strict=True))
        if kind == "npz":
            np.savez(folder / f"{number:03}.npz", **shard)
        elif kind == "compressed":
            np.savez_compressed(folder / f"{number:03}.npz", **shard)
        else:
            for name, array in shard.items():
                np.save(folder / f"{name}-{number:03}.npy", array)
    return folder


@gt.model(x=gt.f32["batch", 3, 2])
def net(x: gt.Value) -> dict[str, gt.Value]:
    return {"scores": gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 5)), 0.2), 4)}


def trainer() -> gt.Trainer:
    return gt.Trainer(net, "softmax_cross_entropy", gt.optim.Adam(1e-2), seed=3)


def same(one: gt.Trainer, other: gt.Trainer) -> bool:
    found = other.variables()
    return all(array.tobytes() == found[name].tobytes() for name, array in one.variables().items())


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_all_kinds_hold_the_same_examples(tmp_path: Path, examples: dict[str, Array], kind: str) -> None:
    found = gt.data.shards(write(tmp_path, examples, kind))
    assert isinstance(found.y, np.ndarray)
    assert isinstance(found.x, StoredArray) == (kind != "compressed")
    for name, array in examples.items():
        assert np.array_equal(np.asarray(found.train[name]), array)
        for index in (3, -1, slice(38, 50), np.array([99, 0, 45, 45]), array.reshape(100, -1)[:, 0] > 0.5):
            assert np.array_equal(found.train[name][index], array[index])


def test_big_endian_and_other_types_are_read(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(6, 2)
    np.save(tmp_path / "x.npy", array.astype(">f8"))
    np.save(tmp_path / "y.npy", np.arange(6, dtype=">i4"))
    found = gt.data.shards(tmp_path)
    assert (found.x.dtype, found.y.dtype) == (np.dtype("=f8"), np.dtype("=i4"))
    assert np.array_equal(found.x[2:5], array[2:5])


def test_parts_for_validation(tmp_path: Path, examples: dict[str, Array]) -> None:
    write(tmp_path / "train", examples)
    write(tmp_path / "val", {name: array[::-1] for name, array in examples.items()})
    by_folder = gt.data.load(tmp_path)
    by_name = gt.data.shards(
        str(write(tmp_path / "one", {**examples, "x_valid": examples["x"][::-1], "y_valid": examples["y"][::-1]}))
        + "/*.npy"
    )
    for found in (by_folder, by_name):
        assert np.array_equal(found.x[:], examples["x"])
        assert np.array_equal(found.valid["x"][:], examples["x"][::-1])
        assert np.array_equal(found.valid["y"], examples["y"][::-1])


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("prefetch", [0, None, 5])
def test_in_order_training_has_the_bits_of_arrays_in_memory(
    tmp_path: Path, examples: dict[str, Array], prefetch: int | None
) -> None:
    shards, one, other = gt.data.shards(write(tmp_path, examples)), trainer(), trainer()
    options = {"epochs": 2, "batch_size": 7, "shuffle": False, "progress": False}
    one.fit(shards, prefetch=prefetch, **options)
    other.fit((examples["x"], examples["y"]), **options)
    assert same(one, other)
    assert one.evaluate(shards, batch_size=9) == other.evaluate(examples, batch_size=9)
    assert np.array_equal(one.predict(shards.x)["scores"], one.predict(examples["x"])["scores"])


def order_of(arrays: dict[str, Array | StoredArray], size: int, epoch: int, begin: int = 0) -> list[float]:
    source = ArraySource(arrays, size, seed=5, shuffle=True)
    seen: list[float] = []
    with source.epoch(Position(epoch, begin)) as rows:
        batch = begin
        while (row := rows.next(batch, 3)) is not None:
            assert len(row.arrays["x"]) == row.count * row.size
            seen += row.arrays["x"][:, 0, 0].tolist()
            batch += row.count
    assert batch == source.batches
    return seen


@pytest.mark.usefixtures("small_windows")
def test_order_is_a_function_of_seed_and_epoch(tmp_path: Path, examples: dict[str, Array]) -> None:
    x = np.broadcast_to(np.arange(100, dtype=np.float32)[:, None, None], (100, 3, 2)).copy()
    arrays = dict(gt.data.shards(write(tmp_path, {"x": x, "y": examples["y"]})).train)
    first = order_of(arrays, 8, 0)
    assert sorted(first) == list(range(100))
    assert order_of(arrays, 3, 0) == order_of(arrays, 64, 0) == first
    assert order_of(arrays, 8, 0, begin=7) == first[56:]
    assert order_of(arrays, 8, 1) != first
    window = np.array(first[:20])
    assert len(np.unique(window // 4)) == 5  # five blocks, of four consecutive examples each
    assert np.ptp(window) > 20  # from all over the data
    assert (np.diff(window) == 1).sum() < 10  # and mixed
    patterns = [np.array(order) % 4 for order in (first[:20], first[20:40], order_of(arrays, 8, 1)[:20])]
    assert len(np.unique(patterns, axis=0)) == 3  # otherwise in each window and epoch


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("prefetch", [0, None])
def test_an_epoch_reads_each_example_once_from_the_window_it_begins_in(
    tmp_path: Path, examples: dict[str, Array], monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    shards, seen = gt.data.shards(write(tmp_path, examples)), []
    read = ShardedArray.read
    monkeypatch.setattr(ShardedArray, "read", lambda self, numbers: seen.extend(numbers) or read(self, numbers))
    source = ArraySource(shards.train, 8, seed=5, shuffle=True, prefetch=prefetch)
    for begin, expected in ((0, 100), (6, 60)):  # batch 6 begins at 48, which is in the window from 40 on
        seen.clear()
        with source.epoch(Position(0, begin)) as rows:
            batch = begin
            while (row := rows.next(batch, 3)) is not None:
                batch += row.count
        assert len(seen) == len(set(seen)) == expected


@pytest.mark.usefixtures("small_windows")
def test_a_run_goes_on_to_the_same_bits(tmp_path: Path, examples: dict[str, Array]) -> None:
    shards, whole, stopped = gt.data.shards(write(tmp_path / "shards", examples)), trainer(), trainer()
    whole.fit(shards, epochs=3, batch_size=9, validation=0.2, progress=False)

    def stop(moment: gt.callbacks.Moment) -> None:
        if (moment.epoch, moment.batch) == (2, 4):
            moment.stop("enough")

    checkpoint = tmp_path / "run.safetensors"
    options = {"epochs": 3, "batch_size": 9, "validation": 0.2, "checkpoint": checkpoint, "progress": False}
    stopped.fit(shards, callbacks=[stop], **options)
    assert stopped.position.batch == 4
    again = trainer()
    again.fit(shards, resume=True, **options)
    assert same(whole, again)


def test_a_part_held_out_is_read_when_needed(tmp_path: Path, examples: dict[str, Array]) -> None:
    shards = gt.data.shards(write(tmp_path, examples))
    train, valid = gt.data.split(shards.train, 0.25, seed=1, by="y")
    plain = gt.data.split(examples, 0.25, seed=1, by="y")
    assert isinstance(train["x"], StoredArray)
    for found, expected in zip((train, valid), plain, strict=True):
        assert np.array_equal(found["x"][:], expected["x"])
        assert np.array_equal(found["y"], expected["y"])


Harm = Callable[[Path], object]


def cut(name: str, size: int) -> Harm:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def without(*names: str) -> Harm:
    return lambda folder: [(folder / name).unlink() for name in names]


def instead(name: str, array: Array) -> Harm:
    return lambda folder: np.save(folder / name, array, allow_pickle=True)


def floats(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


HARM: dict[str, tuple[Harm, str]] = {
    "a byte short": (cut("x-001.npy", -1), r"x-001.npy: truncated: .* takes 168 bytes, but there are 167"),
    "in the header": (cut("x-001.npy", 50), r"x-001.npy: truncated, or no .npy file"),
    "empty": (cut("x-001.npy", 0), r"x-001.npy: truncated, or no .npy file"),
    "one missing": (without("x-001.npy"), r"'x' has 2 shards of 3; it is missing in 'x-001.npy'"),
    "both missing": (without("x-001.npy", "y-001.npy"), r"it is missing in 'x-001.npy'"),
    "all missing": (without(*(f"{name}-00{n}.npy" for name in "xy" for n in range(3))), r"there are no shards"),
    "other shape": (
        instead("x-002.npy", floats(53, 3, 3)),
        r"x-002.npy: .*32\[3, 3\], .*32\[3, 2\] in .*x-000.npy",
    ),
    "other type": (instead("x-002.npy", np.zeros((53, 3, 2))), r"x-002.npy: examples are float64\[3, 2\], but float32"),
    "fewer": (instead("x-002.npy", floats(52, 3, 2)), r"y-002.npy: 53 examples of 'y', but 52 of 'x' in shard '002'"),
    "columns": (instead("x-002.npy", np.asfortranarray(floats(53, 3, 2))), r"x-002.npy: in Fortran's order"),
    "objects": (instead("x-002.npy", np.array([None] * 53)), r"x-002.npy: elements of type object"),
    "scalar": (instead("x-002.npy", np.float32(1)), r"x-002.npy: a scalar"),
    "two kinds": (lambda folder: np.savez(folder / "000.npz", x=floats(3)), r"there are .npy and .npz files"),
}


@pytest.mark.parametrize(("harm", "message"), HARM.values(), ids=HARM)
def test_what_is_wrong_with_shards_is_said_before_training(
    tmp_path: Path, examples: dict[str, Array], harm: Harm, message: str
) -> None:
    folder = write(tmp_path / "shards", examples)
    harm(folder)
    with pytest.raises(DataError, match=message):
        gt.data.shards(folder)


@pytest.mark.parametrize("keep", [0.99, 0.6, 0.1, 0.0])
@pytest.mark.parametrize("kind", ["npz", "compressed"])
def test_truncated_archives_are_named(tmp_path: Path, examples: dict[str, Array], kind: str, keep: float) -> None:
    victim = write(tmp_path, examples, kind) / "001.npz"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(DataError, match=r"001.npz: truncated"):
        gt.data.shards(tmp_path)


def test_compressed_shards_that_memory_should_not_hold(
    tmp_path: Path, examples: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glowtrain.datasets.shards.COMPRESSED", 1000)
    with pytest.raises(
        DataError, match=r"000.npz: compressed, so that it has to be read whole.*write shards with np.savez"
    ):
        gt.data.shards(write(tmp_path, examples, "compressed"))


def test_a_shard_cut_while_training_is_named_with_its_batch(tmp_path: Path, examples: dict[str, Array]) -> None:
    shards, one = gt.data.shards(write(tmp_path, examples)), trainer()
    (tmp_path / "x-002.npy").write_bytes((tmp_path / "x-002.npy").read_bytes()[:200])
    with pytest.raises(
        BatchError, match=r"epoch 1, from batch 1 on: .*x-002.npy: the file has become shorter.*from before it"
    ):
        one.fit(shards, progress=False)
    (tmp_path / "x-002.npy").unlink()
    with pytest.raises(BatchError, match=re.escape("x-002.npy: cannot be read: No such file")):
        one.evaluate(shards)


def test_examples_that_do_not_fit_are_refused_before_reading(tmp_path: Path, examples: dict[str, Array]) -> None:
    shards = gt.data.shards(write(tmp_path, {**examples, "x": examples["x"].transpose(0, 2, 1)}))
    with pytest.raises(InputError, match=r"'x' must be f32\[batch,3,2\].*transpose"):
        trainer().fit(shards, progress=False)
    labels = gt.data.shards(write(tmp_path, {**examples, "y": examples["y"] + 1}))
    with pytest.raises(InputError, match=r"label 4 is at"):
        trainer().fit(labels, progress=False)


def test_the_command_line_trains_on_a_folder(tmp_path: Path, examples: dict[str, Array]) -> None:
    folder, out = write(tmp_path / "shards", examples), tmp_path / "net.onnx"
    gt.save(net, tmp_path / "net_before.onnx")
    call = ["train", str(tmp_path / "net_before.onnx"), "--data", str(folder), "--validation", "0.2", "--out", str(out)]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    assert "100 examples" in result.output
    assert "val_accuracy" in result.output or "accuracy" in result.output
    assert out.exists()
    (folder / "x-001.npy").write_bytes(b"")
    refused = CliRunner().invoke(app, [*call[:-1], str(tmp_path / "other.onnx")])
    assert refused.exit_code == 1
    assert "x-001.npy" in refused.output.replace("\n", "")
    assert not (tmp_path / "other.onnx").exists()


def test_the_command_line_says_how_shards_are_called(tmp_path: Path) -> None:
    for number in range(2):
        np.save(tmp_path / f"x_{number}.npy", np.zeros((4, 3), np.float32))
        np.save(tmp_path / f"y_{number}.npy", np.arange(4))
    result = CliRunner().invoke(app, ["train", "mlp", "--data", str(tmp_path), "--out", str(tmp_path / "out.onnx")])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "x_0, x_1, y_0, y_1 are arrays of their own; shards of one are called NAME-SHARD.npy, as x-000.npy" in said
