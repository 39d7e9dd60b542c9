"""Data sets, their broken files, and the order of mini-batches."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain import data
from glowtrain.errors import DataError
from glowtrain.types import Array


def idx_bytes(array: Array, code: int) -> bytes:
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_fashion(directory: Path, counts: tuple[int, int] = (7, 3), *, pack: bool = True) -> dict[str, Array]:
    """The four files of a tiny data set in Fashion-MNIST's form; returns the raw arrays by file stem."""
    rng = np.random.default_rng(0)
    written: dict[str, Array] = {}
    for part, count in zip(("train", "t10k"), counts, strict=True):
        written[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        written[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, count, dtype=np.uint8)
    for stem, array in written.items():
        raw = idx_bytes(array, 0x08)
        name, content = (f"{stem}.gz", gzip.compress(raw)) if pack else (stem, raw)
        (directory / name).write_bytes(content)
    return written


class TestDigits:
    def test_shapes_ranges_and_classes(self) -> None:
        digits = data.digits()
        assert digits.x.shape == (1437, 1, 8, 8)
        assert digits.x.dtype == np.float32
        assert digits.y.shape == (1437,)
        assert digits.y.dtype == np.int64
        assert digits.x_valid is not None
        assert digits.y_valid is not None
        assert (digits.x_valid.shape, digits.y_valid.shape) == ((360, 1, 8, 8), (360,))
        for x, y in ((digits.x, digits.y), (digits.x_valid, digits.y_valid)):
            assert (x.min(), x.max()) == (0.0, 1.0)
            assert set(y.tolist()) == set(range(10))
        assert len(digits) == 1437

    def test_split_is_a_fixed_partition(self) -> None:
        digits = data.digits()
        assert digits.x_valid is not None
        assert digits.y[:12].tolist() == FIRST_DIGITS
        total = np.concatenate([digits.x, digits.x_valid]).sum(dtype=np.float64) * 16
        assert total == 561718  # the sum of the UCI set's pixels: nothing lost, nothing twice

    def test_labels_belong_to_the_images(self) -> None:
        """A nearest-centroid classifier knows nothing if images and labels are shuffled apart."""
        digits = data.digits()
        assert digits.x_valid is not None
        centroids = np.stack([digits.x[digits.y == label].mean(axis=0) for label in range(10)])
        distances = ((digits.x_valid[:, None] - centroids) ** 2).sum(axis=(2, 3, 4))
        assert (distances.argmin(axis=1) == digits.y_valid).mean() > 0.85


FIRST_DIGITS = [2, 4, 5, 4, 8, 2, 0, 6, 3, 3, 2, 6]


class TestFashionMnist:
    @pytest.mark.parametrize("pack", [True, False])
    def test_reads_packed_and_unpacked_files(self, tmp_path: Path, pack: bool) -> None:
        written = write_fashion(tmp_path, pack=pack)
        fashion = data.load("fashion-mnist", tmp_path)
        assert fashion.x.shape == (7, 1, 28, 28)
        assert fashion.x.dtype == np.float32
        assert np.array_equal(np.round(fashion.x[:, 0] * 255), written["train-images-idx3-ubyte"])
        assert 0 <= fashion.x.min() < fashion.x.max() <= 1
        assert fashion.y.dtype == np.int64
        assert fashion.y.tolist() == written["train-labels-idx1-ubyte"].tolist()
        assert fashion.x_valid is not None
        assert fashion.y_valid is not None
        assert np.array_equal(np.round(fashion.x_valid[:, 0] * 255), written["t10k-images-idx3-ubyte"])
        assert fashion.y_valid.tolist() == written["t10k-labels-idx1-ubyte"].tolist()

    def test_missing_files_tell_both_ways(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="train-images-idx3-ubyte.gz") as raised:
            data.fashion_mnist(tmp_path)
        assert "apt-get install dataset-fashion-mnist" in str(raised.value)
        assert "--data-dir" in str(raised.value)

    @pytest.mark.parametrize("keep", [0, 5, 40, -1])
    def test_truncated_gzip(self, tmp_path: Path, keep: int) -> None:
        write_fashion(tmp_path)
        victim = tmp_path / "t10k-images-idx3-ubyte.gz"
        victim.write_bytes(victim.read_bytes()[:keep])
        with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
            data.fashion_mnist(tmp_path)

    def test_broken_gzip(self, tmp_path: Path) -> None:
        write_fashion(tmp_path)
        victim = tmp_path / "train-images-idx3-ubyte.gz"
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 0xFF
        victim.write_bytes(content)
        with pytest.raises(DataError, match="broken gzip"):
            data.fashion_mnist(tmp_path)

    @pytest.mark.parametrize(
        ("stem", "array", "message"),
        [
            ("train-images-idx3-ubyte", np.zeros((7, 28, 27), np.uint8), r"expected u8\[n,28,28\].*28, 27"),
            ("train-labels-idx1-ubyte", np.zeros(6, np.uint8), r"expected u8\[7\].*\[6\]"),
            ("t10k-labels-idx1-ubyte", np.full(3, 10, np.uint8), "label 10 is outside"),
        ],
    )
    def test_wrong_content(self, tmp_path: Path, stem: str, array: Array, message: str) -> None:
        write_fashion(tmp_path)
        (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(idx_bytes(array, 0x08)))
        with pytest.raises(DataError, match=message):
            data.fashion_mnist(tmp_path)


class TestIdx:
    @pytest.mark.parametrize(
        ("code", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
    )
    def test_every_element_type(self, tmp_path: Path, code: int, dtype: str) -> None:
        array = np.arange(24).reshape(2, 3, 4).astype(dtype)
        (tmp_path / "a").write_bytes(idx_bytes(array, code))
        found = data.read_idx(tmp_path / "a")
        assert found.dtype == array.dtype
        assert found.dtype.isnative
        assert np.array_equal(found, array)

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            (b"", "not an idx file"),
            (b"\x00\x00\x08", "not an idx file"),
            (b"\x00\x01\x08\x01\x00\x00\x00\x00", "not an idx file"),
            (b"\x00\x00\x0a\x01\x00\x00\x00\x00", "not an idx file"),
            (b"\x00\x00\x08\x02\x00\x00\x00\x01", "truncated idx file: a header of rank 2"),
            (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", "truncated idx file: shape"),
            (b"\x00\x00\x08\x01\x00\x00\x00\x03abcd", "too long idx file"),
            (b"\x00\x00\x0e\x03" + b"\xff" * 12, "truncated idx file"),
        ],
    )
    def test_broken_files(self, tmp_path: Path, raw: bytes, message: str) -> None:
        (tmp_path / "a").write_bytes(raw)
        with pytest.raises(DataError, match=message):
            data.read_idx(tmp_path / "a")

    def test_unreadable_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be read"):
            data.read_idx(tmp_path)


class TestNpz:
    def test_conventional_names(self, tmp_path: Path) -> None:
        x, y = np.arange(10.0).reshape(5, 2), np.arange(5)
        np.savez(tmp_path / "d.npz", x=x, y=y, x_valid=x[:2], y_valid=y[:2])
        found = data.load(tmp_path / "d.npz")
        assert np.array_equal(found.x, x)
        assert np.array_equal(found.y, y)
        assert found.x_valid is not None
        assert np.array_equal(found.x_valid, x[:2])
        assert np.array_equal(found.valid["y"], y[:2])

    def test_any_names_and_no_validation(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "d.npz", tokens=np.zeros((4, 3), np.int64), mask=np.ones((4, 3), bool))
        found = data.npz(tmp_path / "d.npz")
        assert set(found.train) == {"tokens", "mask"}
        assert not found.valid
        assert found.x_valid is None
        with pytest.raises(DataError, match=r"no array 'x'; it has 'tokens', 'mask'"):
            _ = found.x

    def test_names_of_other_tools(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", x_train=np.zeros(3), x_test=np.ones(2), _test=np.zeros(3), _test_val=np.ones(2))
        found = data.npz(tmp_path / "d.npz")
        assert set(found.train) == {"x", "_test"}
        assert found.x_valid is not None
        assert found.x_valid.tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({}, "there are no arrays"),
            ({"x": np.zeros(3), "y": np.zeros(4)}, r"different numbers of examples.*'x': 3, 'y': 4"),
            ({"x": np.zeros((0, 2))}, "empty"),
            ({"x": np.float32(1)}, "'x' is a scalar"),
            ({"x": np.array(["a", "b"])}, "'x' has dtype <U1"),
            ({"x": np.zeros(3, complex)}, "'x' has dtype complex128"),
            ({"x": np.zeros(3), "y_valid": np.zeros(3)}, "validation arrays 'y' do not match 'x'"),
            ({"x": np.zeros((3, 2)), "x_valid": np.zeros((3, 4))}, r"float64\[2\] in training but float64\[4\]"),
            ({"x": np.zeros(3), "x_train": np.zeros(3)}, "second array for 'x'"),
        ],
    )
    def test_unsuitable_arrays(self, tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
        np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=message):
            data.npz(tmp_path / "d.npz")

    def test_objects_are_never_unpickled(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", x=np.array([print, None]))
        with pytest.raises(DataError, match=r"plain arrays"):
            data.npz(tmp_path / "d.npz")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no such file"):
            data.load(str(tmp_path / "d.npz"))

    def test_other_files(self, tmp_path: Path) -> None:
        np.save(tmp_path / "lone.npy", np.zeros(3))
        (tmp_path / "lone.npy").rename(tmp_path / "lone.npz")
        (tmp_path / "text.npz").write_text("x,y\n1,2\n")
        (tmp_path / "empty.npz").write_bytes(b"")
        (tmp_path / "folder.npz").mkdir()
        for name in ("lone", "text", "empty", "folder"):
            with pytest.raises(DataError, match=name) as caught:
                data.npz(tmp_path / f"{name}.npz")
            assert "pickle" not in str(caught.value)

    @pytest.mark.parametrize("compressed", [True, False])
    def test_truncated_at_any_byte(self, tmp_path: Path, compressed: bool) -> None:
        path = tmp_path / "d.npz"
        (np.savez_compressed if compressed else np.savez)(path, x=np.arange(6.0), y=np.arange(6))
        whole = path.read_bytes()
        for length in range(0, len(whole), 7):
            path.write_bytes(whole[:length])
            with pytest.raises(DataError, match=r"d\.npz"):
                data.npz(path)

    def test_a_flipped_byte_is_an_error_or_harmless(self, tmp_path: Path) -> None:
        path = tmp_path / "d.npz"
        np.savez_compressed(path, x=np.arange(6.0))
        whole = path.read_bytes()
        refused = 0
        for position in range(len(whole)):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
            try:
                found = data.npz(path)
            except DataError:
                refused += 1
            else:
                assert [array.tolist() for array in found.train.values()] == [[0, 1, 2, 3, 4, 5]]
        assert refused > len(whole) // 2


def test_unknown_data_set_names_the_choices() -> None:
    with pytest.raises(DataError, match=r"'mnist'.*digits, fashion-mnist or the path of a file \(\.npz, \.csv"):
        data.load("mnist")


class TestBatches:
    @given(
        count=st.integers(1, 40),
        size=st.integers(1, 45),
        seed=st.integers(0, 2**64 - 1),
        epoch=st.integers(0, 2**64 - 1),
        shuffle=st.booleans(),
    )
    def test_every_example_once_and_arrays_stay_together(
        self, count: int, size: int, seed: int, epoch: int, shuffle: bool
    ) -> None:
        arrays = {"x": np.arange(count * 2).reshape(count, 2), "y": np.arange(count)}
        found = list(data.batches(arrays, size, seed=seed, epoch=epoch, shuffle=shuffle))
        sizes = [len(batch["y"]) for batch in found]
        assert sizes == [size] * (count // size) + [count % size] * (count % size > 0)
        order = np.concatenate([batch["y"] for batch in found])
        assert sorted(order.tolist()) == list(range(count))
        assert np.array_equal(np.concatenate([batch["x"] for batch in found]), arrays["x"][order])
        assert shuffle or order.tolist() == list(range(count))

    def test_order_depends_on_seed_and_epoch_alone(self) -> None:
        orders = {
            (seed, epoch): data.epoch_order(50, seed=seed, epoch=epoch).tolist()
            for seed in range(3)
            for epoch in range(3)
        }
        assert len({tuple(order) for order in orders.values()}) == 9
        np.random.default_rng(1).random(100)
        assert data.epoch_order(50, seed=2, epoch=1).tolist() == orders[2, 1]

    def test_order_is_the_same_in_every_release(self) -> None:
        """Checkpoints rely on it: a change here breaks every resumed run."""
        assert data.epoch_order(8, seed=1, epoch=2).tolist() == EPOCH_ORDER

    def test_equal_words_keep_their_order(self) -> None:
        """Also for more of them than a sort of small arrays would treat otherwise."""
        words = np.random.default_rng(0).integers(0, 40, 5000).astype(np.uint64)
        expected = sorted(range(5000), key=lambda at: int(words[at]))
        assert data.ascending(words).tolist() == expected
        assert (np.argsort(words) != expected).any(), "NumPy's own order is stable here"
        assert data.ascending(words[:1]).tolist() == [0]

    def test_order_is_uniform(self) -> None:
        """Each of 5 examples comes first in 1/5 of the epochs (4 standard deviations around 400 of 2000)."""
        first = [int(data.epoch_order(5, seed=0, epoch=epoch)[0]) for epoch in range(2000)]
        assert np.all(np.abs(np.bincount(first, minlength=5) - 400) < 4 * np.sqrt(2000 * 0.2 * 0.8))

    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("form", ["fortran", "strided", "reversed"])
    def test_batches_are_contiguous(self, form: str, shuffle: bool) -> None:
        base = np.arange(48.0).reshape(6, 8)
        x = {"fortran": np.asfortranarray(base), "strided": base[:, ::2], "reversed": base[::-1]}[form]
        for batch in data.batches({"x": x}, 4, seed=0, epoch=0, shuffle=shuffle):
            assert batch["x"].flags.c_contiguous

    @pytest.mark.parametrize(
        ("arrays", "size", "seed", "message"),
        [
            ({"x": np.zeros(3)}, 0, 0, "batch size must be at least 1, got 0"),
            ({"x": np.zeros(3)}, 1, -1, "seed must be in 0"),
            ({"x": np.zeros(3), "y": np.zeros(2)}, 1, 0, "different numbers of examples"),
            ({}, 1, 0, "no arrays"),
        ],
    )
    def test_bad_arguments_fail_at_the_call(self, arrays: dict[str, Array], size: int, seed: int, message: str) -> None:
        with pytest.raises(DataError, match=message):
            data.batches(arrays, size, seed=seed, epoch=0)


class TestSplit:
    @given(st.integers(4, 60), st.floats(0.2, 0.8), st.integers(0, 2**64 - 1))
    def test_each_example_is_in_one_part_with_all_its_arrays(self, count: int, fraction: float, seed: int) -> None:
        arrays = {"x": np.arange(count * 2).reshape(count, 2), "y": np.arange(count)}
        train, valid = data.split(arrays, fraction, seed=seed)
        assert sorted([*train["y"], *valid["y"]]) == [*range(count)]
        assert len(valid["y"]) == round(fraction * count)
        for part in (train, valid):
            assert (part["x"][:, 0] == 2 * part["y"]).all()
            assert (np.diff(part["y"]) > 0).all()

    def test_classes_keep_their_shares(self) -> None:
        labels = np.repeat([0, 1, 2], [80, 40, 10])
        _, valid = data.split({"y": labels}, 0.2, seed=3, by="y")
        assert np.bincount(valid["y"]).tolist() == [16, 8, 2]

    def test_the_seed_decides(self) -> None:
        parts = [data.split({"x": np.arange(50)}, 0.3, seed=seed)[1]["x"].tolist() for seed in (1, 1, 2)]
        assert parts[0] == parts[1] != parts[2]

    @pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 20, True, 0.001])
    def test_fractions_that_leave_nothing_are_refused(self, fraction: float) -> None:
        with pytest.raises(DataError, match="fraction between 0 and 1|no examples"):
            data.split({"x": np.arange(50)}, fraction)


EPOCH_ORDER = [4, 2, 0, 6, 1, 5, 7, 3]
