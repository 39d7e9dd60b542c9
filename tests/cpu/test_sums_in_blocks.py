"""Products of vectors and matrices, summed in blocks that stay in registers: the bits of blocks that lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.program.parse import parse
from glowtrain.program.passes.long_sums import SplitSums
from glowtrain.program.program import Program
from tests.cpu.native_program import Native
from tests.cpu.nests import TARGETS, feeds_of
from tests.cpu.test_same_bits import NARROW

SHAPES = {"some columns": (784, 44, 8), "two tiles": (960, 131, 15), "partial sums of blocks": (1625, 160, 25)}
"""Rows, columns, and the blocks that rows are summed in."""


def in_registers(rows: int, columns: int, dtype: str) -> Program:
    """What the pass makes of a layer with an activation."""
    text = f"""program layer
  input      x: {dtype}[1,{rows}]
  input      w: {dtype}[{rows},{columns}]
  input      b: {dtype}[{columns}]
  output     y: {dtype}[1,{columns}]

kernel layer:
  for i<1, j<{columns}: y[i, j] = max(sum(r<{rows}: x[i, r] * w[r, j]) + b[j], 0)
"""
    return SplitSums().run(parse(text))


def in_memory(rows: int, columns: int, blocks: int, dtype: str) -> Program:
    """The same in two kernels."""
    length = rows // blocks
    return parse(f"""program layer
  input      x: {dtype}[1,{rows}]
  input      w: {dtype}[{rows},{columns}]
  input      b: {dtype}[{columns}]
  output     y: {dtype}[1,{columns}]
  activation p: {dtype}[{blocks},1,{columns}] layout [0,2,1]

kernel parts:
  for k<{blocks}, i<1, j<{columns}: p[k, i, j] = sum(r<{length}: x[i, {length}*k + r] * w[{length}*k + r, j])
kernel layer:
  for i<1, j<{columns}: y[i, j] = max(sum(k<{blocks}: p[k, i, j]) + b[j], 0)
""")


@pytest.mark.spread(12)
@pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_blocks_in_registers_have_the_bits_of_those_in_memory(
    name: str, dtype: str, random: np.random.Generator, target: object
) -> None:
    rows, columns, blocks = SHAPES[name]
    one, two = in_registers(rows, columns, dtype), in_memory(rows, columns, blocks, dtype)
    assert f"sum(p0<{blocks}: " in str(one)
    feeds = feeds_of(random, one)
    (found, _), (wanted, _) = (Native(program, target).run(feeds) for program in (one, two))  # type: ignore[arg-type]
    assert found["y"].tobytes() == wanted["y"].tobytes()
