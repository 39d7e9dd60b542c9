"""Constants that index outside of what they index are found when compiling: code has no error for them."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import ShapeError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import OPERATORS, Graph, Input, Sample, Value, constant
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.types import Array, f32, type_of


def ranges(sample: Sample) -> dict[int, IndexRange]:
    types = [None if array is None else type_of(array) for array in sample.inputs]
    return {p: found for p, found in sample.operator.index_ranges(*types).items() if np.size(sample.inputs[p])}


def first_sample(key: str) -> Sample | None:
    """A sample of an operator that reads some index, if it is one."""
    samples = (OPERATORS[key].sample(ChoiceDraw(key, number)) for number in range(20))
    return next((sample for sample in samples if ranges(sample)), None)


SAMPLES = {key: sample for key in sorted(OPERATORS) if (sample := first_sample(key)) is not None}


def compiled(sample: Sample, position: int, index: Array) -> gt.compiler.Function:
    """The operator over floats that are inputs, and constants else, one of them the index."""
    inputs: list[Input] = []

    def operand(place: int, array: Array | None) -> Value | None:
        if array is None or place == position or array.dtype.kind != "f":
            given = index if place == position else array
            return None if given is None else constant(given.astype(f32.numpy) if given.dtype.kind == "f" else given)
        inputs.append(Input(f32[array.shape], f"x{place}"))
        return inputs[-1]

    result = sample.operator(*(operand(place, array) for place, array in enumerate(sample.inputs)))
    outputs = {f"y{n}": value for n, value in enumerate(result if isinstance(result, tuple) else (result,))}
    return gt.compile(Graph(tuple(inputs), outputs))


def test_there_are_such_operators() -> None:
    assert {"Gather", "ScatterND", "SoftmaxCrossEntropyLoss"} <= set(SAMPLES)


@pytest.mark.spread(4)
@pytest.mark.parametrize("key", SAMPLES)
def test_an_index_that_is_too_large(key: str) -> None:
    sample = SAMPLES[key]
    for position, allowed in ranges(sample).items():
        index = np.array(sample.inputs[position])
        compiled(sample, position, index)
        index.reshape(-1)[0] = (allowed.high if isinstance(allowed.high, int) else int(allowed.high[0])) + 1
        with pytest.raises(ShapeError, match=r"index \S+ at \[[0, ]*\] is (not in|outside)"):
            compiled(sample, position, index)


def test_an_index_that_folding_makes_known() -> None:
    x = Input(f32[4, 3], "x")
    place = constant(np.array([0, 2])) + constant(np.array([1, 2]))
    with pytest.raises(ShapeError, match=r"Gather\(f32\[4,3\], i64\[2\]\): index 4 at \[1\] is not in -4 to 3"):
        gt.compile(Graph((x,), {"y": OPERATORS["Gather"]()(x, place)}))
