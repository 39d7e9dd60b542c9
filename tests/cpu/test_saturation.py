"""Rounding that saturates, in few instructions: the numbers of the parts that it replaces, on every kind of target."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.loop_nest.saturation import LARGEST, Saturation, saturation
from glowtrain.backends.target import Target
from glowtrain.graph import Value, constant
from glowtrain.loops import Cast, Const, Expr, Ref, call, cast, select
from glowtrain.ops.quantized.convert import QuantizeLinear, limits
from glowtrain.types import DType, boolean, f8e4m3fn, f32, f64, i4, i8, i16, i32, u4, u8, u16
from tests.cpu.cpu_kernels import runnable

TARGETS = {target.name: target for target in [Target.host(), *runnable("avx2", "sse4", "scalar")]}
X = Ref(f32, "x")


def numbers(low: int, high: int) -> np.ndarray:
    """Numbers around both ends and zero with all ties, and what fits no integer."""
    near = np.concatenate([np.arange(-9, 9, 0.25) + end for end in (low, 0, high)])
    odd = [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 1e-40, -0.0, 0.49999997, 1.5 * 2**23]
    return np.concatenate([near, odd, np.random.default_rng(0).normal(0, 2.0 * high, 300)]).astype(np.float32)


@pytest.mark.spread(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [u8, i8, u16, i16, u4, i4], ids=str)
def test_every_number_rounds_as_in_the_interpreter(dtype: DType, target: str) -> None:
    low, high = limits(dtype)
    for zero in sorted({low, -5, 0, 1, high}):
        if not low <= zero <= high:
            continue
        x = numbers(low - zero, high - zero)

        @gt.model(x=f32[len(x)])
        def rounded(x: Value, zero: int = zero) -> Value:
            result: Value = QuantizeLinear()(x, constant(np.float32(1)), constant(np.array(zero, dtype.numpy)))
            return result

        expected = gt.compile(rounded, "interpreter")({"x": x})["output"]
        found = gt.compile(rounded, Cpu(TARGETS[target]))({"x": x})["output"]
        np.testing.assert_array_equal(found.astype(np.int32), expected.astype(np.int32), err_msg=f"zero {zero}")


def saturated(number: Expr, low: float = 0, high: float = 255, least: float | None = None, dtype: DType = u8) -> Cast:
    """What QuantizeLinear ends in."""
    found = cast(select(number > low, call("min", number, high), low if least is None else least), dtype)
    assert isinstance(found, Cast)
    return found


def test_what_is_recognised() -> None:
    rounded = call("round", X)
    assert saturation(saturated(rounded)) == Saturation(X, 0, 0, 255)
    assert saturation(saturated(rounded + 3.0, 3, 200)) == Saturation(X, 3, 3, 200)
    assert saturation(saturated(rounded + cast(Const(-7, i8), f32), -128, 127, dtype=i8)) == Saturation(
        X, -7, -128, 127
    )


@pytest.mark.parametrize(
    "expr",
    [
        saturated(call("floor", X)),
        saturated(call("round", X) * 2.0),
        saturated(call("round", X) + 0.5),
        saturated(call("round", X) + X),
        saturated(call("round", X), least=1),
        saturated(call("round", X), high=254.5),
        saturated(call("round", X) + 2.0 * LARGEST),
        saturated(call("round", X), high=300),
        saturated(call("round", X), low=-5),
        saturated(call("round", X), low=10, high=5),
        saturated(call("round", X), low=-8, high=8, dtype=i4),
        saturated(call("round", X), high=1, dtype=boolean),
        saturated(call("round", X), high=7, dtype=f8e4m3fn),
        saturated(call("round", X), dtype=i32),
        saturated(call("round", X), dtype=f64),
        saturated(call("round", Ref(f64, "y"))),
        cast(call("round", X), u8),
    ],
    ids=[
        "floor",
        "factor",
        "half",
        "variable",
        "least",
        "bound",
        "large",
        "above",
        "below",
        "turned",
        "small",
        "bool",
        "f8",
        "i32",
        "float",
        "f64",
        "bare",
    ],
)
def test_what_is_left_as_it_is(expr: Expr) -> None:
    assert isinstance(expr, Cast)
    assert saturation(expr) is None
