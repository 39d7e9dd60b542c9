"""Packing of intervals: valid, between the bound and best fit, optimal where every packing can be tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import ProgramError
from glowtrain.loops import Buffer, For, Load, Store, indices_of
from glowtrain.program.memory import packing, packing_search
from glowtrain.program.memory import plan as planning
from glowtrain.program.memory.packing import Packed, best_fit, pack, peak, plainly_exceeds
from glowtrain.program.memory.packing_search import Item, OutOfSteps, StepBudget, search
from glowtrain.program.memory.plan import plan, smallest
from glowtrain.program.memory.trace import trace
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.program import Kernel, Program
from glowtrain.types import f32

ENOUGH = 1 << 20
"""StepBudget that no search over a few items uses up."""

RESNET_V2 = (
    (0, 1, 6), (1, 3, 6), (3, 5, 32), (7, 8, 8), (8, 10, 8), (5, 12, 8), (12, 13, 32), (15, 16, 32), (16, 18, 8),
    (18, 20, 8), (10, 21, 32), (23, 24, 32), (24, 26, 8), (26, 28, 8), (20, 29, 32), (31, 32, 16), (32, 34, 4),
    (28, 36, 32), (36, 37, 16),
)  # fmt: skip
"""Lifetimes like those of the first layers of ResNet-50 v2 in inference, which no order packs best."""

HIGHER_THAN_ITS_PEAK = (
    (0, 0, 3), (1, 1, 2), (0, 3, 2), (2, 3, 1), (1, 4, 1), (4, 4, 3), (2, 5, 1), (5, 5, 4),
)  # fmt: skip
"""Sums of sizes alive together are at most 5, and no packing is lower than 6."""


def items(most: int, times: int = 12, size: int = 9) -> st.SearchStrategy[list[Item]]:
    """Lifetimes of all lengths."""
    ends = st.tuples(st.integers(0, times), st.integers(0, times)).map(sorted)
    one = st.builds(lambda ends, size: Item(ends[0], ends[1], size), ends, st.integers(1, size))
    return st.lists(one, min_size=1, max_size=most)


def random_items(seed: int, count: int, times: int) -> list[Item]:
    """Many short lifetimes and a few long ones, of sizes in several orders of magnitude."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, times, count)
    last = np.minimum(first + rng.geometric(4 / times, count), times)
    return [Item(int(a), int(b), int(2**s)) for a, b, s in zip(first, last, rng.uniform(0, 8, count), strict=True)]


def together(a: Item, b: Item) -> bool:
    return a.first <= b.last and b.first <= a.last


def problems(lives: Sequence[Item], packed: Packed) -> list[str]:
    """What is wrong with a packing, pair by pair."""
    ranges = [(at, at + item.size) for at, item in zip(packed.offsets, lives, strict=True)]
    found = [
        f"{i} and {j}"
        for i, j in itertools.combinations(range(len(lives)), 2)
        if together(lives[i], lives[j]) and ranges[i][0] < ranges[j][1] and ranges[j][0] < ranges[i][1]
    ]
    found += [f"{i} begins below" for i, (begin, _) in enumerate(ranges) if begin < 0]
    return found + [f"height {packed.height}"] * (packed.height != max(end for _, end in ranges))


def lowest_of_all(lives: Sequence[Item]) -> int:
    """The lowest height there is: some order, with every item as low as those before it let it, reaches it."""
    best = sum(item.size for item in lives)
    for order in itertools.permutations(lives):
        tops: list[tuple[Item, int]] = []
        for item in order:
            at = max((top for other, top in tops if together(item, other)), default=0)
            tops.append((item, at + item.size))
        best = min(best, max(top for _, top in tops))
    return best


@given(items(40, times=30, size=50))
def test_a_packing_is_valid_and_between_the_bound_and_best_fit(lives: list[Item]) -> None:
    packed = pack(lives, 300)
    assert not problems(lives, packed)
    assert peak(lives) <= packed.bound <= packed.height <= best_fit(lives, 0).height


@given(items(6, times=7))
def test_a_packing_of_few_items_is_the_lowest(lives: list[Item]) -> None:
    packed = pack(lives, ENOUGH)
    assert packed.height == packed.bound == lowest_of_all(lives)


@given(items(6, times=7), st.integers(1, 40))
def test_a_search_finds_offsets_exactly_where_there_are_some(lives: list[Item], capacity: int) -> None:
    offsets = search(lives, capacity, StepBudget(ENOUGH))
    assert (offsets is not None) == (lowest_of_all(lives) <= capacity)
    if offsets is not None:
        height = max(at + item.size for at, item in zip(offsets, lives, strict=True))
        assert height <= capacity
        assert not problems(lives, Packed(tuple(offsets), height, 0))


@pytest.mark.parametrize("seed", range(8))
def test_the_search_improves_on_best_fit(seed: int) -> None:
    lives = random_items(seed, 60, 40)
    packed, first = pack(lives), best_fit(lives, peak(lives))
    assert not problems(lives, packed)
    assert packed.height == peak(lives) <= first.height


def test_what_no_order_packs_best_is_packed_into_the_bound() -> None:
    lives = [Item(*numbers) for numbers in RESNET_V2]
    assert best_fit(lives, peak(lives)).height > peak(lives) == 72
    packed = pack(lives)
    assert not problems(lives, packed)
    assert packed.height == packed.bound == 72


def test_a_height_that_nothing_fits_into_raises_the_bound() -> None:
    """Five are alive together at most; that nothing fits into five, two searches say that share no code."""
    lives = [Item(*numbers) for numbers in HIGHER_THAN_ITS_PEAK]
    packed = pack(lives, ENOUGH)
    assert peak(lives) == 5
    assert packed.height == packed.bound == lowest_of_all(lives) == 6
    assert search(lives, 5, StepBudget(ENOUGH)) is None


def test_a_height_that_is_enough_is_tried_once_the_bound_is_given_up() -> None:
    """With steps for one of the heights halfway only; what is enough lies elsewhere."""
    lives = random_items(21, 120, 60)
    bound, first = peak(lives), best_fit(lives, peak(lives)).height
    assert first > bound + 8
    tried = list[int]()

    def recorded(items: Sequence[Item], capacity: int, steps: StepBudget) -> None:
        tried.append(capacity)
        steps.take(steps.left + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "search", recorded)
        pack(lives, 2, bound + 3)
        pack(lives, 3, first + 1)
    assert tried[:2] == [bound, bound + 3]
    assert tried[2:4] == [bound, (bound + 1 + first - 1) // 2]


def test_no_items_and_one() -> None:
    assert pack([]) == Packed((), 0, 0)
    assert pack([Item(3, 5, 7)]) == Packed((0,), 7, 7)


def test_a_search_counts_the_pairs_that_it_compares() -> None:
    """A thousand items of which each is alive with the next fall apart into ever smaller groups, one after another."""
    lives = [Item(t, t + 1, 1 + t % 3) for t in range(1000)]
    with pytest.raises(OutOfSteps):
        search(lives, peak(lives), StepBudget(1000))


def test_steps_end_a_search_and_best_fit_remains() -> None:
    lives = [Item(*numbers) for numbers in RESNET_V2]
    with pytest.raises(OutOfSteps):
        search(lives, 72, StepBudget(3))
    first = best_fit(lives, peak(lives))
    assert pack(lives, 0) == pack(lives, 3) == first
    steps = StepBudget(ENOUGH)
    search(lives, 72, steps)
    assert steps.left >= ENOUGH - 2 * len(lives)


def test_a_packing_is_the_same_each_time() -> None:
    lives = random_items(3, 60, 40)
    assert pack(lives) == pack(lives)


def test_a_search_goes_deeper_than_pythons_stack() -> None:
    lives = [Item(0, 0, 1)] * 1500
    offsets = search(lives, 1500, StepBudget(ENOUGH))
    assert offsets is not None
    assert sorted(offsets) == list(range(1500))


def program_of(lives: Sequence[Item]) -> Program:
    """A kernel for each time, which reads what was alive before and writes what begins; sizes are lines of bytes."""
    times = range(max(item.last for item in lives) + 1)
    buffers = [Buffer(f"t{i}", f32[16 * item.size], "activation") for i, item in enumerate(lives)]
    x, y = Buffer("x", f32[1], "input"), Buffer("y", f32[len(times)], "output")
    kernels = []
    for t in times:
        (i,) = indices_of((1,))
        alive = [b for b, item in zip(buffers, lives, strict=True) if item.first < t <= item.last]
        total = Load(x, (i,))
        for buffer in alive:
            total = total + Load(buffer, (i,))
        begun = [b for b, item in zip(buffers, lives, strict=True) if item.first == t]
        body = [For((i,), (*(Store(b, (i,), total) for b in begun), Store(y, (i + t,), total)))]
        kernels.append(Kernel(f"k{t}", tuple(body)))
    return Program("lives", {"x": x}, {"y": y}, {}, tuple(kernels))


def test_the_plan_takes_the_packing_and_its_verifier_agrees() -> None:
    lives = [Item(*numbers) for numbers in RESNET_V2]
    planned = plan(program_of(lives))
    verify_plan(planned)
    assert planned.arena == 64 * 72 < 64 * best_fit(lives, 72).height


@given(items(6, times=7), st.integers(1, 40))
def test_what_plainly_exceeds_a_capacity_has_no_packing_within_it(lives: list[Item], capacity: int) -> None:
    assert plainly_exceeds(lives, capacity) == (lowest_of_all(lives) > capacity)


@given(st.lists(items(7, times=7), min_size=1, max_size=4))
def test_the_smallest_of_several_programs_is_the_first_with_the_smallest_arena(all_lives: list[list[Item]]) -> None:
    programs = [program_of(lives) for lives in (*all_lives, [Item(*numbers) for numbers in HIGHER_THAN_ITS_PEAK])]
    assert smallest(programs) is min(programs, key=lambda program: plan(program).arena)


def test_no_search_is_made_for_what_is_plainly_not_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peak is that of the other one, which has it as its height; that it is higher, its largest items say."""
    higher, flat = (program_of([Item(*n) for n in every]) for every in (HIGHER_THAN_ITS_PEAK, [(0, 5, 5)]))
    monkeypatch.setattr(planning, "plan", None)
    assert smallest([higher, flat]) is flat


def test_a_trace_says_when_each_activation_is_alive_and_fits_into_the_arena() -> None:
    lives = [Item(*numbers) for numbers in RESNET_V2]
    planned = plan(program_of(lives))
    header, *lines = [line.split(",") for line in trace(planned).splitlines()]
    assert header == ["id", "lower", "upper", "size"]
    known = {f"t{i}": [item.first, item.last + 1, 64 * item.size] for i, item in enumerate(lives)}
    assert {name: [int(number) for number in numbers] for name, *numbers in lines} == known
    assert [int(line[1]) for line in lines] == sorted(item.first for item in lives)


def test_a_trace_rounds_sizes_up_to_the_alignment() -> None:
    x, y, t = Buffer("x", f32[3], "input"), Buffer("y", f32[3], "output"), Buffer("t", f32[3], "activation")
    (i,) = indices_of((3,))
    kernels = [Kernel(b.name, (For((i,), (Store(b, (i,), Load(a, (i,)) * 2),)),)) for a, b in ((x, t), (t, y))]
    program = Program("p", {"x": x}, {"y": y}, {}, tuple(kernels))
    assert trace(plan(program)) == "id,lower,upper,size\nt,0,2,64\n"
    assert trace(plan(program, 8)) == "id,lower,upper,size\nt,0,2,16\n"


def test_a_search_that_lets_items_overlap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a placement that does not lift what is alive beside it."""
    lives = [Item(*numbers) for numbers in RESNET_V2]
    program = program_of(lives)
    place = packing_search._Part.place

    def wrong(part: packing_search._Part, item: int, offset: int) -> packing_search.Ints:
        before = place(part, item, offset)
        part.lowest[part.together[item]] = before
        return before

    monkeypatch.setattr(packing_search._Part, "place", wrong)
    assert problems(lives, pack(lives))
    with pytest.raises(ProgramError, match="share memory but both are alive"):
        verify_plan(plan(program))
