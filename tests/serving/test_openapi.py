"""The description of the routes in OpenAPI: it names all of them, and what the server does is what it says.

schemathesis draws requests from it, right ones and wrong ones, and looks at each answer's status, type and schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import glowtrain as gt
from glowtrain.serving import http
from glowtrain.serving.access import Access
from glowtrain.serving.http.app import OPENAPI, application
from tests.serving.serving_networks import scaled, served

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    response_headers_conformance,
]  # fmt: skip
KNOWN = {"model": st.just("double"), "version": st.just("1")}
"""Names that requests are for half of the time, so that more than a 404 is seen."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    path = folder / "double" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    gt.save(scaled(), path)
    with served(folder) as (service, _):
        yield application(service, Access(), 1 << 16)


DESCRIPTION = Path(http.__file__).parent / OPENAPI
LABELS = [found.ok().label for found in schemathesis.openapi.from_path(DESCRIPTION).get_all_operations()]


@pytest.fixture(scope="module")
def described(app: Any) -> dict[str, Any]:
    """The operations of the application, by their labels."""
    schema = schemathesis.openapi.from_asgi(f"/v2/{OPENAPI}", app)
    return {operation.label: operation for operation in (found.ok() for found in schema.get_all_operations())}


RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
DRAWN = [(label, RIGHT) for label in LABELS] + [(label, WRONG) for label in LABELS if label.startswith("POST")]
"""Operations, and the kind of requests: there is nothing that could be wrong without a body."""


@pytest.mark.parametrize(("label", "mode"), DRAWN, ids=lambda given: getattr(given, "value", given))
def test_answers_are_as_described(described: dict[str, Any], label: str, mode: GenerationMode) -> None:
    operation = described[label]

    @given(operation.as_strategy(generation_mode=mode), st.fixed_dictionaries({}, optional=KNOWN))
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    def answered(case: Any, known: dict[str, str]) -> None:
        case.path_parameters.update({name: known[name] for name in case.path_parameters.keys() & known})
        case.call_and_validate(checks=CHECKS)

    answered()


def test_the_description_names_every_route(app: Any) -> None:
    paths = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))["paths"]
    described = {
        (path.replace("{model}", "{name}"), method.upper())
        for path, each in paths.items()
        for method in each.keys() - {"parameters"}
    }
    served = {(route.path, method) for route in app.routes for method in route.methods - {"HEAD"}}
    assert served - described == {(f"/v2/{OPENAPI}", "GET")}
    assert described <= served
