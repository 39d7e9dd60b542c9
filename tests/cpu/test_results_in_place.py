"""Sums of products whose epilogue reads what it writes over, at the same element: the bits of results elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.target import Target
from glowtrain.errors import ProgramError
from glowtrain.loops import Buffer, Const, Index, Load, affine
from glowtrain.loops.views import viewed
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.parse import parse
from glowtrain.program.passes import rows_in_place
from glowtrain.program.passes.partial_sums import LONG
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.program import Program
from glowtrain.program.verify import verify
from glowtrain.types import i64
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


@pytest.mark.spread(4)
@pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["", " layout [1,0]"])
def test_an_epilogue_writes_over_what_it_reads(target: Target, layout: str, random: np.random.Generator) -> None:
    program = masked(layout)
    less = ReuseOperands().run(program)
    assert 2 * peak_bytes(less.instructions) == peak_bytes(program.instructions)
    feeds = feeds_of(random, program)
    (found, _), (wanted, _) = (Native(each, target, plan(each)).run(feeds) for each in (less, program))
    assert found["y"].tobytes() == wanted["y"].tobytes()


SHORTCUT = """program shortcut
  input      a: u8[97,96]
  input      w: i8[96,43]
  input      x: u8[97,43]
  output     y: u8[97,43]
  activation s: u8[97,43]
  activation t: u8[97,43]

kernel scaled:
  for i<97, j<43: s[i, j] = max(x[i, j], 7:u8)
kernel product+add:
  for i<97, j<43:
    let sums = sum(r<96: i32(a[i, r]) * i32(w[r, j]))
    t[i, j] = u8(max(min(sums // 64 + i32(s[i, j]), 255), 0))
kernel last:
  for i<97, j<43: y[i, j] = max(t[i, j], 3:u8)
"""


@pytest.mark.parametrize("target", [Target.host(), *TARGETS.values(), NARROW], ids=lambda target: target.name)
def test_products_of_bytes_take_the_place_of_what_they_are_added_to(
    target: Target, random: np.random.Generator
) -> None:
    """As in a residual network of integers: still a contraction, in tiles, each of whose rows is finished once."""
    program = parse(SHORTCUT)
    less = ReuseOperands().run(program)
    assert 2 * peak_bytes(less.instructions) == peak_bytes(program.instructions)
    code = Native(less, target, plan(less))
    assert ".tile0(" in code.code.text
    limits = {name: np.iinfo(buffer.dtype.numpy) for name, buffer in program.inputs.items()}
    feeds = {
        name: random.integers(each.min, each.max, program.inputs[name].shape, each.dtype, endpoint=True)
        for name, each in limits.items()
    }
    (found, _), (wanted, _) = code.run(feeds), evaluate(program, feeds)
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


ROWS = """program rows
  input      g: f32[4,37,64]
  input      w: f32[64,43]
  input      b: f32[43]
  input      c: i64[148]
  output     y: f32[148,43]
  output     z: f32[148]
  activation s: f32[4,37,43]
  activation p: f32[148,43]

kernel scores:
  for n<4, i<37, j<43: s[n, i, j] = sum(r<64: g[n, i, r] * w[r, j])
kernel softmax:
  for i<148:
    let peak = max(r<43: s[i // 37, i % 37, r] + b[r])
    for k<43: p[i, k] = exp(s[i // 37, i % 37, k] + b[k] - peak)
    let scale = 1 / sum(r<43 by 8: p[i, r])
    for l<43: p[i, l] = p[i, l] * scale
kernel double:
  for i<148, j<43: y[i, j] = 2 * p[i, j]
kernel picked:
  for i<148: z[i] = p[i, c[i]; fill nan]
"""


@pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=lambda target: target.name)
def test_rows_are_written_over_in_another_shape(target: Target, random: np.random.Generator) -> None:
    """Of logits a softmax makes probabilities in the same memory, of which one is looked up for each label."""
    program = parse(ROWS)
    less = ReuseOperands().run(program)
    verify(less)
    assert 2 * peak_bytes(less.instructions) == peak_bytes(program.instructions)
    feeds = {**feeds_of(random, program), "c": random.integers(-2, 45, 148)}
    (found, _), (wanted, _) = (Native(each, target, plan(each)).run(feeds) for each in (less, program))
    evaluated, _ = evaluate(less, feeds, plan=plan(less))
    for name in ("y", "z"):
        assert found[name].tobytes() == wanted[name].tobytes()
        np.testing.assert_allclose(evaluated[name], wanted[name], rtol=2e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("let peak = max(r<43: s[i // 37, i % 37, r]", "let peak = max(r<43: s[3 - i // 37, i % 37, r]"),
        ("let peak = max(r<43: s[i // 37, i % 37, r]", "let peak = max(r<43: s[i // 37, 36 - i % 37, r]"),
        ("= exp(s[i // 37, i % 37, k]", "= exp(s[i // 37, i % 37, 42 - k]"),
        ("p[i, l] = p[i, l] * scale", "p[i, l] = p[i, l] * s[i // 37, i % 37, l]"),
        ("activation p: f32[148,43]", "activation p: f32[148,43] layout [1,0]"),
    ],
    ids=[
        "of another row",
        "further down",
        "elsewhere in the row",
        "afterwards",
        "laid out otherwise",
    ],
)
def test_rows_that_are_read_are_not_written_over(old: str, new: str) -> None:
    assert old in ROWS
    program = parse(ROWS.replace(old, new))
    verify(program)
    assert str(ReuseOperands().run(program)) == str(program)


UPDATE = """program update
  input      g: f32[700,37]
  input      d: f32[700,43]
  output     y: f32[]
  variable   m: f32[37,43]
  activation parts: f32[37,43]
  updates m

kernel gradient+update:
  for i<37, j<43:
    let t = sum(r<700: g[r, i] * d[r, j])
    let u = m[i, j] * 0.9 + t
    parts[i, j] = u
    m[i, j] = u
kernel last:
  y[] = max(r<37: m[r, 0])
"""


@pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=lambda target: target.name)
def test_sums_that_update_a_parameter_need_no_place_of_their_own(target: Target, random: np.random.Generator) -> None:
    program = parse(UPDATE)
    less = ReuseOperands().run(program)
    verify(less)
    assert peak_bytes(less.instructions) == 0 < peak_bytes(program.instructions)
    feeds, state = feeds_of(random, program), {"m": random.standard_normal((37, 43)).astype(np.float32)}
    (_, found), (_, wanted) = (Native(each, target, plan(each)).run(feeds, state) for each in (less, program))
    assert found["m"].tobytes() == wanted["m"].tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  y[] = max(r<37: m[r, 0])", "  y[] = max(r<37: parts[r, 0])"),
        ("let u = m[i, j] * 0.9 + t", "let u = t"),
        ("sum(r<700: g[r, i] * d[r, j])", "g[0, i] * d[0, j]"),
    ],
    ids=["read by another", "not an update", "no sum"],
)
def test_results_that_are_wanted_stay(old: str, new: str) -> None:
    assert old in UPDATE
    program = parse(UPDATE.replace(old, new))
    assert str(ReuseOperands().run(program)) == str(program)


@pytest.mark.parametrize("terms", [LONG, LONG + 1])
def test_long_sums_keep_a_place_for_their_parts(terms: int) -> None:
    program = parse(UPDATE.replace("700", str(terms)))
    less = ReuseOperands().run(program)
    assert (str(less) == str(program)) == (terms > LONG)


def test_subscripts_of_a_shape_with_fewer_axes() -> None:
    i, j, k, at = Index(4), Index(6), Index(5), Load(Buffer("c", i64[4], "input"), (Index(4),))
    zero = Const(0, i64)
    for index, old, new, wanted in [
        ((i, j, k), (4, 6, 5), (24, 5), (i * 6 + j, k)),
        ((i, k), (4, 5), (1, 4, 1, 5), (zero, i, zero, k)),
        ((Index(1), at, k), (1, 4, 5), (4, 5), (at, k)),
    ]:
        found = viewed(index, old, new)
        assert found is not None
        assert [affine(each) for each in found] == [affine(each) for each in wanted]
    for index, old, new in [((at, j), (4, 6), (24,)), ((i, j), (4, 6), (8, 3)), ((i + 1, j), (4, 6), (24,))]:
        assert viewed(index, old, new) is None


def test_a_row_that_another_reads_is_seen_where_it_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_place, "_in_row", lambda *_: True)
    wrong = parse(
        ROWS.replace("let peak = max(r<43: s[i // 37, i % 37, r]", "let peak = max(r<43: s[3 - i // 37, 0, r]")
    )
    with pytest.raises(ProgramError, match="may read what another point of the loop writes"):
        verify(ReuseOperands().run(wrong))
