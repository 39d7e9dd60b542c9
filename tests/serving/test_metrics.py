"""Numbers for Prometheus: read by its own client, and those that requests should give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from glowtrain.runtime.observation.metrics import Metric
from glowtrain.serving.access import Access
from glowtrain.serving.http.app import application
from glowtrain.serving.metrics import exposition
from glowtrain.serving.repository import ModelOptions
from tests.serving.serving_networks import scaled, served

LABELS = {"model": "double", "version": "1"}


@pytest.fixture
def client() -> Iterator[TestClient]:
    with served(None, ModelOptions(max_batch=4), double=scaled()) as (service, _):
        yield TestClient(application(service, Access(), 1 << 20))


def families(client: TestClient) -> dict[str, Any]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    (sample,) = [each for each in found[name].samples if each.labels == {**LABELS, **labels}]
    return float(sample.value)


def ask(client: TestClient, rows: int, **more: Any) -> int:
    x = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [1] * rows * 4, **more}
    return client.post("/v2/models/double/infer", json={"inputs": [x]}).status_code


def test_requests_are_counted(client: TestClient) -> None:
    assert [ask(client, 3), ask(client, 6), ask(client, 1, datatype="INT8"), ask(client, 1, shape=[2])] == [
        200, 200, 400, 400,
    ]  # fmt: skip
    assert client.post("/v2/models/nothing/infer", json={}).status_code == 404
    found = families(client)
    assert value(found, "nv_inference_request_success") == 2
    assert value(found, "nv_inference_request_failure", reason="OTHER") == 2
    assert value(found, "nv_inference_request_failure", reason="REJECTED") == 0
    assert value(found, "nv_inference_count") == 9
    assert value(found, "nv_inference_exec_count") == 3
    assert value(found, "nv_inference_pending_request_count") == 0
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        assert value(found, f"nv_inference_{name}_duration_us") > 0
    batches = {each.labels["le"]: each.value for each in found["glowtrain_batch_size"].samples if "le" in each.labels}
    assert (batches["2"], batches["4"], batches["+Inf"]) == (1, 3, 3)


def test_an_answer_that_json_cannot_say_is_counted_once(client: TestClient) -> None:
    """The model has answered, so it is a success."""
    assert ask(client, 1, data=[3e38] * 4) == 400
    found = families(client)
    counted = [value(found, f"nv_inference_request_{name}", **more) for name, more in OUTCOMES]
    assert counted == [1, 0]


def test_a_request_that_is_late_before_it_is_asked_is_counted(client: TestClient) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}
    late = client.post("/v2/models/double/infer", json={"inputs": [x], "parameters": {"timeout": 1}})
    found = families(client)
    assert (late.status_code, value(found, "nv_inference_request_failure", reason="REJECTED")) == (504, 1)
    assert value(found, "nv_inference_request_failure", reason="OTHER") == 0


OUTCOMES: tuple[tuple[str, dict[str, str]], ...] = (("success", {}), ("failure", {"reason": "OTHER"}))


def test_kinds_and_helps_are_told(client: TestClient) -> None:
    found = families(client)
    others = {name: family.type for name, family in found.items() if family.type != "counter"}
    assert others == {"glowtrain_batch_size": "histogram", "nv_inference_pending_request_count": "gauge"}
    assert len(found) >= 10
    assert all(family.documentation for family in found.values())


def test_labels_are_escaped() -> None:
    name = 'a "b"\\c\nd'
    text = exposition([Metric("requests", "gauge", "what\nis\\told", {"model": name}, 0.1)])
    (family,) = text_string_to_metric_families(text)
    assert family.documentation == "what\nis\\told"
    assert family.samples[0].labels == {"model": name}
    assert family.samples[0].value == 0.1
