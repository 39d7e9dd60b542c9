"""What the runtime did and when, as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

A track for each device has the batches that it ran; a track for each network has its requests, from arrival to answer,
with the time in the queue. Source of the format: Trace Event Format (Google, 2016): complete events (``"ph": "X"``) on
devices, asynchronous ones (``"b"``, ``"e"``) for requests, which overlap.
"""

from __future__ import annotations

import json
import time
from collections import deque
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from glowtrain.files import write_atomically
from glowtrain.runtime.request.request import NetworkRequest

EVENTS = 200_000
"""Events that are remembered: the latest ones."""
DEVICES, NETWORKS = 1, 2
"""The two processes of a trace."""


class RuntimeTrace:
    """The latest events of a runtime. Times are those of ``time.monotonic``; threads may add events at any time."""

    def __init__(self, limit: int = EVENTS) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=limit)
        self._began = time.monotonic()
        self._tracks: dict[tuple[int, str], int] = {}
        self._numbers = count(1)
        self._lock = Lock()

    def ran_part(
        self, network: str, rows: int, size: int | None, device: str, part: str, began: float, ended: float
    ) -> None:
        """A device ran a part of a network for a batch."""
        self.ran(device, f"{network}: {part}", rows, began, ended, size)

    def ran(self, device: str, network: str, rows: int, began: float, ended: float, size: int | None) -> None:
        """A device ran a batch."""
        event = self._event("X", network, self._track(DEVICES, device), began)
        self._events.append({**event, "dur": (ended - began) * 1e6, "args": {"rows": rows, "size": size}})

    def answered(self, network: str, request: NetworkRequest, ended: float) -> None:
        """A request has its answer."""
        number, track = next(self._numbers), self._track(NETWORKS, network)
        began = ended if request.began is None else request.began
        self._span("request", number, track, request.arrival, ended, {"rows": request.rows})
        self._span("queue", number, track, request.arrival, began, {"priority": request.priority})

    def _span(self, name: str, number: int, track: tuple[int, int], began: float, ended: float, args: Any) -> None:
        for phase, moment in (("b", began), ("e", ended)):
            event = self._event(phase, name, track, moment)
            self._events.append({**event, "cat": "request", "id": number, "args": args})

    def _event(self, phase: str, name: str, track: tuple[int, int], moment: float) -> dict[str, Any]:
        return {"ph": phase, "name": name, "pid": track[0], "tid": track[1], "ts": (moment - self._began) * 1e6}

    def _track(self, process: int, name: str) -> tuple[int, int]:
        with self._lock:
            return process, self._tracks.setdefault((process, name), len(self._tracks) + 1)

    def text(self) -> str:
        """The trace as JSON."""
        names = [_named("process_name", process, 0, name) for process, name in ((1, "devices"), (2, "networks"))]
        tracks = list(self._tracks.items())  # in one go: threads may add others
        names += [_named("thread_name", process, track, name) for (process, name), track in tracks]
        return json.dumps({"traceEvents": [*names, *list(self._events)], "displayTimeUnit": "ms"}) + "\n"

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(Path(path), self.text().encode())


def _named(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}
