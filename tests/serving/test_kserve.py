"""KServe's client, in a process and an environment of its own: its messages of gRPC have the names of Triton's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import glowtrain as gt
from tests.serving.serving_networks import running, scaled, served

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-kserve" / "bin" / "python"
"""``make test-serving`` puts it there."""

X = [[0.0, 1, 2, 3], [4, 5, 6, 7]]
DOUBLE = [[2 * element for element in row] for row in X]
MORE = [[1 + element for element in row] for row in X]


@gt.model(x=gt.f16["batch", 4])
def half(x: Any) -> Any:
    return {"y": x + x}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the client saw, over both ways."""
    with served(load=False, double=scaled(), half=half) as both, running(*both) as server:
        command = [PYTHON, ROOT / "tests" / "serving" / "kserve_client.py", server.port, server.grpc_port]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_answers(seen: dict[str, Any], way: str) -> None:
    found = seen[way]
    assert (found["live"], found["ready"], found["model"]) == (True, True, True)
    whole = {"model": "double", "id": "mine", "outputs": {"y": DOUBLE, "z": MORE}}
    assert found["bytes"] == whole
    assert found["some"] == {**whole, "outputs": {"z": MORE}}
    assert found["half"]["outputs"] == {"y": DOUBLE}


def test_json(seen: dict[str, Any]) -> None:
    assert seen["http"]["json"] == seen["http"]["bytes"]


def test_errors_reach_it(seen: dict[str, Any]) -> None:
    status, told = seen["http"]["refused"]
    assert (status, "'x' must be f32[batch,4], not int8[2, 4]" in told) == (400, True)
    code, told = seen["grpc"]["refused"]
    assert (code, told) == ("NOT_FOUND", "there is no network 'nothing'; there is 'double', 'half'")
