"""Stored types in native code: every code of every type, and f32 numbers at and beside every rounding boundary."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.llvm import scalar, small_formats
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, vector
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError
from glowtrain.loops import FUNCTIONS
from glowtrain.program.interpret.functions import convert
from glowtrain.types import DTYPES, Array
from tests.cpu import cpu_kernels

HOST = Target.named("host")
WIDE = ("f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool")


def codes(dtype: str) -> Array:
    bits = small_formats.INTEGERS[dtype][0] if dtype in small_formats.INTEGERS else {"f4": 4, "f6": 6}.get(dtype[:2], 8)
    return np.arange(1 << bits, dtype=np.uint8).view(DTYPES[dtype].numpy)


def boundaries(dtype: str) -> Array:
    """Every number of the type, the middles between neighbours, what lies beside both, and special values."""
    numbers = codes(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = (numbers[1:].astype(np.float64) + numbers[:-1]) / 2
    places = np.concatenate([numbers, middles.astype(np.float32), [numbers[-1] * np.float32(1.5)]]).astype(np.float32)
    beside = [np.nextafter(places, np.float32(s) * np.float32(np.inf)) for s in (-1, 1)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 3e-45, 1e10], np.float32)
    return np.concatenate([places, *beside, special])


def cast(x: Array, source: str, to: str, target: Target = HOST) -> Array:
    width = max(4, target.width(source))
    return cpu_kernels.run(
        lambda f, args: scalar.cast(f, args[0], source, to, target), [x], [source], to, width, target
    )


def same(a: Array, b: Array) -> bool:
    """Equal bytes, where NaN is NaN."""
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(np.all(nan | (a.view(np.uint8).reshape(len(a), -1) == b.view(np.uint8).reshape(len(b), -1)).all(-1)))


@pytest.mark.parametrize("target", [HOST, *cpu_kernels.runnable("generic")], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", small_formats.STORED)
def test_narrowing_at_every_boundary(dtype: str, target: Target) -> None:
    x = boundaries(dtype)
    with np.errstate(all="ignore"):
        wanted = x.astype(DTYPES[dtype].numpy)
        assert cast(x, "f32", dtype, target).view(np.uint8).tolist() == wanted.view(np.uint8).tolist()


@pytest.mark.parametrize("dtype", small_formats.STORED)
@pytest.mark.parametrize("to", WIDE)
def test_widening_of_every_code(dtype: str, to: str) -> None:
    x = codes(dtype)
    with np.errstate(all="ignore"):
        assert same(cast(x, dtype, to), convert(x, DTYPES[to]))
        if to in ("f64", "f32", "f16", "bf16"):
            assert same(cast(x, dtype, to), x.astype(DTYPES[to].numpy))


@pytest.mark.parametrize("dtype", small_formats.STORED)
@pytest.mark.parametrize("source", WIDE)
def test_narrowing_of_other_types(dtype: str, source: str) -> None:
    numbers = np.array([0, 1, 2, 3, 5, 9, 30, 100, 200, 255, 0.5, 1.75], np.float64)
    x = numbers.astype(DTYPES[source].numpy)
    with np.errstate(all="ignore"):
        wanted = convert(x, DTYPES[dtype])
        assert same(cast(x, source, dtype), wanted)
        if source in ("f32", "i32"):
            assert wanted.view(np.uint8).tolist() == x.astype(DTYPES[dtype].numpy).view(np.uint8).tolist()


@pytest.mark.parametrize(("source", "to"), [("f8e5m2", "f8e4m3fn"), ("i4", "f8e5m2"), ("f8e4m3fn", "i4"), ("u4", "i2")])
def test_from_one_stored_type_to_another(source: str, to: str) -> None:
    x = codes(source)
    with np.errstate(all="ignore"):
        assert same(cast(x, source, to), convert(x, DTYPES[to]))


@pytest.mark.parametrize("dtype", small_formats.STORED)
def test_nothing_is_computed(dtype: str) -> None:
    assert [name for name in FUNCTIONS if scalar.supports(name, dtype)] == ["select"]
    x = LlvmValue("%x", vector("i8", 8))
    with pytest.raises(CodegenError, match=f"'add'.*{dtype}"):
        scalar.apply(LlvmFunction("kernel", []), "add", [x, x], dtype, HOST)
