"""Large JSON is read and written by another process, with the same requests, answers and errors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glowtrain.errors import InputError
from glowtrain.serving.access import Access
from glowtrain.serving.http import messages
from glowtrain.serving.http.app import application
from glowtrain.serving.http.large_json import JsonMessages
from glowtrain.serving.requests import InferAnswer, RequestedOutput
from tests.serving.serving_networks import running, scaled, served

INFER = "/v2/models/double/infer"


def text(rows: int, **more: Any) -> bytes:
    data = np.random.default_rng(rows).integers(-9, 9, (rows, 4)).tolist()
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}
    return json.dumps({"inputs": [given], **more}).encode()


@pytest.fixture
def large() -> Iterator[JsonMessages]:
    """Everything from 200 bytes on is large."""
    made = JsonMessages(200)
    yield made
    made.close()
    assert made.process is None


def test_requests_are_those_that_are_read_here(large: JsonMessages) -> None:
    small, body = text(1), text(100, id="mine", outputs=[{"name": "y"}], parameters={"timeout": 5})
    asyncio.run(large.decode("m", None, small, None))
    assert large.process is None
    found, expected = asyncio.run(large.decode("m", "1", body, None)), messages.decode("m", "1", body, None)
    assert large.process is not None
    np.testing.assert_array_equal(found.inputs["x"], expected.inputs["x"])
    assert (found.id, found.outputs, found.timeout) == ("mine", (RequestedOutput("y"),), 5e-6)


def test_bytes_behind_a_short_header_are_read_here(large: JsonMessages) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [100, 4], "parameters": {"binary_data_size": 1600}}
    header = json.dumps({"inputs": [tensor]}).encode()
    asyncio.run(large.decode("m", None, header + bytes(1600), str(len(header))))
    assert large.process is None


def test_answers_are_those_that_are_written_here(large: JsonMessages) -> None:
    request = messages.decode("m", None, text(2, outputs=[{"name": "y"}]), None)
    answer = InferAnswer("m", "1", "", {"y": np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)})
    assert asyncio.run(large.encode(request, answer)) == messages.encode(request, answer)
    assert large.process is not None


def test_errors_are_those_of_reading_here(large: JsonMessages) -> None:
    for body in (text(100)[:-1], text(100).replace(b"[100, 4]", b"[99, 4]"), b"[" * 100_000):
        with pytest.raises(InputError) as here:
            messages.decode("m", None, body, None)
        with pytest.raises(InputError) as there:
            asyncio.run(large.decode("m", None, body, None))
        assert str(there.value) == str(here.value)


def test_after_its_death_there_is_another(large: JsonMessages) -> None:
    asyncio.run(large.decode("m", None, text(100), None))
    first = large.process
    assert first is not None
    first.kill()
    first.join()
    assert asyncio.run(large.decode("m", None, text(100), None)).inputs["x"].shape == (100, 4)
    assert first is not large.process


def kill(pid: int) -> None:
    """What kills the process that reads it."""
    os.kill(pid or os.getpid(), signal.SIGKILL)


def test_what_kills_it_again_is_an_error(large: JsonMessages) -> None:
    with pytest.raises(RuntimeError, match="ended twice at one request"):
        large._ask(kill, (0,))
    assert asyncio.run(large.decode("m", None, text(100), None)).inputs["x"].shape == (100, 4)


def test_the_time_of_a_request_begins_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits until others have been read is late, and what waits no longer is not read at all."""
    large = JsonMessages(200)
    held = threading.Event()
    large._turns.submit(held.wait)
    monkeypatch.setattr("glowtrain.serving.server.JsonMessages", lambda: large)
    with served(load=False, double=scaled()) as both, running(*both) as server:
        late = HTTPConnection("127.0.0.1", server.port, timeout=30)
        late.request("POST", INFER, text(100, parameters={"timeout": 200_000}))
        gone = HTTPConnection("127.0.0.1", server.port, timeout=30)
        gone.request("POST", INFER, text(100))
        while large._turns._work_queue.qsize() < 2:
            time.sleep(0.01)
        gone.close()
        while server.admission.admitted > 1:
            time.sleep(0.01)
        time.sleep(0.2)
        held.set()
        answer = late.getresponse()
        assert (answer.status, "no answer within 0.2 seconds" in answer.read().decode()) == (504, True)


def test_over_http(large: JsonMessages) -> None:
    with served(double=scaled()) as (service, _):
        client = TestClient(application(service, Access(), 1 << 20, json=large))
        answer = client.post(INFER, content=text(100)).json()["outputs"]
        expected = json.loads(text(100))["inputs"][0]["data"]
        assert answer[0]["data"] == [2 * item for row in expected for item in row]
        assert client.post(INFER, content=text(100)[:-1]).status_code == 400
    assert large.process is not None


def test_a_server_ends_its_process() -> None:
    before = set(active_children())
    with served(load=False, double=scaled()) as both, running(*both) as server:
        body = text(20_000)
        client = HTTPConnection("127.0.0.1", server.port, timeout=30)
        client.request("POST", INFER, body)
        assert client.getresponse().status == 200
        assert set(active_children()) - before
    assert not set(active_children()) - before
