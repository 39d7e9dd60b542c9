"""What a repeat reads before it writes, and memory plans of repeats within repeats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glowtrain.compiler.walk import arrive
from glowtrain.errors import ProgramError
from glowtrain.graph import Graph, Input, Value
from glowtrain.loops import Buffer, Const, Expr, For, Index, Load, Store, indices_of
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.detection.suppression import NonMaxSuppression
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Transpose
from glowtrain.program.analysis.exposed_reads import Exposure
from glowtrain.program.analysis.liveness import live_sets
from glowtrain.program.analysis.write_coverage import MOST_TRIPS
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.stages import Options
from glowtrain.types import f32, i64


def looped(following: Value, state: Input, piece: Input) -> Graph:
    """``following`` for each of three pieces, from state to state."""
    start, pieces = Input(state.type, "start"), Input(piece.type.with_shape((3, *piece.shape)), "pieces")
    scan = Scan(Graph((state, piece), {"next": following, "old": state}, name="outer"), 1)
    last, old = scan(start, pieces)
    return Graph((start, pieces), {"last": last, "old": old})


def loop_in_a_loop() -> Graph:
    """The inner state's two slots, and the inner stack, are written anew in every trip of the outer loop."""
    h, x = Input(f32[4], "h"), Input(f32[4], "x")
    inner = Scan(Graph((h, x), {"h.next": Tanh()(h + x), "y": h * x}, name="inner"), 1)
    state, piece = Input(f32[4], "state"), Input(f32[4, 4], "piece")
    last, stack = inner(state, piece)
    return looped(last * 0.5 + Tanh()(stack @ piece) @ state, state, piece)


def loop_by_data() -> Graph:
    """The inner loop reads its state at the place of the best score."""
    state, piece = Input(i64[()], "state"), Input(f32[2, 3, 4], "piece")
    scores: Value = Transpose(perm=(0, 2, 1))(ReduceSum(axes=(2,))(piece))
    _, count = NonMaxSuppression(max_output_boxes_per_class=2)(piece, scores)
    return looped(state + count, state, piece)


GRAPHS = {"slots and stacks": loop_in_a_loop(), "by data": loop_by_data()}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_plans_of_loops_in_loops_are_found_right(graph: Graph) -> None:
    arrive(graph, Options(check=True))


def test_an_overlap_in_an_inner_loop_is_found() -> None:
    """What an inner loop has stacked shares memory with what is computed beside it."""
    plan = arrive(loop_in_a_loop())
    outer = next(i for i in plan.program.instructions if isinstance(i, Repeat))
    inner = next(i for i in outer.body if isinstance(i, Repeat))
    read = {b for i in outer.body if isinstance(i, Kernel) for b in i.reads}
    (stack,) = (b for b in inner.writes if b in read and b.shape == (4, 4))
    (slots,) = (b for b in inner.writes if b in inner.reads and b.shape == (2, 4))
    wrong = replace(plan, offsets={**plan.offsets, slots: plan.offsets[stack]})
    with pytest.raises(ProgramError, match="share memory"):
        verify_plan(wrong)


def repeat(trips: int, state: Buffer, source: Buffer, *, behind: int = 1) -> Repeat:
    """state[(t + behind) % 2] = state[t % 2] + source[t] for all t < trips."""
    time, (i,) = Index(trips, "t"), indices_of((4,))
    value: Expr = Load(state, (time % 2, i)) + Load(source, (time, i))
    return Repeat("loop", time, (Kernel("step", (For((i,), (Store(state, ((time + behind) % 2, i), value),)),)),))


def buffers(trips: int) -> tuple[Buffer, Buffer]:
    return Buffer("state", f32[2, 4]), Buffer("source", f32[trips, 4])


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_exposes_the_slot_that_its_first_trip_reads(trips: int) -> None:
    state, source = buffers(trips)
    found = Exposure.of(repeat(trips, state, source), state)
    assert found.read.tolist() == [[True] * 4, [False] * 4]
    assert found.written.tolist() == [[trips > 1] * 4, [True] * 4]
    assert Exposure.of(repeat(trips, state, source), source).read.all()


def test_without_a_second_slot_each_trip_reads_what_was_there() -> None:
    state, source = buffers(3)
    assert Exposure.of(repeat(3, state, source, behind=0), state).read.all()


def test_no_trips_write_nothing() -> None:
    state, source = buffers(0)
    found = Exposure.of(repeat(0, state, source), state)
    assert not found.read.any()
    assert not found.written.any()


def test_long_loops_count_as_reading_all() -> None:
    state, source = buffers(MOST_TRIPS + 1)
    assert np.all(Exposure.of(repeat(MOST_TRIPS + 1, state, source), state).read)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("trips", [0, 1, 2])
def test_state_is_not_alive_after_its_last_reader(trips: int, again: bool) -> None:
    """Nor in the next trip of the loop around, before it is written there; the last reader may be in a loop, too."""
    state, source = buffers(trips)
    first, found = Buffer("first", f32[4], "input"), Buffer("found", f32[4], "output")
    (i,), (j,), (k,) = (indices_of((4,)) for _ in range(3))
    zero = Const(0, i64)
    begin = Kernel("begin", (For((i,), (Store(state, (zero, i), Load(first, (i,))),)),))
    end = Kernel("end", (For((j,), (Store(found, (j,), Load(state, (Const(trips % 2, i64), j))),)),))
    after = Kernel("after", (For((k,), (Store(found, (k,), Load(first, (k,))),)),))
    last: Instruction = Repeat("again", Index(3, "v"), (end,)) if again else end
    outer = Repeat("outer", Index(2, "u"), (begin, repeat(trips, state, source), last, after))
    live = dict(live_sets(Program("p", {"first": first}, {"found": found}, {}, (outer,))))
    assert [kernel.name for kernel, buffers in live.items() if state in buffers] == ["begin", "step", "end"]
