"""Requests leave nothing for the garbage collector, whose full collections would take longer than requests do."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import time
import tracemalloc
from typing import Any

import grpc
import pytest

from glowtrain.serving.repository import ModelOptions
from glowtrain.serving.rpc.schema import ModelInferRequest
from tests.serving.serving_networks import running, scaled, served

BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


def garbage(ask: Any) -> list[Any]:
    """What is in cycles after some requests."""
    for _ in range(5):
        ask()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(20):
            ask()
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_requests_over_http_leave_no_cycles() -> None:
    with served(load=False, double=scaled()) as both, running(*both) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

        def ask() -> None:
            connection.request("POST", "/v2/models/double/infer", BODY)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)

        assert len(garbage(ask)) < 20


def test_requests_over_grpc_leave_no_cycles_but_those_of_its_library() -> None:
    said = ModelInferRequest(model_name="double")
    said.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1, 2, 3, 4])
    data = said.SerializeToString()
    with (
        served(load=False, double=scaled()) as both,
        running(*both) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        left = garbage(lambda: infer(data, timeout=30))
        ours = [each for each in left if type(each).__module__.startswith(("glowtrain", "asyncio", "concurrent"))]
        assert len(left) < 20 * 8
        assert not ours


@pytest.mark.parametrize("model", ["double", "none"])
@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
def test_messages_of_grpc_are_not_left_to_the_garbage_collector(name: str, model: str) -> None:
    """Neither answered ones nor refused ones: the bytes that the server counts are those that there are."""
    rows = 1 << 16
    said = ModelInferRequest(model_name=model, raw_input_contents=[bytes(16 * rows)])
    said.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    data = said.SerializeToString()
    with (
        served(options=ModelOptions(batch_sizes=(rows,)), load=False, double=scaled()) as both,
        running(*both) as server,
        grpc.insecure_channel(
            f"127.0.0.1:{server.grpc_port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{name}")

        def ask() -> None:
            answers = call(iter([data]), timeout=60)
            with contextlib.suppress(grpc.RpcError):
                assert list(answers)
            known = model == "double" or name == "ModelStreamInfer"  # a stream says so in its answer
            assert answers.code() is (grpc.StatusCode.OK if known else grpc.StatusCode.NOT_FOUND)

        ask()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(12):
                ask()
            late = time.monotonic() + 10  # the last answer comes before what was done for it is left
            while (left := tracemalloc.get_traced_memory()[0]) >= 6 * len(data) and time.monotonic() < late:
                time.sleep(0.05)
            assert left < 6 * len(data)
        finally:
            tracemalloc.stop()
            gc.enable()
