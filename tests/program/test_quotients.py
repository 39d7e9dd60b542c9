"""Loops whose index is only taken apart become loops over the parts, with the same elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.cpu.order.nest import best_lane
from glowtrain.loops import For
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse
from glowtrain.program.passes.loop_fusion.quotients import split_quotients
from glowtrain.program.program import Kernel, Program
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify


def program(body: str, shape: str = "12,5", scale: str = "12") -> Program:
    return parse(f"""
program shuffle
  input  x: f32[{shape}]
  input  s: f32[{scale}]
  output y: f32[{shape}]
kernel shuffle:
  {body}
""")


def split(given: Program) -> Program:
    found = replace(given, instructions=tuple(map(split_quotients, given.instructions)))
    verify(found, "split")
    return found


def loop(found: Program) -> str:
    return to_text(found).split("kernel shuffle:")[1].strip()


SHUFFLED = "for i<12, j<5: y[i, j] = max(x[3*(i % 4) + i // 4, j] * s[3*(i % 4) + i // 4], 0)"


def test_shuffled_channels() -> None:
    assert loop(split(program(SHUFFLED))) == ("for p<3, q<4, j<5: y[4*p + q, j] = max(x[3*q + p, j] * s[3*q + p], 0)")


@pytest.mark.parametrize(
    "body",
    [
        "for i<12, j<5: y[i, j] = x[11 - i, j] * s[i]",
        "for i<12, j<5: y[i, j] = x[i, j] * s[2 * (i % 3) + 3 * (i // 2 % 2)]",
        "for i<12, j<5: y[i, j] = x[i, j] * s[i % 5]",
        "for i<12, j<5: y[i, j] = x[i, j] * s[(i + j) % 4]",
        "for i<12, j<5: y[i, j] = sum(r<5: x[i % 4, r] * s[i // 4])",
    ],
    ids=["nothing to split", "two divisors", "no whole multiple", "of a sum", "sums"],
)
def test_what_stays(body: str) -> None:
    given = program(body)
    assert split(given).instructions == given.instructions


@given(
    groups=st.integers(2, 6),
    each=st.integers(2, 9),
    inner=st.integers(1, 4),
    back=st.booleans(),
    seed=st.integers(0, 9),
)
def test_elements_are_the_same(groups: int, each: int, inner: int, back: bool, seed: int) -> None:
    n = groups * each
    place = f"{each}*(i % {groups}) + i // {groups}" if back else f"{groups}*(i % {each}) + i // {each}"
    given = program(f"for i<{n}, j<{inner}: y[i, j] = max(x[{place}, j] + s[{place}], s[i])", f"{n},{inner}", str(n))
    rng = np.random.default_rng(seed)
    inputs = {"x": rng.standard_normal((n, inner)).astype(np.float32), "s": rng.standard_normal(n).astype(np.float32)}
    found = split(given)
    assert "%" not in loop(found)
    np.testing.assert_array_equal(*(evaluate(each, inputs)[0]["y"] for each in (given, found)))


@pytest.mark.parametrize("each", [28, 34, 68])
def test_lanes_run_along_the_channels_of_a_group(each: int) -> None:
    """However many the last vector has too many: those are not scattered."""
    place, n = f"{each}*(i % 4) + i // 4", 4 * each
    value = f"max((x[j, {place}] - s[{place}]) * exp(s[{place}]) + exp(exp(s[{place}])), 0)"
    given = program(f"for j<784, i<{n}: y[j, i] = {value}", f"784,{n}", str(n))
    (kernel,) = split(given).instructions
    assert isinstance(kernel, Kernel)
    (nest,) = kernel.body
    assert isinstance(nest, For)
    lanes = {width: best_lane(nest, width, Free()) for width in (8, 16)}
    assert {width: lane.extent for width, lane in lanes.items() if lane} == {8: each, 16: each}
