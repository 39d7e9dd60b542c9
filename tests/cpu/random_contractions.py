"""Contractions of any loops, strides and clips, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, EpilogueClip, OperandAccess

ROLES = {
    "row": "ca",
    "column": "cb",
    "batch": "cab",
    "sum": "ab",
    "left": "a",
    "right": "b",
    "spread": "c",
    "scale": "",
}


def dense(extents: Sequence[int], order: Sequence[int], moved: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array with the axes ``moved`` laid out in ``order``, the last one contiguous; 0 for other loops."""
    strides, step = [0] * len(extents), 1
    for loop in reversed(order):
        if loop in moved:
            strides[loop], step = step, step * extents[loop]
    return tuple(strides)


@st.composite
def strided(draw: st.DrawFn, extents: Sequence[int], moved: Sequence[int], turn: bool) -> OperandAccess:
    """An array over the moved loops in any order, with gaps; some axes backwards if ``turn``."""
    order = draw(st.permutations(list(moved)))
    gap = draw(st.sampled_from([1, 1, 1, 2, 3]))
    strides = [stride * gap for stride in dense(extents, order, moved)]
    offset = draw(st.sampled_from([0, 0, 5]))
    for loop in moved:
        if turn and draw(st.integers(0, 4)) == 0:
            offset += strides[loop] * (extents[loop] - 1)
            strides[loop] = -strides[loop]
    return OperandAccess(offset, tuple(strides))


@st.composite
def clipped(draw: st.DrawFn, extents: Sequence[int], outputs: Sequence[int], sums: Sequence[int]) -> EpilogueClip:
    coefficients = [0] * len(extents)
    for loops in (outputs, sums):
        if loops and draw(st.integers(0, 7)) > 0:
            place = draw(st.integers(0, len(loops) - 1))
            coefficients[loops[place]] = draw(st.sampled_from([1, 1, 2, -1, 3, -2]))
    span = [coefficient * (extent - 1) for coefficient, extent in zip(coefficients, extents, strict=True)]
    low, high = sum(min(0, s) for s in span), sum(max(0, s) for s in span)
    cut = draw(st.integers(0, 3))
    return EpilogueClip(tuple(coefficients), -low - cut, max(1, high - low + 1 - cut - draw(st.integers(0, 3))))


@st.composite
def contractions(draw: st.DrawFn) -> Contraction:
    roles = draw(st.lists(st.sampled_from([*["row", "column", "sum"] * 3, *ROLES]), min_size=1, max_size=5))
    extents, room = [], 6000
    for _ in roles:
        extent = min(room, draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33, 40])))
        extents.append(extent)
        room = max(1, room // extent)
    moved = {x: [i for i, role in enumerate(roles) if x in ROLES[role]] for x in "cab"}
    accesses = {x: draw(strided(extents, moved[x], True)) for x in "cab"}
    sums = [i for i in range(len(roles)) if i not in moved["c"]]
    clips = draw(st.lists(clipped(extents, moved["c"], sums), max_size=2))
    names = tuple(f"{role[0]}{i}" for i, role in enumerate(roles))
    return Contraction(
        names, tuple(extents), accesses["c"], accesses["a"], accesses["b"], tuple(clips),
        draw(st.sampled_from(["f32", "f32", "f64"])), draw(st.booleans()),
        resident=(draw(st.booleans()), draw(st.booleans())),
    )  # fmt: skip
