"""What is dropped from random programs: near the best choice, the same results to the bit; mistakes are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import ProgramError
from glowtrain.loops import Buffer, Expr, For, Index, Load
from glowtrain.memory.budget import SMALLEST, Budget
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse
from glowtrain.program.passes import reuse as reusing
from glowtrain.program.passes.loop_fusion.fuse_pair import Limits
from glowtrain.program.passes.rematerialisation import rematerialize as passes
from glowtrain.program.passes.rematerialisation.holes import Drop
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX, Recomputation
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.rematerialisation.timeline import Timeline
from glowtrain.program.passes.reuse import ReuseOperands, reuse
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.passes.slices import groups, slicing
from glowtrain.program.passes.slices.slicing import slices_in
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.program.verify import verify
from tests.program.recomputed_programs import bits, programs, programs_of_rows, random_text

Given = Callable[[], Iterator[tuple[Program, dict[str, np.ndarray]]]]

# --- how good the choice is


def least_peak(instructions: tuple[Instruction, ...], dropped: tuple[Choice, ...] = ()) -> int:
    """The smallest peak that any sequence of drops leads to: everything is tried. Each is made by the same moves."""
    timeline = Timeline(instructions)
    for choice in dropped:
        timeline.apply(next(drop for drop in all_drops(timeline) if choice_of(drop) == choice))
    known = {choice_of(drop) for drop in all_drops(timeline)}
    return min([timeline.peak, *(least_peak(instructions, (*dropped, choice)) for choice in known)])


Choice = tuple[str, int, int]


def choice_of(drop: Drop) -> Choice:
    return drop.holes[0].buffer.name, drop.holes[0].begin, drop.holes[0].end


def all_drops(timeline: Timeline) -> list[Drop]:
    """Those that lower the peak without raising another place to it."""
    position = int(timeline.live.argmax())
    drops = timeline.drops(position, 1)
    return [drop for drop in drops if drop.frees(position) > 0 and timeline.raises_to(drop) < timeline.peak]


@pytest.mark.exhaustive
def test_greedy_choices_come_near_the_best_ones() -> None:
    """On small programs, against all sequences of drops in one round, without kernels that compute what they read."""
    ratios = []
    for seed in range(25):
        program = parse(random_text(seed, kernels=4))
        greedy = Rematerialize(SMALLEST).run(program)
        best = least_peak(program.instructions)
        ratios.append(peak_bytes(reuse(greedy.instructions)) / best)
    assert len([ratio for ratio in ratios if ratio <= 1.02]) >= 21
    assert sum(ratios) / len(ratios) < 1.0
    assert max(ratios) <= 1.2


def best_of_all(self: passes._Dropping, position: int, least: int) -> Drop | None:
    """The drop of the highest rate, and the first of several, by looking at each."""
    drops = [(self._rate(drop, position), drop) for drop in self.timeline.drops(position, least)]
    possible = [(rate, drop) for rate, drop in drops if rate > 0 and self._can_be(drop)]
    return max(possible, key=lambda each: each[0])[1] if possible else None


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", [SMALLEST, Budget(0.25, modest=False), Budget(0.02, modest=False)], ids=str)
def test_bounds_leave_out_no_drop_that_is_the_best(monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    every = [program for program, _ in (*islice(programs(), 12), *islice(programs_of_rows(), 3))]
    how = Rematerialize(budget, limits=Limits(sums=gt.Cpu().facts.sums))
    found = [str(how.run(program)) for program in every]
    monkeypatch.setattr(passes._Dropping, "_best_drop", best_of_all)
    assert [str(how.run(program)) for program in every] == found
    assert sum(SUFFIX in text for text in found) > 5


def differing(change: passes.Rematerialize | ReuseOperands, given: Given = programs) -> int:
    """The programs that a pass breaks: refused by a verifier, or with other results."""
    count = 0
    for program, feeds in given():
        changed = change.run(program)
        try:
            verify(changed)
            verify_plan(plan(changed))
        except ProgramError:
            count += 1
            continue
        count += bits(changed, feeds) != bits(program, feeds)
    return count


@pytest.mark.exhaustive
def test_random_programs_are_changed_and_keep_their_results() -> None:
    assert differing(Rematerialize(SMALLEST)) == 0
    assert differing(ReuseOperands()) == 0
    again = [Rematerialize(SMALLEST).run(program) for program, _ in programs()]
    assert sum(any(b.name.endswith(SUFFIX) for b in program.buffers) for program in again) > 20
    fewer = [peak_bytes(reuse(p.instructions)) < peak_bytes(p.instructions) for p, _ in programs()]
    assert sum(fewer) > 5


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> Rematerialize:
    """With slices that are worth it for a few bytes."""
    monkeypatch.setattr(slicing, "WORK", 0.0)
    monkeypatch.setattr(slicing, "CALL", 0.0)
    return Rematerialize(SMALLEST, limits=Limits(sums=gt.Cpu().facts.sums))


@pytest.mark.exhaustive
def test_groups_in_slices_with_copies_among_them_keep_their_results(in_slices: Rematerialize) -> None:
    assert differing(in_slices, programs_of_rows) == 0
    found = [in_slices.run(program) for program, _ in programs_of_rows()]
    sliced = [program for program in found if any(True for _ in slices_in(program))]
    assert len(sliced) > 8
    assert sum(any(b.name.endswith(SUFFIX) for b in program.buffers) for program in sliced) > 4


@pytest.mark.exhaustive
def test_kernels_that_read_across_slices_are_seen(in_slices: Rematerialize, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the subscripts are, a kernel is taken to go along the rows of all that it touches."""

    def first(instruction: Instruction, buffer: Buffer, axis: int) -> Index | None:
        match instruction.nests:
            case (For(indices=indices),) if axis == 0 and indices[0].extent == buffer.shape[0]:
                return indices[0]
        return None

    monkeypatch.setattr(groups, "loop_index", first)
    assert differing(in_slices, programs_of_rows) > 0


UPDATED = """program p
  input  x: f32[64]
  output y: f32[64]
  variable v: f32[64]
  activation a: f32[64]
  activation b: f32[64]
  activation c: f32[64]
kernel first:
  for i<64: a[i] = x[i] * v[i]
kernel second:
  for i<64: b[i] = a[i] + 1
kernel third:
  for i<64: c[i] = b[63 - i] * x[i]
kernel update:
  for i<64: v[i] = c[63 - i]
kernel last:
  for i<64: y[i] = a[i] + c[i]
"""


def test_a_copy_that_would_read_an_updated_variable_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(UPDATED)
    feeds, state = {"x": np.arange(64, dtype=np.float32)}, {"v": np.full(64, 2, np.float32)}
    wanted = evaluate(program, feeds, state)[0]["y"]
    assert np.array_equal(evaluate(Rematerialize(SMALLEST).run(program), feeds, state)[0]["y"], wanted)
    monkeypatch.setattr(Timeline, "unchanged", lambda *_: True)
    wrong = Rematerialize(SMALLEST).run(program)
    assert any(f"first{SUFFIX}" in kernel.name for kernel in wrong.instructions)
    assert not np.array_equal(evaluate(wrong, feeds, state)[0]["y"], wanted)


@pytest.mark.exhaustive
def test_a_result_in_place_of_elements_that_are_still_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reusing, "same_element", lambda *_: True)
    assert differing(ReuseOperands()) > 0


@pytest.mark.exhaustive
def test_a_copy_at_other_subscripts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by one: what is made again reads the neighbours of what it read the first time."""
    copied = Recomputation.copy

    def beside(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load) or expr.buffer.shape != (64,):
            return None
        return Load(expr.buffer, ((expr.index[0] + 1) % 64,))

    def wrong(self: Recomputation, taken: dict[Buffer, Buffer]) -> list[Kernel]:
        return [kernel.rewritten(beside) for kernel in copied(self, taken)]

    monkeypatch.setattr(Recomputation, "copy", wrong)
    assert differing(Rematerialize(SMALLEST)) > 30


@pytest.mark.exhaustive
def test_a_kernel_that_overwrites_what_it_reads_is_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "_runs_twice", lambda self, position: self.instructions[position].kernel is not None)
    assert differing(Rematerialize(SMALLEST)) > 0
