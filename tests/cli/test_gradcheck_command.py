"""glowtrain gradcheck: an operator, random programs, a model, and what cannot be checked together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import done, refused


@pytest.mark.exhaustive
def test_gradcheck_an_operator(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    junit, html = tmp_path / "report.xml", tmp_path / "report.html"
    done("gradcheck", "--op", "Tanh", "--examples", "2", "--json", report, "--junit", junit, "--html", html)
    assert json.loads(report.read_text())["passed"] is True
    assert 'failures="0"' in junit.read_text()
    assert "<svg" in html.read_text()


@pytest.mark.exhaustive
def test_gradcheck_random_programs() -> None:
    assert "all passed" in done("gradcheck", "--programs", "2", "--first", "5", "--jobs", "1")


def test_gradcheck_a_model(four: Path) -> None:
    assert "all passed" in done("gradcheck", four, "--dims", "batch=3")


def test_gradcheck_refuses_unknown_operators() -> None:
    said = refused("gradcheck", "--op", "Xyz", "--op", "Convv")
    assert "there is no operator 'Xyz', 'Convv' (the nearest is 'Conv'); there are 'Abs', 'Acos'" in said
    assert "'AveragePool'" not in said
    assert "not both" in refused("gradcheck", "mlp", "--op", "Tanh")
    assert "not both" in refused("gradcheck", "--programs", "2", "--op", "Tanh")
    assert "not both" in refused("gradcheck", "mlp", "--programs", "2")
