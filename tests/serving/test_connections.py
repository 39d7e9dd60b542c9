"""HTTP as it comes over the wire: other protocols, trailers, long paths, compressed bodies."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from glowtrain.serving.http import bodies
from glowtrain.serving.logs import LOGGER
from glowtrain.serving.server import Server
from glowtrain.serving.status import LONGEST
from tests.serving.serving_networks import running, scaled, served

INFER = "/v2/models/double/infer"
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(load=False, double=scaled()) as both, running(*both) as server:
        yield server


def answers(server: Server, text: bytes, piece: int = 1 << 16) -> bytes:
    """All that is answered to what is sent piece by piece, of which the last ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client, client.makefile("rb") as answers:
        for begin in range(0, len(text), piece):
            client.sendall(text[begin : begin + piece])
        return answers.read()


def infer(*lines: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"POST {INFER} HTTP/1.1", "Host: h", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
        ("Connection: upgrade", "Connection: keep-alive", "Upgrade: websocket"),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_who_would_go_on_with_another_protocol_is_answered_by_this_one(
    server: Server, lines: tuple[str, ...], piece: int
) -> None:
    """As clients that can HTTP/2 begin (Java's, curl --http2): with a body, and other requests behind it."""
    one = infer(*lines, f"Content-Length: {len(BODY)}") + BODY
    said = answers(server, one + one + LAST, piece)
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.count(b'"data": [2.0, 4.0, 6.0, 8.0]') == 2


def test_many_that_would_go_on_with_another_protocol(server: Server) -> None:
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert answers(server, 2000 * one + LAST).count(b"HTTP/1.1 200 OK") == 2001


def test_a_tunnel_is_refused(server: Server) -> None:
    assert answers(server, b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_trailers_are_no_headers(server: Server) -> None:
    """Nor where they come together with the head."""
    chunks = b"%x\r\n%b\r\n0\r\nContent-Encoding: gzip\r\n\r\n" % (len(BODY), BODY)
    said = answers(server, infer("Transfer-Encoding: chunked", "Connection: close") + chunks)
    assert said.startswith(b"HTTP/1.1 200 OK")


def test_long_paths_are_told_and_logged_in_part(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    LOGGER.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, LOGGER.name):
            client.request("GET", "/" + "a" * 50_000)
            answer = client.getresponse()
            told = answer.read()
            client.request("GET", "/v2/health/live")  # the line is written when the answer has been sent
            assert client.getresponse().read()
    finally:
        LOGGER.removeHandler(caplog.handler)
    calls = [record.fields["call"] for record in caplog.records if hasattr(record, "fields")]
    assert (answer.status, any("GET /aaa" in call for call in calls)) == (404, True)
    assert max(len(told), *map(len, calls)) < LONGEST + 100


def test_others_do_not_wait_for_a_body_to_be_decompressed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, healthy, decompressed = threading.Event(), threading.Event(), bodies._decompressed

    def slow(body: bytes, encoding: str, limit: int) -> bytes:
        begun.set()
        assert healthy.wait(30)
        return decompressed(body, encoding, limit)

    monkeypatch.setattr(bodies, "_decompressed", slow)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.request("POST", INFER, gzip.compress(BODY), {"Content-Encoding": "gzip"})
    assert begun.wait(30)
    assert answers(server, LAST).startswith(b"HTTP/1.1 200 OK")
    healthy.set()
    assert client.getresponse().status == 200
