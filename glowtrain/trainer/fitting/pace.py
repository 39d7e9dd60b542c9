"""How many batches run in one call: enough to be fast, few enough to be told of, and interrupted, in between."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 0.02
"""About how long a call takes in which several batches run."""
MEMORY = 1 << 20
"""Bytes of the examples of all batches of a call, where there are several: what fits into a core's own cache."""


@dataclass
class Pace:
    """The number of batches to run in the next call, for batches of so many bytes."""

    batch_bytes: int = 0
    batches: int = 1

    def went(self, batches: int, seconds: float) -> None:
        """Learn from a call."""
        fitting = int(batches * SECONDS / max(seconds, 1e-9))
        self.batches = max(1, min(fitting, MEMORY // max(self.batch_bytes, 1)))
