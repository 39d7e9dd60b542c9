"""Kernels that run one piece of emitted code over arrays, for the tests of the CPU backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import I64, LlvmValue, pointer
from glowtrain.backends.target import Target
from glowtrain.types import DTYPES

Array = NDArray[Any]
Body = Callable[[LlvmFunction, list[LlvmValue]], LlvmValue]


def elementwise_text(body: Body, inputs: Sequence[str], output: str, width: int, target: Target) -> str:
    """``void @kernel(in0, in1, …, out, count)``: ``width`` lanes at a time; ``count`` points to an i64."""
    pointers = [f"in{i}" for i in range(len(inputs))]
    f = LlvmFunction("kernel", [("ptr noalias", name) for name in [*pointers, "out", "count"]])
    count = f.load(I64, pointer("%count"), 8)
    with f.loop(count, step=width) as loop:
        args = []
        for name, dtype in zip(pointers, inputs, strict=True):
            address = f.address(pointer(f"%{name}"), loop.index, scalar.SIZE[dtype])
            args.append(scalar.load(f, address, dtype, width, target))
        address = f.address(pointer("%out"), loop.index, scalar.SIZE[output])
        scalar.store(f, body(f, args), address, output, target)
    return f.finish()


def run(body: Body, arrays: Sequence[Array], dtypes: Sequence[str], output: str, width: int, target: Target) -> Array:
    """Run ``body`` over the arrays, padded to whole vectors with their first element."""
    length = len(arrays[0])
    padded = [np.concatenate([a, np.repeat(a[:1], -length % width)]) for a in arrays]
    out = np.zeros(len(padded[0]), DTYPES[output].numpy)
    count = np.array([len(padded[0])], np.int64)
    text = elementwise_text(body, dtypes, output, width, target)
    kernel = build(text, target, ["kernel"]).function("kernel", len(arrays) + 2)
    kernel(*(a.ctypes.data for a in padded), out.ctypes.data, count.ctypes.data)
    return out[:length]


def apply(name: str, arrays: Sequence[Array], dtype: str, width: int, target: Target) -> Array:
    """One scalar function over arrays of ``dtype`` (``select`` takes bool first)."""
    dtypes = ["bool", dtype, dtype] if name == "select" else [dtype] * len(arrays)

    def body(f: LlvmFunction, args: list[LlvmValue]) -> LlvmValue:
        return scalar.apply(f, name, args, dtype, target)

    return run(body, arrays, dtypes, scalar.result_dtype(name, dtype), width, target)


def same(a: Array, b: Array) -> Array:
    """Where two arrays have the same bits; any NaN equals any NaN."""
    raw = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    with np.errstate(invalid="ignore"):
        nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return np.asarray(nan | (a.view(raw[a.itemsize]) == b.view(raw[b.itemsize])))


def runnable(*names: str) -> list[Target]:
    """Those of the named targets whose code this processor executes."""
    return [target for target in map(Target.named, names) if target.runs_here]
