"""Runs in a row by the native driver: what the same runs give one by one, to the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.base import Batches, one_by_one
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.backends.state import State
from glowtrain.compiler.service import build
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Input, Variable
from glowtrain.ops.elementwise.arithmetic import Div
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.stages import DEFAULT
from glowtrain.types import DType

ROWS = 3


def summing(dtype: DType = gt.f32) -> Graph:
    """A step that adds what it gets to a variable, with outputs of several shapes; its watched one is infinite where
    the divisor is 0."""
    x, divisor = Input(dtype[ROWS, 5], "x"), Input(dtype[1], "divisor")
    scale, label = Input(dtype[()], "scale"), Input(gt.i64[ROWS], "label")
    total = Variable("total", np.ones((ROWS, 5), dtype.numpy))
    new = total + x * scale
    outputs = {
        "sum": ReduceSum(axes=None, keepdims=False)(Div()(new, divisor)),
        "new": new,
        "label": label + 1,
        "odd": gt.nn.reshape(x, (5, ROWS))[:, 1],
        "empty": x[:, 2:2],
    }
    return Graph((x, divisor, scale, label), outputs, {total: new}, "summing")


def bound(graph: Graph, threads: int = 1) -> NativeInstance:
    backend = Cpu(threads=1) if threads == 1 else Cpu().for_checks(threads)
    state = State({variable.name: variable.initial for variable in graph.variables})
    made = build(graph, backend, DEFAULT).bind(state)
    assert isinstance(made, NativeInstance)
    return made


def batches(count: int, dtype: DType = gt.f32, seed: int = 0) -> Batches:
    random = np.random.default_rng(seed)
    rows = {
        "x": random.normal(size=(count * ROWS, 5)).astype(dtype.numpy),
        "divisor": np.ones(count, dtype.numpy),
        "label": random.integers(0, 9, count * ROWS),
    }
    return Batches(count, rows, {"scale": np.asarray(0.5, dtype.numpy)}, "sum")


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        (array.dtype, array.shape, array.tobytes())
        == (expected[name].dtype, expected[name].shape, expected[name].tobytes())
        for name, array in found.items()
    )


SMALL = {threads: (bound(summing(), threads), bound(summing(), threads)) for threads in (1, 2)}


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    bad=st.none() | st.integers(0, 19),
    value=st.sampled_from([0.0, np.nan]),
    threads=st.sampled_from([1, 2]),
)
def test_runs_in_a_row_and_one_by_one(counts: list[int], bad: int | None, value: float, threads: int) -> None:
    """Calls of any lengths on the same instance, with a single run in between; a bad one ends its call."""
    driven, single = SMALL[threads]
    for call, count in enumerate(counts):
        given = batches(count, seed=call)
        if bad is not None and bad < count:
            given.rows["divisor"][bad] = value
        found = driven.run_many(given)
        assert same(found, one_by_one(single.run, given))
        assert len(found["sum"]) == (count if bad is None or bad >= count else bad + 1)
        assert same(driven.run(given[0]), single.run(given[0]))
        assert driven.state.read("total").tobytes() == single.state.read("total").tobytes()


@pytest.mark.parametrize("dtype", [gt.f16, gt.bf16, gt.f32, gt.f64], ids=str)
def test_every_float_type_can_be_watched(dtype: DType) -> None:
    driven, single = bound(summing(dtype)), bound(summing(dtype))
    for bad in (0, 4, 6):
        given = batches(7, dtype, seed=bad)
        given.rows["divisor"][bad] = 0
        found = driven.run_many(given)
        assert same(found, one_by_one(single.run, given))
        assert len(found["sum"]) == bad + 1


@pytest.mark.parametrize("dtype", [gt.f16, gt.bf16, gt.f32, gt.f64], ids=str)
def test_all_bits_of_the_exponent_are_set_in_what_is_not_finite(dtype: DType) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 256, (20_000, dtype.size), np.uint8).view(dtype.numpy)
    special = np.array([[0.0], [-0.0], [np.inf], [-np.inf], [np.nan]], dtype.numpy)
    bits = np.zeros((len(values) + len(special), 8), np.uint8)
    bits[:, : dtype.size] = np.concatenate([values, special]).view(np.uint8)
    mask = dtype.exponent
    found = (bits.view(np.int64)[:, 0] & mask) == mask
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(np.concatenate([values, special])[:, 0])
    assert (found == ~finite).all()
    assert 0 < found.sum() < len(bits)


def test_an_error_ends_a_row_before_it_or_is_raised() -> None:
    """So what has run is counted, and what goes on from there meets the error first."""
    single = bound(summing())

    def failing(inputs: Any) -> dict[str, np.ndarray]:
        if inputs["divisor"][0] == 7:
            raise InputError("no")
        return single.run(inputs)

    given = batches(5)
    given.rows["divisor"][3] = 7
    assert len(one_by_one(failing, given)["sum"]) == 3
    given.rows["divisor"][0] = 7
    with pytest.raises(InputError, match="no"):
        one_by_one(failing, given)


# --- through functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["interpreter", "evaluator", "cpu"])
def test_functions_check_what_all_runs_are_given(backend: str) -> None:
    @gt.model(x=gt.f32["n", 4], pick=gt.i64["m"])
    def model(x: gt.Value, pick: gt.Value) -> dict[str, gt.Value]:
        return {"peak": gt.nn.mean(Gather(axis=0)(x, pick))}

    function = gt.compile(model, backend)
    x, pick = np.arange(48, dtype=np.float32).reshape(12, 4), np.array([0, 1, 2, 2, 3, 0])

    def call(**changed: Any) -> dict[str, np.ndarray]:
        return function.run_many(Batches(3, {"x": x, "pick": pick, **changed}, {}, "peak"))

    expected = [function({"x": x[4 * k : 4 * k + 4], "pick": pick[2 * k : 2 * k + 2]})["peak"] for k in range(3)]
    assert call()["peak"].tolist() == [float(value) for value in expected]
    turned = np.asfortranarray(x)
    assert call(x=turned)["peak"].tolist() == call()["peak"].tolist()
    for wrong, message in (
        ({"pick": np.array([0, 1, 2, 2, 4, 0])}, r"'pick' must hold numbers from -4 to 3 .* has 4 at \[0\]"),
        ({"pick": pick.astype(np.int32)}, r"'pick' must be i64\[2\], not int32\[2\]"),
        ({"x": x.astype(np.float64)}, r"'x' must be f32\[4,4\], not float64"),
    ):
        with pytest.raises(InputError, match=message):
            call(**wrong)
