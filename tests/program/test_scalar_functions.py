"""Functions of the loop language on arrays: integers that wrap, floats at their limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from glowtrain.loops import FUNCTIONS
from glowtrain.loops.functions import ScalarFunction
from glowtrain.program.interpret import functions
from glowtrain.types import DTYPES, boolean, dtype_of, i8, i32, u8, u32


def apply(function: str, *arguments: Any, dtype: Any = i32) -> list[Any]:
    with np.errstate(all="ignore"):
        result = functions.apply(function, [np.asarray(a).astype(dtype.numpy) for a in arguments])
    return list(result.tolist())


def test_integer_arithmetic() -> None:
    a, b = [7, -7, 7, -7, 5], [2, 2, -2, -2, 0]
    assert apply("div", a, b) == [3, -3, -3, 3, 0]
    assert apply("mod", a, b) == [1, 1, -1, -1, 0]
    assert apply("fmod", a, b) == [1, -1, 1, -1, 0]
    assert apply("div", [-128], [-1], dtype=i8) == [-128]
    assert apply("pow", [2, -1, 1, 3, 2], [10, -3, -5, -1, 33]) == [1024, -1, 1, 0, 0]
    assert apply("shift_left", [1, 1], [31, 40]) == [-(1 << 31), 0]
    assert apply("shift_right", [-8, 8, -8], [1, 40, 40]) == [-4, 0, -1]
    assert apply("mulhi_u32", [0xFFFFFFFF], [0xFFFFFFFF], dtype=u32) == [0xFFFFFFFE]
    assert apply("add", [250], [10], dtype=u8) == [4]
    assert apply("not", [True, False], dtype=boolean) == [False, True]
    assert apply("not", [0, 5], dtype=u8) == [255, 250]


def test_float_functions_against_the_mathematical_ones() -> None:
    x = np.array([-3.0, -0.5, 0.25, 4.0])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(functions.apply("sigmoid", [x]), 1 / (1 + np.exp(-x)))
        np.testing.assert_allclose(functions.apply("softplus", [x]), np.log(1 + np.exp(x)))
        np.testing.assert_allclose(functions.apply("erf", [x]), [math.erf(v) for v in x])
        np.testing.assert_array_equal(functions.apply("round", [np.array([0.5, 1.5, -2.5])]), [0, 2, -2])
        np.testing.assert_array_equal(functions.apply("mod", [np.array([-7.0, 7.0]), np.array([3.0, -3.0])]), [2, -2])
        np.testing.assert_array_equal(functions.apply("fmod", [np.array([-7.0, 7.0]), np.array([3.0, -3.0])]), [-1, 1])
        assert np.isnan(functions.apply("max", [np.array([np.nan]), np.array([1.0])]))
        assert np.isnan(functions.apply("sigmoid", [np.array([np.nan])]))
        assert functions.apply("sigmoid", [np.array([-800.0])]) == 0.0


COMPUTED = [dtype for dtype in DTYPES.values() if not dtype.is_stored]


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_has_a_meaning_on_each_of_its_types(function: ScalarFunction) -> None:
    """Results have the operands' type, or are bool."""
    for dtype in function.types & set(COMPUTED):
        arguments = [np.ones(3, dtype.numpy) for _ in range(function.arity)]
        if function.name == "select":
            arguments[0] = np.array([True, False, True])
        with np.errstate(all="ignore"):
            result = function.on(arguments)
        assert dtype_of(result.dtype) == (boolean if function.predicate else dtype)
        assert result.shape == (3,)
