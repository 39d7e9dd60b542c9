"""Messages of gRPC that Triton's client does not make: elements in fields, and broken ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from glowtrain.errors import DeadlineError, DeviceError, QueueFullError, RequestSizeError, UnavailableError
from glowtrain.serving.access import Access
from glowtrain.serving.rpc import messages
from glowtrain.serving.rpc.schema import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from glowtrain.serving.server import Server
from tests.serving.serving_networks import FakeHost, fake_service, running, scaled, served, several_types

PATH = "/inference.GRPCInferenceService/"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(load=False, double=scaled(), types=several_types()) as both, running(*both, limit=1 << 20) as server:
        yield server


def call(server: Server, name: str, data: bytes, **options: Any) -> bytes:
    """The bytes of a call's reply."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        reply: bytes = channel.unary_unary(PATH + name)(data, timeout=30, **options)
        return reply


def request(name: str = "x", datatype: str = "FP32", shape: Any = (1, 4), **contents: Any) -> Any:
    made = ModelInferRequest(model_name="double", id="mine")
    tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, elements in contents.items():
        getattr(tensor.contents, field).extend(elements)
    return made


def test_elements_in_fields(server: Server) -> None:
    said = request(fp32_contents=[1, 2, 3, 4])
    reply = ModelInferResponse.FromString(call(server, "ModelInfer", said.SerializeToString()))
    assert (reply.model_name, reply.model_version, reply.id) == ("double", "1", "mine")
    assert np.frombuffer(reply.raw_output_contents[0], np.float32).tolist() == [2, 4, 6, 8]
    assert [output.name for output in reply.outputs] == ["y", "z"]


@pytest.mark.parametrize(
    ("field", "datatype", "elements", "found"),
    [
        ("bool_contents", "BOOL", [True, False], [True, False]),
        ("int_contents", "INT8", [-128, 127], [-128, 127]),
        ("int_contents", "INT32", [-5, 5], [-5, 5]),
        ("int64_contents", "INT64", [-(1 << 60), 5], [-(1 << 60), 5]),
        ("uint_contents", "UINT16", [0, 65535], [0, 65535]),
        ("uint64_contents", "UINT64", [1 << 63, 5], [1 << 63, 5]),
        ("fp32_contents", "FP32", [0.5, float("inf")], [0.5, float("inf")]),
        ("fp64_contents", "FP64", [0.1, 1e300], [0.1, 1e300]),
    ],
)
def test_every_field_of_elements(field: str, datatype: str, elements: list[Any], found: list[Any]) -> None:
    decoded = messages.decode(request("x", datatype, [2], **{field: elements}), None)
    assert decoded.inputs["x"].tolist() == found


def with_raw(said: Any, *raw: bytes) -> Any:
    said.raw_input_contents.extend(raw)
    return said


FOUR = [1.0, 2, 3, 4]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (request(), "has 4 elements, and there are 0"),
        (request(fp32_contents=FOUR[:3]), "has 4 elements, and there are 3"),
        (request(fp64_contents=FOUR), "elements of FP32 are in fp32_contents, not in fp64_contents"),
        (request(fp32_contents=FOUR, fp64_contents=FOUR), "not in fp32_contents, fp64_contents"),
        (request(datatype="INT8", int_contents=[1, 2, 3, 400]), "out of the range of INT8"),
        (request(datatype="FP16"), "FP16 has no field of contents"),
        (request(datatype="FP31"), "no datatype 'FP31'"),
        (request(shape=[-1, 4], fp32_contents=FOUR), "no integer from 0 on"),
        (request(shape=[1 << 62, 1 << 62], fp32_contents=FOUR), "too many elements"),
        (with_raw(request(), b"abc"), "FP32[1, 4] is 16 bytes, and there are 3"),
        (with_raw(request(), bytes(16), bytes(16)), "has 2 tensors, and the request has 1 input"),
        (with_raw(request(fp32_contents=FOUR), bytes(16)), "contents beside its bytes"),
        (with_raw(request("w"), bytes(16)), "'w' is not an input"),
    ],
)
def test_requests_that_cannot_be_meant(server: Server, said: Any, told: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelInfer", said.SerializeToString())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert told in caught.value.details()


def test_names_given_twice() -> None:
    said = request(fp32_contents=FOUR)
    said.inputs.add(name="x")
    with pytest.raises(Exception, match="the input 'x' is given twice"):
        messages.decode(said, None)


@pytest.mark.parametrize("name", ["ModelInfer", "ModelReady", "RepositoryIndex"])
def test_broken_messages(server: Server, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, name, b"\xff\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no message of" in caught.value.details()


def test_messages_that_are_too_large(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelInfer", bytes(2 << 20))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call(server, "ServerLive", b"")


@pytest.mark.parametrize(
    "many",
    [
        b"\x2a\x00" * (1 << 18),  # inputs
        b"\x3a\x00" * (1 << 18),  # tensors in raw_input_contents
        b"\x7a\x00" * (1 << 18),  # of fields that there are not
        b"\x10\x00" * (1 << 20),
        b"\x2a\x88\x80\x40" + b"\x2a\x84\x80\x40\x12\x80\x80\x40" + bytes(1 << 20),  # contents of an input
        b"\x0a" + b"\xff" * (2 << 20),
    ],
)
def test_messages_of_many_parts_are_refused_before_they_are_parsed(many: bytes) -> None:
    """Two bytes may become a message of a hundred, and 64 MiB of them kept others waiting for half a minute."""
    with pytest.raises(RequestSizeError, match="more than 1.0 MiB beside raw_input_contents"):
        messages.check_beside(many)


def test_bytes_of_tensors_and_short_messages_are_not_among_them() -> None:
    said = with_raw(request(), bytes(3 << 20), bytes(3 << 20))
    messages.check_beside(said.SerializeToString())
    messages.check_beside(b"\xff" * 100)
    messages.check_beside(b"")


def test_such_messages_over_the_wire(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelInfer", b"\x2a\x00" * (1 << 18))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "beside raw_input_contents" in caught.value.details()


def test_calls_that_there_are_not(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelStatistics", b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (QueueFullError("the queue is full"), "RESOURCE_EXHAUSTED", "the queue is full"),
        (DeadlineError("too late"), "DEADLINE_EXCEEDED", "too late"),
        (UnavailableError("it was removed"), "UNAVAILABLE", "it was removed"),
        (DeviceError("device cpu raised"), "INTERNAL", "device cpu raised"),
        (ZeroDivisionError("secret"), "INTERNAL", "the server failed at this request; its log says why"),
    ],
)
def test_errors_have_their_codes(error: Exception, code: str, told: str) -> None:
    said = request(shape=[1, 1], fp32_contents=[1])
    said.model_name = "slow"
    with running(*fake_service(FakeHost(error=error))) as server, pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelInfer", said.SerializeToString())
    assert (caught.value.code().name, caught.value.details()) == (code, told)


@pytest.mark.parametrize(("parameter", "least", "most"), [(7, 1, 7), (600, 8, 31), (None, 8, 31)])
def test_the_deadline_of_a_call_holds_beside_the_time_out_of_its_request(
    parameter: int | None, least: int, most: int
) -> None:
    """The call's is 30 seconds from when it was made, which gRPC rounds up on its way; what it has taken to read it is
    gone."""
    host = FakeHost()
    said = request(shape=[1, 1], fp32_contents=[1])
    said.model_name = "slow"
    if parameter is not None:
        said.parameters["timeout"].int64_param = parameter * 1_000_000
    with running(*fake_service(host)) as server, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(PATH + "ModelInfer").future(said.SerializeToString(), timeout=30)
        assert host.came.acquire(timeout=30)
        host.asked[0].answer()
        assert ModelInferResponse.FromString(call.result()).model_name == "slow"
    assert least <= host.asked[0].said["timeout"] <= most


def test_tokens_are_asked_for_but_not_by_probes() -> None:
    with running(*fake_service(FakeHost()), access=Access((b"secret",))) as server:
        assert call(server, "ServerLive", b"")
        assert call(server, "ServerReady", b"")
        assert call(server, "ServerMetadata", b"", metadata=[("authorization", "Bearer secret")])
        for metadata in ([], [("authorization", "Bearer wrong")]):
            with pytest.raises(grpc.RpcError) as caught:
                call(server, "ServerMetadata", b"", metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(("token", "taken"), [("secret", True), ("wrong", False), ("", False)])
def test_streams_are_asked_for_tokens(token: str, taken: bool) -> None:
    """Before a request of theirs is looked at: a bad one is answered to those alone that know one."""
    with (
        running(*fake_service(FakeHost()), access=Access((b"secret",))) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = stream(iter([b""]), metadata=[("authorization", f"Bearer {token}")], timeout=30)
        if taken:
            assert ModelStreamInferResponse.FromString(next(answers)).error_message
            return
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
