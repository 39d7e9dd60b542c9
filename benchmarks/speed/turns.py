"""Engines that do the same work, in turns: a busy moment of the machine then slows all of them down."""

from __future__ import annotations

import gc
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

TURN = 0.05
"""Seconds, at least, that an engine runs before the next one's turn."""
LEAST = 3
"""Calls, at least, of one turn."""


class Step(ABC):
    """What an engine repeats: a training step, or a call of a model."""

    @abstractmethod
    def __call__(self, i: int) -> Any:
        """Do it for the ``i``-th time; the loss from before the update, or outputs by name."""

    def facts(self, *, stages: bool) -> dict[str, Any]:
        """What else there is to say of the compiled step; with ``stages``, seconds of each stage of compiling."""
        return {}


@dataclass
class Engine:
    """One engine: its step, its first result, the seconds until that was there, and seconds of later calls."""

    name: str
    step: Step
    first: Any
    ready: float
    times: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, make: Callable[[], Step]) -> Engine:
        """Make the step and take it once."""
        began = time.perf_counter()
        step = make()
        first = step(0)
        return cls(name, step, first, time.perf_counter() - began)

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return statistics.median(self.times)

    def turn(self) -> None:
        """Calls for :data:`TURN` seconds; the first, which finds another engine's data in the caches, is left out."""
        end, done = time.perf_counter() + TURN, 0
        while done < LEAST or time.perf_counter() < end:
            start = time.perf_counter()
            self.step(done)
            if done:
                self.times.append(time.perf_counter() - start)
            done += 1


def take_turns(engines: Sequence[Engine], seconds: float) -> None:
    """At least one turn of each, and more until the time is over."""
    gc.disable()
    end = time.perf_counter() + seconds
    while True:
        for engine in engines:
            engine.turn()
        if time.perf_counter() >= end:
            break
    gc.enable()
