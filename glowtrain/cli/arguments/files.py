"""Inputs and outputs of commands. Outputs are checked before long work and written whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from glowtrain.errors import InputError
from glowtrain.onnx_io.read import source as sources
from glowtrain.presentation.figures import check_drawing
from glowtrain.trainer.checkpoints import files
from glowtrain.types import Array


def check_writable(*paths: Path | None) -> None:
    """Raise :class:`CheckpointError` now for outputs that could not be written later."""
    for path in paths:
        if path is not None:
            files.check_writable(path)


def check_reports(*paths: Path | None, page: Path | None) -> None:
    """The same for reports, of which a ``page`` has figures. Raises :class:`MissingExtraError` without matplotlib."""
    check_writable(*paths, page)
    if page is not None:
        check_drawing()


def check_differs(model: str, *outputs: Path | None) -> None:
    """Raise :class:`InputError` for an output that is the model itself, or holds its weights."""
    there = [path for path in outputs if path is not None and path.is_file()]
    if not there or not Path(model).is_file():
        return
    files = [file for file in sources.files_of(Path(model)) if file.exists()]
    for path in there:
        if any(path.samefile(file) for file in files):
            raise InputError(f"{path} is the model itself; write to another file")


def check_predictions(path: Path) -> None:
    """Raise :class:`InputError` for a name that promises another format than :func:`write_arrays` and
    :func:`write_rows` write."""
    if path.suffix not in ("", ".npz", ".csv"):
        raise InputError(f"{path}: predictions are written as .npz or .csv, not as {path.suffix}")
    check_writable(path)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an ``.npz`` file: the whole of it or nothing; bf16, which such files do not know, as f32.

    Raises :class:`CheckpointError`.
    """
    memory = io.BytesIO()
    np.savez(memory, allow_pickle=False, **{name: _plain(array) for name, array in arrays.items()})
    files.write_atomically(path, memory.getvalue())


def write_rows(path: Path, columns: Mapping[str, Array]) -> None:
    """Write a ``.csv`` file of columns by name: the whole of it or nothing, with numbers that read back as they are.

    Raises :class:`CheckpointError`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_plain(column).astype(str) for column in columns.values()), strict=True))
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a text file: the whole of it or nothing. Raises :class:`CheckpointError`."""
    files.write_atomically(path, text.encode())


def write_texts(*texts: tuple[Path | None, Callable[[], str]]) -> Iterator[Path]:
    """Write those texts that have a path, each of them whole or not at all. Raises :class:`CheckpointError`."""
    for path, text in texts:
        if path is not None:
            write_text(path, text())
            yield path


def _plain(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "V" else array
