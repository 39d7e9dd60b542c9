"""examples/serving: the commands of the image and the manifest are ones that there are, probes ask for routes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from starlette.testclient import TestClient

from glowtrain.cli import application as command_line
from glowtrain.serving.access import Access
from glowtrain.serving.http.app import application
from tests.serving.serving_networks import FakeHost, fake_service

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "serving"


@pytest.fixture
def deployment() -> dict[str, Any]:
    first, _ = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = first["spec"]["template"]["spec"]
    return found


def in_dockerfile(instruction: str) -> list[str]:
    """The words of ENTRYPOINT or CMD."""
    found = re.search(rf"^{instruction} (\[.*\])$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    words: list[str] = json.loads(found[1])
    return words


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """What glowtrain serve takes arguments for. Raises for options that there are not."""
    group = typer.main.get_command(command_line("serve"))
    serve = group.commands["serve"]  # type: ignore[attr-defined]
    found: dict[str, Any] = serve.make_context("serve", list(arguments)).params
    return found


def test_commands(deployment: dict[str, Any]) -> None:
    entry = in_dockerfile("ENTRYPOINT")
    assert entry[:2] == ["glowtrain", "serve"]
    assert str(parsed([*entry[2:], *in_dockerfile("CMD")])["repository_path"]) == "/models"
    said = parsed([*entry[2:], *deployment["containers"][0]["args"]])
    assert (said["max_batch"], said["max_delay"]) == (32, 2.0)
    wait = int(deployment["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert deployment["terminationGracePeriodSeconds"] > said["drain"] + wait


def test_metrics_are_where_the_manifest_says() -> None:
    """With the token: it is the manifest's own."""
    first, _ = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    said = first["spec"]["template"]["metadata"]["annotations"]
    service, _ = fake_service(FakeHost())
    client = TestClient(application(service, Access((b"secret",)), 1 << 16))
    path = said["prometheus.io/path"]
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200
    assert int(said["prometheus.io/port"]) == parsed([])["port"]


def test_probes_ask_for_what_needs_no_token(deployment: dict[str, Any]) -> None:
    service, _ = fake_service(FakeHost())
    client = TestClient(application(service, Access((b"secret",)), 1 << 16))
    probes = {name: probe for name, probe in deployment["containers"][0].items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in probes.values():
        assert client.get(probe["httpGet"]["path"]).status_code == 200
    ports = {port["name"]: port["containerPort"] for port in deployment["containers"][0]["ports"]}
    assert ports == {"http": parsed([])["port"], "grpc": parsed([])["grpc_port"]}
