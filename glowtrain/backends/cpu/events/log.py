"""What profiled code notes down: when each call ran, and which thread ran which of its tasks when.

A log is memory of i64. It begins with the bytes of a lane and the events that a lane has room for, beyond which none is
noted; the lanes follow at the next cache line:
that of the step itself, which has an event for every call, then one for each thread, with an event for every range of
tasks that it took from a pool. A lane is the number of its events, on a cache line of its own, and the events:

    event ::= call, begin, end, first task, task behind the last          (times in ticks of the processor's counter)

The last event of the step's lane is the whole step, with the number of calls as its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.backends.base import SPAN, SPAN_FIELDS, WHOLE_CALL
from glowtrain.backends.state import aligned
from glowtrain.types import Array

STEP, FIRST_THREAD = range(2)
"""The lane of the step, and that of the first thread."""
LINE = 8
"""Elements of a cache line."""
FIELDS = 5
"""Elements of an event."""


@dataclass(frozen=True)
class CountedCall:
    """A call in the text of a step that is profiled: the kernel's name, how often a step makes it, and the ranges that
    its tasks are shared out in, at most; 0 where the thread that runs the step does all of them."""

    name: str
    trips: int
    ranges: int


class EventLog:
    """Memory for the events of one step on so many threads, as long as it can become."""

    def __init__(self, calls: Sequence[CountedCall], threads: int) -> None:
        events = 1 + sum(call.trips * max(call.ranges, 1) for call in calls)
        self.lane = -(-(LINE + FIELDS * events) // LINE) * LINE
        self.memory: Array = aligned(np.zeros(LINE + self.lane * (1 + threads), np.int64))
        self.memory[:2] = 8 * self.lane, events

    def clear(self) -> None:
        """Forget all events."""
        self.memory[LINE :: self.lane] = 0

    def spans(self) -> Array:
        """The events as records of :data:`~glowtrain.backends.base.SPAN`: the step's, then those of each thread."""
        lanes = self.memory[LINE:].reshape(-1, self.lane)
        return np.concatenate([_records(lane, thread) for thread, lane in enumerate(lanes, WHOLE_CALL)])


def _records(lane: Array, thread: int) -> Array:
    events = lane[LINE : LINE + FIELDS * int(lane[0])].reshape(-1, FIELDS)
    found = np.empty(len(events), SPAN)
    found["thread"] = thread
    for place, field in enumerate(SPAN_FIELDS[1:]):
        found[field] = events[:, place]
    return found
