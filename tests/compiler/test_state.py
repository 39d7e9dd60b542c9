"""Variables' memory: in one piece, aligned, rearranged in place, and no more of it than is written to."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
import pytest

from glowtrain.backends.state import ALIGNMENT, LARGE_PAGE, State, address_of
from glowtrain.errors import InputError
from glowtrain.types import Array, LazyArray, type_of

ARRAYS: dict[str, Array] = {
    "matrix": np.arange(15, dtype=np.float32).reshape(3, 5),
    "nothing": np.zeros((0, 4), np.float32),
    "scalar": np.array(7, np.int64),
    "slot": np.broadcast_to(np.zeros((), np.float32), (4, 9)),
    "ones": np.broadcast_to(np.ones((), np.float32), (4, 9)),
    "bytes": np.arange(7, dtype=np.uint8),
    "minus zeros": np.broadcast_to(np.full((), -0.0, np.float32), (3,)),
}


def same(state: State, name: str, expected: Array) -> bool:
    found = state.read(name)
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_variables_lie_beside_each_other_and_are_aligned(large: bool) -> None:
    arrays = {**ARRAYS, **({"large": np.ones(LARGE_PAGE // 8)} if large else {})}
    state = State(arrays)
    assert all(same(state, name, array) for name, array in arrays.items())
    stored = {name: state.storage(name, tuple(range(array.ndim))) for name, array in arrays.items()}
    starts = [address_of(array) for array in stored.values() if array.size]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] < sum(array.nbytes for array in arrays.values()) + ALIGNMENT * len(arrays)
    assert not large or starts[0] % LARGE_PAGE == 0


def test_no_variable_reaches_into_the_next() -> None:
    state = State(ARRAYS)
    for name, array in ARRAYS.items():
        state.write(name, np.ones(array.shape, array.dtype))
        state.write(name, array)
    assert all(same(state, name, array) for name, array in ARRAYS.items())


def test_another_order_of_axes_takes_the_same_memory() -> None:
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    state = State({"before": ARRAYS["matrix"], "cube": cube, "behind": ARRAYS["bytes"]})
    start, moves = address_of(state.storage("cube", (0, 1, 2))), state.moves
    for layout in ((2, 0, 1), (1, 2, 0), (0, 1, 2)):
        stored = state.storage("cube", layout)
        assert np.array_equal(stored, np.transpose(cube, layout))
        assert (address_of(stored), stored.flags.c_contiguous) == (start, True)
        assert same(state, "cube", cube)
        moves += 1
        assert state.moves == moves
    assert same(state, "before", ARRAYS["matrix"])
    assert same(state, "behind", ARRAYS["bytes"])


def test_what_is_added_leaves_the_others_where_they_are() -> None:
    state = State({"matrix": ARRAYS["matrix"]})
    start = address_of(state.storage("matrix", (0, 1)))
    state.storage("matrix", (1, 0))
    state.add({"matrix": np.zeros((3, 5), np.float32), "bytes": ARRAYS["bytes"]})
    assert same(state, "matrix", ARRAYS["matrix"])
    assert same(state, "bytes", ARRAYS["bytes"])
    assert address_of(state.storage("matrix", (0, 1))) == start
    for other in (np.zeros((5, 3), np.float32), np.zeros((3, 5))):
        with pytest.raises(InputError, match=r"variable matrix is .* in the state"):
            state.add({"bytes": ARRAYS["bytes"], "matrix": other})


def test_initial_values_are_made_one_at_a_time() -> None:
    """A large model's are not all there twice."""
    made = list[weakref.ref[Array]]()

    def make(number: int) -> Array:
        assert all(before() is None for before in made)
        array = np.full(4, number, np.float32)
        made.append(weakref.ref(array))
        return array

    type_ = type_of(np.zeros(4, np.float32))
    state = State({str(number): LazyArray(type_, partial(make, number)) for number in range(4)})
    assert [state.read(str(number))[0] for number in range(4)] == [0, 1, 2, 3]
