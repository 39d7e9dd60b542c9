"""Contractions of small integers: the same bits as NumPy's 64-bit integers, on every target.

Instructions that this processor lacks are replaced by functions that compute the same with plain vectors, so that
everything around them runs here; the real text is compiled for its target.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from glowtrain.backends.cpu.contraction import (
    Axis,
    Contraction,
    ContractionKernel,
    EpilogueClip,
    Operand,
    OperandAccess,
    generate,
)
from glowtrain.backends.cpu.contraction.dot import dot_of
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build, compile_text
from glowtrain.backends.llvm.values import LlvmValue, vector, zero
from glowtrain.backends.target import MATRICES, Target
from tests.cpu.contraction_kernels import addresses, inside, pieces
from tests.cpu.emulated_matrices import emulated
from tests.cpu.native_program import Pages
from tests.cpu.random_contractions import contractions

Array = NDArray[Any]
TARGETS = ("host", "avx2", "sse4", "scalar", "neon", "avx512", "avx512vnni", "avxvnni", "neon-dot", "avx512amx")
HOST = Target.host()
UNTOUCHED = 12345
SIGNS = (("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i8", "u8"))
USED = {
    "avx2": "avx2.pmadd.wd", "sse4": "sse2.pmadd.wd", "avx512": "avx512.pmaddw.d.512", "avxvnni": "vpdpbusd.256",
    "avx512vnni": "vpdpbusd.512", "neon-dot": "dot.v4i32",
}  # fmt: skip
LIMITS = {"u8": (0, 255), "i8": (-128, 127), "i16": (-32768, 32767), "u16": (0, 65535), "i32": (-(2**31), 2**31 - 1)}


@dataclass(frozen=True)
class Emulated:
    """What a target's instruction computes."""

    lanes: int
    group: int
    bits: int
    extend: tuple[str, str]
    adds: bool

    def text(self, name: str) -> str:
        """A function of the same meaning made of plain vector instructions."""
        total, word = vector("i32", self.lanes), vector(f"i{self.bits}", self.lanes * self.group)
        wide = vector("i32", self.lanes * self.group)
        params = ([(total.text, "t")] if self.adds else []) + [(word.text, "a"), (word.text, "b")]
        f = LlvmFunction(name, params, linkage="internal", result=total.text)
        a, b = (f.cast(how, LlvmValue(f"%{x}", word), wide) for how, x in zip(self.extend, "ab", strict=True))
        products = f.op("mul", a, b)
        result = LlvmValue("%t", total) if self.adds else zero(total)
        for at in range(self.group):
            result = f.op("add", result, f.shuffle(products, None, range(at, self.lanes * self.group, self.group)))
        return f.finish(result)


INSTRUCTIONS = {
    "llvm.x86.avx512.vpdpbusd.512": Emulated(16, 4, 8, ("zext", "sext"), adds=True),
    "llvm.x86.avx512.vpdpbusd.256": Emulated(8, 4, 8, ("zext", "sext"), adds=True),
    "llvm.x86.avx512.pmaddw.d.512": Emulated(16, 2, 16, ("sext", "sext"), adds=False),
    "llvm.aarch64.neon.sdot.v4i32.v16i8": Emulated(4, 4, 8, ("sext", "sext"), adds=True),
    "llvm.aarch64.neon.udot.v4i32.v16i8": Emulated(4, 4, 8, ("zext", "zext"), adds=True),
    "llvm.aarch64.neon.usdot.v4i32.v16i8": Emulated(4, 4, 8, ("zext", "sext"), adds=True),
}


def here(text: str, target: Target) -> tuple[str, Target]:
    """Text and target that run on this processor."""
    if target.runs_here:
        return text, target
    if MATRICES in target.families:
        text = emulated(text)
    used = set(re.findall(r"@(llvm\.(?:x86|aarch64)\.[\w.]+)\(", text))
    for name in used & set(INSTRUCTIONS):
        text = text.replace(f"@{name}(", f"@emulated.{name}(") + INSTRUCTIONS[name].text(f"emulated.{name}")
    registers = replace(HOST, vector_bits=target.vector_bits, vector_registers=target.vector_registers)
    return text, registers


def values(contraction: Contraction, at: int, buffer: Array) -> Array:
    """An operand at every index of the nest, with what is read outside of it."""
    assert contraction.operands is not None
    operand, access = contraction.operands[at], (contraction.a, contraction.b)[at]
    places, keep = addresses(access, contraction.extents), np.full(contraction.extents, True)
    for axis in operand.axes:
        subscript = addresses(OperandAccess(axis.offset, axis.coefficients), contraction.extents)
        keep &= (subscript >= axis.low) & (subscript < axis.high)
    return np.where(keep, buffer[np.where(keep, places, 0)], operand.fill).astype(np.int64)


def random(dtype: str, count: int, how: str, rng: np.random.Generator, *, small: bool = False) -> Array:
    """Numbers of all sizes, or the extreme ones; ``small``: of magnitudes up to 64."""
    low, high = (-64, 64) if small else LIMITS[dtype]
    kind = np.dtype({"u": "uint", "i": "int"}[dtype[0]] + dtype[1:])
    if how == "extreme":
        return rng.choice([low, low, high, high, 0], count).astype(kind)
    if how in ("low", "high"):
        return np.full(count, low if how == "low" else high, kind)
    return rng.integers(low, high + 1, count).astype(kind)


def sizes(contraction: Contraction, keep: Array | None = None) -> tuple[int, int]:
    """Elements of the buffers of A and B: no more than there are, so that what is read behind them shows."""
    assert contraction.operands is not None
    found = []
    for operand, access in zip(contraction.operands, (contraction.a, contraction.b), strict=True):
        if operand.axes:
            found.append(1 + sum((axis.high - 1) * axis.stride for axis in operand.axes))
        else:
            places = addresses(access, contraction.extents)
            found.append(int((places if keep is None else places[keep]).max(initial=0)) + 1)
    return found[0], found[1]


def guarded(array: Array) -> tuple[Array, Pages]:
    """A copy of an array that ends before a page that must not be touched, and what holds its memory."""
    pages = Pages([array.nbytes])
    piece = pages.pieces[0].view(array.dtype)
    piece[:] = array
    return piece, pages


class Built:
    """The generated function of a contraction, made to run here."""

    def __init__(self, contraction: Contraction, target: Target) -> None:
        self.contraction, self.kernel = contraction, generate(contraction, "contract", target)
        text, runs = here(self.kernel.text, target)
        self.function = build(text, runs, ["contract"]).function("contract", 6)

    def run(self, a: Array, b: Array) -> Array:
        """C, from one range of tasks after another; nothing outside of A, B and the workspace is touched."""
        operands, size = [a, b], self.kernel.workspace
        if self.kernel.packed is not None:
            at, packing = self.kernel.packed
            operands[at] = packing.apply(operands[at])
        held = [guarded(operand) for operand in operands]
        result = np.full(int(addresses(self.contraction.c, self.contraction.extents).max()) + 9, UNTOUCHED, np.int32)
        for begin, end in pieces(self.kernel.work.tasks):
            raw = np.full(size + 128, 0xA5, np.uint8)
            start = -raw.ctypes.data % 64
            arrays = (result, held[0][0], held[1][0], raw[start:])
            self.function(*(array.ctypes.data for array in arrays), begin, end)
            assert np.all(raw[start + size :] == 0xA5), "a store behind the workspace"
        return result


def expected(contraction: Contraction, a: Array, b: Array) -> tuple[Array, Array]:
    """The sums, wrapped around to i32, and the places of C in one order."""
    products = values(contraction, 0, a) * values(contraction, 1, b)
    sums = tuple(i for i, stride in enumerate(contraction.c.strides) if not stride)
    total = products.sum(sums).astype(np.uint64).astype(np.uint32).view(np.int32)
    places = addresses(contraction.c, contraction.extents)
    return total, places[tuple(0 if i in sums else slice(None) for i in range(places.ndim))]


def check(contraction: Contraction, target: Target, *hows: str) -> ContractionKernel:
    """The function computes the sums of numbers of each kind."""
    built, types, rng = Built(contraction, target), contraction.types, np.random.default_rng(0)
    turned = {"low": "high", "high": "low"} if types["a"] != types["b"] else {}
    for how in hows:
        assert contraction.operands is not None
        small = [operand.small for operand in contraction.operands]
        sides = zip("ab", sizes(contraction), (how, turned.get(how, how)), small, strict=True)
        a, b = (random(types[side], count, kind, rng, small=few) for side, count, kind, few in sides)
        total, places = expected(contraction, a, b)
        result = built.run(a, b)
        wanted = np.full_like(result, UNTOUCHED)
        wanted[places] = total
        np.testing.assert_array_equal(result, wanted, err_msg=f"{how} {built.kernel.plan} {contraction}")
    return built.kernel


def matmul(m: int, n: int, k: int, form: str = "NN", types: str = "u8 i8", **options: Any) -> Contraction:
    """C[m, n] = A[m, k] B[k, n], with A stored as [k, m] for T?, B as [n, k] for ?T."""
    names = types.split()
    row, column, both = (1, 0, 0), (0, 1, 0), (0, 0, 1)
    left = ((row, m), (both, k)) if form[0] == "N" else ((both, k), (row, m))
    right = ((both, k), (column, n)) if form[1] == "N" else ((column, n), (both, k))
    axes = [
        (Axis(outer, 0, 0, first, second), Axis(inner, 0, 0, second, 1))
        for (outer, first), (inner, second) in (left, right)
    ]
    a = (k, 0, 1) if form[0] == "N" else (1, 0, m)
    b = (0, 1, n) if form[1] == "N" else (0, k, 1)
    constant = options.pop("constant", False)
    operands = Operand(names[0], axes[0]), Operand(names[1], axes[1], constant=constant)
    return Contraction(
        ("m", "n", "k"),
        (m, n, k),
        OperandAccess(0, (n, 1, 0)),
        OperandAccess(0, a),
        OperandAccess(0, b),
        (),
        "i32",
        operands=operands,
        **options,
    )


def convolution(
    n: int, y: int, x: int, i: int, o: int, k: int, *, stride: int = 1, pad: int = 1, dilation: int = 1,
    order: str = "last", weights: str = "last", types: str = "u8 i8", fill: int = 0, constant: bool = True,
    turned: bool = False,
) -> Contraction:  # fmt: skip
    """A 2-d convolution with its image and result channels last or first, weights [kh, kw, i, o] or [o, i, kh, kw]."""
    s, d = stride, dilation
    h, w = ((e - 1) * s + (k - 1) * d + 1 - 2 * pad for e in (y, x))
    names = types.split()
    image = (h * w * i, w * i, i, 1) if order == "last" else (i * h * w, w, 1, h * w)
    result = (y * x * o, x * o, o, 1) if order == "last" else (o * y * x, x, 1, y * x)
    kernel = (0, 0, 0, 1, o, k * i * o, i * o) if weights == "last" else (0, 0, 0, i * k * k, k * k, k, 1)
    axes = (
        Axis((1, 0, 0, 0, 0, 0, 0), 0, 0, n, image[0]), Axis((0, s, 0, 0, 0, d, 0), -pad, 0, h, image[1]),
        Axis((0, 0, s, 0, 0, 0, d), -pad, 0, w, image[2]), Axis((0, 0, 0, 0, 1, 0, 0), 0, 0, i, image[3]),
    )  # fmt: skip
    places = tuple(tuple(int(at == loop) for at in range(7)) for loop in (3, 4, 5, 6))
    shape = dict(zip(places, (o, i, k, k), strict=True))
    of_weights = tuple(Axis(place, 0, 0, shape[place], kernel[place.index(1)]) for place in places)
    moves = image[0], s * image[1], s * image[2], 0, image[3], d * image[1], d * image[2]
    a = OperandAccess(-pad * (image[1] + image[2]), moves)
    clips = tuple(EpilogueClip(axis.coefficients, axis.offset, axis.high) for axis in axes[1:3]) if pad else ()
    operands = Operand(names[0], axes, fill), Operand(names[1], of_weights, constant=constant)
    accesses = a, OperandAccess(0, kernel)
    if turned:
        operands, accesses = operands[::-1], accesses[::-1]
    return Contraction(
        ("n", "y", "x", "o", "i", "kh", "kw"), (n, y, x, o, i, k, k), OperandAccess(0, (*result, 0, 0, 0)), *accesses,
        clips, "i32", operands=operands,
    )  # fmt: skip


def depthwise(n: int, y: int, c: int, k: int, *, stride: int = 1, types: str = "u8 i8", fill: int = 0) -> Contraction:
    """A padded convolution of each channel by itself, channels last."""
    pad, s, names = k // 2, stride, types.split()
    h = (y - 1) * s + k - 2 * pad
    axes = (
        Axis((1, 0, 0, 0, 0, 0), 0, 0, n, h * h * c), Axis((0, s, 0, 0, 1, 0), -pad, 0, h, h * c),
        Axis((0, 0, s, 0, 0, 1), -pad, 0, h, c), Axis((0, 0, 0, 1, 0, 0), 0, 0, c, 1),
    )  # fmt: skip
    image = OperandAccess(-pad * (h * c + c), (h * h * c, s * h * c, s * c, 1, h * c, c))
    clips = tuple(EpilogueClip(axis.coefficients, axis.offset, axis.high) for axis in axes[1:3])
    operands = Operand(names[0], axes, fill), Operand(names[1], constant=True)
    return Contraction(
        ("n", "y", "x", "c", "kh", "kw"), (n, y, y, c, k, k), OperandAccess(0, (y * y * c, y * c, c, 1, 0, 0)), image,
        OperandAccess(0, (0, 0, 0, 1, k * c, c)), clips, "i32", operands=operands,
    )  # fmt: skip


def batched(types: str = "u8 i8") -> Contraction:
    """Products of as many pairs of matrices, the second one transposed."""
    a, b = types.split()
    left = Axis((1, 0, 0, 0), 0, 0, 3, 460), Axis((0, 1, 0, 0), 0, 0, 20, 23), Axis((0, 0, 0, 1), 0, 0, 23, 1)
    right = Axis((1, 0, 0, 0), 0, 0, 3, 483), Axis((0, 0, 1, 0), 0, 0, 21, 23), Axis((0, 0, 0, 1), 0, 0, 23, 1)
    return Contraction(
        ("b", "q", "k", "d"), (3, 20, 21, 23), OperandAccess(0, (420, 21, 1, 0)), OperandAccess(0, (460, 23, 0, 1)),
        OperandAccess(0, (483, 0, 23, 1)), (), "i32", operands=(Operand(a, left), Operand(b, right)),
    )  # fmt: skip


SHAPES = {
    **{f"matmul {form}": matmul(19, 21, 23, form) for form in ("NN", "NT", "TN", "TT")},
    **{f"matmul constant {form}": matmul(9, 37, 30, form, constant=True) for form in ("NN", "NT", "TN")},
    "matmul few rows": matmul(2, 40, 33),
    "vector matrix": matmul(1, 33, 70, constant=True),
    "matrix vector": matmul(33, 1, 70),
    "dot": matmul(1, 1, 131),
    "outer": matmul(9, 19, 1),
    "batched": batched(),
    "conv": convolution(2, 5, 6, 8, 24, 3),
    "conv fill": convolution(1, 5, 6, 7, 9, 3, fill=77),
    "conv first": convolution(1, 6, 5, 3, 16, 7, stride=2, pad=3, fill=5, order="last", weights="first"),
    "conv dilated": convolution(1, 5, 6, 4, 8, 3, dilation=2, pad=2, constant=False),
    "conv channels first": convolution(1, 5, 9, 4, 6, 3, order="first", fill=3),
    "conv of channels first": convolution(1, 5, 9, 4, 12, 3, weights="first", turned=True),
    "conv 1x1": convolution(1, 4, 5, 24, 17, 1, pad=0),
    "conv 1x1 stride 2": convolution(2, 3, 4, 20, 16, 1, stride=2, pad=0, weights="first"),
    "conv dynamic": convolution(1, 5, 4, 5, 16, 3, pad=0, constant=False),
    "depthwise": depthwise(1, 6, 20, 3),
    "depthwise fill": depthwise(1, 5, 19, 3, stride=2, fill=100),
}  # fmt: skip


def typed(contraction: Contraction, *types: str) -> Contraction:
    assert contraction.operands is not None
    a, b = (replace(x, dtype=t) for x, t in zip(contraction.operands, types, strict=True))
    return replace(contraction, operands=(a, b))


@pytest.mark.spread(13)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes(shape: str, name: str) -> None:
    """Every shape with every pair of signs on some target, and all targets with each instruction."""
    turn = sorted(SHAPES).index(shape) + TARGETS.index(name)
    for pair in (SIGNS[turn % 4], SIGNS[(turn + 1) % 4]):
        check(typed(SHAPES[shape], *pair), Target.named(name), "any", "extreme")


@pytest.mark.spread(13)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("signs", SIGNS)
def test_extremes(signs: tuple[str, str], name: str) -> None:
    """Sums of 255 x -128 and the like, which saturate where products of neighbours are added in 16 bits."""
    for shape in (matmul(9, 18, 700, constant=True), matmul(9, 18, 31, "NT"), convolution(1, 4, 4, 6, 9, 3, fill=1)):
        check(typed(shape, *signs), Target.named(name), "low", "high", "extreme")


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", ["host", "sse4", "scalar", "avx512vnni"])
@pytest.mark.parametrize("types", [("i16", "i16"), ("u8", "i16"), ("i16", "i8"), ("u16", "i8"), ("i32", "i32")])
def test_wider_types(types: tuple[str, str], name: str) -> None:
    """Sums wrap around, also that of two products -32768 x -32768."""
    for shape in (matmul(9, 18, 31), matmul(9, 18, 30, "NT", constant=True), convolution(1, 4, 4, 3, 9, 3)):
        check(typed(shape, *types), Target.named(name), "low", "extreme", "any")


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), signs=st.sampled_from(SIGNS), constant=st.booleans(), name=st.sampled_from(TARGETS))
def test_random(contraction: Contraction, signs: tuple[str, str], constant: bool, name: str) -> None:
    """Contractions of any strides, of whose axes nothing is known."""
    operands = Operand(signs[0]), Operand(signs[1], constant=constant)
    found = replace(contraction, dtype="i32", accumulate=False, operands=operands)
    built = Built(found, Target.named(name))
    rng, keep = np.random.default_rng(0), inside(found)
    a, b = (random(sign, count, "any", rng) for sign, count in zip(signs, sizes(found, keep), strict=True))
    left, right = (np.where(keep, addresses(x, found.extents), 0) for x in (found.a, found.b))
    products = np.where(keep, a[left].astype(np.int64) * b[right], 0)
    wanted = np.full_like(built.run(a, b), UNTOUCHED)
    places = addresses(found.c, found.extents)
    wanted[places] = 0
    np.add.at(wanted, places, products)
    np.testing.assert_array_equal(built.run(a, b), wanted, err_msg=built.kernel.plan)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "instruction"), USED.items())
def test_instructions(name: str, instruction: str) -> None:
    """Products and convolutions use the target's instruction, and the real text compiles for it."""
    for shape in ("matmul NN", "matmul constant NN", "conv", "conv first", "conv fill", "batched"):
        for signs in SIGNS:
            text = generate(typed(SHAPES[shape], *signs), "contract", Target.named(name)).text
            assert instruction in text
            compile_text(text, Target.named(name))


@pytest.mark.parametrize("name", ["avx2", "avx512vnni", "sse4"])
@pytest.mark.parametrize("signs", [("u8", "i8"), ("i8", "i8")])
def test_small_weights(signs: tuple[str, str], name: str) -> None:
    """Weights of seven bits: sums of two products stay within 16 bits, so AVX2 multiplies four bytes at a time."""
    shapes = matmul(9, 18, 701, constant=True), convolution(1, 4, 4, 6, 9, 3, fill=1), depthwise(1, 5, 19, 3)
    for shape in shapes:
        found = typed(shape, *signs)
        assert found.operands is not None
        found = replace(found, operands=(found.operands[0], replace(found.operands[1], small=True)))
        check(found, Target.named(name), "any", "low", "high", "extreme")
        assert ("pmadd.ub.sw" in generate(found, "contract", Target.named(name)).text) is (name == "avx2")


def test_mixed_signs_without_their_instruction() -> None:
    """Arm processors with products of four bytes, but of one signedness only."""
    target = replace(Target.named("neon-dot"), name="dotprod", families=frozenset({"dotprod"}))
    for signs in SIGNS:
        assert dot_of(target, *signs) is not None
        check(matmul(9, 18, 31, types=" ".join(signs)), target, "any", "low", "high")


@pytest.mark.parametrize("operands", [("f32", "i8"), ("i8", "i64")])
def test_refused(operands: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="products of"):
        typed(matmul(2, 3, 4), *operands)
