"""The protocol over HTTP, in this process: what is answered, and what is refused with which status."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from starlette.testclient import TestClient

import glowtrain as gt
from glowtrain.errors import (
    DeadlineError,
    DeviceError,
    DeviceLostError,
    QueueFullError,
    UnavailableError,
)
from glowtrain.serving.access import Access
from glowtrain.serving.http.app import application
from tests.serving.serving_networks import (
    FakeHost,
    FakeNetwork,
    FakeSignature,
    fake_service,
    one_example,
    scaled,
    served,
    several_types,
)

LIMIT = 1 << 20
Body = dict[str, Any]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(double=scaled(), types=several_types(), single=one_example()) as (service, _):
        yield TestClient(application(service, Access(), LIMIT), raise_server_exceptions=False)


def tensor(data: Any, name: str = "x", datatype: str = "FP32", **more: Any) -> Body:
    return {"name": name, "datatype": datatype, "shape": list(np.shape(data)), "data": data, **more}


def request(*inputs: Body, **more: Any) -> Body:
    return {"inputs": list(inputs) or [tensor([[1, 2, 3, 4]])], **more}


def outputs_of(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def test_health_and_metadata(client: TestClient) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/double/ready").json() == {"name": "double", "ready": True}
    assert client.get("/v2/models/double/versions/1/ready").status_code == 200
    assert client.get("/v2/models").json() == {"models": ["double", "single", "types"]}
    server = client.get("/v2").json()
    assert server["name"] == "glowtrain"
    assert "binary_tensor_data" in server["extensions"]
    assert client.get("/v2/models/double").json() == {
        "name": "double",
        "versions": ["1"],
        "platform": "glowtrain_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "z", "datatype": "FP32", "shape": [-1, 4]},
        ],
    }


def test_an_answer_in_json(client: TestClient) -> None:
    answer = client.post("/v2/models/double/versions/1/infer", json=request(id="seven"))
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    assert (said["model_name"], said["model_version"], said["id"]) == ("double", "1", "seven")
    assert said["outputs"][0] == {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 4.0, 6.0, 8.0]}
    assert "id" not in client.post("/v2/models/double/infer", json=request()).json()


def test_outputs_come_as_they_are_asked_for(client: TestClient) -> None:
    asked = [{"name": "z"}, {"name": "y"}]
    for count in (1, 2):
        answer = client.post("/v2/models/double/infer", json=request(outputs=asked[:count]))
        assert list(outputs_of(answer)) == ["z", "y"][:count]


def test_a_network_without_batches(client: TestClient) -> None:
    answer = client.post("/v2/models/single/infer", json=request(tensor([1, 2, 3])))
    assert outputs_of(answer) == {"y": [3.0, 6.0, 9.0]}


def binary(body: Body, *arrays: Any) -> tuple[bytes, dict[str, str]]:
    """A body of JSON with tensors' bytes behind it, and its headers."""
    text = json.dumps(body).encode()
    return text + b"".join(array.tobytes() for array in arrays), {"Inference-Header-Content-Length": str(len(text))}


def taken(answer: Any) -> dict[str, bytes]:
    """The bytes of each output of an answer."""
    assert answer.status_code == 200, answer.text
    split = int(answer.headers["inference-header-content-length"])
    said, rest, found = json.loads(answer.content[:split]), answer.content[split:], {}
    for output in said["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]], rest = rest[:size], rest[size:]
    assert not rest
    return found


def test_tensors_as_bytes(client: TestClient) -> None:
    arrays = {
        "a": np.array([[0.5, -2]], np.float16), "b": np.array([[3, 1]], ml_dtypes.bfloat16),
        "c": np.array([-(1 << 60)]), "d": np.array([[True, False, True]]),
    }  # fmt: skip
    names = {"a": "FP16", "b": "BF16", "c": "INT64", "d": "BOOL"}
    inputs = [
        {"name": name, "datatype": names[name], "shape": array.shape, "parameters": {"binary_data_size": array.nbytes}}
        for name, array in arrays.items()
    ]
    content, headers = binary(request(*inputs, parameters={"binary_data_output": True}), *arrays.values())
    found = taken(client.post("/v2/models/types/infer", content=content, headers=headers))
    assert found["half"] == (2 * arrays["a"]).tobytes()
    assert found["brain"] == (2 * arrays["b"]).tobytes()
    assert found["whole"] == (2 * arrays["c"]).tobytes()
    assert found["same"] == arrays["d"].tobytes()


def test_json_and_bytes_in_one_request_and_one_answer(client: TestClient) -> None:
    half = np.array([[1, 2]], np.float16)
    brain = half.astype(ml_dtypes.bfloat16)
    inputs = (
        {"name": "b", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}},
        tensor([9], "c", "INT64"),
        {"name": "a", "datatype": "FP16", "shape": [1, 2], "parameters": {"binary_data_size": 4}},
        tensor([[True, False, True]], "d", "BOOL"),
    )
    outputs = [{"name": "whole"}, {"name": "half", "parameters": {"binary_data": True}}]
    content, headers = binary(request(*inputs, outputs=outputs), brain, half)
    answer = client.post("/v2/models/types/infer", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    split = int(answer.headers["inference-header-content-length"])
    whole, halves = json.loads(answer.content[:split])["outputs"]
    assert whole["data"] == [18]
    assert halves["parameters"] == {"binary_data_size": 4}
    assert answer.content[split:] == (2 * half).tobytes()


def test_one_output_may_be_json_where_all_others_are_bytes(client: TestClient) -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    answer = client.post(
        "/v2/models/double/infer", json=request(outputs=outputs, parameters={"binary_data_output": True})
    )
    split = int(answer.headers["inference-header-content-length"])
    first, second = json.loads(answer.content[:split])["outputs"]
    assert first["data"] == [2, 4, 6, 8]
    assert "data" not in second
    assert answer.content[split:] == struct.pack("<4f", 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("GZip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)],
)
def test_bodies_may_be_compressed(client: TestClient, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    content = compress(json.dumps(request()).encode())
    answer = client.post("/v2/models/double/infer", content=content, headers={"content-encoding": encoding})
    assert outputs_of(answer)["y"] == [2, 4, 6, 8]


X = tensor([[1, 2, 3, 4]])
FLAT = {**X, "data": [1, 2, 3, 4]}
SIZED = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "the request is no object"),
        ({}, "no list 'inputs'"),
        ({"inputs": {}}, "no list 'inputs'"),
        ({"inputs": [1]}, r"inputs[0] is no object"),
        ({"inputs": [{}]}, r"inputs[0] has no 'name'"),
        ({"inputs": [{"name": 1}]}, r"inputs[0] has no 'name'"),
        ({"inputs": [{"name": "x"}]}, "needs a 'datatype' and a 'shape'"),
        ({"inputs": []}, "'x' is missing"),
        (request(X, X), "the input 'x' is given twice"),
        (request(X, tensor([1.0], "w")), "'w' is not an input"),
        (request({**X, "datatype": "FP31"}), "no datatype 'FP31'"),
        (request({**X, "datatype": "FP64"}), "'x' must be f32[batch,4], not float64[1, 4]"),
        (request({**X, "datatype": "BYTES", "data": list("abcd")}), "there is no datatype 'BYTES' here"),
        (request({**FLAT, "shape": [4]}), "'x' must be f32[batch,4], not float32[4]"),
        (request({**FLAT, "shape": [2, 2]}), "'x' must be f32[batch,4], not float32[2, 2]"),
        (request({**X, "shape": [0, 4], "data": []}), "at least one row"),
        (request({**X, "shape": [1, -4]}), "no integer from 0 on"),
        (request({**FLAT, "shape": [1, 5]}), "has 5 elements, and there are 4"),
        (request({**X, "data": None}), "data is a list, not null"),
        (request({**X, "parameters": {"binary_data_size": 16}}), "either 'data' or the parameter"),
        (request({**X, "parameters": []}), "'parameters' is no object"),
        (request({**SIZED, "parameters": {"binary_data_size": -1}}), "an integer from 0 on, not -1"),
        (request({**SIZED, "parameters": {"binary_data_size": True}}), "an integer from 0 on, not True"),
        (request(SIZED), "binary_data_size is 16, and 0 bytes are left"),
        (request({**SIZED, "parameters": {"shared_memory_region": "r"}}), "no regions of shared memory"),
        (request(id=7), "'id' is no string"),
        (request(outputs={}), "no list 'outputs'"),
        (request(outputs=[{"name": "w"}]), "model 'double' has no output 'w'; it has 'y', 'z'"),
        (request(outputs=[{"name": "y"}, {"name": "y"}]), "the output 'y' is given twice"),
        (request(outputs=[{"name": "y", "parameters": {"classification": 3}}]), "not turned into classes"),
        (request(outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), "true or false, not 1"),
        (request(parameters={"binary_data_output": "yes"}), "true or false, not 'yes'"),
        (request(parameters={"priority": -1}), "an integer from 0 on"),
        (request(parameters={"timeout": 1.5}), "an integer from 0 on"),
        (request(parameters={"sequence_id": 4}), "not parts of sequences"),
    ],
)
def test_requests_that_cannot_be_meant(client: TestClient, body: Any, told: str) -> None:
    answer = client.post("/v2/models/double/infer", json=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]
    assert outputs_of(client.post("/v2/models/double/infer", json=request()))["y"] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the request is no JSON"),
        (b"{", "the request is no JSON"),
        (b'{"inputs": [NaN]}', "there is no NaN in it"),
        (b'{"inputs": [-Infinity]}', "there is no -Infinity in it"),
        (b'{"inputs": [], "id": "1", "inputs": []}', "an object has 'inputs' twice"),
        (b"\xff\xfe", "the request is no JSON"),
        (b'{"inputs": [' + b"9" * 5000 + b"]}", "the request is no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_bodies_that_are_no_json(client: TestClient, content: bytes, told: str) -> None:
    answer = client.post("/v2/models/double/infer", content=content)
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_data_nested_deeper_than_any_tensor_is_refused(client: TestClient) -> None:
    body = request({**X, "shape": [1] * 40, "data": json.loads("[" * 40 + "1" + "]" * 40)})
    assert "a shape of 40 axes" in client.post("/v2/models/double/infer", json=body).json()["error"]


@pytest.mark.parametrize("length", ["-1", "0x10", "99999", "1e3", "", "٣", "9" * 5000])
def test_lengths_of_json_that_cannot_be_meant(client: TestClient, length: str) -> None:
    headers = {b"inference-header-content-length": length.encode()}
    answer = client.post("/v2/models/double/infer", content=json.dumps(request()), headers=headers)
    assert answer.status_code == 400
    assert "say how many of the body's" in answer.json()["error"]


def test_bytes_that_belong_to_nothing(client: TestClient) -> None:
    content, headers = binary(request(), np.zeros(1, np.float32))
    answer = client.post("/v2/models/double/infer", content=content, headers=headers)
    assert "4 bytes behind the JSON belong to no input" in answer.json()["error"]


def test_what_json_cannot_say_is_refused_before_anything_runs() -> None:
    signature = FakeSignature({"x": gt.f32["batch", 1]}, {"y": gt.f16["batch", 1]})
    host = FakeHost(FakeNetwork(signature=signature))
    client = TestClient(application(fake_service(host)[0], Access(), LIMIT))
    answer = client.post("/v2/models/slow/infer", json=request(tensor([[1.0]])))
    assert (answer.status_code, len(host.asked)) == (400, 0)
    assert "output 'y' is FP16, which JSON cannot say" in answer.json()["error"]


def test_infinite_outputs_are_told_as_such(client: TestClient) -> None:
    body = request(tensor([[3e38, 0, 0, 0]]))
    answer = client.post("/v2/models/double/infer", json=body)
    assert answer.status_code == 400
    assert "output 'y': it has NaN or infinity" in answer.json()["error"]
    found = taken(client.post("/v2/models/double/infer", json={**body, "parameters": {"binary_data_output": True}}))
    assert np.frombuffer(found["y"], np.float32)[0] == np.inf


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/nothing", 404),
        ("GET", "/v2/models/nothing/ready", 404),
        ("GET", "/v2/models/double/versions/9", 404),
        ("GET", "/v2/models/double/versions/9/ready", 404),
        ("POST", "/v2/models/nothing/infer", 404),
        ("POST", "/v2/models/double/versions/9/infer", 404),
        ("GET", "/v2/models/double/infer", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/", 404),
        ("GET", "/v1/models", 404),
    ],
)
def test_unknown_names_and_routes(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path, **({"json": request()} if method == "POST" else {}), follow_redirects=False)
    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (QueueFullError("the queue is full"), 429, "the queue is full"),
        (DeadlineError("too late"), 504, "too late"),
        (UnavailableError("it was removed"), 503, "it was removed"),
        (DeviceLostError("device cpu hangs"), 503, "device cpu hangs"),
        (DeviceError("device cpu raised"), 500, "device cpu raised"),
        (ZeroDivisionError("secret"), 500, "the server failed at this request; its log says why"),
    ],
)
def test_errors_have_their_status(error: Exception, status: int, told: str) -> None:
    service, _ = fake_service(FakeHost(error=error))
    client = TestClient(application(service, Access(), LIMIT), raise_server_exceptions=False)
    answer = client.post("/v2/models/slow/infer", json=request(tensor([[1.0]])))
    assert (answer.status_code, answer.json()) == (status, {"error": told})


class _Replaced(FakeHost):
    """Its network goes out of service as soon as it is asked, and another takes its place, if there is one."""

    def __init__(self, *others: FakeNetwork) -> None:
        super().__init__(FakeNetwork(version="1"))
        self.others = list(others)

    def run(self, name: str, inputs: Any, *, version: str | None = None, **said: Any) -> Any:
        if version == "1":
            self.known = self.others or self.known
            raise UnavailableError("version 1 was replaced")
        asked = super().run(name, inputs, version=version, **said)
        self.asked[-1].answer()
        return asked


def test_a_request_goes_to_the_network_that_takes_the_place_of_another_just_then() -> None:
    body = request(tensor([[1.0]]))
    client = TestClient(application(fake_service(_Replaced(FakeNetwork(version="2")))[0], Access(), LIMIT))
    assert client.post("/v2/models/slow/infer", json=body).json()["model_version"] == "2"
    client = TestClient(application(fake_service(_Replaced(FakeNetwork(version="2")))[0], Access(), LIMIT))
    assert client.post("/v2/models/slow/versions/1/infer", json=body).status_code == 404
    client = TestClient(application(fake_service(_Replaced())[0], Access(), LIMIT))
    assert client.post("/v2/models/slow/infer", json=body).status_code == 503


def test_ready_only_when_every_model_is() -> None:
    host = FakeHost(FakeNetwork("one"), FakeNetwork("two", ready=False))
    service, repository = fake_service(host)
    client = TestClient(application(service, Access(), LIMIT))
    assert (client.get("/v2/health/ready").status_code, client.get("/v2/models/two/ready").status_code) == (503, 503)
    assert client.get("/v2/models/one/ready").json() == {"name": "one", "ready": True}
    host.known[1].ready = True
    assert client.get("/v2/health/ready").json() == {"ready": True}
    repository.complete = False
    assert client.get("/v2/health/ready").json() == {"ready": False}
    repository.complete = True
    service.close()
    assert (client.get("/v2/health/ready").status_code, client.get("/v2/health/live").status_code) == (503, 200)


def test_tokens_are_asked_for_but_not_by_probes() -> None:
    service, _ = fake_service(FakeHost())
    client = TestClient(application(service, Access((b"first", b"second")), LIMIT))
    assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
    for authorization in ("Bearer first", "bearer second"):
        assert client.get("/v2", headers={"authorization": authorization}).status_code == 200
    for headers in (
        {},
        {"authorization": "Bearer third"},
        {"authorization": "Bearer firs"},
        {"authorization": "Bearer first1"},
        {"authorization": "Bearer "},
        {"authorization": "Basic first"},
        {"authorization": "first"},
    ):
        for method, path in (("GET", "/v2"), ("GET", "/metrics"), ("POST", "/v2/models/slow/infer")):
            answer = client.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer" in answer.json()["error"]


def test_load_and_unload_need_a_repository(client: TestClient) -> None:
    for verb in ("load", "unload"):
        answer = client.post(f"/v2/repository/models/double/{verb}")
        assert answer.status_code == 400
        assert "started with a repository" in answer.json()["error"]
    assert client.post("/v2/repository/index").json()[0] == {
        "name": "double", "version": "1", "state": "READY", "reason": "",
    }  # fmt: skip
