"""Mutated models work, the same on both backends, or are refused by an error that says where; see fuzz.py for more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from glowtrain.errors import ModelError
from tests.onnx_io.fuzz import Finding, attempt, campaign, mutant, watch
from tests.onnx_io.onnx_models import mlp, model, node
from tests.onnx_io.seeds import corpus

COUNT = 400


@pytest.mark.exhaustive
def test_mutants(record_property: Callable[[str, object], None]) -> None:
    """Bytes and protobuf fields of models by hand, of gt.save and of ONNX's simple and pytorch-operator tests."""
    tally = campaign(COUNT, seed=20, native_share=0.25, node_tests=False)
    record_property("mutants", tally.tried)
    print(tally)
    assert not tally.problems, str(tally)
    assert tally.tried == COUNT
    assert tally.outcomes["refused: ModelError"] > COUNT // 4
    assert tally.outcomes["ran on both backends"] > COUNT // 50


def test_mutants_are_given_by_their_number() -> None:
    seeds = corpus(node_tests=False)
    first, second = ([mutant(seeds, 5, number)[1] for number in range(50)] for _ in range(2))
    assert first == second
    assert len({*first}) > 40


def test_whole_models_run_on_both_backends() -> None:
    for opset in (6, 13, 18):
        assert attempt(mlp(opset=opset).SerializeToString(), {}, Random(0), 1.0) == "ran on both backends"


def test_an_error_that_does_not_say_where_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    data = model([node("Relu", "ghost", "y", "n")], {"x": [2]}, ["y"]).SerializeToString()
    assert attempt(data, {}, Random(0), 0.0) == "refused: ModelError"

    def vague(source: bytes) -> None:
        raise ModelError("something is wrong")

    monkeypatch.setattr("glowtrain.load", vague)
    with pytest.raises(Finding, match="vague"):
        attempt(data, {}, Random(0), 0.0)


@pytest.mark.parametrize(("ending", "problem"), [("os.abort()", "ends the process (-6)"), ("time.sleep(60)", "hangs")])
def test_a_child_that_ends_or_hangs_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str, problem: str
) -> None:
    """The second of four mutants ends its process; the others are tried all the same."""
    script = (
        "import json, os, sys, time\n"
        "first = int(sys.argv[sys.argv.index('--first') + 1])\n"
        "for number in range(first, 4):\n"
        "    print(json.dumps({'number': number, 'seed': 'x'}), flush=True)\n"
        f"    if number == 1: {ending}\n"
        "    print(json.dumps({'number': number, 'outcome': 'ran', 'problem': '', 'seconds': 0.1}), flush=True)\n"
    )
    started = subprocess.Popen

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return started([sys.executable, "-c", script, *command[2:]], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("fuzz.subprocess.Popen", popen)
    monkeypatch.setattr("fuzz.HANGING", 3.0)
    tally = watch(tmp_path, 0, range(4), 0.0)
    assert tally.tried == 4
    assert tally.outcomes == {"ran": 3, "found": 1}
    assert list(tally.problems) == [1]
    assert problem in tally.problems[1]
