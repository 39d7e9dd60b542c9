"""Bugs that another server had in its batching, each looked for by many requests at the same time, over both ways."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as over_grpc
import tritonclient.http.aio as over_http
from tritonclient.utils import InferenceServerException

from glowtrain.serving.repository import ModelOptions
from glowtrain.serving.server import Server
from tests.serving.serving_networks import FakeHost, fake_service, running, scaled, served

WAYS = {"http": over_http, "grpc": over_grpc}
WINDOW = 0.1
"""Seconds that a request waits for others."""
MAX_BATCH = 256


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ModelOptions(max_batch=MAX_BATCH, max_delay=WINDOW * 1000)
    with served(None, options, load=False, double=scaled()) as both, running(*both) as server:
        yield server


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def given(way: str, array: Any) -> list[Any]:
    made = WAYS[way].InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return [made]


def wanted(way: str, *names: str) -> list[Any]:
    return [WAYS[way].InferRequestedOutput(name) for name in names]


async def together(server: Server, way: str, *requests: dict[str, Any]) -> list[Any]:
    """The answers, or errors, of requests that are sent at the same time."""
    port = server.port if way == "http" else server.grpc_port
    async with WAYS[way].InferenceServerClient(f"127.0.0.1:{port}") as client:
        asked = (client.infer(request.pop("model", "double"), **request) for request in requests)
        return await asyncio.gather(*asked, return_exceptions=True)


def ask(server: Server, way: str, *requests: dict[str, Any]) -> list[Any]:
    return asyncio.run(together(server, way, *requests))


def count(service: Any, name: str) -> float:
    """A number of the metrics."""
    (line,) = [line for line in service.metrics().splitlines() if line.startswith(name + "{")]
    return float(line.rsplit(" ", 1)[1])


def test_requests_do_share_batches(server: Server, way: str) -> None:
    """Without this the others would say nothing."""
    before = count(server.service, "nv_inference_exec_count")
    ask(server, way, *({"inputs": given(way, np.ones((1, 4), np.float32))} for _ in range(16)))
    assert count(server.service, "nv_inference_exec_count") - before <= 8


def test_answers_are_not_mixed_between_requests(server: Server, way: str, random: np.random.Generator) -> None:
    arrays = [random.normal(size=(1 + number % 7, 4)).astype(np.float32) for number in range(60)]
    answers = ask(server, way, *({"inputs": given(way, x), "request_id": str(n)} for n, x in enumerate(arrays)))
    for number, (x, answer) in enumerate(zip(arrays, answers, strict=True)):
        said = answer.get_response()
        assert (said["id"] if way == "http" else said.id) == str(number)
        assert answer.as_numpy("y").tobytes() == (2 * x).tobytes()
        assert answer.as_numpy("z").tobytes() == (x + 1).tobytes()


def test_requested_outputs_are_each_requests_own(server: Server, way: str) -> None:
    choices = (("y",), ("z",), ("z", "y"), ("y",), ("z",))
    x = np.ones((1, 4), np.float32)
    answers = ask(server, way, *({"inputs": given(way, x), "outputs": wanted(way, *names)} for names in choices))
    for names, answer in zip(choices, answers, strict=True):
        assert {name for name in ("y", "z") if answer.as_numpy(name) is not None} == set(names)


def test_the_window_begins_with_the_first_request_and_not_with_the_last(server: Server, way: str) -> None:
    """Requests that keep coming do not put off the one that waits: else it would be answered with a full batch."""
    x = np.ones((1, 4), np.float32)

    async def sent_before_the_first_answer() -> int:
        port, more = (server.port, {"conn_limit": MAX_BATCH}) if way == "http" else (server.grpc_port, {})
        async with WAYS[way].InferenceServerClient(f"127.0.0.1:{port}", **more) as client:
            sent = [asyncio.create_task(client.infer("double", given(way, x)))]
            while not sent[0].done() and len(sent) < MAX_BATCH:
                await asyncio.sleep(WINDOW / 10)
                sent.append(asyncio.create_task(client.infer("double", given(way, x))))
            await asyncio.gather(*sent)
            return len(sent)

    assert asyncio.run(sent_before_the_first_answer()) < MAX_BATCH


def test_parameters_of_one_request_are_not_given_to_the_others(way: str) -> None:
    host = FakeHost()
    x = np.ones((1, 1), np.float32)
    requests = (
        {"model": "slow", "inputs": given(way, x), "priority": 3, "timeout": 7_000_000},
        {"model": "slow", "inputs": given(way, 2 * x)},
        {"model": "slow", "inputs": given(way, 3 * x), "priority": 1},
    )
    with running(*fake_service(host)) as server:

        async def answered() -> None:
            asking = asyncio.create_task(together(server, way, *requests))
            for _ in requests:
                await asyncio.to_thread(host.came.acquire, timeout=30)
            for asked in host.asked:
                asked.answer()
            await asking

        asyncio.run(answered())
    said = {float(asked.inputs["x"][0, 0]): asked.said for asked in host.asked}
    seconds = {number: each["timeout"] and math.ceil(each["timeout"]) for number, each in said.items()}
    assert {number: (each["priority"], seconds[number]) for number, each in said.items()} == {
        1.0: (97, 7.0), 2.0: (0, None), 3.0: (99, None),
    }  # fmt: skip


def test_one_bad_request_does_not_fail_its_batch(server: Server, way: str, random: np.random.Generator) -> None:
    good = random.normal(size=(1, 4)).astype(np.float32)
    bad = np.ones((1, 5), np.float32)
    arrays = [good, bad, good, good, bad, good]
    answers = ask(server, way, *({"inputs": given(way, array)} for array in arrays))
    for array, answer in zip(arrays, answers, strict=True):
        if array is bad:
            assert isinstance(answer, InferenceServerException)
            assert "'x' must be f32[batch,4], not float32[1, 5]" in str(answer)
        else:
            assert answer.as_numpy("y").tobytes() == (2 * good).tobytes()


def test_a_request_that_is_too_late_does_not_fail_its_batch(server: Server, way: str) -> None:
    """Its time-out, a microsecond, is less than the others wait for it."""
    x = np.ones((1, 4), np.float32)
    requests = ({"inputs": given(way, x), **({"timeout": 1} if late else {})} for late in (False, True, False))
    first, late, last = ask(server, way, *requests)
    assert late.status() == ("504" if way == "http" else "StatusCode.DEADLINE_EXCEEDED")
    for answer in (first, last):
        assert answer.as_numpy("y").tobytes() == (2 * x).tobytes()
