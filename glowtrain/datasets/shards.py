"""Shards: arrays cut into many ``.npy`` or ``.npz`` files, together larger than memory.

    DIR/x-000.npy  DIR/y-000.npy  DIR/x-001.npy  DIR/y-001.npy  ...     an array a file: NAME-SHARD.npy, or NAME.npy
    DIR/000.npz    DIR/001.npz    ...                                   all arrays of a shard in a file, by name

Shards follow each other in the order of their names. Files are read by offset, not mapped: pages of a map would count
as this process's memory for as long as they stay in the system's cache.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from glowtrain.datasets.parts import parts_of
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import DataError
from glowtrain.presentation.messages import listed
from glowtrain.types import Array

ENDINGS = (".npy", ".npz")

COMPRESSED = 1 << 28
"""Bytes of compressed arrays that are read whole, since no example can be read by itself."""


@dataclass(frozen=True)
class Member:
    """An array as it lies in a file: from which byte on, or compressed in an ``.npz`` file as ``packed``."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    packed: str | None = None

    @property
    def where(self) -> str:
        return f"{self.path}" if self.packed is None else f"{self.path} ({self.packed})"

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def whole(self) -> Array:
        """All examples."""
        if self.packed is not None:
            return _unpacked(self)
        array = np.empty(self.shape, self.dtype)
        with self.path.open("rb", buffering=0) as file:
            self.read_into(file, array, 0)
        return array

    def read_into(self, file: IO[bytes], array: Array, example: int) -> None:
        """Fill an array with the examples from a number on. Raises :class:`DataError` where the file ends before."""
        file.seek(self.offset + example * self.dtype.itemsize * math.prod(self.shape[1:]))
        rest = array.reshape(-1).view(np.uint8).data
        while len(rest):
            count = file.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise DataError(f"{self.path}: the file has become shorter since it was opened")
            rest = rest[count:]


class ShardedArray(StoredArray):
    """An array whose examples lie in several files, one file's behind the other's."""

    sequential = True

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.ends = np.cumsum([member.shape[0] for member in members])
        self.dtype = members[0].dtype.newbyteorder("=")
        self.shape = (int(self.ends[-1]), *members[0].shape[1:])

    def read(self, numbers: Array) -> Array:
        found = np.empty((len(numbers), *self.shape[1:]), self.members[0].dtype)
        shards = np.searchsorted(self.ends, numbers, side="right")
        try:
            for shard in np.unique(shards):
                begin, end = np.searchsorted(shards, [shard, shard + 1])
                self._read_shard(int(shard), numbers[begin:end], found[begin:end])
        except OSError as error:
            raise DataError(f"{error.filename or 'a shard'}: cannot be read: {error.strerror or error}") from error
        return found.astype(self.dtype, copy=False)

    def _read_shard(self, shard: int, numbers: Array, found: Array) -> None:
        """Fill an array with examples of a shard, each run of consecutive ones at once."""
        member = self.members[shard]
        first = self.ends[shard] - member.shape[0]
        cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        with member.path.open("rb", buffering=0) as file:
            for begin, end in pairwise(cuts):
                member.read_into(file, found[begin:end], int(numbers[begin] - first))


Part = Mapping[str, ExampleArray]
Shards = dict[str, Member]
"""Those of an array, by their names."""


def read_shards(source: str | Path) -> tuple[Part, Part]:
    """The arrays of the shards in a directory, or of the files that a pattern (``*``) matches, by name: to train on,
    and for validation (``NAME_valid``).

    Arrays of one number for each example (labels) are read whole, others when they are needed. Raises
    :class:`DataError`, which names the file, for shards that are missing, truncated, or of other types than the first.
    """
    paths = shard_paths(source)
    if not paths:
        raise DataError(f"{source}: there are no shards (.npy, .npz) there")
    if len({path.suffix for path in paths}) > 1:
        raise DataError(f"{source}: there are .npy and .npz files: shards are of one kind")
    found: dict[str, Shards] = {}
    for path in paths:
        for name, shard, member in _members(path):
            found.setdefault(name, {})[shard] = member
    parts = parts_of(found, source)
    for arrays in filter(None, parts):
        _check_complete(arrays, numbered=Path(source).is_dir())
        for members in arrays.values():
            _check_types([*members.values()])
        _check_counts(arrays)
    _check_packed([member for arrays in parts for members in arrays.values() for member in members.values()])
    train, valid = ({name: _joined([*members.values()]) for name, members in arrays.items()} for arrays in parts)
    return train, valid


def shard_paths(source: str | Path) -> list[Path]:
    """The files of shards in a directory, or that a pattern matches, in the order of their names."""
    path = Path(source)
    files = path.iterdir() if path.is_dir() else map(Path, glob(str(source)))
    return sorted(file for file in files if file.suffix in ENDINGS)


def _joined(members: list[Member]) -> ExampleArray:
    """The array of all shards: in memory where it has one number for each example, or is compressed."""
    if len(members[0].shape) > 1 and not any(member.packed for member in members):
        return ShardedArray(members)
    array = np.concatenate([member.whole() for member in members])
    return array.astype(array.dtype.newbyteorder("="), copy=False)


# --- headers ---------------------------------------------------------------------------------------------------------


def _members(path: Path) -> Iterable[tuple[str, str, Member]]:
    """The arrays in a file, each with its name and that of its shard. Raises :class:`DataError`."""
    try:
        if path.suffix == ".npz":
            return [(name, path.stem, member) for name, member in _zipped(path)]
        name, _, shard = path.stem.rpartition("-")  # NAME alone is the only shard of its array
        with path.open("rb") as file:
            member = _member(path, file, path.stat().st_size)
        return [(name or shard, shard if name else "", member)]
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path}: truncated, or no {path.suffix} file: {error}") from error


def _member(path: Path, file: IO[bytes], end: int) -> Member:
    """The array whose header a file is at, and whose elements reach at most up to the byte ``end``."""
    dtype, shape = _header(path, file)
    member = Member(path, dtype, shape, file.tell())
    if member.offset + member.nbytes > end:
        there = max(0, end - member.offset)
        raise DataError(
            f"{path}: truncated: {dtype}{list(shape)} takes {member.nbytes:,} bytes, but there are {there:,}: "
            "write or copy it again"
        )
    return member


def _header(path: Path, file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and shape from the header of an array. Raises :class:`DataError` for what cannot be examples."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(file)
    if dtype.kind not in "iufb":
        raise DataError(f"{path}: elements of type {dtype}, which are no numbers or bools of NumPy's own")
    if in_columns and len(shape) > 1:
        raise DataError(f"{path}: in Fortran's order, in which no example lies in one piece: save np.ascontiguousarray")
    if not shape:
        raise DataError(f"{path}: a scalar; shards need a first axis with one index per example")
    return dtype, shape


def _zipped(path: Path) -> Iterable[tuple[str, Member]]:
    """The arrays of an ``.npz`` file by name."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type != zipfile.ZIP_STORED:
                with archive.open(entry) as packed:
                    yield name, Member(path, *_header(path, packed), 0, entry.filename)
                continue
            file.seek(entry.header_offset)
            local = file.read(30)  # of a local header, in which the lengths of the name and of the extra field are last
            start = entry.header_offset + 30 + sum(np.frombuffer(local, "<u2", 2, offset=26).tolist())
            file.seek(start)
            yield name, _member(path, file, start + entry.file_size)


def _unpacked(member: Member) -> Array:
    try:
        with np.load(member.path, allow_pickle=False) as stored:
            array: Array = stored[(member.packed or "").removesuffix(".npy")]
            return array
    except Exception as error:
        raise DataError(f"{member.where}: truncated or broken: {error}") from error


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_complete(arrays: Mapping[str, Shards], *, numbered: bool) -> None:
    """Raise :class:`DataError` unless all arrays have the same shards; of a whole directory, also for a number that is
    left out."""
    shards = sorted({shard for members in arrays.values() for shard in members})
    if numbered and all(shard.isdecimal() for shard in shards):
        width, every = max(map(len, shards)), range(int(shards[0]), int(shards[-1]) + 1)
        shards = sorted({*shards, *(f"{number:0{width}}" for number in every if number not in set(map(int, shards)))})
    for name, members in arrays.items():
        if missing := [shard for shard in shards if shard not in members]:
            first = next(iter(members.values())).path
            files = [f"{each}.npz" if first.suffix == ".npz" else f"{name}-{each}.npy" for each in missing]
            raise DataError(
                f"{first.parent}: {name!r} has {len(members)} shards of {len(shards)}; it is missing in {listed(files)}"
            )


def _check_types(members: list[Member]) -> None:
    """Raise :class:`DataError` unless the examples of all shards have one type and shape."""
    first = members[0]
    for member in members:
        if (member.dtype, member.shape[1:]) != (first.dtype, first.shape[1:]):
            raise DataError(
                f"{member.where}: examples are {member.dtype}{list(member.shape[1:])}, "
                f"but {first.dtype}{list(first.shape[1:])} in {first.where}"
            )


def _check_counts(arrays: Mapping[str, Shards]) -> None:
    """Raise :class:`DataError` unless the arrays of each shard have as many examples, some."""
    (reference, first), *_ = arrays.items()
    for name, members in arrays.items():
        for shard, member in members.items():
            if member.shape[0] != first[shard].shape[0] or not member.shape[0]:
                other = f", but {first[shard].shape[0]:,} of {reference!r}" if name != reference else ""
                raise DataError(f"{member.where}: {member.shape[0]:,} examples of {name!r}{other} in shard {shard!r}")


def _check_packed(members: list[Member]) -> None:
    """Raise :class:`DataError` for more compressed arrays than memory should hold."""
    packed = [member for member in members if member.packed]
    total = sum(member.nbytes for member in packed)
    if total > COMPRESSED:
        raise DataError(
            f"{packed[0].path}: compressed, so that it has to be read whole, and all take {total / 2**20:,.0f} MiB (at "
            f"most {COMPRESSED >> 20}): write shards with np.savez, not np.savez_compressed"
        )
