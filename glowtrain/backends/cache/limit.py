"""How much a cache folder may hold: what was used longest ago goes first.

A journal in the folder has a line for each file that was added, with its bytes; their sum is at least what there is.
Only where it exceeds the limit the folder is looked through, and the journal begins anew. Processes append to it
without waiting for each other, and one at a time clears up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".compiled"
JOURNAL, LOCK = "journal", "lock"
ROOM = 0.9
"""The share of the limit that is left full, so that not each file makes another one go."""
ABANDONED = 3600.0
"""Seconds after which a temporary file has no writer any more."""


@dataclass(frozen=True, order=True)
class Entry:
    """A file of compiled code; the one that was used longest ago comes first."""

    used: float
    nbytes: int
    path: Path


def entries(folder: Path) -> Iterator[Entry]:
    """The files of compiled code in a folder; those that vanish meanwhile are left out."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for each in found:
            if each.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    status = each.stat()
                    yield Entry(status.st_mtime, status.st_size, Path(each.path))


def added(folder: Path, nbytes: int, limit: int) -> None:
    """Account for a file that was added, and clear up where there may be too much. Raises ``OSError``."""
    journal = folder / JOURNAL
    known = journal.exists()
    with open(journal, "ab", buffering=0) as file:
        file.write(b"%d\n" % nbytes)
    if not known or _sum(journal) > limit:
        trim(folder, limit)


def _sum(journal: Path) -> float:
    """The bytes that a journal tells of; infinite for one that cannot be read."""
    try:
        return sum(map(int, journal.read_bytes().split()))
    except (OSError, ValueError):
        return float("inf")


def trim(folder: Path, limit: int) -> None:
    """Remove files until a folder holds no more than ``limit`` bytes, unless another process is about it."""
    with open(folder / LOCK, "wb") as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        total = _shrunk(folder, limit)
        _remove_abandoned(folder)
        fresh = folder / f".{JOURNAL}.{os.getpid()}.tmp"
        fresh.write_bytes(b"%d\n" % total)
        fresh.replace(folder / JOURNAL)


def _shrunk(folder: Path, limit: int) -> int:
    """Remove what was used longest ago where there is too much. Returns the bytes that are left."""
    found = sorted(entries(folder))
    total = sum(entry.nbytes for entry in found)
    most = limit if total <= limit else limit * ROOM
    for entry in found:
        if total <= most:
            break
        remove(entry.path)
        total -= entry.nbytes
    return total


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                remove(path)


def remove(path: Path) -> None:
    """Remove a file, which another process may have done already."""
    with contextlib.suppress(OSError):
        path.unlink()
