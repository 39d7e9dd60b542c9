"""A folder of compiled code, shared by processes: files appear whole or not at all, and whoever loses a race loses
nothing but time."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
from pathlib import Path

from glowtrain.backends.cache.limit import JOURNAL, SUFFIX, Entry, added, entries, remove
from glowtrain.backends.cache.trust import prepare
from glowtrain.errors import CacheWarning, InputError

LIMIT = 1 << 30
"""Bytes that a folder may hold: some thousand training steps of small networks."""
_MAGIC = "glowtrain.compiled.1"
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


class Cache:
    """A folder of artifacts by key. It may be deleted at any time.

    ``private``: the user's own folder, which nobody asked for: where it cannot be used, a :class:`CacheWarning` says so
    once, and code is compiled without. With another one that is an :class:`InputError`; only a full disk is a warning.
    """

    def __init__(self, folder: str | os.PathLike[str], *, limit: int = LIMIT, private: bool = False) -> None:
        self.folder = Path(folder) if private else Path(folder).expanduser().absolute()
        self.limit = limit
        self.private = private
        self._usable: bool | None = None
        self._said = False

    def get(self, key: str) -> bytes | None:
        """What is kept under a key; None for what is not there, or was not written for it.

        Raises :class:`InputError` for a folder that cannot be used and that someone asked for.
        """
        if not self._prepared():
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head = _head(key)
        if not data.startswith(head):
            return None
        with contextlib.suppress(OSError):  # those who may only read it use it, too
            os.utime(path)
        return data[len(head) :]

    def put(self, key: str, data: bytes) -> None:
        """Keep an artifact: whole or not at all. What is larger than the limit is not kept. Raises as :meth:`get`."""
        whole = _head(key) + data
        if len(whole) > self.limit or not self._prepared():
            return
        try:
            self._write(self._path(key), whole)
            added(self.folder, len(whole), self.limit)
        except OSError as error:
            self._fail(error.strerror or str(error), grave=error.errno not in _FULL)

    def entries(self) -> list[Entry]:
        """What is kept, that first which was used longest ago."""
        return sorted(entries(self.folder))

    def clear(self) -> list[Entry]:
        """Remove all that is kept. Returns what that was."""
        found = self.entries()
        for path in (*(entry.path for entry in found), *self.folder.glob(".*.tmp"), self.folder / JOURNAL):
            remove(path)
        return found

    def _prepared(self) -> bool:
        """Whether the folder can be used, found out at the first use."""
        if self._usable is None:
            problem = prepare(self.folder, private=self.private)
            self._usable = problem is None
            if problem is not None:
                self._fail(problem)
        return self._usable

    def _fail(self, problem: str, *, grave: bool = True) -> None:
        message = f"compiled code cannot be kept in {self.folder}: {problem}"
        if grave and not self.private:
            self._usable = None
            raise InputError(message)
        if not self._said:
            self._said = True
            how = "gt.Cpu(cache=FOLDER) or --cache names another one, cache=None or --no-cache keeps none"
            warnings.warn(f"{message}; it is compiled in each process ({how})", CacheWarning, stacklevel=2)

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            temporary.replace(path)
        finally:
            remove(temporary)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"


def _head(key: str) -> bytes:
    """What a file begins with."""
    return f"{_MAGIC} {key}\n".encode()
