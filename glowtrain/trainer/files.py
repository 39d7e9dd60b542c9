"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from glowtrain.errors import CheckpointError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file through a temporary one beside it, synced to disk before it takes the name.

    Raises :class:`CheckpointError`; what was at ``path`` is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror or error}; what was there before is untouched"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(path: Path, needed: int = 0) -> None:
    """Raise :class:`CheckpointError` now if a file of ``needed`` bytes could not be written to ``path`` later."""
    directory = path.parent
    if path.is_dir():
        raise CheckpointError(f"{path}: is a directory; give the name of a file")
    if not directory.is_dir():
        raise CheckpointError(f"{path}: the directory {directory} does not exist; create it first")
    if path.exists() and not os.access(path, os.W_OK):
        raise CheckpointError(f"{path}: is not writable; change its permissions or choose another name")
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error
    if free < needed:
        raise CheckpointError(f"{path}: needs {needed:,} bytes, but only {free:,} are free on that disk")


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system lets directories be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
