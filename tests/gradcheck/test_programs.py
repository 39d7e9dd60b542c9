"""Random training steps: gradients, memory plan and native code agree with the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from glowtrain.gradcheck.programs import Case, check_case, drawn_case
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import topological, verify
from glowtrain.graph.retype import retyped
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
