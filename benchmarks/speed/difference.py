"""How far one engine's result is from another's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def error(found: Any, wanted: Any) -> float:
    """The largest difference over the range; infinite for other shapes, different integers, or NaN in other places."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else math.inf
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return math.inf
    found, wanted = found[~np.isnan(found)], wanted[~np.isnan(wanted)]
    if not wanted.size:
        return 0.0
    span = float(np.ptp(wanted)) or float(np.abs(wanted).max()) or 1.0
    return float(np.abs(found - wanted).max()) / span
