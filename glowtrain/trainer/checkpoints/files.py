"""Files that a training run writes: checked before it starts, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from glowtrain import files
from glowtrain.errors import CheckpointError


def write_atomically(path: Path, data: bytes) -> None:
    """Write the whole of a file or nothing. Raises :class:`CheckpointError`."""
    try:
        files.write_atomically(path, data)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror or error}; what was there before is untouched"
        ) from error


def check_writable(path: Path, needed: int = 0) -> None:
    """Raise :class:`CheckpointError` now if a file of ``needed`` bytes could not be written to ``path`` later."""
    if path.is_dir():
        raise CheckpointError(f"{path}: is a directory; give the name of a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise CheckpointError(f"{path}: is not writable; change its permissions or choose another name")
    if files.is_stream(path):
        return
    try:
        directory = files.written_file(path).parent
        if not directory.is_dir():
            raise CheckpointError(f"{path}: the directory {directory} does not exist; create it first")
        _check_room(path, directory, needed)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def _check_room(path: Path, directory: Path, needed: int) -> None:
    """Raise for a directory in which no file can be made, or none of that many bytes."""
    with tempfile.TemporaryFile(dir=directory):
        pass
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise CheckpointError(f"{path}: needs {needed:,} bytes, but only {free:,} are free on that disk")
