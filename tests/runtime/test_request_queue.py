"""The queue of a network: its order, its bound, deadlines, cancellation, and several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import DeadlineError, QueueFullError
from glowtrain.runtime.request.queue import FEW, RequestQueue
from glowtrain.runtime.request.request import NetworkRequest


def request(rows: int = 1, priority: int = 0, deadline: float | None = None) -> NetworkRequest:
    return NetworkRequest({"x": np.zeros((rows, 1))}, rows, ("y",), priority, deadline)


def put(queue: RequestQueue, *requests: NetworkRequest) -> None:
    """As a network does it."""
    for each in requests:
        each.future.add_done_callback(lambda _, each=each: queue.discard(each))
        queue.put(each)


def taken(queue: RequestQueue, room: int = 1, now: float = 0.0) -> list[tuple[NetworkRequest, int, int]]:
    return [(segment.request, segment.begin, segment.end) for segment in queue.take(room, now)]


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 9)), max_size=30), st.integers(1, 8))
def test_by_priority_then_arrival(asked: list[tuple[int, int]], room: int) -> None:
    """Rows leave in the order of their requests, each once, and no more than there is room for."""
    queue = RequestQueue("net", 100)
    requests = [request(rows, priority) for priority, rows in asked]
    put(queue, *requests)
    left, batches = [], []
    while batch := taken(queue, room):
        batches.append(sum(end - begin for _, begin, end in batch))
        left += [(each, row) for each, begin, end in batch for row in range(begin, end)]
    ordered = sorted(requests, key=lambda each: -each.priority)  # stable: by arrival where it is the same
    assert left == [(each, row) for each in ordered for row in range(each.rows)]
    assert all(rows == room for rows in batches[:-1])
    assert (queue.rows, len(queue), queue.first()) == (0, 0, None)


STEPS = st.sampled_from(["put", "cancel", "take", "fail"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 7), st.integers(1, 3)), max_size=60))
def test_the_bound_is_exact(steps: list[tuple[str, int, int]]) -> None:
    """As many as the limit says wait, whatever has been cancelled, taken and failed, and rows are counted."""
    queue, waiting, limit = RequestQueue("net", 4), [], 4
    for step, number, rows in steps:
        chosen = waiting[number % len(waiting)] if waiting else None
        if step == "put" and len(waiting) == limit:
            with pytest.raises(QueueFullError, match="net: 4 requests wait already"):
                queue.put(request(rows))
        elif step == "put":
            waiting.append(request(rows, priority=number % 2))
            put(queue, waiting[-1])
        elif step == "take":
            for each, _, end in taken(queue, rows):
                if end == each.rows:
                    waiting.remove(each)
        elif chosen is not None and (chosen.future.cancel() if step == "cancel" else chosen.fail(ValueError())):
            waiting.remove(chosen)
        assert len(queue) == len(waiting)
        assert queue.rows == sum(each.queued_rows for each in waiting)


def test_what_was_begun_goes_on_first() -> None:
    """A request that did not fit whole is not overtaken by a later one of its priority."""
    queue, long, short = RequestQueue("net", 9), request(5), request(1)
    put(queue, long, short)
    assert taken(queue, 3) == [(long, 0, 3)]
    assert taken(queue, 3) == [(long, 3, 5), (short, 0, 1)]


def test_first_says_what_a_device_needs_to_know() -> None:
    queue, early, late = RequestQueue("net", 9), request(), request(priority=3, deadline=50.0)
    early.arrival, late.arrival = 1.0, 2.0
    put(queue, early, late)
    assert queue.first() == (3, 1.0, 50.0)
    assert taken(queue) == [(late, 0, 1)]
    assert queue.first() == (0, 1.0, float("inf"))


@pytest.mark.parametrize("under_way", [False, True])
def test_deadlines(under_way: bool) -> None:
    """Whoever is late is told, whether the request waits or is in a batch; the others are left."""
    queue, late, patient = RequestQueue("net", 9), request(deadline=10.0), request(deadline=20.0)
    late.arrival = 4.0
    put(queue, late, patient)
    if under_way:
        assert taken(queue, now=5.0) == [(late, 0, 1)]
    queue.expire(10.0)
    with pytest.raises(DeadlineError, match="no answer within 6 seconds"):
        late.future.result(0)
    assert taken(queue, 9, now=10.0) == [(patient, 0, 1)]
    assert not late.answer(0, 1, {"y": np.zeros(1)})


def test_late_requests_are_not_run() -> None:
    queue, late = RequestQueue("net", 9), request(deadline=10.0)
    put(queue, late)
    assert taken(queue, now=10.0) == []
    assert len(queue) == 0
    queue.expire(10.0)
    assert isinstance(late.future.exception(0), DeadlineError)


def test_late_requests_are_drained() -> None:
    """Where the queue ends before anybody has told them."""
    queue, late = RequestQueue("net", 9), request(1)
    late.deadline = late.arrival
    queue.put(late)
    assert queue.take(8, late.arrival) == []
    assert len(queue) == 0
    assert queue.drain() == [late]
    assert queue.drain() == []
    queue.put(late)
    assert queue.take(8, late.arrival) == []
    late.fail(ValueError())
    queue.discard(late)
    assert queue.drain() == []


def test_cancelled_requests_are_over() -> None:
    """For those too who wait for several futures at once, who are told by the one that begins a request."""
    queue, one = RequestQueue("net", 9), request()
    put(queue, one)
    assert one.future.cancel()
    assert one.future.cancel()
    assert wait([one.future], timeout=0).done == {one.future}
    assert taken(queue) == []
    assert not one.fail(ValueError())


def test_what_is_over_is_let_go() -> None:
    """Requests that were cancelled behind one that waits for long are not kept, nor their arrays."""
    queue = RequestQueue("net", 9)
    put(queue, request(priority=9, deadline=1.0))
    for _ in range(10 * FEW):
        one = request(deadline=2.0)
        put(queue, one)
        one.future.cancel()
    kept = [len(ranks) for ranks in (queue._ranked, queue._urgent, queue._deadlines)]
    assert max(kept) <= 2 * FEW


def test_threads() -> None:
    """Each row of what several threads put is taken once by one of several others, or was cancelled."""
    queue, barrier = RequestQueue("net", 10_000), Barrier(6)
    asked: list[NetworkRequest] = []

    def asking(number: int) -> int:
        barrier.wait()
        cancelled = 0
        for count in range(200):
            one = request(1 + count % 3, priority=count % 2)
            put(queue, one)
            asked.append(one)
            cancelled += one.future.cancel() if count % 5 == 0 else 0
        return cancelled

    def taking(number: int) -> list[tuple[NetworkRequest, int]]:
        barrier.wait()
        found = []
        for _ in range(2_000):
            found += [(each, row) for each, begin, end in taken(queue, 4) for row in range(begin, end)]
        return found

    with ThreadPoolExecutor(6) as pool:
        askers, takers = [pool.submit(asking, n) for n in range(3)], [pool.submit(taking, n) for n in range(3)]
        cancelled, found = sum(each.result() for each in askers), [row for each in takers for row in each.result()]
    found += [(each, row) for each, begin, end in taken(queue, 10_000) for row in range(begin, end)]
    assert len(set(found)) == len(found)
    assert set(found) == {(each, row) for each in asked for row in range(each.rows) if not each.future.cancelled()}
    assert sum(each.future.cancelled() for each in asked) == cancelled
    assert (queue.rows, len(queue)) == (0, 0)
