"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by way of one beside it, synced to disk before it takes the name and the permissions.

    Raises ``OSError``; what was at ``path`` is then untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
        _sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system lets directories be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
