"""Layouts and memory plans of random programs, against a liveness computed here; plans that are wrong on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from glowtrain.backends import interpreter
from glowtrain.errors import ProgramError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Variable
from glowtrain.loops import Accumulate, Buffer, For, Load, Store, expressions, indices_of, statements, walk
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import ALIGNMENT, Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse, parse_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.schedule import peak_bytes, schedule
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.program.text import arrays_of, plan_text
from glowtrain.types import Array, f32
from tests.program.random_graphs import RandomGraph
from tests.stages import fuse, lower

SEEDS = range(200, 225)


def random_plan(seed: int) -> tuple[RandomGraph, Graph, Plan]:
    drawing = RandomGraph(ChoiceDraw(seed))
    graph = drawing.graph(15)
    return drawing, graph, plan(schedule(fuse(lower(graph))))


def trace(instructions: Sequence[Instruction]) -> Iterator[Kernel]:
    """Kernels in the order in which they run, every step of every repeat."""
    for instruction in instructions:
        if instruction.kernel is not None:
            yield instruction.kernel
        for _ in range(instruction.trips):
            yield from trace(instruction.children)


def lives(program: Program) -> list[set[Buffer]]:
    """For every kernel that runs, the activations between a write and the last read before they are written anew.

    A buffer's contents begin with a kernel that writes it before it reads it, if at all, unless a repeat gathers it
    from several kernels' parts; then they begin with the first write of all.
    """
    kernels = list(trace(program.instructions))
    live: list[set[Buffer]] = [{b for b in kernel.operands if b.kind == "activation"} for kernel in kernels]
    partial = {
        b for kernel in kernels for s in _stores(kernel) if s.buffer.type.size != _points(kernel, s) for b in [s.buffer]
    }
    for buffer in {b for kernel in kernels for b in kernel.operands if b.kind == "activation"}:
        writes = [t for t, k in enumerate(kernels) if buffer in k.writes and not _needs(k, buffer)]
        reads = [t for t, k in enumerate(kernels) if buffer in k.reads]
        starts = [min(writes)] if buffer in partial else writes
        for start, stop in zip(starts, [*starts[1:], len(kernels)], strict=True):
            ends = [t for t in reads if start <= t and (t < stop or buffer in partial)]
            for t in range(start, max(ends, default=start) + 1):
                live[t].add(buffer)
    return live


def _needs(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether the first statement that touches a buffer reads it."""
    for statement in statements(kernel.body):
        nodes = [node for expr in expressions(statement) for node in walk(expr)]
        if isinstance(statement, Accumulate) and statement.buffer is buffer:
            return True
        if any(isinstance(node, Load) and node.buffer is buffer for node in nodes):
            return True
        if isinstance(statement, Store) and statement.buffer is buffer:
            return False
    return False


def _stores(kernel: Kernel) -> Iterator[Store]:
    return (s for loop in kernel.body if isinstance(loop, For) for s in loop.body if isinstance(s, Store))


def _points(kernel: Kernel, store: Store) -> int:
    loop = next(loop for loop in kernel.body if isinstance(loop, For) and store in loop.body)
    return int(np.prod([i.extent for i in loop.indices]))


@pytest.mark.parametrize("seed", SEEDS)
def test_live_buffers_never_overlap(seed: int) -> None:
    _, _, planned = random_plan(seed)
    verify_plan(planned)
    for live in lives(planned.program):
        ranges = sorted((planned.offsets[b], planned.offsets[b] + b.type.nbytes) for b in live if b.type.nbytes)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("seed", SEEDS)
def test_arena_and_peak(seed: int) -> None:
    _, _, planned = random_plan(seed)
    needed = max((sum(b.type.nbytes for b in live) for live in lives(planned.program)), default=0)
    count = len(planned.offsets)
    assert planned.peak >= needed
    assert planned.peak <= planned.arena <= sum(b.type.nbytes for b in planned.offsets) + ALIGNMENT * count
    if not any(isinstance(instruction, Repeat) for instruction in planned.program.instructions):
        assert planned.peak == needed == peak_bytes(planned.program.instructions)


@pytest.mark.spread(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_are_multiples_of_the_alignment_that_was_asked_for(seed: int) -> None:
    _, _, wide = random_plan(seed)
    narrow = plan(wide.program, 8)
    verify_plan(narrow)
    assert narrow.alignment == 8
    assert narrow.arena <= wide.arena
    assert narrow.arena <= narrow.peak + 8 * len(narrow.offsets)
    again = parse_plan(plan_text(narrow), arrays_of(narrow.program))
    assert (again.alignment, plan_text(again)) == (8, plan_text(narrow))


def test_an_offset_between_multiples_of_the_alignment_is_refused() -> None:
    _, _, planned = random_plan(SEEDS[0])
    narrow = plan(planned.program, 8)
    assert any(offset % 64 for offset in narrow.offsets.values())
    with pytest.raises(ProgramError, match="which is no multiple of 64"):
        verify_plan(replace(narrow, alignment=64))


def test_planted_overlaps_show_in_the_poisoned_arena() -> None:
    """Move a buffer that is read later onto one written in between."""
    planted = 0
    for seed in range(230, 280):
        drawing, graph, planned = random_plan(seed)
        pair = _clobbered(planned.program)
        if pair is None:
            continue
        kept, other = pair
        offsets = {**planned.offsets, kept: planned.offsets[other]}
        wrong = replace(planned, offsets=offsets, arena=planned.arena + kept.type.nbytes)
        feeds = drawing.feeds()
        assert _differs(graph, feeds, wrong), seed
        assert not _differs(graph, feeds, planned), seed
        with pytest.raises(ProgramError, match=f"{kept.name} .*share memory|{other.name} .*share memory"):
            verify_plan(wrong)
        planted += 1
    assert planted >= 8


def _clobbered(program: Program) -> tuple[Buffer, Buffer] | None:
    """Two activations of which the second is first written while the first one waits to be read by a kernel."""
    top = program.instructions
    if any(isinstance(instruction, Repeat) for instruction in top):
        return None
    first = {
        b: min(t for t, k in enumerate(top) if b in k.writes) for k in top for b in k.writes if b.kind == "activation"
    }
    last = {b: max(t for t, k in enumerate(top) if b in k.operands) for b in first}
    for kept in first:
        for other in first:
            if (
                first[kept] < first[other] <= last[kept]
                and kept in top[last[kept]].reads
                and other not in top[first[kept]].operands
            ):
                return kept, other
    return None


def _differs(graph: Graph, feeds: dict[str, Array], planned: Plan) -> bool:
    known = interpreter.evaluate(graph, feeds)
    outputs, state = evaluate(planned.program, feeds, plan=planned)
    pairs = [(outputs[name], known[value]) for name, value in graph.outputs.items()]
    pairs += [(state[variable.name], known[value]) for variable, value in graph.updates.items()]
    return not all(np.allclose(a, b, rtol=1e-8, atol=1e-8) for a, b in pairs)


# ---- plans by hand


def chain(sizes: Sequence[int]) -> Program:
    """x -> t0 -> t1 -> … -> y over a loop that ignores the sizes beyond its own extent."""
    x, y = Buffer("x", f32[8], "input"), Buffer("y", f32[8], "output")
    buffers = [Buffer(f"t{k}", f32[size], "activation") for k, size in enumerate(sizes)]
    kernels = []
    for source, target in zip([x, *buffers], [*buffers, y], strict=True):
        (i,) = indices_of((8,))
        kernels.append(Kernel(target.name, (For((i,), (Store(target, (i,), Load(source, (i,)) * 2),)),)))
    return Program("chain", {"x": x}, {"y": y}, {}, tuple(kernels))


def test_a_chain_needs_two_neighbours() -> None:
    planned = plan(chain([1000, 2000, 3000, 1000]))
    assert planned.peak == 4 * 5000
    assert planned.arena <= planned.peak + 4 * ALIGNMENT
    assert planned.overhead < 1.02


def test_a_small_buffer_goes_into_the_best_gap() -> None:
    """Of two holes the one that fits exactly is taken, so the next large buffer still finds the other."""
    planned = plan(chain([64, 512, 64, 512, 64]))
    assert planned.arena == planned.peak == 4 * (64 + 512)


PARTLY_WRITTEN = """program p
  input      x: f32[{trips},64]
  output     y: f32[{trips},64]
  activation b: f32[{trips},64]
  activation c: f32[{trips},64]
  activation d: f32[{trips},64]
repeat loop t<{trips}:
  kernel one_row:
    for i<64: b[{stride}*t % {trips}, i] = x[t, i]
  kernel all_rows:
    for i<{trips}, j<64: c[i, j] = b[0, j] * 2
  kernel next:
    for i<{trips}, j<64: d[i, j] = c[i, j] + 1
  kernel last:
    for i<64: y[t, i] = d[0, i]
"""
"""The first row of b is carried through all trips."""


@pytest.mark.parametrize(("trips", "stride"), [(3, 1), (3, 2), (70, 1)])
def test_what_one_trip_writes_in_part_lives_through_all_of_them(trips: int, stride: int) -> None:
    """A store to row t writes one row in each trip, and not the whole buffer in every trip."""
    program = parse(PARTLY_WRITTEN.format(trips=trips, stride=stride))
    planned = plan(program)
    verify_plan(planned)
    feeds = {"x": np.random.default_rng(5).normal(size=(trips, 64)).astype(np.float32)}
    expected, _ = evaluate(program, feeds)
    got, _ = evaluate(program, feeds, plan=planned)
    np.testing.assert_array_equal(got["y"], expected["y"])
    b, d = (next(k for k in planned.offsets if k.name == name) for name in "bd")
    wrong = replace(planned, offsets={**planned.offsets, d: planned.offsets[b]})
    with pytest.raises(ProgramError, match="b .* and activation d .* share memory but both are alive"):
        verify_plan(wrong)


def test_schedule_puts_readers_next_to_writers() -> None:
    """Two chains written breadth first: one after the other keeps fewer buffers alive."""
    a, b = chain([4096, 4096]), chain([4096, 4096])
    b = Program("b", b.inputs, {"z": b.outputs["y"]}, {}, b.instructions)
    mixed = [k for pair in zip(a.instructions, b.instructions, strict=True) for k in pair]
    program = Program("both", {"x": a.inputs["x"]}, {**a.outputs, **b.outputs}, {}, tuple(mixed))
    assert peak_bytes(program.instructions) == 3 * 4096 * 4
    assert peak_bytes(schedule(program).instructions) == 2 * 4096 * 4


def test_a_convolution_gets_channels_last_and_its_neighbours_with_it() -> None:
    x = Input(f32[2, 3, 8, 8], "x")
    w = Variable("w", np.ones((16, 3, 3, 3), np.float32))
    v = Variable("v", np.ones((16, 16, 3, 3), np.float32))
    hidden = Tanh()(Conv(pads=(1, 1, 1, 1))(x, w))
    graph = Graph((x,), {"y": Conv(pads=(1, 1, 1, 1))(hidden, v)})
    program = assign_layouts(lower(graph))
    last = {b.name: b.layout[-1] for b in program.buffers if b.kind == "activation" and b.shape[1:2] == (16,)}
    assert last
    assert set(last.values()) == {1}
    assert all(b.layout == (0, 1, 2, 3) for b in (*program.inputs.values(), *program.outputs.values()))
    feeds = {"x": np.random.default_rng(0).normal(size=x.shape).astype(np.float32)}
    planned = plan(schedule(fuse(program)))
    verify_plan(planned)
    known = interpreter.evaluate(graph, feeds)
    got, _ = evaluate(planned.program, feeds, plan=planned)
    np.testing.assert_allclose(got["y"], known[graph.outputs["y"]], rtol=1e-4, atol=1e-4)


CHANNELS_LAST, ROWS = (0, 2, 3, 1), (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("inputs", "outputs", "window", "row", "stride", "expected"),
    [
        (8, 1, 5, 40, 1, ROWS),
        (15, 1, 3, 16, 1, ROWS),
        (4, 4, 3, 16, 1, ROWS),
        (16, 1, 3, 16, 1, CHANNELS_LAST),  # channels fill a vector
        (8, 2, 3, 16, 1, CHANNELS_LAST),
        (8, 1, 3, 15, 1, CHANNELS_LAST),  # and rows do not
        (8, 1, 1, 40, 1, CHANNELS_LAST),
        (8, 1, 3, 40, 2, CHANNELS_LAST),
    ],
)
def test_a_narrow_convolution_gets_rows_whoever_wrote_them(
    inputs: int, outputs: int, window: int, row: int, stride: int, expected: tuple[int, ...]
) -> None:
    x = Input(f32[1, 6, 4, row * stride], "x")
    edges = (window // 2,) * 4
    w = Variable("w", np.ones((inputs, 6, 1, 1), np.float32))
    v = Variable("v", np.ones((outputs, inputs, window, window), np.float32))
    hidden = Tanh()(Conv()(x, w))
    graph = Graph((x,), {"y": Conv(pads=edges, strides=(1, stride))(hidden, v)})
    program = assign_layouts(lower(graph))
    found = {b.layout for b in program.buffers if b.kind == "activation" and b.shape == hidden.shape}
    assert found == {expected}


def test_a_narrow_convolution_in_groups_has_channels_last() -> None:
    x = Input(f32[1, 4, 4, 40], "x")
    w = Variable("w", np.ones((4, 1, 3, 3), np.float32))
    hidden = Tanh()(Conv(pads=(1, 1, 1, 1), group=4)(x, w))
    program = assign_layouts(lower(Graph((x,), {"y": Conv(pads=(1, 1, 1, 1), group=4)(hidden, w)})))
    found = {b.layout for b in program.buffers if b.kind == "activation" and b.shape == hidden.shape}
    assert found == {CHANNELS_LAST}
