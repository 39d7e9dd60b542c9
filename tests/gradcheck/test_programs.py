"""Random training steps: gradients, memory plan and native code agree with the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from planting import Plant, edit, rule

from glowtrain.backends.interpreter import evaluate
from glowtrain.gradcheck import check_registry
from glowtrain.gradcheck.minimal import fails_by, load_case, minimal, save_case
from glowtrain.gradcheck.case import Case
from glowtrain.gradcheck.programs import drawn_case
from glowtrain.gradcheck.repeat import main
from glowtrain.gradcheck.rungs import check_case
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import reverse, topological, verify
from glowtrain.graph.retype import retyped
from glowtrain.lower import lower as lowering
from glowtrain.types import f32, f64


def failures(case: Case, *oracles: str) -> list[str]:
    return [f"{m.oracle}: {m.detail}\n{case}" for m in check_case(case, oracles) if m.status == "failed"]


@settings(max_examples=60)
@given(case=cases())
def test_gradient_and_plan(case: Case) -> None:
    assert not failures(case, "gradient", "planned")


@settings(max_examples=12)
@given(case=cases())
def test_native_code(case: Case) -> None:
    assert not failures(case, "compiled", "compiled f64")


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_seeded_programs(start: int) -> None:
    for example in range(start, start + 30):
        assert not failures(drawn_case(0, example), "gradient", "planned")


@pytest.mark.parametrize("start", range(0, 24, 8))
def test_seeded_programs_as_native_code(start: int) -> None:
    for example in range(start, start + 8):
        assert not failures(drawn_case(1, example), "compiled")


def test_steps_are_well_formed() -> None:
    for example in range(20):
        verify(drawn_case(2, example).step)


def test_generator_has_variety() -> None:
    """Fan-out, several parameters, exchanged state, results beside the loss, and most of the registry, do occur."""
    found = [drawn_case(3, example) for example in range(90)]
    keys, shared = set(), 0
    for case in found:
        nodes = topological([case.loss])
        keys |= {node.operator.key() for node in nodes}
        uses = [value for node in nodes for value in node.inputs if value is not None and value.node is not None]
        shared += len(uses) != len(set(uses))
    assert len(keys) > 60
    assert shared > 15
    assert sum(len(case.parameters) > 1 for case in found) > 20
    assert sum(case.swapped for case in found) > 15
    assert sum(bool(case.outputs) for case in found) > 15
    assert sum(len(case.step.nodes) > 20 for case in found) > 20


def test_same_choices_give_the_same_program() -> None:
    first, second = (drawn_case(5, 5) for _ in range(2))
    assert str(first) == str(second)
    assert all(np.array_equal(a, b) for a, b in zip(first.arrays, second.arrays, strict=True))


def test_retyped_there_and_back() -> None:
    step = drawn_case(0, 1).step
    narrow = retyped(step, [f64], f32).graph
    verify(narrow)
    floats = [value.dtype for node in narrow.nodes for value in node.outputs if value.dtype.is_float]
    assert floats
    assert set(floats) == {f32}
    assert str(retyped(narrow, [f32], f64).graph) == str(step) or len(narrow.nodes) == len(step.nodes)


# --- What a failing program leaves behind


def test_a_saved_program_is_the_same_program(tmp_path: Path) -> None:
    for example in range(25):
        case = drawn_case(4, example)
        command = save_case(case, tmp_path / f"program{example}.onnx", "planned", seed=3)
        assert command == f"python -m glowtrain.gradcheck.repeat {tmp_path / f'program{example}.onnx'}"
        saved = load_case(tmp_path / f"program{example}.onnx")
        assert (saved.oracle, saved.seed, saved.case.swapped) == ("planned", 3, case.swapped)
        assert len(saved.case.parameters) == len(case.parameters)
        before, after = (evaluate(each.step, each.feeds) for each in (case, saved.case))
        for name, value in case.step.outputs.items():
            np.testing.assert_allclose(after[saved.case.step.outputs[name]], before[value], rtol=1e-12)


@pytest.mark.parametrize(
    ("oracle", "largest", "plant"),
    [
        ("gradient", 8, edit(reverse._Walk, "add", ("known + cotangent", "known + cotangent + cotangent"))),
        ("gradient", 2, rule("Mul", "g * b, g * a", "g * a, g * b")),
        ("planned", 1, edit(lowering._Lowering, "_stage", ('tensor.buffer.kind != "variable" or', "True or"))),
    ],
)
def test_failures_become_small_and_repeat(
    oracle: str, largest: int, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    fails = fails_by(oracle)
    with monkeypatch.context() as patch:
        plant(patch)
        case = next(case for case in (drawn_case(0, example) for example in range(30)) if fails(case))
        small = minimal(case, fails)
        assert fails(small)
        assert len(topological([small.loss])) <= largest < len(topological([case.loss]))
        save_case(small, tmp_path / "small", oracle)
        assert main([str(tmp_path / "small.onnx")]) == 1
        assert f"{oracle} failed" in capsys.readouterr().out
    assert main([str(tmp_path / "small.onnx")]) == 0
    assert minimal(case, fails) is case


def test_files_that_are_no_saved_program(tmp_path: Path, capsys: Any) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "none.onnx")]) == 2
    np.savez(tmp_path / "other.npz", x=np.ones(2))
    assert main([str(tmp_path / "other.onnx")]) == 2
    assert "was not written by gradcheck" in capsys.readouterr().err


def test_a_run_keeps_the_programs_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule("Mul", "g * b, g * a", "g * a, g * b")(monkeypatch)
    report = check_registry(["Abs"], 1, programs=3, oracles=["types"], keep=tmp_path / "failures")
    detail = next(check.detail for check in report.failures if check.oracle == "gradient")
    (file, *_) = sorted((tmp_path / "failures").glob("program-0-*-gradient.onnx"))
    assert f"repeat it with: python -m glowtrain.gradcheck.repeat {file}" in detail
    assert main([str(file)]) == 1
