"""Random programs, drawn as such and not lowered from graphs: text, verifiers, passes, plans and native code agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import ProgramError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.strategies import HypothesisDraw
from glowtrain.graph import Draw
from glowtrain.loops import Buffer, Store
from glowtrain.memory.budget import Budget
from glowtrain.program.analysis import write_coverage
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory import plan as planner
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse, parse_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.loop_fusion.fuse import FuseLoops
from glowtrain.program.passes.producer_inlining import InlineProducers
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.passes.schedule import schedule
from glowtrain.program.program import Instruction, Plan, Program, Repeat
from glowtrain.program.text import arrays_of, plan_text, to_text
from glowtrain.program.verify import verify
from glowtrain.types import Array, Shape
from tests.program.filetests import ENGINES
from tests.program.random_graphs import permutation
from tests.program.random_programs import RandomPrograms

Arrays = dict[str, Array]


def random_program(draw: Draw) -> tuple[Program, Arrays]:
    drawing = RandomPrograms(draw)
    program = drawing.program(4)
    return program, drawing.feeds(program)


def stages(program: Program, draw: Draw) -> Iterator[tuple[str, Program]]:
    """The program after each pass; layouts are asked for at random."""
    wishes = [(b, permutation(draw, b.type.rank)) for b in program.buffers if b.type.rank > 1]
    program = assign_layouts(replace(program, preferences=tuple(wishes[:6])))
    yield "layouts", program
    program = InlineProducers().run(program)
    yield "inlined", program
    program = FuseLoops().run(program)
    yield "fused", program
    program = schedule(program)
    yield "scheduled", program
    program = Rematerialize(Budget(draw.integer(0, 20) / 10, modest=False)).run(program)
    yield "rematerialized", program
    yield "reused", ReuseOperands().run(program)


def bits(program: Program, feeds: Arrays, planned: Plan | None = None) -> dict[str, tuple[Shape, bytes]]:
    """Outputs and variables of the evaluator, with a zero's sign left out: sums may begin with either."""
    outputs, state = evaluate(program, feeds, plan=planned)
    return {name: (array.shape, (array + 0).tobytes()) for name, array in {**outputs, **state}.items()}


def check(draw: Draw) -> None:
    program, feeds = random_program(draw)
    verify(program)
    expected = bits(program, feeds)
    read = parse(to_text(program), arrays_of(program))
    assert to_text(read) == to_text(program)
    assert bits(read, feeds) == expected
    for name, after in stages(program, draw):
        verify(after)
        assert bits(after, feeds) == expected, f"{name}:\n{after}"
        planned = plan(after)
        text = plan_text(planned)
        verify_plan(planned)
        assert bits(after, feeds, planned) == expected, f"planned {name}:\n{text}"
        assert plan_text(parse_plan(text, arrays_of(after))) == text


@given(st.data())
def test_text_passes_and_plans_agree(data: st.DataObject) -> None:
    check(HypothesisDraw(data.draw))


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(60))
def test_text_passes_and_plans_agree_on_larger_programs(seed: int) -> None:
    check(ChoiceDraw(seed))


@pytest.mark.spread(5)
@pytest.mark.parametrize("seed", range(100, 120))
def test_native_code_agrees(seed: int) -> None:
    """Over one planned arena, on every target."""
    draw = ChoiceDraw(seed)
    program, feeds = random_program(draw)
    *_, (_, last) = stages(program, draw)
    outputs, state = evaluate(program, feeds)
    for engine, run in ENGINES.items():
        for found, wanted in zip(run(last, feeds, {}), (outputs, state), strict=True):
            for name, array in wanted.items():
                a, b = (x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (found[name], array))
                np.testing.assert_array_equal(a, b, err_msg=f"{name} {engine}\n{last}")


def test_programs_have_what_they_are_drawn_for() -> None:
    """Repeats in repeats, and buffers of a repeat that its trips write row by row."""
    programs = [random_program(ChoiceDraw(seed))[0] for seed in range(60)]
    repeats = [i for p in programs for i in p.instructions if isinstance(i, Repeat)]
    assert sum(any(isinstance(inner, Repeat) for inner in r.body) for r in repeats) > 10
    assert sum(any(b.kind == "activation" and b in r.reads for b in _by_row(r)) for r in repeats) > 20
    assert sum(any(k.survey.reductions for k in p.kernels) for p in programs) > 20


def _by_row(repeat: Repeat) -> list[Buffer]:
    stores = (store for store, _ in write_coverage.program_stores(repeat.body))
    return [store.buffer for store in stores if repeat.index in store.index]


# ---- the mistake that took a part for the whole


def any_write_counts(body: Sequence[Instruction], buffer: Buffer, before: object = ()) -> bool:
    """What is written first is carried nowhere, as if each write were one of the whole buffer."""
    for instruction in body:
        if buffer in instruction.reads:
            return True
        if buffer in instruction.writes:
            return False
    return False


def all_trips_at_once(shape: Shape, store: Store, around: Sequence[object], unknown: bool, trip: object) -> Array:
    """What a store writes in all trips counts for each."""
    mask = np.zeros(shape, np.bool_)
    write_coverage.mark(mask, store.index, around, unknown=unknown)  # type: ignore[arg-type]
    return mask


def test_the_verifier_refuses_plans_that_take_parts_for_wholes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_carries", any_write_counts)
    assert sum(not _accepted(plan(random_program(ChoiceDraw(seed))[0])) for seed in range(60)) > 3


@pytest.mark.exhaustive
def test_the_poisoned_arena_shows_it_where_the_verifier_makes_the_same_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_carries", any_write_counts)
    monkeypatch.setattr(write_coverage, "_always", all_trips_at_once)
    differ = 0
    for seed in range(60):
        program, feeds = random_program(ChoiceDraw(seed))
        planned = plan(program)
        differ += _accepted(planned) and bits(program, feeds) != bits(program, feeds, planned)
    assert differ > 3


def _accepted(planned: Plan) -> bool:
    try:
        verify_plan(planned)
    except ProgramError:
        return False
    return True
