"""Clients that mean no good, or die: bodies without end, bombs, connections that are cut. The server stays up."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection, HTTPResponse

import grpc
import pytest
from starlette.requests import Request

from glowtrain.errors import RequestSizeError
from glowtrain.serving.http.app import _unless_gone
from glowtrain.serving.http.bodies import read_body
from glowtrain.serving.rpc.schema import ModelInferRequest
from glowtrain.serving.server import Server
from tests.serving.serving_networks import FakeHost, fake_service, running, scaled, served

LIMIT = 1 << 16
INFER = "/v2/models/double/infer"
REQUEST = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(load=False, double=scaled()) as both, running(*both, limit=LIMIT) as server:
        yield server


@pytest.fixture(autouse=True)
def still_answers(server: Server) -> Iterator[None]:
    yield
    answer = post(server, REQUEST)
    assert answer.status == 200
    assert json.loads(answer.read())["outputs"][0]["data"] == [2, 4, 6, 8]


def post(server: Server, body: bytes, **headers: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", INFER, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def told(answer: HTTPResponse) -> str:
    return str(json.loads(answer.read())["error"])


def raw(server: Server, text: bytes) -> socket.socket:
    """A connection on which this has been sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(text)
    return connection


def start(length: str) -> bytes:
    return f"POST {INFER} HTTP/1.1\r\nHost: here\r\n{length}\r\n\r\n".encode()


def test_a_body_that_says_it_is_too_large_is_refused_unread(server: Server) -> None:
    with raw(server, start(f"Content-Length: {LIMIT + 1}")) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        assert "more than 64.0 KiB" in told(answer)
        assert connection.recv(1) == b""


def test_a_body_in_chunks_is_refused_while_it_is_read(server: Server) -> None:
    """The client would go on for ever; it is cut off."""
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    with raw(server, start("Transfer-Encoding: chunked")) as connection:
        sent = sent_until_cut_off(connection, chunk, most=1 << 26)
    assert LIMIT <= sent < 1 << 26


def sent_until_cut_off(connection: socket.socket, chunk: bytes, most: int) -> int:
    """How many bytes a connection took before its other end closed it."""
    for sent in range(0, most, len(chunk)):
        try:
            connection.sendall(chunk)
        except ConnectionError:
            return sent
    return most


@pytest.mark.parametrize("coding", ["chunked", "Chunked "])
def test_many_small_chunks_are_one_body(server: Server, coding: str) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in REQUEST) + b"0\r\n\r\n"
    with raw(server, start(f"Transfer-Encoding: {coding}") + chunks) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200


@pytest.mark.parametrize("codings", ["gzip, chunked", "identity, chunked", "a\r\nTransfer-Encoding: chunked", "gzip"])
def test_a_transfer_coding_that_is_not_undone_is_refused(server: Server, codings: str) -> None:
    """httptools reads the chunks, and leaves what they hold encoded."""
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(REQUEST), REQUEST)
    with raw(server, start(f"Transfer-Encoding: {codings}") + body) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 501
        assert told(answer) == "of transfer codings, chunked alone is taken"


@pytest.mark.parametrize(
    ("version", "header", "said"),
    [
        ("1.1", "Host: there", "a request has one Host"),
        ("1.0", "Transfer-Encoding: chunked", "HTTP/1.0 has no transfer codings"),
    ],
)
def test_what_others_on_the_way_may_read_otherwise_is_refused(
    server: Server, version: str, header: str, said: str
) -> None:
    head = f"GET /v2/health/live HTTP/{version}\r\nHost: here\r\n{header}\r\n\r\n"
    with raw(server, head.encode()) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400
        assert told(answer) == said
        assert connection.recv(1) == b""


@pytest.mark.parametrize("header", ["Content-Encoding: identity", "Inference-Header-Content-Length: 9"])
def test_a_header_of_the_body_that_comes_twice_is_refused(server: Server, header: str) -> None:
    """Once it says how the body is read; twice, nobody knows which of them does."""
    once = header if header.endswith("identity") else header.replace("9", str(len(REQUEST)))
    with raw(server, start(f"{once}\r\n{header}\r\nContent-Length: {len(REQUEST)}") + REQUEST) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400
        assert header.split(":")[0] in told(answer)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    text = start("Content-Length: 1000") + b"{"
    with (
        served(load=False, double=scaled()) as both,
        running(*both, patience=0.1) as server,
        raw(server, text) as connection,
    ):
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408
        assert "not come within 0.1 seconds" in told(answer)
        assert connection.recv(1) == b""
        assert 'nv_inference_request_failure{model="double",version="1",reason="OTHER"} 1' in both[0].metrics()


@pytest.mark.parametrize("before", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n\r\n"])
def test_a_head_that_comes_byte_by_byte_ends_the_connection(before: bytes) -> None:
    """At the first request of a connection, and at a later one."""
    with served(load=False, double=scaled()) as both, running(*both, patience=0.1) as server:
        with raw(server, before) as connection:
            if before:
                answer = HTTPResponse(connection)
                answer.begin()
                assert json.loads(answer.read()) == {"live": True}
            connection.setblocking(False)
            assert ends_while_it_is_sent(connection, b"GET /v2 HTTP/1.1\r\nHost: " + b"x" * 1000)
        assert post(server, REQUEST).status == 200


def ends_while_it_is_sent(connection: socket.socket, text: bytes) -> bool:
    """Whether the other end closes before all of a text was sent, a byte at a time."""
    for byte in text:
        time.sleep(0.01)
        try:
            connection.send(bytes([byte]))
            if not connection.recv(1):
                return True
        except BlockingIOError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_bomb_is_not_decompressed(server: Server, encoding: str, compress: object) -> None:
    assert callable(compress)
    bomb = compress(bytes(LIMIT << 6))
    assert len(bomb) < LIMIT
    answer = post(server, bomb, Content_Encoding=encoding)
    assert (answer.status, "more than 64.0 KiB" in told(answer)) == (413, True)


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    assert len(bomb) < 1 << 18

    async def stream() -> AsyncIterator[bytes]:
        yield bomb

    tracemalloc.start()
    try:
        with pytest.raises(RequestSizeError):
            asyncio.run(read_body(stream(), None, "deflate", 1 << 18, lambda _: None))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (REQUEST, "gzip", "is no gzip data"),
        (REQUEST, "br", "'br' is not supported"),
        (gzip.compress(REQUEST, mtime=0)[:-9], "gzip", "ends too early or too late"),
        (zlib.compress(REQUEST) + b"more", "deflate", "ends too early or too late"),
    ],
)
def test_broken_encodings_are_refused(server: Server, body: bytes, encoding: str, expected: str) -> None:
    answer = post(server, body, Content_Encoding=encoding)
    assert (answer.status, expected in told(answer)) == (400, True)


@pytest.mark.parametrize(
    "text", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET /v2 HTTP/1.1\r\nHost"]
)
def test_what_is_no_http_ends_the_connection(server: Server, text: bytes) -> None:
    with raw(server, text) as connection:
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def test_a_client_that_dies_while_it_sends(server: Server) -> None:
    for length in ("Content-Length: 1000", "Transfer-Encoding: chunked"):
        raw(server, start(length) + b"10\r\n").close()


def test_a_client_that_goes_away_when_it_is_answered_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glowtrain.serving.http.app.GLANCE", 0)
    failed: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        went = asyncio.Event()

        async def receive() -> dict[str, str]:
            await went.wait()
            return {"type": "http.disconnect"}

        async with _unless_gone(Request({"type": "http"}, receive)):
            await asyncio.sleep(0.01)  # it is watched
            went.set()
            await asyncio.sleep(0)  # the watch has ended, and nobody has been told so far
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert not failed


def test_a_client_that_goes_away_takes_its_request_back() -> None:
    host = FakeHost()
    with running(*fake_service(host)) as server:
        body = REQUEST.replace(b"[1, 4]", b"[4, 1]")
        path = start(f"Content-Length: {len(body)}").replace(b"double", b"slow")
        connection = raw(server, path + body)
        assert host.came.acquire(timeout=30)
        connection.close()
        assert waits_to_be_cancelled(host)


def test_a_call_that_is_cancelled_takes_its_request_back() -> None:
    host = FakeHost()
    said = ModelInferRequest(model_name="slow")
    said.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
    with running(*fake_service(host)) as server, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(said.SerializeToString())
        assert host.came.acquire(timeout=30)
        call.cancel()
        assert waits_to_be_cancelled(host)


def waits_to_be_cancelled(host: FakeHost) -> bool:
    """Whether the one request that was asked is taken back."""
    ended = threading.Event()
    (asked,) = host.asked
    asked.future.add_done_callback(lambda _: ended.set())
    return ended.wait(30) and asked.future.cancelled()
