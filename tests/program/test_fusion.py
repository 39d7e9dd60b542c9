"""Every pass on programs keeps their meaning:

random graphs, evaluated after each pass and compared with the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.backends import interpreter
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.strategies import HypothesisDraw
from glowtrain.graph import Constant, Draw, Graph, Input, Value, constant
from glowtrain.lower.expand import expand
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.integer_products import MatMulInteger
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.loop_fusion.fuse import fuse_loops
from glowtrain.program.passes.producer_inlining import inline
from glowtrain.program.passes.schedule import peak_bytes, schedule
from glowtrain.program.program import Program
from glowtrain.program.text import plan_text, to_text
from glowtrain.program.verify import verify
from glowtrain.types import Array, f32, i64, u8
from tests.program.random_graphs import RandomGraph, permutation
from tests.stages import fuse, lower


def stages(graph: Graph, draw: Draw) -> Iterator[tuple[str, Program, Plan | None]]:
    """The program after each pass; layouts are asked for at random."""
    program = lower(graph)
    yield "lower", program, None
    wishes = [(b, permutation(draw, b.type.rank)) for b in program.buffers if b.type.rank > 2]
    program = assign_layouts(replace(program, preferences=tuple(wishes[:6])))
    yield "layout", program, None
    kept = frozenset(program.outputs.values())
    program = replace(program, instructions=inline(program.instructions, kept))
    yield "inline", program, None
    program = replace(program, instructions=fuse_loops(program.instructions, kept))
    yield "fuse", program, None
    scheduled = schedule(program)
    assert peak_bytes(scheduled.instructions) <= peak_bytes(program.instructions)
    yield "schedule", scheduled, None
    yield "plan", scheduled, plan(scheduled)


def expected(graph: Graph, feeds: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    known = interpreter.evaluate(graph, feeds)
    outputs = {name: known[value] for name, value in graph.outputs.items()}
    return outputs, {variable.name: known[value] for variable, value in graph.updates.items()}


def check(drawing: RandomGraph, graph: Graph) -> None:
    """Evaluate the graph's program after every pass."""
    feeds = drawing.feeds()
    outputs, updated = expected(graph, feeds)
    for stage, program, planned in stages(graph, drawing.draw):
        if planned is None:
            verify(program)
        else:
            verify_plan(planned)
        got, state = evaluate(program, feeds, plan=planned)
        for name, wanted in [*outputs.items(), *updated.items()]:
            found = got[name] if name in got else state[name]
            scale = 1 + np.abs(wanted).max(initial=0)
            listing = plan_text(planned) if planned else str(program)
            np.testing.assert_allclose(
                found, wanted, rtol=1e-9, atol=1e-10 * scale, err_msg=f"{name} after {stage}:\n{listing}"
            )
        for variable in graph.variables:
            if variable.name not in updated:
                np.testing.assert_array_equal(state[variable.name], variable.initial)


@given(st.data())
def test_every_pass_keeps_the_meaning_of_random_graphs(data: st.DataObject) -> None:
    drawing = RandomGraph(HypothesisDraw(data.draw))
    check(drawing, drawing.graph())


@pytest.mark.spread(10)
@pytest.mark.parametrize("seed", range(40))
def test_every_pass_keeps_the_meaning_of_larger_graphs(seed: int) -> None:
    drawing = RandomGraph(ChoiceDraw(seed))
    check(drawing, drawing.graph(25))


@given(st.data())
def test_no_pass_changes_the_program_that_it_is_given(data: st.DataObject) -> None:
    """Layouts too belong to the program that a pass returns."""
    drawing = RandomGraph(HypothesisDraw(data.draw))
    lowered = lower(drawing.graph())
    wishes = [(b, permutation(drawing.draw, b.type.rank)) for b in lowered.buffers if b.type.rank > 1]
    program = replace(lowered, preferences=tuple(wishes))
    for stage in (assign_layouts, fuse, schedule):
        before = to_text(program)
        result = stage(program)
        assert to_text(program) == before, stage.__name__
        program = result
    before = to_text(program)
    plan(program)
    assert to_text(program) == before


def test_layouts_that_are_assigned_stand_in_new_buffers() -> None:
    """Kernels that touch none of them are kept as they are."""
    x, w = Input(f32[2, 3, 8, 8], "x"), Constant(np.ones((4, 3, 3, 3), np.float32), "w")
    lowered = lower(Graph((x,), {"y": Conv()(x, w), "z": x * 2}))
    program = assign_layouts(lowered)
    old, new = ({b.name: b for b in p.buffers} for p in (lowered, program))
    assert new["w"].layout == (2, 3, 1, 0)
    assert old["w"].layout == (0, 1, 2, 3)
    assert new["w"].initial is old["w"].initial
    assert [b is new[b.name] for b in program.constants] == [True, True]
    kernels = [(k in program.instructions, old["w"] in k.touched) for k in lowered.instructions if k.name != "copy"]
    assert kernels == [(False, True), (True, False)]
    with pytest.raises(FrozenInstanceError):
        old["w"].layout = (0, 1, 2, 3)  # type: ignore[misc]


@given(st.data())
def test_fusion_only_drops_kernels_and_memory(data: st.DataObject) -> None:
    graph = RandomGraph(HypothesisDraw(data.draw)).graph()
    program = lower(graph)
    fused = fuse(program)
    assert len(list(fused.kernels)) <= len(list(program.kernels))
    assert fused.updates == program.updates
    assert list(fused.outputs) == list(program.outputs)


def test_a_look_up_reads_through_a_large_table() -> None:
    """A dequantized table is computed where it is read; an index outside still gives the fill."""
    ids, table = Input(i64[5], "ids"), Constant(np.arange(40, dtype=np.int8).reshape(20, 2), "table")
    graph = Graph((ids,), {"y": Gather(axis=0)(Cast(to=f32)(table) * 0.5, ids)})
    program = fuse(lower(expand(graph)))
    assert len(program.instructions) == 1
    verify(program)
    outputs, _ = evaluate(program, {"ids": np.array([3, -1, 0, 20, -21])})
    np.testing.assert_array_equal(outputs["y"], [[3, 3.5], [19, 19.5], [0, 0.5], [np.nan] * 2, [np.nan] * 2])


def test_results_that_become_narrower_are_not_stored_wide() -> None:
    """Sums of bytes are rounded to bytes in the kernel that sums, not in the one that reads them."""
    x, other = Input(u8[4, 16], "x"), Input(u8[4, 16], "other")
    first, second = (Constant(np.arange(256, dtype=np.uint8).reshape(16, 16), name) for name in ("w", "v"))
    scale, zero = constant(np.float32(0.3)), constant(np.uint8(3))

    def rounded(left: Value, right: Value) -> Value:
        return DequantizeLinear()(QuantizeLinear()(Cast(f32)(MatMulInteger()(left, right)), scale, zero), scale, zero)

    graph = Graph((x, other), {"y": QuantizeLinear()(rounded(x, first) + rounded(other, second), scale, zero)})
    program = fuse(lower(expand(graph)))
    assert [buffer.dtype for kernel in program.kernels for buffer in kernel.writes] == [u8, u8]


def test_results_that_nobody_reads_are_not_computed() -> None:
    """The places of MaxPool's maxima are for its gradient."""
    x = Input(f32[1, 2, 6, 6], "x")
    pooled = MaxPool(kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))(x)
    pooled = pooled[0] if isinstance(pooled, tuple) else pooled
    read = pooled @ Constant(np.arange(12, dtype=np.float32).reshape(3, 4), "w")  # a kernel that merges with no other
    program = fuse(lower(expand(Graph((x,), {"y": read}))))
    assert {buffer.dtype for kernel in program.kernels for buffer in kernel.writes} == {f32}
