"""Sums of products of which one factor waits in bf16: the same bits as with the widened factor in f32, everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.recognise import recognise
from glowtrain.backends.target import Target
from glowtrain.program.parse import parse
from glowtrain.program.program import Program
from glowtrain.program.verify import verify
from glowtrain.types import Array, bf16
from tests.cpu.cpu_kernels import runnable
from tests.cpu.native_program import Native

TARGETS = {target.name: target for target in [Target.host(), *runnable("avx2", "sse4", "scalar")]}
PATTERNS = ("w[i, r] * n[r, j]", "w[i, r] * n[j, r]", "n[r, i] * w[r, j]", "n[r, i] * v[j, r]")
"""Of matrices with rows of results, and of columns."""


def product(pattern: str, i: int, j: int, r: int, *, narrow: bool, behind: str = "") -> Program:
    """A matrix ``n`` that is rounded and waits, in bf16 or in f32, and a sum of products of it."""
    shapes = {"w": (i, r), "v": (j, r), "n": (r, j)}
    if "n[j" in pattern:
        shapes["n"] = (j, r)
    if pattern.startswith("n[r, i]"):
        shapes |= {"n": (r, i), "w": (r, j)}
    own = {name: f"f32[{a},{b}]" for name, (a, b) in shapes.items()}
    waiting = "bf16" if narrow else "f32"
    stored = "bf16(x[a, b])" if narrow else "f32(bf16(x[a, b]))"
    sides = (f"f32({side})" if narrow and side.startswith("n") else side for side in pattern.split(" * "))
    read = " * ".join(sides)
    rows, columns = shapes["n"]
    return parse(f"""program p
  input  x: {own["n"]}
  input  w: {own["w"]}
  input  v: {own["v"]}
  output y: f32[{i},{j}]
  activation n: {waiting}[{rows},{columns}]
kernel wait:
  for a<{rows}, b<{columns}: n[a, b] = {stored}
kernel product:
  for i<{i}, j<{j}: y[i, j] = {behind}(sum(r<{r}: {read}))
""")


def inputs_of(program: Program, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(b.shape).astype(np.float32) for name, b in program.inputs.items()}


def results(program: Program, feeds: dict[str, Array], target: Target) -> Array:
    verify(program)
    return Native(program, target).run(feeds)[0]["y"]


@pytest.mark.spread(6)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("sizes", [(32, 48, 64), (37, 19, 53), (5, 130, 300)], ids=str)
def test_products_are_those_of_the_widened_factor(pattern: str, sizes: tuple[int, int, int], target: Target) -> None:
    narrow, wide = (product(pattern, *sizes, narrow=each) for each in (True, False))
    feeds = inputs_of(narrow, seed=1)
    assert results(narrow, feeds, target).tobytes() == results(wide, feeds, target).tobytes()


@settings(max_examples=15, deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS), i=st.integers(1, 70), j=st.integers(1, 70), r=st.integers(1, 90),
    behind=st.sampled_from(["", "exp", "abs"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_of_any_size(pattern: str, i: int, j: int, r: int, behind: str, seed: int) -> None:
    narrow, wide = (product(pattern, i, j, r, narrow=each, behind=behind) for each in (True, False))
    feeds = inputs_of(narrow, seed)
    target = Target.host()
    assert results(narrow, feeds, target).tobytes() == results(wide, feeds, target).tobytes()


def test_the_generator_reads_bf16_itself() -> None:
    """Nothing widens the matrix into memory first, and it is no plain nest."""
    program = product(PATTERNS[0], 32, 48, 64, narrow=True)
    kernel = next(kernel for kernel in program.kernels if kernel.name == "product")
    found = recognise(kernel)
    assert found is not None
    assert bf16 in (found.a.dtype, found.b.dtype)


def test_numbers_that_are_none_come_through() -> None:
    """Infinities stay, a NaN stays one, and what is above the largest number of bf16 becomes infinite."""
    program = product(PATTERNS[0], 16, 16, 16, narrow=True)
    feeds = {name: np.zeros(b.shape, np.float32) for name, b in program.inputs.items()}
    feeds["w"][:] = np.eye(16, dtype=np.float32)
    feeds["x"][0, :5] = [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38]
    feeds["x"][1, :4] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1e-40]
    found = results(program, feeds, Target.host())
    assert np.isnan(found[:, :5]).any(0).tolist() == [True, True, True, True, True]  # 0 times infinity, in other rows
    assert np.array_equal(found[1, 5:], feeds["x"][1, 5:])
    feeds["x"][0] = 0
    halves = results(program, feeds, Target.host())[1, :3]
    assert halves.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]  # to nearest, ties to even
