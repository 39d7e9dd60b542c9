"""What the runtime did, as a trace: each device and network has a track of its own, whatever threads add to it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import numpy as np

from glowtrain.runtime import HostManager
from glowtrain.runtime.observation.trace import RuntimeTrace
from tests.runtime.devices import ScriptedDevice, rows, triple


def test_tracks_of_threads_that_add_at_once() -> None:
    """No two names share a track; the text can be made meanwhile."""
    trace, barrier = RuntimeTrace(), Barrier(5)

    def adding(thread: int) -> None:
        barrier.wait()
        for number in range(500):
            trace.ran(f"device {number % 100}", f"network {thread}", 1, 0.0, 1.0, None)

    def reading(_: int) -> None:
        barrier.wait()
        for _ in range(20):
            json.loads(trace.text())

    with ThreadPoolExecutor(5) as pool:
        for done in (*(pool.submit(adding, thread) for thread in range(4)), pool.submit(reading, 0)):
            done.result(60)
    events = json.loads(trace.text())["traceEvents"]
    named = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert len(named) == len(set(named.values())) == 100
    assert sum(each["ph"] == "X" for each in events) == 2000


def test_requests_and_batches() -> None:
    with HostManager([ScriptedDevice("one")], trace=True) as host:
        host.add_network("net", triple, batch_sizes=[4])
        for number in range(3):
            np.testing.assert_array_equal(host.run_sync("net", {"x": rows(number, 2)})["z"], rows(number, 2) * -2)
        assert host.trace is not None
        events = json.loads(host.trace.text())["traceEvents"]
    batches = [each for each in events if each["ph"] == "X"]
    assert [each["args"] for each in batches] == [{"rows": 2, "size": 4}] * 3
    assert [each["name"] for each in events if each["ph"] == "b"] == ["request", "queue"] * 3
    assert len({each["id"] for each in events if each["ph"] in "be"}) == 3
    for begin, end in pairwise(batches):
        assert begin["ts"] + begin["dur"] <= end["ts"]
