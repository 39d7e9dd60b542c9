"""From planned programs to modules: shared functions, profiles, and kernels that are contractions."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glowtrain.backends.base import WHOLE_CALL
from glowtrain.backends.cpu.events.log import CountedCall, EventLog
from glowtrain.backends.cpu.recognise import SMALL, FusedEpilogue, contraction_text, further_operands, recognise
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.errors import CodegenError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Constant, Graph, Input
from glowtrain.loops import (
    Accumulate,
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
    call,
    cast,
    indices_of,
    reduce,
)
from glowtrain.ops.elementwise.arithmetic import Neg
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN, Recurrent
from glowtrain.program.analysis.kernel_facts import PARTLESS, contractions
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.verify import verify
from glowtrain.types import Array, DType, TensorType, f16, f32, f64, i8, i32, i64
from tests.cpu.cpu_kernels import runnable, same
from tests.cpu.native_program import GAP, POISON, Native, raw, spread
from tests.cpu.nests import program

TARGETS = {target.name: target for target in [Target.host(), *runnable("avx2", "sse4", "scalar")]}
ROUNDING = 2e-6
"""Relative to the largest magnitude."""


def feeds_of(random: np.random.Generator, p: Program) -> dict[str, Array]:
    """Sixteenths: sums of a few thousand products are exact in f32, so only what is done to the sums rounds."""
    return {name: (random.integers(-8, 9, b.shape) / 16).astype(b.dtype.numpy) for name, b in p.inputs.items()}


def check(random: np.random.Generator, p: Program, target: Target, rounding: float = ROUNDING) -> None:
    """Native results agree with the evaluator's and repeat their bits."""
    verify(p)
    feeds = feeds_of(random, p)
    native = Native(p, target)
    for got, again, wanted in zip(native.run(feeds), native.run(feeds), evaluate(p, feeds), strict=True):
        for name, array in wanted.items():
            assert np.all(same(got[name], again[name])), name
            scale = max(float(np.abs(array).max()), 1.0)
            np.testing.assert_allclose(got[name], array, rtol=0, atol=rounding * scale, err_msg=f"{name}\n{p}")


# ---- modules


def scaled(x: Buffer, y: Buffer, factor: float, name: str) -> Kernel:
    i = indices_of(x.shape)
    return Kernel(name, (For(i, (Store(y, i, Load(x, i) * factor),)),))


def chain(factors: Sequence[float], extents: Sequence[int]) -> Program:
    kernels = []
    for n, (factor, extent) in enumerate(zip(factors, extents, strict=True)):
        x, y = Buffer(f"x{n}", f32[extent], "input"), Buffer(f"y{n}", f32[extent], "output")
        kernels.append(scaled(x, y, factor, f"scale {n}"))
    return program(*kernels)


def test_kernels_of_the_same_structure_share_a_function() -> None:
    code = generate(spread(chain([2.0, 2.0, 3.0, 2.0], [10, 10, 10, 11])), Target.host())
    assert list(code.functions.values()) == ["scale 0, scale 1", "scale 2", "scale 3"]
    assert code.text.count("define internal") == 3
    assert code.text.count("call void @k0_scale_0(") == 2
    assert [call.name for call in code.calls] == ["scale 0", "scale 1", "scale 2", "scale 3"]
    assert [call.function for call in code.calls] == ["k0_scale_0", "k0_scale_0", "k1_scale_2", "k2_scale_3"]


def test_contractions_of_the_same_structure_share_a_function() -> None:
    kernels = [matmul(16, 16, 32, names=(f"a{n}", f"b{n}", f"c{n}")) for n in range(3)]
    code = generate(spread(program(*kernels)), Target.host())
    assert len(code.functions) == 1


@pytest.mark.exhaustive
def test_a_long_step_is_in_parts(random: np.random.Generator) -> None:
    p = chain([float(n) for n in range(90)], [10] * 90)
    code = generate(spread(p), Target.host())
    assert code.text.count("call void @step.part") == 3
    assert [call.name for call in code.calls] == [f"scale {n}" for n in range(90)]
    check(random, p, Target.host(), 0.0)


def products_of_rows(length: int) -> Kernel:
    """c[i, j] = sum over r of a[i, r] b[j, r]."""
    a, b, c = (
        Buffer(f"{name}{length}", f32[shape], kind)
        for name, shape, kind in (("a", (64, length), "input"), ("b", (64, length), "input"), ("c", (64, 64), "output"))
    )
    i, j = indices_of((64, 64))
    total = reduce("add", (length,), lambda r: Load(a, (i, r)) * Load(b, (j, r)))
    return Kernel("products", (For((i, j), (Store(c, (i, j), total),)),))


def test_parts_that_several_kernels_have_are_there_once() -> None:
    """Copies that transpose blocks of other matrices are made of the same blocks."""
    code = generate(spread(program(*map(products_of_rows, (64, 80, 96)))), Target.named("avx512"))
    copies = re.findall(r"^define internal void @(\w+\.copy\d+)\(", code.text, re.MULTILINE)
    squares = re.findall(r"^define internal void @(\w+\.square\d+)\(", code.text, re.MULTILINE)
    assert len(code.functions) == len(copies) == 3
    assert len(squares) == 1
    assert code.text.count(f"call void @{squares[0]}(") == 3


def test_the_step_takes_what_is_outside_of_the_arena() -> None:
    x, t, y = Buffer("x", f32[5], "input"), Buffer("t", f32[5]), Buffer("y", f32[5], "output")
    p = program(scaled(x, t, 2.0, "a"), scaled(t, y, 2.0, "b"))
    code = generate(spread(p), Target.host())
    assert code.externals == (x, y)
    assert code.workspace == 0


def test_a_profile_notes_when_each_call_ran(random: np.random.Generator) -> None:
    """One event each time that a call is made, in order, and one for all of the step."""
    t = Index(3, "t")
    x, y, z = Buffer("x", f32[3, 4096], "input"), Buffer("y", f32[3, 4096], "output"), Buffer("z", f32[1], "output")
    (i,) = indices_of((4096,))
    step = Kernel("step", (For((i,), (Store(y, (t, i), call("exp", Load(x, (t, i)))),)),))
    small = Kernel("small", (Store(z, (Const(0, i64),), Const(1.0, f32)),))
    p = program(Repeat("steps", t, (step,)), small)
    native = Native(p, Target.host(), profile=True)
    assert [call.name for call in native.code.calls] == ["step", "small"]
    array = random.normal(size=(3, 4096)).astype(np.float32)
    pieces = [np.full(size + GAP, POISON, np.uint8) for size in native.sizes]
    pieces[2 + native.code.externals.index(x)][: x.type.nbytes] = raw(x, array)
    assert native.code.counted == (CountedCall("step", 3, 0), CountedCall("small", 1, 0))
    log = EventLog(native.code.counted, threads=1)
    table = native.table_of(pieces, log.memory.ctypes.data)
    native.step(ctypes.addressof(table))
    spans = log.spans()
    assert spans["call"].tolist() == [0, 0, 0, 1, 2]
    assert set(spans["thread"].tolist()) == {WHOLE_CALL}
    assert np.all(spans["begin"] < spans["end"])
    assert np.all(spans["end"][:3] < spans["begin"][1:4]), "one after another"
    assert spans["begin"][4] < spans["begin"][0], "the step begins before its calls"
    assert spans["end"][4] > spans["end"][3], "and ends after them"
    native.step(ctypes.addressof(table))
    assert np.array_equal(log.spans(), spans), "a log that is full stays as it is"
    log.clear()
    native.step(ctypes.addressof(table))
    assert len(log.spans()) == 5
    held = pieces[2 + native.code.externals.index(y)][: y.type.nbytes].view(np.float32).reshape(3, 4096)
    np.testing.assert_allclose(held, np.exp(array), rtol=1e-6)


def test_errors_name_the_kernel() -> None:
    x, y = Buffer("x", i32[4], "input"), Buffer("y", i32[4], "output")
    i = indices_of((4,))
    p = program(Kernel("odd one", (For(i, (Store(y, i, call("exp", Load(x, i))),)),)))
    with pytest.raises(CodegenError, match="kernel odd one: .*'exp'"):
        generate(spread(p), Target.host())


# ---- what is a contraction

Fuse = Callable[[Expr, tuple[Index, ...], Buffer], list[Statement]]


def matmul(
    m: int, n: int, k: int, fuse: Fuse | None = None, names: tuple[str, str, str] = ("a", "b", "c"), dtype: DType = f32
) -> Kernel:
    """c[i, j] = sum over r of a[i, r] b[r, j]; ``fuse`` makes the statements from the sum."""
    shapes = ((m, k), (k, n), (m, n))
    kinds: Any = ("input", "input", "output")
    a, b, c = (Buffer(x, TensorType(dtype, s), kind) for x, s, kind in zip(names, shapes, kinds, strict=True))
    i, j = indices_of((m, n))
    total = reduce("add", (k,), lambda r: Load(a, (i, r)) * Load(b, (r, j)))
    body = [Store(c, (i, j), total)] if fuse is None else fuse(total, (i, j), c)
    return Kernel("matmul", (For((i, j), tuple(body)),))


def test_a_plain_matrix_product_is_recognised() -> None:
    product = recognise(matmul(16, 16, 32))
    assert product is not None
    assert product.plain
    assert (product.a.buffer.name, product.b.buffer.name, product.target.buffer.name) == ("a", "b", "c")
    assert [index.extent for index in product.indices] == [16, 16, 32]


def test_an_epilogue_is_recognised() -> None:
    bias = Buffer("bias", f32[16], "input")
    kernel = matmul(16, 16, 32, lambda s, at, c: [Store(c, at, call("max", s + Load(bias, at[1:]), 0.0))])
    product = recognise(kernel)
    assert product is not None
    assert not product.plain
    assert further_operands(kernel, product) == [bias]


def updating(m: int, n: int, k: int) -> Kernel:
    """w -= sum, beside what the sum takes and a residual that it adds."""
    w, x = Buffer("w", f32[m, n], "variable", initial=np.ones((m, n), np.float32)), Buffer("x", f32[m, n], "input")
    fuse: Fuse = lambda s, at, c: [Store(c, at, s + Load(x, at)), Store(w, at, Load(w, at) - s)]  # noqa: E731
    return matmul(m, n, k, fuse)


def updated(m: int, n: int, k: int) -> Kernel:
    """w -= sum, v = w, and nothing else."""
    w, v = (Buffer(name, f32[m, n], "variable", initial=np.ones((m, n), np.float32)) for name in "wv")
    ref = Ref(f32, "next")
    fuse: Fuse = lambda s, at, c: [  # noqa: E731
        Let(ref, Load(w, at) - s),
        Store(w, at, ref),
        Store(v, at, Load(v, at) * 2.0 - ref),
    ]
    return matmul(m, n, k, fuse)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("shape", [(64, 64, 32), (33, 50, 17), (5, 200, 64), (70, 3, 40), (32, 32, PARTLESS + 1)])
def test_a_product_that_only_updates(shape: tuple[int, int, int], target: str, random: np.random.Generator) -> None:
    kernel = updated(*shape)
    product = recognise(kernel)
    assert product is not None
    assert product.whole
    assert {buffer.name for buffer in further_operands(kernel, product)} == {"w", "v"}
    check(random, program(kernel), TARGETS[target])


@pytest.mark.parametrize("shape", [(64, 64, 32), (33, 50, 17), (5, 200, 64)])
def test_results_that_are_far_away_are_the_same(shape: tuple[int, int, int], random: np.random.Generator) -> None:
    check(random, program(updating(*shape)), replace(Target.host(), l2=1 << 12))


def test_what_is_far_away_is_asked_for_before_the_sum() -> None:
    """The result and the residual to be read, the variable to be written; nothing near, or for few products."""
    lines = _text(replace(Target.named("avx512"), l2=1 << 18), 32).splitlines()
    fetched = [at for at, line in enumerate(lines) if "@llvm.prefetch" in line]
    sums = [at for at, line in enumerate(lines) if "@llvm.fma" in line]
    assert fetched
    assert fetched[0] < sums[0]
    assert {line.split(", i32 ")[1] for line in lines if "@llvm.prefetch" in line} == {"0", "1"}
    assert "@llvm.prefetch" not in _text(replace(Target.named("avx512"), l2=1 << 22), 32)
    assert "@llvm.prefetch" not in _text(replace(Target.named("avx512"), l2=1 << 18), 8)


def _text(target: Target, terms: int) -> str:
    kernel = updating(256, 512, terms)
    product = recognise(kernel)
    assert product is not None
    return contraction_text(kernel, product, "k", target, []).text


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_product_with_alternating_slots_is_recognised(trips: int, random: np.random.Generator) -> None:
    """A state that a repeat carries: the step's index leads to its slot by a remainder."""
    t, (i, j) = Index(trips, "t"), indices_of((16, 32))
    start = random.normal(size=(2, 16, 32)).astype(np.float32)
    states, w = Buffer("s", f32[2, 16, 32], "variable", initial=start), Buffer("w", f32[32, 32], "input")
    product = Buffer("product", f32[16, 32])
    total = reduce("add", (32,), lambda r: Load(states, (t % 2, i, r)) * Load(w, (r, j)))
    step = Kernel("step", (For((i, j), (Store(product, (i, j), total),)),))
    m, n = indices_of((16, 32))
    carry = Kernel("carry", (For((m, n), (Store(states, ((t + 1) % 2, m, n), Load(product, (m, n))),)),))
    assert recognise(step) is not None
    check(random, program(Repeat("steps", t, (step, carry))), Target.host())


@pytest.mark.parametrize("layer", [RNN(), GRU(), GRU(linear_before_reset=1), LSTM()], ids=str)
def test_products_of_recurrent_layers_are_contractions(layer: Recurrent) -> None:
    """In the steps of a layer and of its gradient, with the weights in panels."""
    rows = layer.gates * 32
    shapes = {"x": (16, 2, 32), "w": (1, rows, 32), "r": (1, rows, 32)}
    x, *weights = (Input(f32[shape], name) for name, shape in shapes.items())
    y, *_ = layer(x, *weights)
    gradients = pullback([y], [Constant(np.ones(y.shape, np.float32))], weights)
    graph = Graph((x, *weights), {"y": y} | {f"d{at}": g for at, g in enumerate(gradients) if g is not None})
    kernels = list(arrive(graph).program.kernels)
    products = [kernel for kernel in kernels if list(contractions(kernel.body))]
    assert len(products) >= 5
    assert all(recognise(kernel) for kernel in products)
    assert any(kernel.name.endswith(".pack") for kernel in kernels)


def test_a_slot_that_the_results_themselves_choose_is_not() -> None:
    (i, j), x = indices_of((16, 32)), Buffer("x", f32[2, 16, 32], "input")
    w, y = Buffer("w", f32[32, 32], "input"), Buffer("y", f32[16, 32], "output")
    total = reduce("add", (32,), lambda r: Load(x, (i % 2, i, r)) * Load(w, (r, j)))
    assert recognise(Kernel("step", (For((i, j), (Store(y, (i, j), total),)),))) is None


def convolution(padding: int) -> Kernel:
    x, w = Buffer("x", f32[2, 12, 4], "input"), Buffer("w", f32[3, 4, 16], "input")
    y = Buffer("y", f32[2, 10 + 2 * padding, 16], "output")
    n, t, o = indices_of(y.shape)
    fill = 0 if padding else None
    total = reduce("add", (3, 4), lambda r, c: Load(x, (n, t + r - padding, c), fill) * Load(w, (r, c, o)))
    return Kernel("convolution", (For((n, t, o), (Store(y, (n, t, o), total),)),))


@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions_are_recognised(padding: int, random: np.random.Generator) -> None:
    product = recognise(convolution(padding))
    assert product is not None
    text = contraction_text(convolution(padding), product, "k", Target.host(), []).text
    assert text
    check(random, program(convolution(padding)), Target.host())


def other_kernels() -> dict[str, Kernel]:
    """Kernels that are no contractions, each for one reason."""
    small = matmul(8, 8, SMALL // 64 - 1)
    half = matmul(16, 16, 32, lambda s, at, c: [Store(c, at, s)], dtype=f16)
    found = {"too few products": small, "half precision": half}
    x, y, at = Buffer("x", f32[32, 32], "input"), Buffer("y", f32[32, 32], "output"), Buffer("at", i64[32], "input")
    w, v = (
        Buffer("w", f32[32, 32], "input"),
        Buffer("v", f32[32, 32], "variable", initial=np.ones((32, 32), np.float32)),
    )
    i, j = indices_of((32, 32))

    def kernel(total: Expr, *more: Statement) -> Kernel:
        return Kernel("other", (For((i, j), (*more, Store(y, (i, j), total))),))

    def product(a: Callable[[Index], Expr], b: Callable[[Index], Expr], op: str = "add") -> Expr:
        return reduce(op, (32,), lambda r: a(r) * b(r))

    plain = product(lambda r: Load(x, (i, r)), lambda r: Load(w, (r, j)))
    found["a maximum"] = kernel(product(lambda r: Load(x, (i, r)), lambda r: Load(w, (r, j)), "max"))
    found["no reuse"] = kernel(product(lambda r: Load(x, (i, j)), lambda r: Load(w, (i, j))))
    found["gathered rows"] = kernel(product(lambda r: Load(x, (Load(at, (i,)), r)), lambda r: Load(w, (r, j))))
    found["another fill"] = kernel(product(lambda r: Load(x, (i - 1, r), 1), lambda r: Load(w, (r, j))))
    found["a factor that is no load"] = kernel(product(lambda r: Load(x, (i, r)) + 1, lambda r: Load(w, (r, j))))
    second = product(lambda r: Load(w, (i, r)), lambda r: Load(x, (r, j)))
    found["two sums"] = kernel(plain + second)
    inner = Reduce("add", (q := Index(32, "q"),), Load(w, (i, q)) * Load(w, (q, j)))
    found["its own operand written"] = Kernel(
        "other", (For((i, j), (Store(v, (i, j), inner), Store(w, (i, j), inner))),)
    )
    found["an accumulation"] = kernel(plain, Accumulate("add", v, (i, j), plain))
    found["serial"] = Kernel("other", (For((i, j), (Store(y, (i, j), plain),), True),))
    found["a row program"] = Kernel("other", (For((i,), (For((j,), (Store(y, (i, j), plain),)),)),))
    found["converted"] = kernel(
        reduce("add", (32,), lambda r: cast(Load(x, (i, r)), f64) * cast(Load(w, (r, j)), f64)),
    )
    return found


@pytest.mark.parametrize("name", sorted(other_kernels()))
def test_other_kernels_are_not(name: str) -> None:
    assert recognise(other_kernels()[name]) is None


@pytest.mark.parametrize("name", ["an accumulation", "gathered rows", "another fill", "two sums"])
def test_other_kernels_are_right_all_the_same(name: str, random: np.random.Generator) -> None:
    kernel = other_kernels()[name]
    p = program(kernel)
    verify(p)
    feeds = feeds_of(random, p) | ({"at": random.integers(0, 32, 32)} if "at" in p.inputs else {})
    got, expected = Native(p, Target.host()).run(feeds), evaluate(p, feeds)
    for results, wanted in zip(got, expected, strict=True):
        for at, array in wanted.items():
            np.testing.assert_allclose(results[at], array, rtol=0, atol=1e-4, err_msg=at)


# ---- epilogues


def dense(activation: str) -> Fuse:
    """Bias, activation, its derivative as a second result, and a third result of another type in another layout."""

    def fuse(total: Expr, at: tuple[Index, ...], c: Buffer) -> list[Statement]:
        m, n = c.shape
        bias, scale = (
            Buffer("bias", c.type.with_shape((n,)), "input"),
            Buffer("scale", c.type.with_shape((m,)), "input"),
        )
        slope = Buffer("slope", c.type, "output", (1, 0))
        mask = Buffer("mask", TensorType(i32, (n, m)), "output")
        name, value = Ref(c.dtype, "sum"), Ref(c.dtype, "value")
        return [
            Let(name, total + Load(bias, at[1:])),
            Let(value, call(activation, name)),
            Store(slope, at, (1 - value * value) * Load(scale, at[:1])),
            Store(mask, (at[1], (m - 1) - at[0]), cast(call("gt", name, 0.0), i32) * 3),
            Store(c, at, value),
        ]

    return fuse


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("shape", [(16, 16, 32), (5, 33, 40), (37, 7, 65), (1, 50, 70), (50, 1, 70), (20, 24, 3000)])
def test_epilogues_of_several_results(shape: tuple[int, int, int], target: str, random: np.random.Generator) -> None:
    check(random, program(matmul(*shape, dense("tanh"))), TARGETS[target])


def test_epilogues_in_double_precision(random: np.random.Generator) -> None:
    check(random, program(matmul(19, 21, 40, dense("tanh"), dtype=f64)), Target.host(), 1e-13)


def momentum(total: Expr, at: tuple[Index, ...], c: Buffer) -> list[Statement]:
    """An update in place: v' = 0.9 v + g, w' = w - 0.1 v', and the old w as another result."""
    start = np.linspace(-1, 1, c.type.size).reshape(c.shape).astype(np.float32)
    w = Buffer("w", c.type, "variable", (1, 0), start)
    v = Buffer("v", c.type, "variable", initial=start[::-1].copy())
    before = Buffer("before", c.type, "output")
    old, new = Ref(f32, "old"), Ref(f32, "new")
    return [
        Let(old, Load(w, at)),
        Let(new, Load(v, at) * 0.9 + total),
        Store(c, at, total),
        Store(v, at, new),
        Store(w, at, old - new * 0.1),
        Store(before, at, old),
    ]


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("shape", [(16, 16, 32), (23, 41, 65), (48, 64, 4000)])
def test_optimizer_updates_in_place(shape: tuple[int, int, int], target: str, random: np.random.Generator) -> None:
    kernel = matmul(*shape, momentum)
    assert recognise(kernel) is not None
    check(random, program(kernel), TARGETS[target])


def test_a_long_sum_is_taken_in_parts() -> None:
    """The update above runs once, after the last part, and C keeps the sums before."""
    kernel = matmul(48, 64, 4000, momentum)
    product = recognise(kernel)
    assert product is not None
    text = contraction_text(kernel, product, "k", Target.named("avx2"), []).text
    assert "%first" in text, "not in parts: choose a longer sum for these tests"


def test_an_epilogue_may_read_the_operands_again(random: np.random.Generator) -> None:
    """c = a b + a, with a square."""
    kernel = matmul(24, 24, 24)
    (loop,) = kernel.body
    assert isinstance(loop, For)
    (store,) = loop.body
    assert isinstance(store, Store)
    product = recognise(kernel)
    assert product is not None
    again = Store(store.buffer, store.index, store.value + Load(product.a.buffer, loop.indices))
    kernel = Kernel("residual", (For(loop.indices, (again,)),))
    product = recognise(kernel)
    assert product is not None
    assert FusedEpilogue(kernel, product, Target.host(), []).again == [product.a.buffer]
    check(random, program(kernel), Target.host())


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("plain", [True, False])
def test_contractions_in_a_repeat(target: str, plain: bool, random: np.random.Generator) -> None:
    """Operands, result and bias at the step of an enclosing repeat."""
    t = Index(3, "t")
    a, b, bias = (
        Buffer("a", f32[3, 9, 20], "input"),
        Buffer("b", f32[20, 18], "input"),
        Buffer("bias", f32[3, 18], "input"),
    )
    c = Buffer("c", f32[3, 9, 18], "output")
    i, j = indices_of((9, 18))
    total = reduce("add", (20,), lambda r: Load(a, (2 - t, i, r)) * Load(b, (r, j)))
    value = total if plain else call("tanh", total + Load(bias, (t, j)))
    step = Kernel("step", (For((i, j), (Store(c, (t, i, j), value),)),))
    assert recognise(step) is not None
    check(random, program(Repeat("steps", t, (step,))), TARGETS[target])


def test_memory_that_indices_do_not_reach_is_refused() -> None:
    x = Input(TensorType(i8, (1 << 31,)), "x")
    plan = arrive(Graph((x,), {"y": Neg()(x)}))
    assert "step" in generate(plan, Target.named("neon")).text
    with pytest.raises(CodegenError, match=r"x has 2,147,483,648 bytes; code for cortex-m7 reaches 2,147,483,648"):
        generate(plan, Target.named("cortex-m7"))


def test_a_processor_that_llvm_has_no_code_for_is_named_with_what_to_do() -> None:
    vax = replace(Target.host(), triple="vax-dec-ultrix")
    with pytest.raises(
        CodegenError, match=r"^llvmlite .* makes no code for vax-dec-ultrix: install a newer llvmlite, or"
    ):
        toolchain.machine(vax)
