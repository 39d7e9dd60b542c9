"""Triton's own clients, over HTTP and gRPC, as they are: tensors as bytes, several at a time, asynchronous, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from queue import Queue
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from glowtrain.serving.server import Server
from tests.serving.serving_networks import one_example, running, scaled, served, several_types

WAYS = {"http": (over_http, over_http_aio), "grpc": (over_grpc, over_grpc_aio)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        served(load=False, double=scaled(), types=several_types(), single=one_example()) as both,
        running(*both) as server,
    ):
        yield server


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(server: Server, way: str) -> str:
    return f"127.0.0.1:{server.port if way == 'http' else server.grpc_port}"


@pytest.fixture
def client(server: Server, way: str) -> Iterator[Any]:
    with WAYS[way][0].InferenceServerClient(address(server, way)) as client:
        yield client


def given(module: Any, **arrays: Any) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        made = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array)
        inputs.append(made)
    return inputs


def numbers(random: np.random.Generator, rows: int) -> Any:
    return random.normal(size=(rows, 4)).astype(np.float32)


def test_the_server_says_what_it_is(client: Any, way: str) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    as_json = {} if way == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "glowtrain"
    said = client.get_model_metadata("types", **as_json)
    assert [(each["name"], each["datatype"]) for each in said["inputs"]] == [
        ("a", "FP16"), ("b", "BF16"), ("c", "INT64"), ("d", "BOOL"),
    ]  # fmt: skip
    assert [int(extent) for extent in said["inputs"][0]["shape"]] == [-1, 2]


def test_tensors_as_bytes(client: Any, way: str, random: np.random.Generator) -> None:
    x = numbers(random, 3)
    module = WAYS[way][0]
    answer = client.infer("double", given(module, x=x), request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)
    np.testing.assert_array_equal(answer.as_numpy("z"), x + 1)
    outputs = [module.InferRequestedOutput("z")]
    answer = client.infer("double", given(module, x=x), "1", outputs)
    np.testing.assert_array_equal(answer.as_numpy("z"), x + 1)
    assert answer.as_numpy("y") is None


def test_every_type_of_bytes(client: Any, way: str) -> None:
    arrays = {
        "a": np.array([[0.5, 2]], np.float16), "b": np.array([[1.5, 3]], ml_dtypes.bfloat16),
        "c": np.array([-(1 << 60)]), "d": np.array([[True, False, True]]),
    }  # fmt: skip
    answer = client.infer("types", given(WAYS[way][0], **arrays))
    for output, name, factor in (("half", "a", 2), ("brain", "b", 2), ("whole", "c", 2), ("same", "d", 1)):
        found = answer.as_numpy(output)
        assert found.dtype == arrays[name].dtype
        assert found.tobytes() == (arrays[name] * arrays[name].dtype.type(factor)).tobytes()


def test_json_over_http(server: Server, random: np.random.Generator) -> None:
    x = numbers(random, 2)
    inputs = [over_http.InferInput("x", [2, 4], "FP32")]
    inputs[0].set_data_from_numpy(x, binary_data=False)
    outputs = [over_http.InferRequestedOutput("y", binary_data=False)]
    with over_http.InferenceServerClient(address(server, "http")) as client:
        answer = client.infer("double", inputs, outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)
        for algorithm in ("gzip", "deflate"):
            answer = client.infer("double", inputs, request_compression_algorithm=algorithm)
            np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def test_compressed_messages_of_grpc(server: Server, random: np.random.Generator) -> None:
    x = numbers(random, 2)
    with over_grpc.InferenceServerClient(address(server, "grpc")) as client:
        answer = client.infer("double", given(over_grpc, x=x), compression_algorithm="gzip")
    np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def test_many_at_a_time(server: Server, way: str, random: np.random.Generator) -> None:
    module = WAYS[way][0]
    arrays = [numbers(random, 1 + number % 5) for number in range(40)]
    options = {"concurrency": 8} if way == "http" else {}
    with module.InferenceServerClient(address(server, way), **options) as client:
        answers = _asked(client, module, way, arrays)
        for x, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def _asked(client: Any, module: Any, way: str, arrays: list[Any]) -> list[Any]:
    if way == "http":
        handles = [client.async_infer("double", given(module, x=x)) for x in arrays]
        return [handle.get_result() for handle in handles]
    came: Queue[Any] = Queue()
    for number, x in enumerate(arrays):
        client.async_infer(
            "double", given(module, x=x), lambda result, error, number=number: came.put((number, result, error))
        )
    found = {number: (result, error) for number, result, error in (came.get(timeout=30) for _ in arrays)}
    assert all(error is None for _, error in found.values())
    return [found[number][0] for number in range(len(arrays))]


def test_asyncio(server: Server, way: str, random: np.random.Generator) -> None:
    module = WAYS[way][1]
    arrays = [numbers(random, 1 + number % 3) for number in range(20)]

    async def all_at_once() -> list[Any]:
        async with module.InferenceServerClient(address(server, way)) as client:
            return await asyncio.gather(*(client.infer("double", given(module, x=x)) for x in arrays))

    for x, answer in zip(arrays, asyncio.run(all_at_once()), strict=True):
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x)


def test_a_stream_is_answered_in_order_and_survives_a_bad_request(server: Server, random: np.random.Generator) -> None:
    came: Queue[Any] = Queue()
    x = numbers(random, 2)
    with over_grpc.InferenceServerClient(address(server, "grpc")) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        for model in ("double", "nothing", "double"):
            client.async_stream_infer(model, given(over_grpc, x=x), request_id=model)
        first, second, third = (came.get(timeout=30) for _ in range(3))
        client.stop_stream()
    np.testing.assert_array_equal(first[0].as_numpy("y"), 2 * x)
    assert "there is no network 'nothing'" in str(second[1])
    np.testing.assert_array_equal(third[0].as_numpy("y"), 2 * x)


@pytest.mark.parametrize(
    ("model", "version", "array", "output", "status"),
    [
        ("nothing", "", np.zeros((1, 4), np.float32), "y", ("404", "NOT_FOUND")),
        ("double", "7", np.zeros((1, 4), np.float32), "y", ("404", "NOT_FOUND")),
        ("double", "", np.zeros((1, 5), np.float32), "y", ("400", "INVALID_ARGUMENT")),
        ("double", "", np.zeros((1, 4), np.int32), "y", ("400", "INVALID_ARGUMENT")),
        ("double", "", np.zeros((1, 4), np.float32), "w", ("400", "INVALID_ARGUMENT")),
        ("double", "", np.array([[b"a"] * 4], object), "y", ("400", "INVALID_ARGUMENT")),
    ],
)
def test_what_is_refused(
    client: Any, way: str, model: str, version: str, array: Any, output: str, status: tuple[str, str]
) -> None:
    module = WAYS[way][0]
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, given(module, x=array), version, [module.InferRequestedOutput(output)])
    expected = status[0] if way == "http" else f"StatusCode.{status[1]}"
    assert caught.value.status() == expected


def test_unknown_models_are_not_ready(client: Any, way: str) -> None:
    if way == "http":
        assert not client.is_model_ready("nothing")
    else:
        with pytest.raises(InferenceServerException, match="there is no network 'nothing'"):
            client.is_model_ready("nothing")
