"""Every wait has a limit, what is there at once too, and whatever clients do, health answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from glowtrain.errors import BusyError
from glowtrain.serving.access import Access
from glowtrain.serving.admission import Admission
from glowtrain.serving.http.connections import HEAD, SPARE
from glowtrain.serving.rpc.schema import ModelInferRequest
from glowtrain.serving.server import RESERVED, Server, ServerOptions
from tests.serving.serving_networks import FakeHost, fake_service, running, running_server, scaled, served

CALL = "/inference.GRPCInferenceService/"
SLOW = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()


def connection(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def ask(server: Server, path: str, body: bytes | None = None) -> tuple[int, Any]:
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    asking.request("GET" if body is None else "POST", path, body)
    answer = asking.getresponse()
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(answer.read())


@contextlib.contextmanager
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A connection of its own."""
    with grpc.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as made:
        yield made


def healthy(server: Server) -> bool:
    """Whether every probe is answered that it is."""
    with channel(server) as probing:
        live = probing.unary_unary(f"{CALL}ServerLive")(b"", timeout=30)
        checked = probing.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)
    ready = (ask(server, "/v2/health/live"), ask(server, "/v2/health/ready"))
    return (live, checked, ready) == (b"\x08\x01", b"\x08\x01", ((200, {"live": True}), (200, {"ready": True})))


def ended(client: socket.socket) -> bool:
    """Whether the other end closes a connection, whatever it sends before."""
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 20):
            pass
    return True


def is_cut_off(client: socket.socket, text: bytes) -> bool:
    """Whether the other end closes a connection while this is sent again and again."""
    try:
        for _ in range(10_000):
            client.sendall(text)
    except ConnectionError:
        return True
    return False


class Never:
    """Messages that do not come."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __iter__(self) -> Never:
        return self

    def __next__(self) -> bytes:
        self.ended.wait(60)
        raise StopIteration


# --- connections ------------------------------------------------------------------------------------------------------


def test_idle_connections_take_no_place_of_requests() -> None:
    """Beyond a number of them those that have been idle longest make room."""
    with running(*fake_service(FakeHost()), connections=2) as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connection(server)) for _ in range(2 + SPARE)]
        assert healthy(server)
        for _ in range(4):
            stack.enter_context(connection(server))
        assert ended(idle[0])
        assert healthy(server)


def test_requests_have_a_limit_and_health_none() -> None:
    host, metadata = FakeHost(), f"{CALL}ServerMetadata"
    with running(*fake_service(host), connections=1) as server, channel(server) as asking:
        said = ModelInferRequest(model_name="slow")
        said.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
        first = asking.unary_unary(f"{CALL}ModelInfer").future(said.SerializeToString())
        assert host.came.acquire(timeout=30)
        status, told = ask(server, "/v2/models/slow/infer", SLOW)
        assert (status, "works on 1 requests, its limit" in told["error"]) == (503, True)
        with pytest.raises(grpc.RpcError) as caught:
            asking.unary_unary(metadata)(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert healthy(server)
        host.asked[0].answer()
        assert first.result(timeout=30)
        assert asking.unary_unary(metadata)(b"", timeout=30)


def test_clients_that_do_not_read_are_cut_off() -> None:
    """Their requests count until then; health answers meanwhile."""
    rows = 1 << 18
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": rows * 16}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lengths = f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + rows * 16}"
    with (
        served(load=False, double=scaled()) as both,
        running(*both, connections=1, patience=1.0) as server,
        connection(server) as client,
    ):
        client.sendall(f"POST /v2/models/double/infer HTTP/1.1\r\nHost: h\r\n{lengths}\r\n\r\n".encode() + head)
        client.sendall(bytes(rows * 16))
        assert client.recv(12) == b"HTTP/1.1 200"
        assert server.admission.admitted == 1
        assert ask(server, "/v2/models/double/infer", SLOW)[0] == 503
        assert healthy(server)
        while server.admission.admitted:
            time.sleep(0.01)
        assert server.admission.held == 0


def test_clients_that_read_nothing_do_not_keep_health_from_others() -> None:
    """With as many connections as there may be, each of which has answers to take."""
    asking = 2000 * b"GET /v2/open_inference.yaml HTTP/1.1\r\nHost: h\r\n\r\n"
    with running(*fake_service(FakeHost()), connections=2) as server, contextlib.ExitStack() as stack:
        for _ in range(2 + SPARE):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(asking)
        while [each.flow.write_paused for each in list(server._http.server_state.connections)] != [True] * (2 + SPARE):
            time.sleep(0.01)
        assert healthy(server)


def test_there_is_a_descriptor_for_every_connection() -> None:
    """Where the system lets the server have few, both ports share them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (RESERVED + 40, limits[1]))
    try:
        server = Server(*fake_service(FakeHost()), ServerOptions())
        assert (server.http_connections, server.grpc_connections) == (20, 20)
        Server(*fake_service(FakeHost()), ServerOptions(), own_process=True)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_over_grpc_have_a_limit() -> None:
    server = Server(*fake_service(FakeHost()), ServerOptions(port=0, grpc_port=0))
    server.grpc_connections = 2
    with running_server(server), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.grpc_port), 30)) for _ in range(3)]
        assert clients[0].recv(1)
        assert ended(clients[2])


LONG = b"X: " + b"a" * (HEAD + 1)


@pytest.mark.parametrize("head", [LONG, b"a: b\r\n" * HEAD, b"".join(b"a%d: b\r\n" % n for n in range(HEAD))])
@pytest.mark.parametrize("piece", [1000, 1 << 22])
def test_heads_have_a_limit(head: bytes, piece: int) -> None:
    with running(*fake_service(FakeHost())) as server, connection(server) as client:
        text = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            for begin in range(0, len(text), piece):
                client.sendall(text[begin : begin + piece])
        with contextlib.suppress(ConnectionResetError):  # the rest of the head came after the end
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, json.loads(answer.read())) == (
                431, {"error": "the head of the request has more than 65,536 bytes"},
            )  # fmt: skip
        assert healthy(server)


@pytest.mark.parametrize("endless", [b"a" * 1000, b"0\r\n" + b"a: b\r\n" * 1000], ids=["extension", "trailers"])
def test_what_encodes_a_body_has_a_limit(endless: bytes) -> None:
    """A chunk's extension, or trailers, without end: httptools keeps, or gives, whatever comes."""
    chunked = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    with running(*fake_service(FakeHost())) as server, connection(server) as client:
        client.sendall(chunked if endless[:1] == b"a" else chunked[:-2])
        assert is_cut_off(client, endless)
        assert healthy(server)


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer", "ServerMetadata"])
def test_calls_without_a_token_are_refused_before_their_message_comes(name: str) -> None:
    never = Never()
    with running(*fake_service(FakeHost()), access=Access((b"secret",)), connections=1) as server:
        with channel(server) as asking:
            calls = [asking.stream_unary(CALL + name).future(never) for _ in range(5)]
            assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
            assert server.admission.admitted == 0
        never.ended.set()


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
def test_the_message_of_a_call_has_to_come_in_time(name: str) -> None:
    never = Never()
    with running(*fake_service(FakeHost()), patience=0.5) as server, channel(server) as asking:
        calls = [asking.stream_unary(CALL + name).future(never) for _ in range(3)]
        assert healthy(server)
        assert {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert "has not come within 0.5 seconds" in calls[0].details()
        never.ended.set()


def test_calls_whose_message_does_not_come_do_not_keep_the_server() -> None:
    never = Never()
    with running(*fake_service(FakeHost()), drain=60.0) as server, channel(server) as asking:
        call = asking.stream_unary(f"{CALL}ModelInfer").future(never)
        while server.admission.admitted == 0:
            time.sleep(0.01)
        server.stop()
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        never.ended.set()


def test_a_call_without_a_message() -> None:
    with running(*fake_service(FakeHost())) as server, channel(server) as asking:
        with pytest.raises(grpc.RpcError) as caught:
            asking.stream_unary(f"{CALL}ModelInfer")(iter(()), timeout=30)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "has no message" in caught.value.details()


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f600"])
def test_long_names_are_told_in_part(letter: str) -> None:
    """An error's text is part of the head of an answer in gRPC, which has a limit."""
    said = ModelInferRequest(model_name=letter * 20_000)
    with running(*fake_service(FakeHost())) as server, channel(server) as asking:
        with pytest.raises(grpc.RpcError) as caught:
            asking.unary_unary(f"{CALL}ModelInfer")(said.SerializeToString(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details().startswith(f"there is no network '{letter * 100}")


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_of_all_requests_together_have_a_limit() -> None:
    admission = Admission(10, 100)
    with admission.request() as first, admission.request() as second:
        first.hold(60)
        with pytest.raises(BusyError, match="its limit; ask again later"):
            second.hold(41)
        second.hold(40)
        second.answer(1000)
        assert admission.held == 1100
    assert (admission.admitted, admission.held) == (0, 0)


def test_bodies_that_do_not_come_to_their_end_leave_no_room_for_others_until_they_are_late() -> None:
    with (
        served(load=False, double=scaled()) as both,
        running(*both, limit=1 << 16, patience=2.0) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            client = stack.enter_context(connection(server))
            head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {1 << 16}\r\n\r\n"
            client.sendall(head.encode() + bytes((1 << 16) - 1))
        while server.admission.held < 8 * ((1 << 16) - 1):
            time.sleep(0.01)
        status, told = ask(server, "/v2/models/double/infer", SLOW)
        assert (status, "have 512.0 KiB, its limit" in told["error"]) == (503, True)
        assert healthy(server)
        while server.admission.held:
            time.sleep(0.01)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_kept_connection_is_told_to_end_when_the_server_does() -> None:
    """Its client's next request, which may be on its way, is still answered."""
    with running(*fake_service(FakeHost())) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for closing in (None, "close"):
            kept.request("GET", "/v2/health/live")
            answer = kept.getresponse()
            assert (answer.status, answer.read(), answer.headers["connection"]) == (200, b'{"live":true}', closing)
            server.stop()
            while server.service.open:
                time.sleep(0.01)
            time.sleep(0.3)  # uvicorn looks ten times a second


def test_redirections_are_not_made() -> None:
    with running(*fake_service(FakeHost())) as server:
        assert ask(server, "/v2/")[0] == 404
