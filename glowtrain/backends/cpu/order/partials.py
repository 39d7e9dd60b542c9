"""How many partial results a reduction has for each lane of a loop around it."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNROLLED = 16
"""Boxes of at most this many points are one chain of operations."""
PARTIALS = 4
"""Partial results of larger ones: independent, so that none waits for the latency of the one before."""


def partials_in_lanes(extents: Sequence[int]) -> int:
    """Those of a box of these extents, the innermost loop's last: element i along that goes into number i mod n."""
    return PARTIALS if math.prod(extents) > UNROLLED and extents[-1] >= 2 * PARTIALS else 1
