"""Requests and batches: every row to its request, whatever the sizes, and one answer for each."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.runtime.request.batching import Batch, size_for
from glowtrain.runtime.request.queue import RequestQueue
from glowtrain.runtime.request.request import NetworkRequest, Segment
from glowtrain.types import Array


def request(first: int, rows: int, outputs: tuple[str, ...] = ("y",)) -> NetworkRequest:
    """With numbers that nobody else has."""
    return NetworkRequest({"x": np.arange(first, first + rows).reshape(rows, 1) * 1.0}, rows, outputs)


def answered(x: Array) -> dict[str, Array]:
    return {"y": x * 2, "z": -x}


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.sets(st.integers(1, 9), min_size=1, max_size=4))
def test_every_row_goes_to_its_request(counts: list[int], sizes: set[int]) -> None:
    """Through slicing, joining and filling up; batches have a compiled size, and room for all of their rows."""
    compiled, queue = sorted(sizes), RequestQueue("net", 100)
    requests = [request(100 * number, rows) for number, rows in enumerate(counts)]
    for each in requests:
        queue.put(each)
    while segments := queue.take(compiled[-1], 0.0):
        batch = Batch(tuple(segments), size_for(sum(segment.rows for segment in segments), compiled))
        inputs = batch.inputs()
        assert batch.size in compiled
        assert all(size < batch.rows for size in compiled if size < batch.size)
        assert inputs["x"].shape == (batch.size, 1)
        assert set(inputs["x"].ravel()) <= {value for each in requests for value in each.inputs["x"].ravel()}
        batch.answer(batch.shares(answered(inputs["x"])))
    for each in requests:
        assert set(each.future.result(0)) == {"y"}
        np.testing.assert_array_equal(each.future.result(0)["y"], each.inputs["x"] * 2)


def test_answers_have_memory_of_their_own() -> None:
    """What one does to its answer is not seen in another's."""
    both = [request(0, 2), request(10, 2)]
    batch = Batch(tuple(Segment(each, 0, 2) for each in both), 4)
    batch.answer(batch.shares(answered(batch.inputs()["x"])))
    first, second = (each.future.result(0)["y"] for each in both)
    assert not np.shares_memory(first, second)
    assert first.base is None


def test_a_request_is_answered_once() -> None:
    one = request(0, 1)
    told = []
    one.tell = lambda request, error: told.append(error)
    assert one.start(0.0)
    assert one.answer(0, 1, answered(one.inputs["x"]))
    assert not one.answer(0, 1, {"y": np.zeros(1)})
    assert not one.fail(ValueError())
    assert one.future.result(0)["y"] == 0
    assert told == [None]


def test_it_is_counted_before_the_answer_is_seen() -> None:
    one = request(0, 1)
    done = []
    one.tell = lambda request, error: done.append(request.future.done())
    one.answer(0, 1, answered(one.inputs["x"]))
    assert done == [False]


def test_parts_that_are_answered_at_once() -> None:
    """Two devices that have rows of one request give them at the same time; none is lost."""
    for _ in range(200):
        one, barrier = request(0, 8), Barrier(4)

        def give(begin: int, one: NetworkRequest = one, barrier: Barrier = barrier) -> bool:
            own = answered(one.inputs["x"][begin : begin + 2])
            barrier.wait()
            return one.answer(begin, begin + 2, own)

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(give, (0, 2, 4, 6))) == 1
        np.testing.assert_array_equal(one.future.result(0)["y"], one.inputs["x"] * 2)


def test_beginning_cancelling_and_failing_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is first; the future logs that it is in an unexpected state if two may be."""
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            one, barrier = request(0, 1), Barrier(3)

            def when_all_are_there(call: object, barrier: Barrier = barrier) -> object:
                barrier.wait()
                return call()  # type: ignore[operator]

            with ThreadPoolExecutor(3) as pool:
                calls = (one.future.cancel, lambda one=one: one.start(0.0), lambda one=one: one.fail(ValueError()))
                cancelled, started, failed = pool.map(when_all_are_there, calls)
            assert cancelled + bool(failed) == 1
            assert not (cancelled and started)
            assert wait([one.future], timeout=0).done
    assert not caplog.records


def test_one_that_cannot_be_answered_leaves_the_others() -> None:
    """If memory for an answer of several parts is refused, the request has the error and its neighbour the answer."""
    broken, fine = request(0, 3), request(10, 1)
    broken.outputs = ("missing",)
    batch = Batch((Segment(broken, 0, 3), Segment(fine, 0, 1)), 4)
    batch.answer(batch.shares(answered(batch.inputs()["x"])))
    assert isinstance(broken.future.exception(0), KeyError)
    assert fine.future.result(0)["y"] == 20
