"""Where the time of a fleet's steps goes: to what ranks do, to messages, and to waiting for slower ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from glowtrain.fleet.communicator import Communicator


class StepTimes:
    """Nanoseconds of steps, from one exchange of gradients to the next, as means over ranks.

    Ranks leave an exchange together. So those that were busy for less than the slowest until the next one have waited
    for that one, and the rest of the time were messages that nothing hides.
    """

    def __init__(self, ranks: Communicator) -> None:
        self.ranks = ranks
        self.restart()

    def restart(self) -> None:
        """Forget all steps: what comes begins now."""
        self.computing = self.communicating = self.waiting = 0.0
        self.resume()

    def resume(self) -> None:
        """What has happened since the last exchange is of no step."""
        self._since, self._waited = time.perf_counter_ns(), self.ranks.waited

    @property
    def busy(self) -> int:
        """The time since the last exchange in which this rank has waited for no other."""
        return time.perf_counter_ns() - self._since - (self.ranks.waited - self._waited)

    def exchanged(self, busy: Sequence[int]) -> None:
        """An exchange is over, before which ranks were busy for so long."""
        spent, slowest, mean = time.perf_counter_ns() - self._since, max(busy), sum(busy) / len(busy)
        self.computing += mean
        self.waiting += slowest - mean
        self.communicating += max(0, spent - slowest)
        self.resume()

    def __str__(self) -> str:
        """``compute 90 %, messages 6 %, waiting 4 %``, where there are several ranks and steps."""
        parts = {"compute": self.computing, "messages": self.communicating, "waiting": self.waiting}
        total = sum(parts.values())
        if self.ranks.size == 1 or not total:
            return ""
        return ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in parts.items())
