"""Matrices that repeats multiply with, packed in panels before them: the same results, from other addresses."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.loops import Buffer, For, Index, Load, Reduce, Store
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse
from glowtrain.program.passes.loop_invariant_packing import USES, PackLoopInvariants, width_of
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify
from glowtrain.types import Array, f32
from tests.program.random_programs import RandomPrograms

RECURRENCE = """program p
  input      x: f32[20,2,32]
  variable   w: f32[128,32]
  output     y: f32[20,2,128]
repeat loop t<20:
  kernel product:
    for m<2, n<128: y[t, m, n] = sum(k<32: x[t, m, k] * w[n, k]) + x[t, m, 0]
"""


def whole(shape: tuple[int, ...]) -> Array:
    """Whole numbers: their sums are exact in any order."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def packed(text: str, row: int = 256) -> str:
    program = parse(text)
    verify(program)
    after = PackLoopInvariants(row).run(program)
    verify(after)
    feeds, state = ({b.name: whole(b.shape) for b in given.values()} for given in (program.inputs, program.variables))
    for before, now in zip(evaluate(program, feeds, state), evaluate(after, feeds, state), strict=True):
        for name in before:
            np.testing.assert_array_equal(before[name], now[name])
    return "" if after is program or to_text(after) == to_text(program) else to_text(after)


def test_weights_are_packed_before_the_loop() -> None:
    lines = packed(RECURRENCE).splitlines()
    assert lines[lines.index("kernel product.pack:") :] == [
        "kernel product.pack:",
        "  for i0<2, i1<32, i2<64: w.panels[i0, i1, i2] = w[64*i0 + i2, i1]",
        "repeat loop t<20:",
        "  kernel product:",
        "    for m<2, p<2, l<64: y[t, m, 64*p + l] = sum(k<32: x[t, m, k] * w.panels[p, k, l]) + x[t, m, 0]",
    ]


def test_rows_of_panels_are_as_long_as_wanted() -> None:
    assert "l<128" in packed(RECURRENCE, 512)
    assert "l<16" in packed(RECURRENCE, 64)
    assert not packed(RECURRENCE, 0)


LEFT = {
    "weights that a trip writes": (
        "  variable   w: f32[128,32]\n  updates w",
        """    for m<2, n<128: y[t, m, n] = sum(k<32: x[t, m, k] * w[n, k])
  kernel decay:
    for n<128, k<32: w[n, k] = w[n, k] * 0.5""",
    ),
    "weights of each trip": (
        "  variable   w: f32[20,128,32]",
        "    for m<2, n<128: y[t, m, n] = sum(k<32: x[t, m, k] * w[t, n, k])",
    ),
    "a margin of zeros": (
        "  variable   w: f32[128,31]",
        "    for m<2, n<128: y[t, m, n] = sum(k<32: x[t, m, k] * w[n, k - 1; fill 0])",
    ),
    "rows that are panels already": (
        "  variable   w: f32[32,128]",
        "    for m<2, n<128: y[t, m, n] = sum(k<32: x[t, m, k] * w[k, n])",
    ),
    "results apart from each other": (
        "  variable   w: f32[128,32]",
        """    for m<2, n<64: y[t, m, 2*n] = sum(k<32: x[t, m, k] * w[n, k])
  kernel rest:
    for m<2, n<64: y[t, m, 2*n + 1] = 0""",
    ),
    "no product of two operands": (
        "  variable   w: f32[128,32]",
        "    for m<2, n<128: y[t, m, n] = sum(k<32: w[n, k]) + x[t, m, 0]",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_stays_as_it_is(case: str) -> None:
    declared, body = LEFT[case]
    head, _ = RECURRENCE.split("    for m<2", 1)
    declared, _, updates = declared.partition("\n")
    head = head.replace("  variable   w: f32[128,32]", declared)
    head = head.replace("repeat loop", f"{updates}\nrepeat loop") if updates else head
    text = head + body + "\n"
    row = 512 if case == "rows that are panels already" else 256
    assert not packed(text, row)


def recurrence(trips: int, columns: int, weights: Buffer) -> Program:
    """y[t, n] = sum(k: x[t, k] * w[n, k]), one row a trip."""
    x, y = Buffer("x", f32[trips, 32], "input"), Buffer("y", f32[trips, columns], "output")
    t, n, k = Index(trips, "t"), Index(columns, "n"), Index(32, "k")
    total = Reduce("add", (k,), Load(x, (t, k)) * Load(weights, (n, k)))
    body = Kernel("product", (For((n,), (Store(y, (t, n), total),)),))
    variables = {"w": weights} if weights.kind == "variable" else {}
    constants = (weights,) if weights.kind == "constant" else ()
    return Program("p", {"x": x}, {"y": y}, variables, (Repeat("loop", t, (body,)),), constants=constants)


def test_few_products_are_not_worth_a_copy() -> None:
    weights = Buffer("w", f32[128, 32], "variable", initial=np.zeros((128, 32), np.float32))
    assert not list(_packs(recurrence(USES - 1, 128, weights)))
    assert list(_packs(recurrence(USES, 128, weights)))


def _packs(program: Program) -> list[str]:
    return [kernel.name for kernel in PackLoopInvariants().run(program).kernels if kernel.name.endswith(".pack")]


def test_constants_are_packed_when_compiling() -> None:
    values = whole((128, 32))
    program = recurrence(20, 128, Buffer("w", f32[128, 32], "constant", initial=values))
    after = PackLoopInvariants().run(program)
    verify(after)
    assert not _packs(program)
    (panels,) = after.constants
    np.testing.assert_array_equal(panels.initial, values.reshape(2, 64, 32).transpose(0, 2, 1))
    feeds = {"x": whole((20, 32))}
    np.testing.assert_array_equal(evaluate(after, feeds)[0]["y"], evaluate(program, feeds)[0]["y"])


@pytest.mark.parametrize(
    ("columns", "width"),
    [(1024, 64), (400, 80), (768, 64), (1000, 125), (16, 16), (10, 0), (1021, 0), (250, 125)],
)
def test_panels_are_equal_and_full(columns: int, width: int) -> None:
    assert width_of(columns, 256, 4) == width


def test_a_row_of_less_than_an_element_is_as_short_as_panels_get() -> None:
    assert width_of(1024, 2, 4) == 16


def test_programs_with_repeats_keep_their_meaning() -> None:
    for seed in range(20):
        programs = RandomPrograms(ChoiceDraw(seed))
        p = programs.program()
        after = PackLoopInvariants().run(p)
        verify(after)
        feeds = programs.feeds(p)
        for a, b in zip(evaluate(p, feeds), evaluate(after, feeds), strict=True):
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])
