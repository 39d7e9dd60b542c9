"""Decide how many threads a step runs on, unless a person says it, and how much work each takes at once."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from math import ceil
from operator import index
from pathlib import Path
from typing import SupportsIndex

from glowtrain.errors import InputError
from glowtrain.memory.resources import MOST_THREADS
from glowtrain.presentation.messages import kind_of, plural

CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows the limits that containers have (control groups, version 2)."""
OWN = Path("/proc/self/cgroup")
"""Where it shows the groups of this process."""
POSIX = os.name == "posix"
"""Whether there are the locks that threads wait at."""
GRAIN = 5_000
"""Cycles of a chunk at least, some 2 µs: claiming one and saying that it is done takes 100 or 200."""


def checked(threads: SupportsIndex) -> int:
    """A number of threads that was asked for. Raises :class:`InputError` for anything but 1 to 1024; says once for each
    number that there are fewer cores."""
    if isinstance(threads, bool) or not isinstance(threads, SupportsIndex):
        raise InputError(f"threads must be a whole number, not {kind_of(threads)}")
    number = index(threads)
    if not 1 <= number <= MOST_THREADS:
        raise InputError(f"threads must be from 1 to {MOST_THREADS}, not {number}; 1 runs on the calling thread alone")
    if number > 1 and not POSIX:
        raise InputError(f"{number} threads need a POSIX system (pthreads); this one is {sys.platform}")
    if number > cores():
        _say_once(number, cores())
    return number


@cache
def _say_once(threads: int, there: int) -> None:
    warnings.warn(f"{threads} threads share {plural(there, 'core')}: more are not faster", stacklevel=2)


def default() -> int:
    """As many as this process has cores, but not more than PyTorch is set to use where it is in the process, too; 1
    where the system is not POSIX."""
    if not POSIX:
        return 1
    torch = sys.modules.get("torch")
    limit = getattr(torch, "get_num_threads", None)
    return min(cores(), MOST_THREADS, limit() if callable(limit) else MOST_THREADS)


def cores() -> int:
    """The cores that this process may run on: its affinity mask, cut by the quota of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(ceil(share) for share in _quotas())]))


def _quotas() -> list[float]:
    """Cores' worth of time in each control group that this process is in, as far as they can be read."""
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return []
    group = CGROUPS / own
    shares = [_quota(folder / "cpu.max") for folder in (group, *group.parents) if folder.is_relative_to(CGROUPS)]
    return [share for share in shares if share is not None]


def _quota(path: Path) -> float | None:
    """``QUOTA PERIOD`` in microseconds, or ``max PERIOD``."""
    try:
        quota, period = path.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
