"""Blocks of an operand that are transposed in registers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from glowtrain.backends.cpu.contraction.copies.pack import TransposeTile, transpose_text
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import I64, vector
from glowtrain.backends.target import Target

TARGETS = {16: Target.host(), 8: Target.named("avx2"), 4: Target.named("sse4")}
TYPES = {"f32": np.float32, "i8": np.int8, "u8": np.uint8}
UNTOUCHED = 7


@pytest.mark.parametrize("width", TARGETS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("padded", [False, True])
def test_squares_are_transposed(width: int, dtype: str, padded: bool, random: np.random.Generator) -> None:
    """Whole ones, and those with fewer rows or columns, of floats and of bytes that become floats."""
    for high, wide in ((width, width), (1, width), (width - 1, width - 1), (width, 1), (3, 2)):
        source = random.integers(0, 100, (high, wide)).astype(TYPES[dtype])
        text = transpose_text("square", TransposeTile(dtype, high, wide, padded), vector("float", width), I64)
        library = build(text.replace("define internal", "define"), TARGETS[width], ["square"])
        target = np.full((wide, width), UNTOUCHED, np.float32)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(library.address("square"))
        call(target.ctypes.data, source.ctypes.data, wide, width)
        expected = np.full((wide, width), 0 if padded else UNTOUCHED, np.float32)
        expected[:, :high] = source.T
        np.testing.assert_array_equal(target, expected)


def test_a_large_square_is_written_once_for_all_strips() -> None:
    """LLVM takes long for shuffles of shuffles; those of a strip are a fifth of those of a whole tile."""
    text = transpose_text("square", TransposeTile("f32", 16, 16, False), vector("float", 16), I64)
    assert text.count("shufflevector") <= 20
