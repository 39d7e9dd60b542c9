"""Kernels of contractions run over arrays, beside the sum written out in NumPy, in float64, index by index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from glowtrain.backends.cpu.contraction import Contraction, OperandAccess, generate
from glowtrain.backends.cpu.epilogue import CacheLine, Coordinates
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, Number, number, pointer, zero
from glowtrain.backends.target import Target

_SERVER = Target.named("avx512")
WIDTHS = {
    "512": replace(Target.host(), vector_bits=512, vector_registers=32, l1=_SERVER.l1, l2=_SERVER.l2),
    "256": Target.named("avx2"),
    "128": Target.named("sse4"),
    "scalar": Target.named("scalar"),
}
AVX2 = Target.named("avx2")
FUSED = {
    "512": WIDTHS["512"],
    "256": AVX2,
    "128": replace(AVX2, vector_bits=128, vector_registers=32, families=frozenset(), l1=4 << 10, l2=16 << 10),
    "scalar": WIDTHS["scalar"],
}
"""Targets of all widths of vectors with fused multiply-add; one has small caches."""

UNTOUCHED = 12345.0
TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8}


def addresses(access: OperandAccess, extents: Sequence[int]) -> np.ndarray:
    """The element address at every index of the nest."""
    total = np.full(tuple(extents), access.offset)
    for grid, stride in zip(np.indices(tuple(extents), sparse=True), access.strides, strict=True):
        total = total + grid * stride
    return total


def inside(contraction: Contraction) -> np.ndarray:
    """Which products count."""
    keep = np.full(contraction.extents, True)
    for clip in contraction.clips:
        value = addresses(OperandAccess(clip.offset, clip.coefficients), contraction.extents)
        keep &= (value >= 0) & (value < clip.extent)
    return keep


@dataclass
class Buffers:
    """Operands; what no valid index touches is NaN in A and B, so that a read of it shows (in bytes there is none)."""

    contraction: Contraction
    a: np.ndarray = field(init=False)
    b: np.ndarray = field(init=False)
    c: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        contraction, rng = self.contraction, np.random.default_rng(0)
        keep, dtype = inside(contraction), TYPES[contraction.dtype]
        for name in "ab":
            places = addresses(getattr(contraction, name), contraction.extents)[keep]
            buffer = np.full(places.max(initial=0) + 1, np.nan, dtype)
            buffer[places] = rng.standard_normal(len(buffer))[places]
            stored = contraction.types[name]
            if stored in ("i8", "u8"):
                low, high = (-128, 128) if stored == "i8" else (0, 256)
                buffer = rng.integers(low, high, len(buffer)).astype(TYPES[stored])
            setattr(self, name, buffer)
        places = addresses(contraction.c, contraction.extents)
        self.c = np.full(places.max() + 9, UNTOUCHED, dtype)
        if contraction.accumulate:
            self.c[places] = rng.standard_normal(len(self.c))[places]

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """C by definition, and the sum of magnitudes as the scale of rounding errors."""
        contraction, keep = self.contraction, inside(self.contraction)
        a, b, c = (addresses(x, contraction.extents) for x in (contraction.a, contraction.b, contraction.c))
        products = self.a[a[keep]].astype(np.float64) * self.b[b[keep]]
        result, scale = self.c.astype(np.float64), np.abs(self.c).astype(np.float64)
        if not contraction.accumulate:
            result[c], scale[c] = 0, 0
        np.add.at(result, c[keep], products)
        np.add.at(scale, c[keep], np.abs(products))
        return result, scale


def execute(
    contraction: Contraction, target: Target, buffers: Buffers, epilogue: Bias | None = None, *more: np.ndarray
) -> np.ndarray:
    """C after all tasks, which has the same bits after some ranges of them, each with a workspace of its own."""
    kernel = generate(contraction, "contract", target, epilogue)
    function = build(kernel.text, target, ["contract"]).function("contract", 6 + len(more))
    operands = [buffers.a, buffers.b]
    if kernel.packed is not None:
        at, packing = kernel.packed
        operands[at] = packing.apply(operands[at])
    found = []
    for ranges in ([(0, kernel.work.tasks)], pieces(kernel.work.tasks)):
        result = buffers.c.copy()
        for begin, end in ranges:
            workspace = np.full(kernel.workspace // 4 + 64, np.nan, np.float32)
            arrays = (result, *operands, *more, workspace)
            function(*(array.ctypes.data for array in arrays), begin, end)
        found.append(result)
    np.testing.assert_array_equal(*(result.view(np.uint8) for result in found), err_msg=kernel.plan)
    return found[0]


def pieces(tasks: int) -> list[tuple[int, int]]:
    """Uneven ranges, the last ones first."""
    edges = sorted({0, tasks // 7, tasks // 2, tasks - tasks // 5, tasks})
    return list(pairwise(edges))[::-1]


def check(contraction: Contraction, target: Target) -> None:
    buffers = Buffers(contraction)
    expected, scale = buffers.expected()
    result = execute(contraction, target, buffers)
    terms = math.prod(e for e, s in zip(contraction.extents, contraction.c.strides, strict=True) if s == 0)
    tolerance = np.finfo(result.dtype).eps * (terms + 4)
    assert np.all(np.abs(result - expected) <= tolerance * scale + 1e-30), contraction


def check_bits(contraction: Contraction) -> None:
    """All targets give the same bits: those of one order, whatever they block, pack and keep in registers."""
    buffers = Buffers(contraction)
    found = {name: execute(contraction, target, buffers).tobytes() for name, target in FUSED.items()}
    assert not [name for name in found if found[name] != found["scalar"]], contraction


@dataclass(frozen=True)
class Bias:
    """max(value + bias[loop], 0) + 1000 * residual at the address of C."""

    loop: int
    access: OperandAccess
    instructions: int = 1
    params: tuple[tuple[str, str], ...] = (("ptr noalias", "bias"), ("ptr noalias", "residual"))

    def length(self, lane: int, width: int) -> int:
        return self.instructions

    def cache_lines(
        self, f: LlvmFunction, where: Callable[[], Coordinates], lane: int, min_bytes: int
    ) -> list[CacheLine]:
        """None: what it reads is small."""
        return []

    def emit(
        self, f: LlvmFunction, value: LlvmValue, coordinates: Sequence[Number], lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        kind = value.type
        bias = self._read(f, "%bias", f.index(coordinates[self.loop]), kind, int(self.loop == lane), mask)
        place = f.index(self.access.offset)
        for coordinate, stride in zip(coordinates, self.access.strides, strict=True):
            place = f.op("add", place, f.op("mul", f.index(coordinate), stride))
        residual = self._read(f, "%residual", place, kind, self.access.strides[lane] if lane >= 0 else 0, mask)
        total = f.intrinsic("maxnum", f.op("fadd", value, bias), number(0.0, kind))
        return f.op("fadd", total, f.op("fmul", residual, number(1000.0, kind)))

    def _read(
        self, f: LlvmFunction, base: str, place: LlvmValue, kind: LlvmType, lane: int, mask: LlvmValue | None
    ) -> LlvmValue:
        value, flags = zero(kind), None if mask is None else mask.text.split(",")
        lanes = [at for at in range(kind.width) if flags is None or flags[at].rstrip(">").endswith("true")]
        for at in lanes:
            one = f.load(kind.one, f.address(pointer(base), f.op("add", place, lane * at), 4))
            value = one if kind.width == 1 else f.insert(value, one, at)
        return value


def check_epilogue(contraction: Contraction, loop: int, target: Target, length: int) -> None:
    buffers, rng = Buffers(contraction), np.random.default_rng(1)
    bias = rng.standard_normal(contraction.extents[loop]).astype(np.float32)
    residual = rng.integers(-9, 9, len(buffers.c)).astype(np.float32)
    expected, scale = buffers.expected()
    places = addresses(contraction.c, contraction.extents)
    shape = [1] * places.ndim
    shape[loop] = -1
    of_place = np.zeros(len(expected))
    of_place[places] = bias.reshape(shape)
    touched = np.zeros(len(expected), bool)
    touched[places] = True
    expected = np.where(touched, np.maximum(expected + of_place, 0) + 1000 * residual, expected)
    result = execute(contraction, target, buffers, Bias(loop, contraction.c, length), bias, residual)
    assert np.all(np.abs(result - expected) <= 1e-5 * (scale + np.abs(expected)) + 1e-6), contraction
