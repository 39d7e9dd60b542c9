"""A moment until which something is waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """The moment ``at`` (of ``time.monotonic``); None where it is waited for as long as it takes."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> Deadline:
        """So many seconds from now."""
        return cls(None if timeout is None else time.monotonic() + timeout)

    @property
    def left(self) -> float | None:
        """Seconds until then, 0 where it has passed: what functions of ``threading`` take as their time-out."""
        return None if self.at is None else max(self.at - time.monotonic(), 0.0)
