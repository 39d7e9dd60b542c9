"""Instructions on other buffers: what is said of them before they are written is true of what is written; what touches
none of the buffers stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from glowtrain.loops import Apply, Expr, For, Index, Load, Store, rewrite_body, statements
from glowtrain.loops.equal_nodes import EqualNodes
from glowtrain.program.parse import parse
from glowtrain.program.passes import reuse as reusing
from glowtrain.program.passes.producer_inlining import InlineProducers
from glowtrain.program.passes.reuse import live_in_place, reuse
from glowtrain.program.passes.schedule import live_bytes
from glowtrain.program.program import Program
from tests.program.recomputed_programs import programs, programs_of_rows

RESHAPED = """program reshaped
  input      x: f32[6,4]
  output     y: f32[24]
  activation a: f32[6,4]
  activation b: f32[24]
  activation c: f32[24]

kernel first:
  for i<6, j<4: a[i, j] = exp(x[i, j])
kernel second:
  for i<24: b[i] = 2 * a[i // 4, i % 4]
kernel third:
  for i<24: c[i] = b[i] + 1
kernel last:
  for i<24: y[i] = c[i] * 3
"""


def every() -> Iterator[Program]:
    """Programs in which results take the places of operands, in one also in another shape."""
    yield parse(RESHAPED)
    for given in (programs, programs_of_rows):
        yield from (program for program, _ in given())


@pytest.mark.exhaustive
def test_bytes_alive_in_place_are_those_of_the_instructions_that_are_written() -> None:
    less = 0
    for program in every():
        alive = list(live_in_place(program.instructions))
        assert alive == live_bytes(reuse(program.instructions))
        less += max(alive) < max(live_bytes(program.instructions))
    assert less > 1


@pytest.mark.exhaustive
def test_a_place_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: bytes are counted as if no buffer had another's place."""
    monkeypatch.setattr(reusing._Moved, "activations", property(lambda self: self.original.activations))
    alive = [(list(live_in_place(p.instructions)), live_bytes(reuse(p.instructions))) for p in every()]
    assert any(said != written for said, written in alive)


def test_a_result_in_a_place_of_another_shape_is_written_in_that_shape() -> None:
    program = parse(RESHAPED)
    placed = reuse(program.instructions)
    assert {b.shape for each in placed for b in each.activations} == {(24,)}
    assert len({b for each in placed for b in each.activations}) == 1


def test_statements_that_touch_none_of_the_buffers_are_the_same_objects() -> None:
    (kernel,) = parse("""program two
  input      x: f32[5]
  output     y: f32[5]
  activation a: f32[5]
  activation b: f32[5]

kernel both:
  for i<5:
    a[i] = exp(x[i])
    b[i] = x[i] + 1
    y[i] = x[i] * b[i]
""").kernels
    buffers = {buffer.name: buffer for buffer in kernel.operands}
    other = replace(buffers["b"], name="c")
    first, second, third = (
        s for s in statements(kernel.with_buffers({buffers["b"]: other}).body) if isinstance(s, Store)
    )
    was = [s for s in statements(kernel.body) if isinstance(s, Store)]
    assert first is was[0]
    assert (second.buffer, second.value) == (other, was[1].value)
    assert [load.buffer.name for load in third.loads] == ["c", "x"]
    assert kernel.with_buffers({other: other}) is kernel


def test_loads_in_subscripts_are_on_other_buffers_too() -> None:
    (kernel,) = parse("""program gather
  input      x: f32[5]
  input      at: i64[5]
  output     y: f32[5]

kernel gather:
  for i<5: y[i] = x[at[i]]
""").kernels
    at = next(buffer for buffer in kernel.reads if buffer.name == "at")
    moved = kernel.with_buffers({at: replace(at, name="there")})
    assert [buffer.name for buffer in moved.reads] == ["x", "there"]


def test_indices_of_loops_stay_where_they_are_not_asked_for() -> None:
    program = parse(RESHAPED)
    kernel = next(program.kernels)
    seen: list[Expr] = []

    def change(expr: Expr) -> Expr | None:
        seen.append(expr)
        return Load(expr.buffer, expr.index[::-1]) if isinstance(expr, Load) else None

    (loop,) = rewrite_body(kernel.body, change, indices=False)
    assert isinstance(loop, For)
    assert not any(isinstance(expr, Index) for expr in seen)
    rewrite_body(kernel.body, change)
    assert any(isinstance(expr, Index) for expr in seen)
    (store,) = loop.body
    assert isinstance(store, Store)
    (load,) = store.loads
    assert load.index == loop.indices[::-1]


def test_inlined_arithmetic_has_one_node_for_what_is_equal() -> None:
    """What two loads of one result give, and the reader's own."""
    program = InlineProducers().run(
        parse("""program shared
  input      x: f32[8]
  output     y: f32[8]
  activation a: f32[8]

kernel first:
  for i<8: a[i] = x[i] * x[i]
kernel last:
  for j<8: y[j] = (a[j] + a[j]) * (x[j] * x[j])
""")
    )
    (kernel,) = program.kernels
    (statement,) = kernel.flat
    products = [node for node in statement.nodes if isinstance(node, Apply)]
    assert [node.function for node in products] == ["mul", "mul", "add"]
    equal = EqualNodes(kernel.written)
    assert all(equal.of(node) is node for node in statement.nodes)
