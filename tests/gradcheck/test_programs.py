"""Random training steps: gradients, memory plan and native code agree with the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from mistakes import known
from planting import Mistake

from glowtrain.backends.interpreter import evaluate
from glowtrain.gradcheck import check_registry
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.generator import Composer
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.repeat import main
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, Rungs, check_case
from glowtrain.gradcheck.programs.shrink import fails_by, load_case, minimal, save_case
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import Input, topological, verify
from glowtrain.graph.retype import retyped
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.types import bf16, boolean, f16, f32, f64, i8, i32


def failures(case: Case, *oracles: str) -> list[str]:
    return [f"{m.oracle}: {m.detail}\n{case}" for m in check_case(case, oracles) if m.status == "failed"]


NATIVE = "compiled", "targets"
RUNGS = tuple(oracle for oracle in PROGRAM_ORACLES if oracle not in NATIVE)


@settings(max_examples=30)
@given(case=cases())
def test_every_rung(case: Case) -> None:
    assert not failures(case, *RUNGS)


@settings(max_examples=12)
@given(case=cases())
def test_native_code(case: Case) -> None:
    assert not failures(case, *NATIVE)


@pytest.mark.spread(1)
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_seeded_programs(start: int) -> None:
    for example in range(start, start + 20):
        assert not failures(drawn_case(0, example), *RUNGS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(0, 24, 8))
def test_seeded_programs_as_native_code(start: int) -> None:
    for example in range(start, start + 8):
        assert not failures(drawn_case(1, example), *NATIVE)


def test_steps_are_well_formed() -> None:
    for example in range(20):
        verify(drawn_case(2, example).step)


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    """Enough programs for everything that is drawn to occur."""
    return [drawn_case(3, example) for example in range(120)]


@pytest.mark.exhaustive
def test_operators_are_many_and_their_results_are_shared(drawn: list[Case]) -> None:
    keys, shared = set(), 0
    for case in drawn:
        nodes = topological(case.roots)
        keys |= {node.operator.key() for node in nodes}
        uses = [value for node in nodes for value in node.inputs if value is not None and value.node is not None]
        shared += len(uses) != len(set(uses))
    assert len(keys) > 90
    assert shared > 20


def test_steps_have_several_parameters_losses_and_further_state(drawn: list[Case]) -> None:
    assert sum(len(case.parameters) > 1 for case in drawn) > 30
    assert sum(len(case.losses) > 1 for case in drawn) > 20
    assert sum(case.apart for case in drawn) > 10
    assert sum(bool(case.states) for case in drawn) > 30
    assert sum(bool(case.outputs) for case in drawn) > 20
    assert sum(len(case.step.nodes) > 20 for case in drawn) > 40


def test_programs_loop_branch_and_mix_types(drawn: list[Case]) -> None:
    loops, deep, bools, types = 0, 0, 0, []
    for case in drawn:
        bodies = [node.operator.body for node in case.graph.nodes if isinstance(node.operator, Scan)]
        loops += bool(bodies)
        deep += any(isinstance(node.operator, Scan) for body in bodies for node in body.nodes)
        bools += any(value.dtype == boolean for value in case.graph.leaves)
        types.append({value.dtype for node in case.step.nodes for value in node.outputs})
    assert loops > 20
    assert deep > 2
    assert bools > 10
    for dtype in (f32, f16, bf16, i32, i8, boolean):
        assert sum(dtype in found for found in types) > 5, dtype
    assert sum(len(found) > 3 for found in types) > 20


def test_a_condition_is_not_near_any_number() -> None:
    """So no rounding turns it."""
    composer = Composer(ChoiceDraw(0))
    value = composer.leaf(np.array([0.1, 0.2, 0.9, 1.0]))
    assert composer.number(composer.above(value)).tolist() == [False, False, True, True]


def test_operators_without_a_gradient_keep_their_operands_from_being_compared() -> None:
    """Floor(x) + x: the slope by differences is 1, the rule's too; of Sign alone nothing is to be compared."""
    x, y = Input(f64[2], "x"), Input(f64[2], "y")
    numbers = np.array([0.25, 0.75])
    case = Case((x, y), (numbers, numbers), (0,), (ReduceSum(axes=(0,), keepdims=False)(Floor()(x) + y),))
    assert case.probe.wanted == (1,)
    assert not failures(case, *PROGRAM_ORACLES)


def test_same_choices_give_the_same_program() -> None:
    first, second = (drawn_case(5, 5) for _ in range(2))
    assert str(first) == str(second)
    assert all(np.array_equal(a, b) for a, b in zip(first.arrays, second.arrays, strict=True))


def test_retyped_there_and_back() -> None:
    x = Input(f64[3], "x")
    case = Case((x,), (np.ones(3),), (0,), (ReduceSum(axes=(0,), keepdims=False)(x * Cast(to=f64)(x > 0.5)),))
    narrow = case.in_type(f32)
    verify(narrow.step)
    floats = [value.dtype for node in narrow.step.nodes for value in node.outputs if value.dtype.is_float]
    assert set(floats) == {f32}
    assert str(narrow.in_type(f32)) == str(narrow)
    assert len(retyped(narrow.step, [f32], f64).graph.nodes) == len(case.step.nodes)


# --- What a failing program leaves behind


@pytest.mark.exhaustive
def test_a_saved_program_is_the_same_program(tmp_path: Path) -> None:
    for example in range(25):
        case = drawn_case(4, example)
        command = save_case(case, tmp_path / f"program{example}.onnx", "plan", seed=3)
        assert command == f"python -m glowtrain.gradcheck.programs.repeat {tmp_path / f'program{example}.onnx'}"
        saved = load_case(tmp_path / f"program{example}.onnx")
        assert (saved.oracle, saved.seed, saved.case.apart) == ("plan", 3, case.apart)
        assert len(saved.case.parameters) == len(case.parameters)
        assert len(saved.case.states) == len(case.states)
        before, after = (evaluate(each.step, each.feeds) for each in (case, saved.case))
        narrow = any(value.dtype.is_float and value.dtype != f64 for value in before)
        for name, value in case.step.outputs.items():
            np.testing.assert_allclose(
                after[saved.case.step.outputs[name]], before[value], rtol=1e-4 if narrow else 1e-12
            )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("oracle", "largest", "mistake"),
    [
        ("gradient", 8, known("accumulated twice")),
        ("gradient", 2, known("factors swapped")),
        ("plan", 1, known("stale value")),
    ],
)
def test_failures_become_small_and_repeat(
    oracle: str, largest: int, mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    fails = fails_by(oracle)
    with monkeypatch.context() as patch:
        mistake.plant(patch)
        case = next(case for case in (drawn_case(0, example) for example in range(60)) if fails(case))
        small = minimal(case, fails)
        assert fails(small)
        assert len(topological(small.losses)) <= largest < len(topological(case.losses))
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


@pytest.mark.exhaustive
def test_a_run_keeps_the_programs_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known("factors swapped").plant(monkeypatch)
    report = check_registry(["Abs"], 1, programs=3, oracles=["types"], keep=tmp_path / "failures")
    detail = next(check.detail for check in report.failures if check.oracle == "gradient")
    (file, *_) = sorted((tmp_path / "failures").glob("program-0-*-gradient.onnx"))
    assert f"repeat it with: python -m glowtrain.gradcheck.programs.repeat {file}" in detail
    assert main([str(file)]) == 1


@pytest.mark.exhaustive
def test_programs_alone_go_on_every_rung_and_from_where_a_run_ended() -> None:
    whole = check_registry([], programs=6, seed=8)
    parts = [check_registry([], programs=count, first=first, seed=8) for first, count in ((0, 4), (4, 2))]
    assert whole.passed
    assert "2 random programs, from number 4 on" in parts[1].summary()
    assert {check.oracle for check in whole.checks} >= set(PROGRAM_ORACLES) - {"integers"}
    for check in whole.checks:
        assert check.examples == sum(c.examples for part in parts for c in part.checks if c.oracle == check.oracle)


def test_other_bits_in_the_arena_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where they are within what rounding explains."""
    case = drawn_case(0, 0)
    rungs = Rungs(case)
    near = {
        name: np.nextafter(array, 9) if array.dtype.kind == "f" else array for name, array in rungs.unplanned.items()
    }
    monkeypatch.setattr(Rungs, "unplanned", near)
    (failed, *_) = failures(case, "plan")
    assert "other bits in the arena" in failed
    assert not failures(case, "program")
