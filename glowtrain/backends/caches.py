"""Read the sizes of the processor's data caches, as Linux shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class CpuCache:
    """A cache: its level from 1, its bytes, and how many of the cores that this process may use share it."""

    level: int
    size: int
    cores: int


def caches() -> tuple[CpuCache, ...]:
    """The data caches of the first core that this process may run on, nearest first; none where the system does not
    tell."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    folders = sorted((CPUS / f"cpu{min(allowed)}" / "cache").glob("index*"))
    found = [cache for folder in folders if (cache := _cache(folder, allowed)) is not None]
    return tuple(sorted(found, key=lambda cache: cache.level))


def _cache(folder: Path, allowed: set[int]) -> CpuCache | None:
    try:
        kind, level, size, cores = (
            (folder / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size", "shared_cpu_list")
        )
        if kind not in ("Data", "Unified"):
            return None
        return CpuCache(int(level), _bytes(size), max(1, len(_listed(cores) & allowed)))
    except (OSError, ValueError):
        return None


def _bytes(text: str) -> int:
    """``48K`` in bytes."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None:
        raise ValueError(text)
    return int(found[1]) * _UNITS[found[2]]


def _listed(text: str) -> set[int]:
    """``0-3,8`` as numbers."""
    ends = [part.split("-") for part in text.split(",") if part]
    return {number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)}
