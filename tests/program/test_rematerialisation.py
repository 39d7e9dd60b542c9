"""What is dropped and made again, program by program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive, until
from glowtrain.memory.budget import SMALLEST
from glowtrain.names import Names
from glowtrain.program.analysis.kernel_facts import contractions
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse
from glowtrain.program.passes.loop_fusion.fuse_pair import Limits
from glowtrain.program.passes.rematerialisation import rematerialize as passes
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.rematerialisation.reorder import Reordering
from glowtrain.program.passes.rematerialisation.timeline import Timeline
from glowtrain.program.passes.reuse import ReuseOperands, reuse
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.program import Program
from glowtrain.stages import Options
from tests.program.recomputed_programs import bits, random_text

CHAIN = """program p
  input  x: f32[64]
  output y: f32[64]
  activation a: f32[64]
  activation b: f32[64]
  activation c: f32[64]
kernel first:
  for i<64: a[i] = x[i] + 1
kernel second:
  for i<64: b[i] = a[i] * 2
kernel third:
  for i<64: c[i] = b[i] + 1
kernel last:
  for i<64: y[i] = c[i]
"""


def test_results_take_the_place_of_operands() -> None:
    program = parse(CHAIN)
    assert [peak_bytes(program.instructions), peak_bytes(reuse(program.instructions))] == [512, 256]
    turned = parse(CHAIN.replace("b[i]", "b[63 - i]", 2).replace("b[63 - i] =", "b[i] ="))
    assert peak_bytes(reuse(turned.instructions)) == 512
    assert evaluate(ReuseOperands().run(program), {"x": np.ones(64, np.float32)})[0]["y"].tolist() == [5.0] * 64


TWICE = """program p
  input  x: f32[64]
  output y: f32[64]
  activation a: f32[64]
  activation b: f32[64]
  activation c: f32[64]
  activation d: f32[64]
  activation e: f32[64]
kernel first:
  for i<64:
    let t = x[i] * x[63 - i]
    a[i] = t
    b[i] = exp(t)
kernel second:
  for i<64: c[i] = a[i] + b[63 - i]
kernel third:
  for i<64: d[i] = c[i] * c[63 - i] + c[(i + 7) % 64]
kernel fourth:
  for i<64: e[i] = d[i] * b[i] + a[i]
kernel last:
  for i<64: y[i] = e[63 - i] + d[i]
"""


def test_copies_are_one_kernel_with_what_reads_them() -> None:
    """Two results of one kernel, made again where both are read, are not stored once more; what they have in common is
    computed once."""
    program = parse(TWICE)
    less = Rematerialize(SMALLEST).run(program)
    names = [kernel.name for kernel in less.instructions]
    assert names == ["first", f"first{SUFFIX}+second", "third", f"first{SUFFIX}+fourth", "last"]
    assert not [buffer for buffer in less.buffers if buffer.name.endswith(SUFFIX)]
    assert str(less).count("x[-i + 63]") == len([name for name in names if "first" in name])
    feeds = {"x": np.random.default_rng(7).standard_normal(64, np.float32)}
    assert bits(less, feeds) == bits(program, feeds)


EPILOGUE = """program p
  input  x: f32[16,16]
  input  w: f32[16,16]
  output y: f32[16,16]
  activation a: f32[16,16]
  activation b: f32[16,16]
  activation c: f32[16,16]
  activation d: f32[16,16]
kernel first:
  for i<16, j<16: a[i, j] = exp(x[i, j]) * x[j, i]
kernel second:
  for i<16, j<16: b[i, j] = sum(r<16: a[i, r] * w[r, j])
kernel third:
  for i<16, j<16: c[i, j] = b[j, i] + b[i, j]
kernel fourth:
  for i<16, j<16:
    let t = sum(r<16: c[i, r] * w[j, r])
    d[i, j] = select(a[i, j] > 0, t, 0)
kernel last:
  for i<16, j<16: y[i, j] = d[j, i]
"""


def test_copies_are_computed_behind_the_sum_that_they_are_read_beside() -> None:
    program = parse(EPILOGUE)
    less = Rematerialize(SMALLEST).run(program)
    assert [kernel.name for kernel in less.instructions] == [
        "first",
        "second",
        "third",
        f"first{SUFFIX}+fourth",
        "last",
    ]
    *_, fused, _ = less.instructions
    assert [contraction[1].buffer.name for contraction in contractions(fused.nests)] == ["c"]
    feeds = {name: np.random.default_rng(6).standard_normal((16, 16), np.float32) for name in "xw"}
    assert bits(less, feeds) == bits(program, feeds)


def test_factors_that_are_made_again_stay_in_memory() -> None:
    program = parse(EPILOGUE.replace("c[i, r] * w[j, r]", "a[i, r] * w[j, r]").replace("a[i, j] > 0", "c[i, j] > 0"))
    less = Rematerialize(SMALLEST).run(program)
    assert f"first{SUFFIX}" in [kernel.name for kernel in less.instructions]


def test_a_result_that_another_gives_is_not_stored_where_it_was_made() -> None:
    """The peak is at the kernel that makes both, of which both readers need one and make the other of that."""
    text = TWICE.replace("c[i] = a[i] + b[63 - i]", "c[i] = b[63 - i]").replace("b[i] = exp(t)", "b[i] = t")
    wide = "kernel wide:\n  for i<256: h[i] = x[i % 64]\nkernel first:"
    text = text.replace("let t = x[i] * x[63 - i]", "let t = h[4 * i] * h[255 - i]").replace("kernel first:", wide)
    program = parse(text.replace("  activation a", "  activation h: f32[256]\n  activation a"))
    assert peak_bytes(program.instructions) == 1024 + 2 * 256
    less = Rematerialize(SMALLEST).run(program)
    assert [buffer.name for buffer in less.instructions[1].writes] == ["b"]
    assert peak_bytes(less.instructions) == 1024 + 256


AT_ONCE = """program p
  input  x: f32[64]
  output y: f32[64]
  activation a: f32[64]
  activation b: f32[64]
  activation c: f32[64]
kernel first:
  for i<64: a[i] = exp(x[i])
kernel second:
  for i<64: b[i] = a[i] * x[63 - i]
kernel third:
  for i<64: c[i] = a[i] * b[63 - i]
kernel last:
  for i<64: y[i] = c[63 - i] + a[i]
"""


def test_the_instruction_at_the_peak_makes_again_itself_what_it_reads() -> None:
    """All three are alive while the third kernel runs, and nowhere else; so does the last one, which reads one more."""
    program = parse(AT_ONCE)
    assert not list(Timeline(program.instructions).drops(2, 1))
    less = Rematerialize(SMALLEST).run(program)
    assert peak_bytes(reuse(less.instructions)) < peak_bytes(reuse(program.instructions))
    assert [kernel.name for kernel in less.instructions][2:] == [f"first{SUFFIX}+third", f"first{SUFFIX}+last"]
    feeds = {"x": np.random.default_rng(9).standard_normal(64, np.float32)}
    assert bits(less, feeds) == bits(program, feeds)


PARTS = """program p
  input  x: f32[64]
  output y: f32[64]
  activation a: f32[64]
  activation b: f32[64]
  activation c: f32[64]
kernel first:
  for i<32: a[i] = x[2 * i]
kernel second:
  for i<32: a[i + 32] = x[2 * i + 1]
kernel third:
  for i<64: b[i] = a[63 - i] * a[i]
kernel fourth:
  for i<64: c[i] = b[i] + b[63 - i]
kernel last:
  for i<64: y[i] = c[i] + a[63 - i]
"""


def test_what_two_kernels_make_is_made_again_by_two() -> None:
    program = parse(PARTS)
    less = Rematerialize(SMALLEST).run(program)
    assert [kernel.name for kernel in less.instructions if kernel.name.endswith(SUFFIX)] == [f"first+second{SUFFIX}"]
    assert peak_bytes(less.instructions) < peak_bytes(program.instructions)
    feeds = {"x": np.random.default_rng(8).standard_normal(64, np.float32)}
    assert bits(less, feeds) == bits(program, feeds)


def test_what_somebody_reads_between_its_parts_is_kept() -> None:
    between = "kernel look:\n  for i<32: c[i] = a[i]\nkernel second:"
    timeline = Timeline(parse(PARTS.replace("kernel second:", between)).instructions)
    assert [timeline.recomputable(buffer) for buffer in timeline.writers if buffer.name in "ab"] == [False, True]


def test_what_only_copies_were_kept_for_is_not_stored() -> None:
    """The first kernel's second result has a reader left, its first one none: both readers have copies of it."""
    program = parse(TWICE.replace("c[i] = a[i] + b[63 - i]", "c[i] = b[63 - i]"))
    less = Rematerialize(SMALLEST).run(program)
    assert "a" not in {buffer.name for buffer in less.buffers}


def test_what_is_dropped_may_be_dropped_again_and_read_by_others() -> None:
    """A copy lives until its next reader; in the second round that one gets a copy of its own."""
    rounds = [len(Timeline(program.instructions).holes) for program in _rounds(parse(random_text(3, kernels=8)))]
    assert len(rounds) > 1


def _rounds(program: Program) -> Iterator[Program]:
    """The programs that rounds of dropping begin with."""
    how = Rematerialize(SMALLEST)
    dropping = passes._Dropping(program, how, np.inf, 0)
    begin, found = dropping._begin, [program]

    def noted(later: Program) -> None:
        found.append(later)
        begin(later)

    dropping._begin = noted  # type: ignore[method-assign]
    dropping.until(0)
    yield from found


UPDATE = """program p
  input  g: f32[256]
  output y: f32[256]
  variable w: f32[16]
  activation h: f32[256]
  activation d: f32[256]
  updates w
kernel layer:
  for i<256: h[i] = g[i] + w[i % 16]
kernel before:
  for i<16, j<16: d[16 * i + j] = sum(r<16: h[16 * r + i] * w[j])
kernel update:
  for i<16: w[i] = w[i] + sum(r<16: h[16 * i + r] * g[16 * r + i])
kernel last:
  for i<256: y[i] = d[255 - i]
"""


def test_an_update_that_frees_much_comes_first() -> None:
    """What still needs the weights as they were reads a copy of them."""
    program = parse(UPDATE)
    order = Reordering(Names(b.name for b in program.buffers)).run(program.instructions)
    assert [kernel.name for kernel in order] == ["layer", "before", "update", "last"]
    later = parse(UPDATE.replace("h[16 * r + i] * w[j]", "g[16 * r + i] * w[j]"))
    order = Reordering(Names(b.name for b in later.buffers)).run(later.instructions)
    assert [kernel.name for kernel in order] == ["layer", "w.before", "update", "before", "last"]
    assert peak_bytes(later.instructions) == 2048
    assert peak_bytes(order) == 1024 + 64
    feeds = {"g": np.random.default_rng(5).standard_normal(256, np.float32)}
    assert bits(replace(later, instructions=tuple(order)), feeds) == bits(later, feeds)


def test_a_copy_of_a_variable_that_was_updated_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(UPDATE.replace("h[16 * r + i] * w[j]", "g[16 * r + i] * w[j]"))
    monkeypatch.setattr(Reordering, "_copy_of", lambda self, variable: variable)
    order = Reordering(Names()).run(program.instructions)
    feeds = {"g": np.random.default_rng(5).standard_normal(256, np.float32)}
    assert bits(replace(program, instructions=tuple(order)), feeds) != bits(program, feeds)


def test_a_variable_that_two_kernels_update_is_not_copied_from_before_the_first() -> None:
    """What lies between them reads what the first one wrote."""
    twice = UPDATE.replace("h[16 * r + i] * w[j]", "g[16 * r + i] * w[j]").replace(
        "kernel before:", "kernel step:\n  for i<16: w[i] = 2 * w[i]\nkernel before:"
    )
    program = parse(twice)
    for order in Reordering(Names())._moves(list(program.instructions), np.full(5, 2048)):
        feeds = {"g": np.random.default_rng(5).standard_normal(256, np.float32)}
        assert bits(replace(program, instructions=tuple(order)), feeds) == bits(program, feeds)


LANES = """
program lanes
  input  a: f64[6,5,8]
  input  b: f64[8,8]
  input  c: f64[6,5,8]
  input  d: f64[6,5,8]
  input  e: f64[6,5,8]
  input  f: f64[6,5,8]
  input  w: f64[3000]
  output s: f64[1]
  output y: f64[6,5,8]
  activation total: f64[6,5,8]
  activation scaled: f64[6,5,8]
  activation wide: f64[3000]
kernel total:
  for i<6, j<5, k<8:
    let t = sum(r<8: a[i, j, r] * b[k, r] + 1)
    total[i, j, k] = t
    scaled[i, j, k] = t * c[i, j, k] * d[i, j, k] * e[i, j, k] * f[i, j, k]
kernel wide:
  for i<3000: wide[i] = w[i] * total[0, 0, 0]
kernel sum:
  for i<1: s[i] = sum(r<3000: wide[r] * wide[2999 - r])
kernel late:
  for i<6, j<5, k<8: y[i, j, k] = total[i, j, 7 - k] * scaled[i, j, k] + s[0]
"""
"""Rows of ``scaled`` are made along the lanes; of ``total`` alone the sum would be."""


def test_no_sum_has_another_order_where_less_is_stored() -> None:
    """What is not stored any more has a part in the choice of what runs along the lanes."""
    program, facts = parse(LANES), gt.Cpu().facts
    sums = facts.sums
    assert sums is not None
    options = Options(facts=facts, memory=SMALLEST)
    found = arrive(program, options, until("rematerialized")[-1:])
    assert any(kernel.name.startswith("total" + SUFFIX) for kernel in found.kernels)
    assert [sums(kernel) for kernel in found.kernels] == [sums(kernel) for kernel in program.kernels]
    less = Rematerialize(SMALLEST).run(program)
    assert [sums(kernel) for kernel in less.kernels] != [sums(kernel) for kernel in program.kernels]


def test_what_would_be_made_again_in_another_order_is_kept() -> None:
    """Where it is read with what else its kernel makes it has one order, and another one alone."""
    program = parse(LANES.replace("t * c[i, j, k]", "c[i, j, k]"))
    timeline = Timeline(program.instructions, Limits(sums=gt.Cpu().facts.sums))
    total = next(b for b in program.buffers if b.name == "total")
    made = timeline.recomputation(total, lambda _: False)
    assert not timeline.keeps_sums(made)
    assert Timeline(program.instructions).keeps_sums(made)
