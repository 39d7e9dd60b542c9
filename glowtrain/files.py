"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def is_stream(path: Path) -> bool:
    """Whether what is at ``path`` takes bytes and keeps no content: a device, a pipe, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def written_file(path: Path) -> Path:
    """The file that writing to ``path`` replaces: what a symbolic link leads to, else ``path`` itself.

    Raises ``OSError`` for links that lead in a circle.
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by way of one beside it, synced to disk before it takes the name and the permissions.

    A symbolic link stays one: the file that it leads to is replaced. A device or a pipe is written to as it is. What
    writers that were killed have left beside the file is removed.

    Raises ``OSError``; a file that was at ``path`` is then untouched.
    """
    if is_stream(path):
        path.write_bytes(data)
        return
    target = written_file(path)
    _remove_abandoned(target)
    with _temporary(target) as (temporary, file):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
        _sync_directory(target.parent)


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside ``target``, locked as long as it is open; it is removed at the end, unless it was renamed."""
    path = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with _locked(path) as file:
            yield path, file
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    """A new file under a lock, where the file system has locks.

    Another writer may take the file for abandoned before it is locked; then it is made once more.
    """
    while True:
        file = open(path, "wb")  # noqa: SIM115  (the caller closes it)
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of writers that are gone: a lock is given up with its process, however that ends."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.\d+\.\d+\.tmp")
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if ours.fullmatch(path.name) and path.is_file():
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system lets directories be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
