"""Data sets and mini-batches.

Arrays are read whole into memory, but for those of :func:`shards`. Every function that reads a file raises
:class:`DataError` with the path, what is wrong with it and what to do.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.datasets.augment import Augmentation, Crop, CutMix, ExampleDraws, Flip, MixUp, Noise
from glowtrain.datasets.hugging_face import VALIDATION, is_foreign, read_columns
from glowtrain.datasets.images import Size, class_names, read_images
from glowtrain.datasets.parts import check_classes, folders_of, parts_of
from glowtrain.datasets.shards import read_shards, shard_paths
from glowtrain.datasets.stored import ExampleArray, select, take
from glowtrain.datasets.table import READERS, read_table
from glowtrain.errors import DataError
from glowtrain.presentation.messages import kind_of, plural
from glowtrain.types import Array

__all__ = [
    "FASHION_MNIST_DIR",
    "NAMES",
    "Augmentation",
    "Crop",
    "CutMix",
    "Dataset",
    "ExampleDraws",
    "Flip",
    "MixUp",
    "Noise",
    "batches",
    "check_examples",
    "count_examples",
    "digits",
    "epoch_order",
    "fashion_mnist",
    "hugging_face",
    "images",
    "load",
    "npz",
    "read_idx",
    "read_npz",
    "shards",
    "split",
    "table",
]

FASHION_MNIST_DIR = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package ``dataset-fashion-mnist`` installs its files."""

NAMES = ("digits", "fashion-mnist")
"""What :func:`load` knows by name, for help texts."""

DIGITS_TRAIN = 1437
"""Images of ``digits`` to train on, of 1797; the other 360 are for validation."""


SPLIT = (1 << 64) - 1
"""In place of an epoch where examples are drawn for validation."""


@dataclass(frozen=True)
class Dataset:
    """Arrays by name, all with one example per index of the first axis; ``valid`` is empty where there is no such part.

    The names are those of a model's inputs; for the data sets of this module they are ``x`` and ``y``.
    """

    name: str
    train: Mapping[str, ExampleArray]
    valid: Mapping[str, ExampleArray] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    """The names of the classes that labels count, where they have any."""
    columns: tuple[str, ...] = ()
    """The columns of a table that are features."""

    def __post_init__(self) -> None:
        check_examples(self.train, f"data set {self.name!r}")
        if self.valid:
            check_examples(self.valid, f"data set {self.name!r}, validation part")
            self._check_same_examples()

    def __repr__(self) -> str:
        """``<Dataset digits: 1,437 examples of x f32[1,8,8], y i64[]; 360 for validation>``"""
        arrays = ", ".join(f"{name} {_type(array)}" for name, array in self.train.items())
        valid = f"; {count_examples(self.valid):,} for validation" if self.valid else ""
        return f"<Dataset {self.name}: {plural(len(self), 'example')} of {arrays}{valid}>"

    def __len__(self) -> int:
        """Examples to train on."""
        return count_examples(self.train)

    @property
    def x(self) -> ExampleArray:
        """Inputs to train on; :class:`DataError` if the arrays have other names."""
        return self._array("x")

    @property
    def y(self) -> ExampleArray:
        """Labels or targets to train on; :class:`DataError` if the arrays have other names."""
        return self._array("y")

    @property
    def x_valid(self) -> ExampleArray | None:
        """Inputs for validation, or None."""
        return self.valid.get("x")

    @property
    def y_valid(self) -> ExampleArray | None:
        """Labels or targets for validation, or None."""
        return self.valid.get("y")

    def _array(self, name: str) -> ExampleArray:
        if name not in self.train:
            raise DataError(f"data set {self.name!r} has no array {name!r}; it has {_listed(self.train)}")
        return self.train[name]

    def _check_same_examples(self) -> None:
        """An example has the same names, types and shapes in both parts."""
        if set(self.train) != set(self.valid):
            raise DataError(
                f"data set {self.name!r}: validation arrays {_listed(self.valid)} do not match {_listed(self.train)}"
            )
        for name, array in self.train.items():
            other = self.valid[name]
            if (array.dtype, array.shape[1:]) != (other.dtype, other.shape[1:]):
                raise DataError(
                    f"data set {self.name!r}: examples of {name!r} are {_type(array)} in training "
                    f"but {_type(other)} in validation"
                )


def load(
    name_or_path: str | Path, data_dir: str | Path | None = None, target: str | None = None, drop: Collection[str] = ()
) -> Dataset:
    """The data set called ``digits`` or ``fashion-mnist``, or the one in an ``.npz``, ``.csv`` or ``.parquet`` file, or
    in a directory of :func:`shards` or of :func:`images`.

    ``data_dir`` holds the files of ``fashion-mnist``; ``target`` and ``drop`` are columns of tables. They mean nothing
    for the others.
    """
    name = str(name_or_path)
    if name == "digits":
        return digits()
    if name == "fashion-mnist":
        return fashion_mnist(data_dir)
    if name.endswith(".npz"):
        return npz(name_or_path)
    if Path(name).suffix in READERS:
        return table(name_or_path, target, drop)
    if Path(name).is_dir():
        return shards(name) if holds_shards(name) else images(name)
    endings = ", ".join((".npz", *READERS))
    raise DataError(
        f"unknown data set {name!r}: use {', '.join(NAMES)} or the path of a file ({endings}) or of a directory"
    )


def shards(source: str | Path) -> Dataset:
    """The arrays of ``.npy`` or ``.npz`` shards in a directory, or of those that a pattern matches (``"data/*.npz"``),
    which may be larger than memory (:mod:`glowtrain.datasets.shards` has the layout).

    ``NAME_valid`` is for validation, and what lies in a folder ``valid`` beside one that is called ``train``.
    """
    train, valid = folders_of(Path(source))
    if valid is None:
        return Dataset(str(source), *read_shards(source))
    return Dataset(str(source), read_shards(train)[0], read_shards(valid)[0])


def table(
    path: str | Path, target: str | None, drop: Collection[str] = (), weight: str | None = None, *,
    classes: Sequence[str] = (), columns: Sequence[str] = (),
) -> Dataset:  # fmt: skip
    """The rows of a ``.csv`` or ``.parquet`` file: ``x`` f32[n, columns], ``y`` of the column ``target``, and
    ``sample_weight`` of the column ``weight``, as :func:`~glowtrain.datasets.table.read_table` reads them. ``classes``
    and ``columns``: those of the rows that a model was trained on, by which labels of other rows are numbered, and
    their features chosen."""
    arrays, features, names = read_table(Path(path), target, drop, weight, classes, columns)
    return Dataset(str(path), arrays, classes=names, columns=features)


def holds_shards(directory: str | Path) -> bool:
    """Whether a directory is one of :func:`shards`, and not of :func:`images`."""
    return bool(shard_paths(folders_of(Path(directory))[0]))


def images(
    directory: str | Path, size: Size | None = None, *, channels: int | None = None, classes: Sequence[str] = ()
) -> Dataset:
    """A folder of images for each class, ``DIR/CLASS/*.png``: x f32[n,channels,height,width] in [0,1], y i64[n], and
    ``classes``, which are the folders' names in order. ``DIR/train/CLASS`` and ``DIR/valid/CLASS`` are two parts.

    ``size``, ``channels``, and what is raised, are those of :func:`~glowtrain.datasets.images.read_images`;
    ``classes``: those of the images that a model was trained on, by which others are numbered.
    """
    train, valid = folders_of(Path(directory))
    names = tuple(classes) or class_names(train)
    for part in filter(None, (train, valid)):
        check_classes(class_names(part), part, names)
    examples = read_images(train, names, size, channels)
    extents = examples["x"].shape
    held = {} if valid is None else read_images(valid, names, (extents[2], extents[3]), extents[1])
    return Dataset(str(directory), examples, held, names)


def hugging_face(dataset: Any, **columns: str) -> Dataset:
    """A ``Dataset`` of Hugging Face's library, or a ``DatasetDict``, whose part ``train`` is trained on and whose part
    ``validation`` (``valid``, ``val``, ``test``) validated on.

    ``columns``: the column of each array, as in ``x="pixels", y="label"``; without them, and for what is raised, see
    :func:`~glowtrain.datasets.hugging_face.read_columns`. ``fit``, ``evaluate`` and ``predict`` take such data as they
    are, too.
    """
    if not is_foreign(dataset):
        raise DataError(f"hugging_face takes a Dataset or a DatasetDict of datasets, not {kind_of(dataset)}")
    if not isinstance(dataset, Mapping):
        train, classes = read_columns(dataset, columns)
        return Dataset("datasets", train, classes=classes)
    if "train" not in dataset:
        raise DataError(f"the DatasetDict has no part 'train'; it has {', '.join(map(repr, dataset)) or 'none'}")
    train, classes = read_columns(dataset["train"], columns)
    valid = next((dataset[name] for name in VALIDATION if name in dataset), None)
    return Dataset("datasets", train, {} if valid is None else read_columns(valid, columns)[0], classes)


def digits() -> Dataset:
    """Handwritten digits, shipped with the package: x f32[n,1,8,8] in [0,1], y i64[n] in 0..9; 1437 + 360 examples.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), CC BY 4.0; see
    ``datasets/digits.LICENSE.md``. The split is drawn once, with a fixed seed.
    """
    with (resources.files("glowtrain.datasets") / "digits.npz").open("rb") as file, np.load(file) as stored:
        images, labels = stored["images"], stored["labels"]
    order = epoch_order(len(labels), seed=0, epoch=0)
    x, y = _images(images[order], 16), labels[order].astype(np.int64)
    return Dataset(
        "digits",
        {"x": x[:DIGITS_TRAIN], "y": y[:DIGITS_TRAIN]},
        {"x": x[DIGITS_TRAIN:], "y": y[DIGITS_TRAIN:]},
    )


def fashion_mnist(data_dir: str | Path | None = None) -> Dataset:
    """Zalando's articles of clothing: x f32[n,1,28,28] in [0,1], y i64[n] in 0..9; 60,000 + 10,000 examples.

    Reads the four idx files, ``.gz`` or unpacked, from ``data_dir``; without one, from where Debian's package
    ``dataset-fashion-mnist`` puts them. Source: Xiao, Rasul, Vollgraf, arXiv:1708.07747.
    """
    directory = FASHION_MNIST_DIR if data_dir is None else Path(data_dir)
    return Dataset("fashion-mnist", _idx_part(directory, "train"), _idx_part(directory, "t10k"))


def npz(path: str | Path) -> Dataset:
    """The arrays of an ``.npz`` file by name; ``NAME_valid`` is the validation part of ``NAME``.

    ``NAME_train`` stands for ``NAME``, ``NAME_test`` and ``NAME_val`` for ``NAME_valid``, as other tools write them.
    """
    return Dataset(str(path), *npz_parts(path))


def npz_parts(path: str | Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays of an ``.npz`` file to train on and for validation, by name: whatever they are, also no examples."""
    return parts_of(read_npz(path), path)


def batches(
    arrays: Mapping[str, ExampleArray], size: int, *, seed: int, epoch: int, shuffle: bool = True
) -> Iterator[dict[str, Array]]:
    """Mini-batches of ``size`` examples over all of ``arrays``, and the last short one if there is one.

    The order depends on ``seed`` and ``epoch`` alone (:func:`epoch_order`). Arrays are contiguous. The arguments are
    checked at the call, before the first batch is asked for.
    """
    if size < 1:
        raise DataError(f"batch size must be at least 1, got {size}")
    check_examples(arrays, "mini-batches")
    order = epoch_order(count_examples(arrays), seed=seed, epoch=epoch) if shuffle else None
    starts = range(0, count_examples(arrays), size)
    return (examples(arrays, order, slice(start, start + size)) for start in starts)


def split(
    arrays: Mapping[str, ExampleArray], fraction: float, *, seed: int = 0, by: str | None = None
) -> tuple[dict[str, ExampleArray], dict[str, ExampleArray]]:
    """Examples to train on, and ``fraction`` of all for validation, drawn by ``seed``; both in the order they had.

    ``by``: an array of classes, each of which is split so. Raises :class:`DataError` for a fraction that is not between
    0 and 1, or that leaves nothing in a part.
    """
    check_examples(arrays, "split")
    if isinstance(fraction, bool) or not 0 < fraction < 1:
        raise DataError(f"the part for validation must be a fraction between 0 and 1, not {fraction!r}")
    order = epoch_order(count_examples(arrays), seed=seed, epoch=SPLIT)
    groups = [order] if by is None else [order[arrays[by][order] == each] for each in np.unique(arrays[by])]
    held = np.zeros(len(order), bool)
    for group in groups:
        held[group[: round(fraction * len(group))]] = True
    if held.all() or not held.any():
        raise DataError(f"{plural(len(order), 'example')} split by {fraction}: a part would have no examples")
    numbers = (np.flatnonzero(~held), np.flatnonzero(held))
    train, valid = ({name: select(array, part) for name, array in arrays.items()} for part in numbers)
    return train, valid


def epoch_order(count: int, *, seed: int, epoch: int) -> Array:
    """A permutation i64[count] that is a pure function of (count, seed, epoch).

    Sorts one 64-bit word of Philox for each example. NumPy promises the raw words of a bit generator for ever, but
    not what ``Generator.permutation`` makes of them, and a checkpoint must outlive a NumPy release.
    Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
    """
    for name, value in (("seed", seed), ("epoch", epoch)):
        if not 0 <= value < 2**64:
            raise DataError(f"{name} must be in 0 .. 2**64 - 1, got {value}")
    key = np.array([seed, epoch], dtype=np.uint64)
    return ascending(np.random.Philox(key=key).random_raw(count))


def ascending(words: Array) -> Array:
    """The order in which 64-bit words ascend; of equal ones the first comes first."""
    order = np.argsort(words)  # five times as fast as a stable sort, and the same where all words differ
    ordered = words[order]
    return order if (ordered[1:] != ordered[:-1]).all() else np.argsort(words, kind="stable")


def examples(arrays: Mapping[str, ExampleArray], order: Array | None, part: slice) -> dict[str, Array]:
    """The examples of a part of an order (without one, as they lie), as contiguous arrays."""
    if order is None:
        return {name: np.ascontiguousarray(array[part]) for name, array in arrays.items()}
    return {name: take(array, order[part]) for name, array in arrays.items()}


def count_examples(arrays: Mapping[str, ExampleArray]) -> int:
    """Examples in arrays that :func:`check_examples` accepts."""
    return len(next(iter(arrays.values())))


def check_examples(arrays: Mapping[str, ExampleArray], where: str) -> None:
    """Raise :class:`DataError` unless there are arrays of numbers, all with the same number of examples, not 0."""
    if not arrays:
        raise DataError(f"{where}: there are no arrays")
    for name, array in arrays.items():
        if array.dtype.kind in "OUSMmc":
            raise DataError(f"{where}: array {name!r} has dtype {array.dtype}, which is not a number or a bool")
        if array.ndim == 0:
            raise DataError(f"{where}: array {name!r} is a scalar; it needs a first axis with one index per example")
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{where}: arrays have different numbers of examples: {counts}")
    if 0 in counts.values():
        raise DataError(f"{where}: the arrays {_listed(arrays)} are empty")


def _images(pixels: Array, white: int) -> Array:
    """u8[n,h,w] in 0..white to f32[n,1,h,w] in [0,1]."""
    return pixels[:, np.newaxis].astype(np.float32) / np.float32(white)


# --- idx files -------------------------------------------------------------------------------------------------------

IDX_DTYPES: Mapping[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


def read_idx(path: str | Path) -> Array:
    """The array in an idx file, gzipped or not.

    idx: two zero bytes, element type, rank, big-endian u32 extents, then the elements, row-major and big-endian.
    Source: LeCun, Cortes, Burges, The MNIST database, "File formats".
    """
    path = Path(path)
    raw = _read_maybe_gzip(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_DTYPES:
        raise DataError(f"{path}: not an idx file (its first bytes are {raw[:4].hex(' ') or 'missing'})")
    dtype, rank = IDX_DTYPES[raw[2]], raw[3]
    start = 4 + 4 * rank
    if len(raw) < start:
        raise DataError(f"{path}: truncated idx file: a header of rank {rank} takes {start} bytes, found {len(raw)}")
    shape = struct.unpack(f">{rank}I", raw[4:start])
    expected = start + dtype.itemsize * math.prod(shape)
    if len(raw) != expected:
        state = "truncated" if len(raw) < expected else "too long"
        raise DataError(f"{path}: {state} idx file: shape {list(shape)} takes {expected} bytes, found {len(raw)}")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _idx_part(directory: Path, part: str) -> dict[str, Array]:
    """One part of an MNIST-like data set, checked: u8 images 28×28 and as many labels in 0..9."""
    image_path, label_path = (_idx_path(directory, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_path), read_idx(label_path)
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{image_path}: expected u8[n,28,28], found {images.dtype}{list(images.shape)}")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{label_path}: expected u8[{len(images)}], one label for each image, "
            f"found {labels.dtype}{list(labels.shape)}"
        )
    if labels.max(initial=0) > 9:
        raise DataError(f"{label_path}: label {labels.max()} is outside 0..9")
    return {"x": _images(images, 255), "y": labels.astype(np.int64)}


def _idx_path(directory: Path, stem: str) -> Path:
    for path in (directory / f"{stem}.gz", directory / stem):
        if path.is_file():
            return path
    raise DataError(
        f"fashion-mnist: {stem}.gz is not in {directory}; install Debian's package dataset-fashion-mnist "
        "(apt-get install dataset-fashion-mnist), or give the directory that holds the four idx files "
        "(--data-dir DIR, or data_dir=...)"
    )


def _read_maybe_gzip(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or broken gzip file ({error}); fetch or install it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


# --- npz files -------------------------------------------------------------------------------------------------------

_BROKEN_NPZ = (
    ValueError,  # not an archive, a broken header, pickled objects
    TypeError,  # np.load returned a lone array, which is no context manager
    EOFError,
    KeyError,
    RuntimeError,  # encrypted; NotImplementedError, an unknown compression, is one of these
    zipfile.BadZipFile,
    zlib.error,
    MemoryError,  # a header that claims terabytes
)


def read_npz(path: str | Path) -> dict[str, Array]:
    """The arrays of an ``.npz`` file, by their names in it."""
    advice = "expected an .npz file of plain arrays, as numpy.savez writes it"
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except _BROKEN_NPZ as error:
        reason = error if zipfile.is_zipfile(path) else "this is no zip archive"  # of which NumPy says other things
        raise DataError(f"{path}: {advice} ({reason})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _listed(arrays: Mapping[str, ExampleArray]) -> str:
    return ", ".join(repr(name) for name in arrays)


def _type(array: ExampleArray) -> str:
    return f"{array.dtype}{list(array.shape[1:])}"


def __dir__() -> list[str]:
    return __all__
