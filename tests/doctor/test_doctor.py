"""``glowtrain doctor``: digests that do not depend on threads, and a doctor that notices when they do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.backends.cpu.executable import NativeExecutable, NativeInstance
from glowtrain.backends.state import State
from glowtrain.backends.target import Target
from glowtrain.cli import app
from glowtrain.doctor import exercise
from glowtrain.doctor.exercise import ExerciseRun, batch, digest, initial, runs, weights
from glowtrain.doctor.facts import facts, instructions
from glowtrain.doctor.report import BitsDiffer, DoctorReport
from glowtrain.graph import Graph, Variable
from glowtrain.types import f32


@pytest.fixture
def one_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this processor alone, with up to three threads."""
    monkeypatch.setattr(exercise, "arithmetics", lambda: (("host", None),))
    monkeypatch.setattr(exercise, "default", lambda: 3)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


@pytest.mark.usefixtures("one_target")
def test_digests_are_the_same_on_one_two_and_three_threads() -> None:
    found = list(runs())
    assert [run.threads for run in found] == [1, 1, 2, 3]
    assert len({run.digest for run in found}) == 1


def test_everything_is_printed() -> None:
    result = called()
    assert result.exit_code == 0, result.output
    for said in ("glowtrain ", "numpy ", "llvmlite ", "L1 ", "threads", "parameters after ten steps", "host", "scalar"):
        assert said in result.output
    assert "All targets compute the same bits, again and on any number of threads" in " ".join(result.output.split())
    found = re.findall(r"\b[0-9a-f]{16}\b", result.output)
    assert len(found) == len(exercise.arithmetics())
    assert len(set(found)) == 2, "with fused multiply-adds, and without"


@pytest.mark.usefixtures("one_target")
def test_json_is_for_programs() -> None:
    result = called("--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["agrees"] is True
    assert found["facts"]["glowtrain"] == gt.__version__
    assert [run["threads"] for run in found["runs"]] == [1, 1, 2, 3]


class Disturbed(NativeInstance):
    """Native code that adds the last bit to a parameter once, on two threads."""

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = super().run(inputs)
        if self.executable.threads == 2:
            name = "scores.bias"
            self.state.write(name, np.nextafter(self.state.read(name), np.float32(9)))
        return results


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_target")
def test_one_bit_on_one_number_of_threads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(executable: NativeExecutable, state: State) -> Disturbed:
        return Disturbed(executable, state)

    monkeypatch.setattr(NativeExecutable, "bind", bind)
    result = called()
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "error: target host does not compute the same bits each time: " in said
    assert re.search(r"time: \w+ on 1 and 1 and 3 threads, \w+ on 2 threads\.", said)
    assert "please report this with all of the above" in said
    assert "All targets compute the same bits" not in said
    assert called("--json").exit_code == 1


# ---- what the run is made of


def test_reports_tell_targets_that_differ() -> None:
    fused = ExerciseRun("host", 1, "aa"), ExerciseRun("host", 2, "aa"), ExerciseRun("scalar", 1, "aa")
    found = DoctorReport({}, (*fused, ExerciseRun("host", 1, "bb", fused=False)))
    assert found.agrees
    found.require()
    other = DoctorReport({}, (*found.runs, ExerciseRun("scalar", 2, "cc")))
    assert not other.agrees
    with pytest.raises(BitsDiffer, match="target scalar .*: aa on 1 thread, cc on 2 threads"):
        other.require()
    other = DoctorReport({}, (*found.runs, ExerciseRun("sse4", 1, "aa", fused=False)))
    assert not other.agrees
    with pytest.raises(BitsDiffer, match=r"targets host, unfused \(bb\) and sse4, unfused \(aa\) do not compute"):
        other.require()


def test_numbers_are_made_of_raw_words() -> None:
    """Written down, as they must not change: other versions would print other digests for no reason."""
    assert weights(7, f32[2, 2]).tolist() == [
        [0.18603670597076416, -0.10231733322143555],
        [-0.039951175451278687, -0.04730388522148132],
    ]
    x, y = gt.Input(f32[1, 4], "x"), gt.Input(gt.i64[4], "labels")
    drawn = batch(Graph((x, y), {"x": x}), 0)
    assert drawn["x"].tolist() == [[-1.15625, 0.90625, -1.015625, 0.0]]
    assert drawn["labels"].tolist() == [4, 0, 1, 3]
    assert set(np.unique(drawn["x"] * 64 % 1)) == {0.0}


def test_scales_and_state_begin_as_they_are() -> None:
    values = {
        "norm.scale": Variable("norm.scale", np.ones(3, np.float32)),
        "norm.mean": Variable("norm.mean", np.zeros(3, np.float32), trainable=False),
        "norm.bias": Variable("norm.bias", np.zeros(3, np.float32)),
    }
    x = gt.Input(f32[3], "x")
    total = x + values["norm.scale"] + values["norm.mean"] + values["norm.bias"]
    found = initial(Graph((x,), {"y": total}))
    assert found["norm.scale"].tolist() == [1, 1, 1]
    assert found["norm.mean"].tolist() == [0, 0, 0]
    assert 0 < np.abs(found["norm.bias"]).max() < 0.25


def test_a_digest_is_of_all_parameters_and_their_names() -> None:
    x = gt.Input(f32[2], "x")

    def of(name: str, array: list[float], counted: float = 0.0) -> str:
        variable = Variable(name, np.array(array, np.float32))
        frozen = Variable("step", np.float32(counted).reshape(()), trainable=False)
        graph = Graph((x,), {"y": x * variable + frozen})
        return digest(graph, State({v.name: v.initial for v in graph.variables}))

    assert of("w", [1, 2]) == of("w", [1, 2]) == of("w", [1, 2], counted=5.0)
    assert len({of("w", [1, 2]), of("v", [1, 2]), of("w", [2, 1]), of("w", [1, np.nextafter(2, 3)])}) == 3
    assert of("w", [0.0, 1]) != of("w", [-0.0, 1])


def test_facts_are_words() -> None:
    found = facts()
    assert list(found)[:2] == ["glowtrain", "python"]
    assert all(value and "\n" not in value for value in found.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("avx512", "vectors of 512 bits; avx2, avx512f"),
        ("scalar", "no vectors"),
        ("sse4", "vectors of 128 bits; sse2; no fused multiply-add"),
    ],
)
def test_instructions_are_those_that_code_uses(name: str, said: str) -> None:
    assert instructions(Target.named(name)) == said
