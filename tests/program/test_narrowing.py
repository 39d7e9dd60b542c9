"""Narrowing: what nobody reads is not computed, and what is read has the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.compiler.walk import arrive, until
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Value
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse
from glowtrain.program.passes.narrowing import Narrow
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify
from tests.program.random_graphs import RandomGraph


def narrowed(text: str) -> str:
    """The program's kernels and activations after the pass."""
    program = Narrow().run(parse(text))
    verify(program, "narrowed")
    lines = to_text(program).splitlines()
    return "\n".join(line.strip() for line in lines if "activation" in line or line.startswith(("kernel", "  for")))


ROWS = """
program rows
  input      x: f32[4,8]
  input      g: f32[4,6]
  output     y: f32[2,8]
  activation dw: f32[6,8]
kernel product:
  for i<6, j<8: dw[i, j] = sum(r<4: g[r, i] * x[r, j])
kernel copy:
  for i<2, j<8: y[i, j] = dw[i + 3, j]
"""


def test_rows_that_are_read() -> None:
    assert narrowed(ROWS) == (
        "activation dw: f32[2,8]\n"
        "kernel product:\nfor i<2, j<8: dw[i, j] = sum(r<4: g[r, i + 3] * x[r, j])\n"
        "kernel copy:\nfor i<2, j<8: y[i, j] = dw[i, j]"
    )


def test_a_chain_is_narrowed_from_its_end() -> None:
    text = ROWS.replace("dw[i, j] = sum(r<4: g", "dw[i, j] = sum(r<4: h").replace(
        "  activation dw", "  activation h: f32[4,6]\n  activation dw"
    )
    text = text.replace("kernel product", "kernel double:\n  for i<4, j<6: h[i, j] = 2 * g[i, j]\nkernel product")
    found = narrowed(text)
    assert "for i<4, j<2: h[i, j] = 2 * g[i, j + 3]" in found
    assert "sum(r<4: h[r, i] * x[r, j])" in found


def test_the_box_holds_all_readers() -> None:
    text = ROWS.replace("output     y: f32[2,8]", "output     y: f32[2,8]\n  output     z: f32[6,2]")
    text += "kernel other:\n  for i<6, j<2: z[i, j] = dw[i, j + 4]\n"
    assert "activation dw: f32[6,8]" in narrowed(text)
    assert "activation dw: f32[5,4]" in narrowed(
        text.replace("for i<6, j<2: z[i, j] = dw[i, j + 4]", "for i<1, j<2: z[i, j] = dw[i + 1, j + 4]")
        .replace("z: f32[6,2]", "z: f32[1,2]").replace("y: f32[2,8]", "y: f32[2,2]")
        .replace("for i<2, j<8: y[i, j] = dw[i + 3, j]", "for i<2, j<2: y[i, j] = dw[4 * i + 1, j + 2]")
    )  # fmt: skip


def test_what_is_filled_outside_stays_so() -> None:
    text = ROWS.replace("y[i, j] = dw[i + 3, j]", "y[i, j] = dw[i + 5, j; fill 0]")
    assert "activation dw: f32[1,8]" in narrowed(text)
    x, g = (np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((4, 8), (4, 6)))
    before, after = (evaluate(each, {"x": x, "g": g})[0]["y"] for each in (parse(text), Narrow().run(parse(text))))
    np.testing.assert_allclose(before, after, rtol=1e-6)
    assert not after[1].any()


UNTOUCHED = {
    "all of it is read": ROWS.replace("f32[2,8]", "f32[6,8]").replace(
        "i<2, j<8: y[i, j] = dw[i + 3", "i<6, j<8: y[i, j] = dw[i"
    ),
    "where data say": ROWS.replace("input      g", "input      k: i64[2]\n  input      g").replace(
        "dw[i + 3", "dw[k[i]"
    ),
    "two write it": ROWS + "kernel again:\n  for j<8: dw[0, j] = 1\n",
    "rows in groups": ROWS.replace("i<6, j<8: dw[i, j]", "a<2, i<3, j<8: dw[3 * a + i, j]").replace(
        "g[r, i]", "g[r, 3 * a + i]"
    ),
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_stays_as_it_is(case: str) -> None:
    program = parse(UNTOUCHED[case])
    assert Narrow().run(program) is program


def cut(graph: Graph, seed: int) -> Graph:
    """The graph with a box of each of its outputs in place of the whole."""
    rng = np.random.default_rng(seed)

    def box(value: Value) -> Value:
        begins = [rng.integers(0, extent) for extent in value.shape]
        return value[
            tuple(slice(b, rng.integers(b, extent) + 1) for b, extent in zip(begins, value.shape, strict=True))
        ]

    return graph.with_(outputs={name: box(value) for name, value in graph.outputs.items()})


def test_random_graphs_compute_the_same() -> None:
    changed = 0
    for seed in range(40):
        drawing = RandomGraph(ChoiceDraw(seed))
        before = arrive(cut(drawing.graph(), seed), stages=until("summed"))
        after = Narrow().run(before)
        verify(after, "narrowed")
        changed += after is not before
        feeds = drawing.feeds()
        for one, other in zip(evaluate(before, feeds), evaluate(after, feeds), strict=True):
            for name, array in one.items():
                np.testing.assert_allclose(other[name], array, rtol=1e-12, atol=1e-12)
    assert changed > 5
