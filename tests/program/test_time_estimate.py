"""Rough times of instructions, by which is chosen what is computed again."""

from __future__ import annotations

import pytest

from glowtrain.program.analysis.time_estimate import estimate
from glowtrain.program.parse import parse
from glowtrain.program.passes.rematerialisation.timeline import Timeline
from glowtrain.stages import PLAIN_RATES


def nanoseconds(body: str, layout: str = "") -> float:
    """The estimate for a kernel of x, w and y."""
    program = parse(f"""program p
  input  x: f32[64,128]
  input  w: f32[128,128]
  output y: f32[64,128]
  activation h: f32[64,128]{layout}
kernel k:
  for i<64, j<128: {body}
kernel last:
  for i<64, j<128: y[i, j] = h[i, j]
""")
    return estimate(program.instructions[0], PLAIN_RATES)


def test_elements_that_are_no_neighbours_take_longer() -> None:
    plain = nanoseconds("h[i, j] = x[i, j]")
    assert plain == 2 * 64 * 128 * 4 / PLAIN_RATES.bytes
    assert nanoseconds("h[i, j] = x[i, j]", " layout [1,0]") == plain + 64 * 128 / PLAIN_RATES.strided
    assert nanoseconds("h[i, j] = x[i, 127 - j]") == plain + 64 * 128 / PLAIN_RATES.strided
    assert nanoseconds("h[i, j] = x[0, j]") == plain
    assert nanoseconds("h[i, j] = x[i, 0]") == plain


def test_factors_of_sums_are_laid_out_for_them() -> None:
    """Of a product with a transposed matrix only what is read beside it counts as strided."""
    product = nanoseconds("h[i, j] = sum(r<128: x[i, r] * w[r, j])")
    assert nanoseconds("h[i, j] = sum(r<128: x[i, r] * w[j, r])") == product
    across = nanoseconds("h[i, j] = sum(r<128: x[i, r] * w[r, j])", " layout [1,0]")
    assert across == product  # along the other index all results are neighbours
    assert nanoseconds("h[i, j] = sum(r<128: x[i, r] * w[r, j]) + x[i, j]", " layout [1,0]") > product


@pytest.mark.parametrize(("between", "distant"), [(2, []), (5, ["a"])])
def test_copies_read_what_was_not_touched_for_long_from_memory(between: int, distant: list[str]) -> None:
    """Kernels that touch something else are between the last reader of a and the copy that reads it."""
    lines = ["program p", "  input x: f32[64]", "  output y: f32[64]"]
    lines += [f"  activation {name}: f32[64]" for name in ("a", "b", "c", *(f"d{k}" for k in range(between)))]
    lines += ["kernel one:", "  for i<64: a[i] = exp(x[i])", "kernel two:", "  for i<64: b[i] = a[i] + 1"]
    lines += ["kernel three:", "  for i<64: c[i] = a[i] * b[63 - i]"]
    last = "c"
    for k in range(between):
        lines += [f"kernel further{k}:", f"  for i<64: d{k}[i] = {last}[63 - i] + x[i]"]
        last = f"d{k}"
    lines += ["kernel last:", f"  for i<64: y[i] = {last}[i] + b[63 - i]"]
    timeline = Timeline(parse("\n".join([*lines, ""])).instructions)
    (drop,) = [drop for drop in timeline.drops(3, 1) if drop.holes[0].buffer.name == "b"]
    assert [source.name for source in timeline.distant(drop)] == distant
