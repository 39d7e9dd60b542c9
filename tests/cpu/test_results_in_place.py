"""Sums of products whose epilogue reads what it writes over, at the same element: the bits of results elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.llvm.target import Target
from glowtrain.program.memory.plan import plan
from glowtrain.program.parse import parse
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.program import Program
from tests.cpu.native_program import Native
from tests.cpu.nests import TARGETS, feeds_of
from tests.cpu.test_same_bits import NARROW


def masked(layout: str = "") -> Program:
    """A gradient through a layer and what comes before it; 700 terms are so many that sums could be taken in parts."""
    return parse(f"""program masked
  input      g: f32[37,700]
  input      w: f32[700,43]
  input      x: f32[37,43]
  output     y: f32[37,43]
  activation h: f32[37,43]{layout}
  activation d: f32[37,43]{layout}

kernel relu:
  for i<37, j<43: h[i, j] = max(x[i, j], 0)
kernel gemm+where:
  for i<37, j<43:
    let t = sum(r<700: g[i, r] * w[r, j])
    d[i, j] = select(h[i, j] > 0, t, 0)
kernel last:
  for i<37, j<43: y[i, j] = 2 * d[i, j]
""")


@pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["", " layout [1,0]"])
def test_an_epilogue_writes_over_what_it_reads(target: Target, layout: str, random: np.random.Generator) -> None:
    program = masked(layout)
    less = ReuseOperands().run(program)
    assert 2 * peak_bytes(less.instructions) == peak_bytes(program.instructions)
    feeds = feeds_of(random, program)
    (found, _), (wanted, _) = (Native(each, target, plan(each)).run(feeds) for each in (less, program))
    assert found["y"].tobytes() == wanted["y"].tobytes()


def test_factors_are_not_written_over() -> None:
    program = parse(str(masked()).replace("g: f32[37,700]", "g: f32[37,43]").replace("[700,43]", "[43,43]")
                    .replace("r<700", "r<43").replace("g[i, r]", "h[i, r]"))  # fmt: skip
    assert str(ReuseOperands().run(program)) == str(program)


def test_sums_of_products_have_results_of_their_own_where_less_is_alive_anyway() -> None:
    """The peak is at a kernel before: there is nothing to gain."""
    text = str(masked()).replace("kernel relu:", "kernel wide:\n  for i<99, j<99: v[i, j] = 1\nkernel relu:")
    text = text.replace("max(x[i, j], 0)", "max(x[i, j] + v[i, j], 0)")
    program = parse(text.replace("  activation h", "  activation v: f32[99,99]\n  activation h"))
    assert str(ReuseOperands().run(program)) == str(program)
