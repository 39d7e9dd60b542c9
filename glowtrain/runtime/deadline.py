"""Deadlines: a moment until which something is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread

from glowtrain.runtime.checks import seconds


@dataclass(frozen=True)
class Deadline:
    """The moment ``at`` (of ``time.monotonic``); None where it is waited for as long as it takes."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> Deadline:
        """So many seconds from now. Raises :class:`InputError` for what is no time."""
        return cls(None if timeout is None else time.monotonic() + seconds("timeout", timeout))

    @property
    def left(self) -> float | None:
        """Seconds until then, 0 where it has passed: what functions of ``threading`` take as their time-out."""
        return None if self.at is None else max(self.at - time.monotonic(), 0.0)


NEVER = Deadline(None)
"""It is waited for as long as it takes."""


def in_threads(calls: Sequence[Callable[[], None]], deadline: Deadline) -> list[Exception]:
    """Make calls, all at the same time; they are waited for until a deadline. What they have raised by then."""
    problems: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever wanted the calls is told
            problems.append(error)

    threads = [Thread(target=run, args=[call], name="runtime leaving", daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline.left)
    return list(problems)
