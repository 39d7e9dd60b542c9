"""Numbers of bytes as people give and read them: ``65536``, ``6.4e7``, ``"256KB"``, ``"64 MB"``, ``"1.5GiB"``."""

from __future__ import annotations

import decimal
import math
import re

import numpy as np

from glowtrain.errors import InputError

_TEXT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(size: object, what: str = "memory") -> int:
    """A number of bytes, given as a number or as text with K, M, G or T, with or without B or iB behind it.

    K is 1024 in all spellings, M 1024 K and so on, as makers of processors count memory. Parts of a byte are dropped.
    Raises :class:`InputError`, whose message begins with ``what``, for anything that is not one byte or more.
    """
    count = _from_text(size) if isinstance(size, str) else _from_number(size)
    if count < 1:
        raise InputError(f"{what} {size!r}: say a positive number of bytes, such as 262144, 256KB or 4MB")
    return count


def _from_text(size: str) -> int:
    """0 for text that is no number of bytes."""
    found = _TEXT.fullmatch(size.strip())
    return int(decimal.Decimal(found[1]) * (1 << _SHIFTS[found[2].upper()])) if found else 0


def _from_number(size: object) -> int:
    """0 for what is no finite number."""
    if isinstance(size, bool) or not isinstance(size, (int, float, np.integer, np.floating)):
        return 0
    return int(size) if math.isfinite(size) else 0


def byte_text(count: float) -> str:
    """``1.4 MiB``"""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
