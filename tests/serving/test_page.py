"""docs/serving.md: its model is served by its command, and asked by its programs, on ports that are free."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import urllib.request
from pathlib import Path

import pytest

from glowtrain.runtime import HostManager
from glowtrain.serving.repository import ModelOptions, Repository
from tests.serving.test_deployment import parsed
from tests.serving.test_repository import config, put
from tests.serving.test_server import serving
from tests.test_docs import example_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def blocks(language: str) -> list[str]:
    """The page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_programs_give_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in example_of(PAGE.read_text(encoding="utf-8"), "serving.md").examples:
        exec(example.source, names)
    command, _ = blocks("sh")
    words = shlex.split(command)
    assert words[:2] == ["glowtrain", "serve"]
    parsed(words[2:])
    with serving(*words[2:]) as server:
        server.until("ready")
        programs = blocks("python")
        assert len(programs) == 2
        for program in programs:
            own = program.replace("http://127.0.0.1:8000", server.listening["http"])
            own = own.replace("127.0.0.1:8000", server.listening["http"].removeprefix("http://"))
            assert printed(own) == re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)


def test_a_version_is_rolled_out(tmp_path: Path) -> None:
    served, beside = tmp_path / "served", tmp_path / "beside"
    put(served, "digits", "1")
    new = put(beside, "digits", "3").parent
    _, rollout = blocks("sh")
    move, load, index = rollout.splitlines()
    assert move == "mv new DIR/digits/3"
    with serving("--repository", served) as server:
        server.until("ready")
        new.rename(served / "digits" / "3")
        for command in (load, index):
            url = command.removeprefix("curl -X POST ").replace("http://127.0.0.1:8000", server.listening["http"])
            with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
                said = answer.read()
        assert (server.until("loaded")["model"], server.events[-1]["versions"]) == ("digits", ["3"])
    (ready,) = [each for each in json.loads(said) if each["state"] == "READY"]
    assert (ready["name"], ready["version"]) == ("digits", "3")


def printed(program: str) -> list[str]:
    """The lines that a program prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program, {})
    return said.getvalue().splitlines()


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    for version in ("1", "2"):
        put(tmp_path, "digits", version)
    config(tmp_path, "digits", re.sub(r"^dims.*\n", "", text, flags=re.MULTILINE))
    with HostManager() as host:
        Repository(host, {}, tmp_path, ModelOptions()).load_all()
        assert [network.version for network in host.networks()] == ["1", "2"]
