"""Kernels of integers in programs: recognised, with what is made of the sums, constants in the form that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from glowtrain.backends.cpu.recognise import is_small, recognise
from glowtrain.backends.target import Target
from glowtrain.loops import Buffer, Expr, For, Index, Let, Load, Ref, Statement, Store, call, cast, indices_of, reduce
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Instruction, Kernel, Program, Repeat
from glowtrain.program.verify import verify
from glowtrain.types import Array, DType, TensorType, boolean, f16, f32, f64, i8, i32, i64, u8
from tests.cpu.cpu_kernels import runnable
from tests.cpu.native_program import Native
from tests.cpu.nests import program as program_of

TARGETS = {target.name: target for target in [Target.host(), *runnable("avx2", "sse4", "scalar")]}
Fuse = Callable[[Expr, Sequence[Expr], Buffer], list[Statement]]


def known(name: str, dtype: DType, *shape: int, layout: tuple[int, ...] = ()) -> Buffer:
    """A constant of random numbers."""
    rng = np.random.default_rng(len(name) + sum(shape))
    if dtype.is_float:
        return Buffer(
            name, TensorType(dtype, shape), "constant", layout, rng.uniform(1e-4, 3e-3, shape).astype(dtype.numpy)
        )
    info = np.iinfo(dtype.numpy)
    low, high = max(info.min, -3000), min(info.max, 3000)
    return Buffer(
        name, TensorType(dtype, shape), "constant", layout, rng.integers(low, high + 1, shape).astype(dtype.numpy)
    )


def requantized(total: Expr, at: Sequence[Expr], y: Buffer) -> list[Statement]:
    """Bias, scale of each channel, zero point, to nearest even, saturated."""
    bias, scale = known("bias", i32, y.shape[-1]), known("scale", f32, y.shape[-1])
    real = cast(total + Load(bias, (at[-1],)), f32) * Load(scale, (at[-1],))
    whole = call("round", real) + 3.0
    low, high = (0, 255) if y.dtype == u8 else (-128, 127)
    return [Store(y, tuple(at), cast(call("min", call("max", whole, float(low)), float(high)), y.dtype))]


def several(total: Expr, at: Sequence[Expr], y: Buffer) -> list[Statement]:
    """Bytes of an even look, and what they are made of as floats in another layout and as 64-bit integers."""
    name = Ref(i32, "sum")
    real = Buffer("real", y.type.with_dtype(f32), "output", tuple(reversed(range(y.type.rank))))
    wide = Buffer("wide", y.type.with_dtype(i64), "output")
    return [
        Let(name, total),
        Store(real, tuple(at), cast(name, f32) * 0.5),
        Store(wide, tuple(at), cast(name, i64) * 3),
        *requantized(name, at, y),
    ]


def plain(total: Expr, at: Sequence[Expr], y: Buffer) -> list[Statement]:
    return [Store(y, tuple(at), total)]


def converted(total: Expr, at: Sequence[Expr], y: Buffer) -> list[Statement]:
    """Halves, doubles (wider than sums), or whether a sum is large."""
    value = call("gt", total, 1000) if y.dtype == boolean else cast(total, f32) * 0.001
    return [Store(y, tuple(at), cast(value, y.dtype))]


FUSES: dict[str, tuple[DType, Fuse]] = {
    "sums": (i32, plain), "bytes": (u8, requantized), "signed": (i8, requantized), "several": (u8, several),
    "halves": (f16, converted), "doubles": (f64, converted), "large": (boolean, converted),
}  # fmt: skip


def matmul(m: int, n: int, k: int, fuse: str, w: Buffer, types: tuple[DType, DType], x: str = "x") -> Kernel:
    """y[i, j] = what is made of sum over r of x[i, r] w[r, j]."""
    dtype, body = FUSES[fuse]
    a, y = Buffer(x, TensorType(types[0], (m, k)), "input"), Buffer("y", TensorType(dtype, (m, n)), "output")
    i, j = indices_of((m, n))
    total = reduce("add", (k,), lambda r: cast(Load(a, (i, r)), i32) * cast(Load(w, (r, j)), i32))
    return Kernel("matmul", (For((i, j), tuple(body(total, (i, j), y))),))


def convolution(fuse: str, *, pad: int, fill: int, stride: int, groups: int, layout: tuple[int, ...]) -> Kernel:
    """y[n, t, o], of an image x[n, t, c] whose channels fall into groups, and a constant w[o, c, k]."""
    dtype, body = FUSES[fuse]
    n, length, c, o, taps = 2, 23, 12, 24, 3
    out = (length + 2 * pad - taps) // stride + 1
    x = Buffer("x", u8[n, length, c], "input", layout)
    w = known("w", i8, o, c // groups, taps)
    y = Buffer("y", TensorType(dtype, (n, out, o)), "output")
    b, t, g, q = indices_of((n, out, groups, o // groups))
    channel, own = g * (o // groups) + q, c // groups
    total = reduce(
        "add",
        (own, taps),
        lambda i, r: (
            cast(Load(x, (b, t * stride + r - pad, g * own + i), fill if pad else None), i32)
            * cast(Load(w, (channel, i, r)), i32)
        ),
    )
    return Kernel("convolution", (For((b, t, g, q), tuple(body(total, (b, t, channel), y))),))


def program(*instructions: Instruction) -> Program:
    """Instructions over the buffers that they touch."""
    buffers = dict.fromkeys(b for each in instructions for b in each.operands)
    return program_of(*instructions, constants=tuple(b for b in buffers if b.kind == "constant"))


def feeds_of(p: Program) -> dict[str, Array]:
    rng = np.random.default_rng(1)

    def feed(b: Buffer) -> Array:
        info = np.iinfo(b.dtype.numpy)
        return np.asarray(rng.choice([info.min, info.max, 0, 3], b.shape).astype(b.dtype.numpy))

    return {name: feed(b) for name, b in p.inputs.items()}


def check(target: Target, *instructions: Instruction) -> Native:
    """The same bits as the evaluator."""
    p = program(*instructions)
    verify(p)
    feeds, native = feeds_of(p), Native(p, target)
    outputs, _ = native.run(feeds)
    wanted, _ = evaluate(p, feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=name)
    return native


SIZES = [(16, 16, 32), (9, 21, 35), (37, 40, 66), (1, 50, 70), (60, 1, 70)]


@pytest.mark.spread(13)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("fuse", sorted(FUSES))
@pytest.mark.parametrize("size", SIZES)
def test_products(size: tuple[int, int, int], fuse: str, target: str) -> None:
    m, n, k = size
    turn = sum(size) % 2 == 0
    kernel = matmul(m, n, k, fuse, known("w", i8, k, n, layout=(1, 0) if turn else (0, 1)), (i8 if turn else u8, i8))
    assert recognise(kernel) is not None
    check(TARGETS[target], kernel)


@pytest.mark.parametrize("types", [(i8, u8), (u8, u8)])
def test_products_of_inputs(types: tuple[DType, DType]) -> None:
    w = Buffer("w", TensorType(types[1], (40, 33)), "input")
    kernel = matmul(18, 33, 40, "several", w, types)
    assert recognise(kernel) is not None
    check(Target.host(), kernel)


@pytest.mark.spread(32)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("fuse", ["several", "doubles"])
@pytest.mark.parametrize("layout", [(0, 1, 2), (0, 2, 1)])
@pytest.mark.parametrize(
    ("pad", "fill", "stride", "groups"),
    [(0, 0, 1, 1), (1, 0, 1, 1), (2, 131, 1, 1), (1, 7, 2, 1), (1, 0, 1, 3), (1, 9, 1, 12)],
)
def test_convolutions(
    pad: int, fill: int, stride: int, groups: int, layout: tuple[int, ...], fuse: str, target: str
) -> None:
    """Padding with any number, groups of channels (one for each at last), channels last or first."""
    kernel = convolution(fuse, pad=pad, fill=fill, stride=stride, groups=groups, layout=layout)
    assert recognise(kernel) is not None
    check(TARGETS[target], kernel)


def test_a_constant_is_kept_in_the_form_that_is_read() -> None:
    """Packed instead of as it was, once for kernels that share it, and also as it was if something reads that."""
    w = known("w", i8, 40, 24)
    first, second = (matmul(16, 24, 40, "sums", w, (u8, i8), x) for x in "ab")
    native = check(Target.host(), first)
    held = [b for b in native.code.externals if b.kind == "constant"]
    assert [b.name for b in held] == ["w.packed"]
    y, z = (Buffer(name, i32[16, 24], "output") for name in "yz")
    native = check(Target.host(), renamed(first, y), renamed(second, z))
    assert [b.name for b in native.code.externals if b.kind == "constant"] == ["w.packed"]
    assert len(native.code.functions) == 1
    copy = Buffer("copy", i8[40, 24], "output")
    i, j = indices_of(w.shape)
    reads = Kernel("copy", (For((i, j), (Store(copy, (i, j), Load(w, (i, j))),)),))
    native = check(Target.host(), renamed(first, y), reads)
    assert [b.name for b in native.code.externals if b.kind == "constant"] == ["w", "w.packed"]


def renamed(kernel: Kernel, y: Buffer) -> Kernel:
    """The kernel with another result."""
    (loop,) = kernel.body
    assert isinstance(loop, For)
    (store,) = loop.body
    assert isinstance(store, Store)
    return Kernel(kernel.name, (For(loop.indices, (Store(y, store.index, store.value),)),))


def test_kernels_of_constants_and_inputs_are_told_apart() -> None:
    """The same structure, one operand known ahead and one not."""
    w, v = known("w", i8, 40, 24), Buffer("v", i8[40, 24], "input")
    kernels = [
        renamed(matmul(16, 24, 40, "sums", b, (u8, i8), f"of_{name}"), Buffer(name, i32[16, 24], "output"))
        for name, b in (("y", w), ("z", v))
    ]
    assert len(check(Target.host(), *kernels).code.functions) == 2


def test_kernels_of_small_weights_are_told_apart() -> None:
    """Instructions that are exact for weights of seven bits only are not shared with others."""
    w, v = known("w", i8, 40, 24), known("v", i8, 40, 24)
    assert v.initial is not None
    v = replace(v, initial=np.clip(v.initial, -64, 64))
    kernels = [
        renamed(matmul(16, 24, 40, "sums", b, (u8, i8), f"of_{name}"), Buffer(name, i32[16, 24], "output"))
        for name, b in (("y", v), ("z", w))
    ]
    target = TARGETS.get("avx2", Target.host())
    native = check(target, *kernels)
    assert (len(native.code.functions) == 2) is (target.name == "avx2")
    assert [is_small(b) for b in (v, w)] == [True, False]


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_constants_at_the_step_of_a_repeat(target: str) -> None:
    """Part of a constant is not packed ahead; the image is padded at each step."""
    t = Index(3, "t")
    x, w = Buffer("x", u8[3, 17, 8], "input"), known("w", i8, 3, 16, 8, 3)
    y = Buffer("y", i32[3, 17, 16], "output")
    i, o = indices_of((17, 16))
    total = reduce(
        "add", (8, 3), lambda c, r: cast(Load(x, (t, i + r - 1, c), 5), i32) * cast(Load(w, (t, o, c, r)), i32)
    )
    step = Kernel("step", (For((i, o), (Store(y, (t, i, o), total),)),))
    assert recognise(step) is not None
    check(TARGETS[target], Repeat("steps", t, (step,)))


def test_padding_that_moves_with_a_repeat_is_no_contraction() -> None:
    """What is read outside of the buffer depends on the step."""
    t = Index(3, "t")
    x, w = Buffer("x", u8[17, 8], "input"), known("w", i8, 16, 8, 3)
    y = Buffer("y", i32[3, 17, 16], "output")
    i, o = indices_of((17, 16))
    total = reduce(
        "add", (8, 3), lambda c, r: cast(Load(x, (i + r + t - 2, c), 0), i32) * cast(Load(w, (o, c, r)), i32)
    )
    step = Kernel("step", (For((i, o), (Store(y, (t, i, o), total),)),))
    assert recognise(step) is None
    check(Target.host(), Repeat("steps", t, (step,)))
