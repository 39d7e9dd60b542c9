"""Sums of products of two factors in bf16: in groups of 32, even and odd ones apart, the same bits on every kind of
processor, whatever instructions it has for them."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Axis, Operand, generate
from glowtrain.backends.cpu.order.contraction import GROUP
from glowtrain.backends.llvm.formats import spread_factor
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import I64, vector
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input
from glowtrain.memory.precision import LEAST_FACTOR, RoundedFactors
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.program.analysis.flushed import flushed_buffers
from glowtrain.program.parse import parse
from glowtrain.program.program import Program
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify
from glowtrain.stages import Options
from glowtrain.types import Array, f32
from tests.cpu.contractions import Image, data_gradient, matmul
from tests.cpu.cpu_kernels import runnable
from tests.cpu.native_program import Native
from tests.cpu.test_same_bits import FUSED, MODELS, STEPS, UNFUSED, feeds, other_bits, step_of

HOST = Target.host()
PLAIN = replace(HOST, name="plain", families=HOST.families - {"avx512bf16"})
"""This processor without its instructions for products of bf16."""
TARGETS = {target.name: target for target in [HOST, PLAIN, *runnable("avx2", "sse4", "scalar")]}
WHOLE = (Axis((1,) * 7, 0, 0, 1 << 30, 1),)
"""An axis of which everything that is read exists."""
MATRICES = {
    "rows and columns": ("r, i", "i, r", "r, j", "r, j"),
    "as linear layers have them": ("r, i", "i, r", "r, j", "j, r"),
    "both by columns": ("r, i", "r, i", "r, j", "r, j"),
}


def product(kind: str, i: int, j: int, r: int, least: float = LEAST_FACTOR) -> Program:
    """Two matrices that are rounded, and the sum of their products; numbers below ``least`` become 0."""
    _, a, _, b = MATRICES[kind]
    sizes = {"i": i, "j": j, "r": r}
    (a0, a1), (b0, b1) = ([sizes[axis] for axis in each.split(", ")] for each in (a, b))
    small = f"select(abs({{0}}) < {least!r}, 0, {{0}})" if least else "{0}"
    return parse(f"""program p
  input  x: f32[{a0},{a1}]
  input  w: f32[{b0},{b1}]
  output y: f32[{i},{j}]
  activation n: bf16[{a0},{a1}]
  activation m: bf16[{b0},{b1}]
kernel left:
  for a<{a0}, b<{a1}: n[a, b] = bf16({small.format("x[a, b]")})
kernel right:
  for a<{b0}, b<{b1}: m[a, b] = bf16({small.format("w[a, b]")})
kernel product:
  for i<{i}, j<{j}: y[i, j] = sum(r<{r}: f32(n[{a}]) * f32(m[{b}]))
""")


def rounded(array: Array, least: float = LEAST_FACTOR) -> Array:
    """To bf16, to nearest even, in f64."""
    bits = np.where(np.abs(array) < least, np.float32(0), array).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def in_groups(a: Array, b: Array) -> Array:
    """f32[i, j] of f64[i, r] and f64[r, j]: products, which f64 holds, added one by one and rounded to f32; exactly, as
    f64 holds the sum of a product and of an f32 of about its size."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for begin in range(0, len(b), GROUP):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for r in range(begin, min(begin + GROUP, len(b))):
            chains[r % 2] = (chains[r % 2] + a[:, r, None] * b[r]).astype(np.float32)
        total = total + (chains[0] + chains[1])
    return total


def inputs_of(program: Program, seed: int, spread: int = 3) -> dict[str, Array]:
    """Numbers of magnitudes that are some powers of two apart."""
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(b.shape) * 2.0 ** random.integers(-spread, spread + 1, b.shape)).astype(
            np.float32
        )
        for name, b in program.inputs.items()
    }


def results(program: Program, given: dict[str, Array], target: Target) -> Array:
    verify(program)
    return Native(program, target).run(given)[0]["y"]


@pytest.mark.spread(6)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("sizes", [(32, 48, 64), (37, 19, 53), (13, 130, 300), (20, 20, 16), (9, 70, 35)], ids=str)
def test_sums_are_taken_in_groups(kind: str, sizes: tuple[int, int, int], target: Target) -> None:
    program = product(kind, *sizes)
    given = inputs_of(program, seed=1)
    x, w = (rounded(given[name]) for name in "xw")
    x = x.T if kind == "both by columns" else x
    w = w.T if kind == "as linear layers have them" else w
    assert results(program, given, target).tobytes() == in_groups(x, w).tobytes()


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(MATRICES)), i=st.integers(1, 70), j=st.integers(1, 70), r=st.integers(1, 130),
    spread=st.sampled_from([0, 3, 30, 70]), seed=st.integers(0, 99), least=st.sampled_from([0.0, LEAST_FACTOR]),
)  # fmt: skip
def test_instructions_for_bf16_change_no_bit(
    kind: str, i: int, j: int, r: int, spread: int, seed: int, least: float
) -> None:
    """Of numbers of all magnitudes; products of very small ones are denormal where nothing made them 0."""
    program = product(kind, i, j, r, least)
    given = inputs_of(program, seed, spread)
    assert results(program, given, HOST).tobytes() == results(program, given, PLAIN).tobytes()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_a_factor_read_backwards(target: Target) -> None:
    """Words are neighbours in the order of the sum."""
    text = to_text(product("rows and columns", 20, 40, 48)).replace("f32(n[i, r])", "f32(n[i, 47 - r])")
    program = parse(text)
    given = inputs_of(program, seed=1)
    x, w = (rounded(given[name]) for name in "xw")
    assert results(program, given, target).tobytes() == in_groups(x[:, ::-1], w).tobytes()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), [(28, 3, 3, 0), (9, 1, 1, 2)], ids=["stride", "padding"])
def test_results_without_a_product_are_0(size: int, kernel: int, stride: int, pad: int, target: Target) -> None:
    """Elements of an image that no kernel reaches have no gradient, and results in a margin are 0."""
    x, w = Input(f32[2, 32, size], "x"), Input(f32[40, 32, kernel], "w")
    y = Conv(kernel_shape=(kernel,), strides=(stride,), pads=(pad, pad))(x, w)
    g = Input(y.type, "g")
    (dx,) = pullback([y], [g], [x])
    assert dx is not None
    program = arrive(Graph((x, w, g), {"y": y, "dx": dx}), Options(precision=RoundedFactors())).program
    found, _ = Native(program, target).run(inputs_of(program, seed=1))
    margin = found["dx"][..., 27:] if stride > 1 else found["y"][..., [0, 1, -2, -1]]
    assert margin.size
    assert not margin.any()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_no_numbers_come_through(target: Target) -> None:
    program = product("rows and columns", 20, 40, 48)
    given = inputs_of(program, 2)
    given["x"][0, 5], given["x"][1, 33], given["x"][2, 47] = np.inf, np.nan, 3.4e38
    found = results(program, given, target)
    assert not np.isfinite(found[:3]).any()
    assert np.isfinite(found[3:]).all()


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_a_factor_in_all_lanes_is_spread_and_shifted(width: int) -> None:
    """All numbers of bf16, with no instruction that widens but for a lane alone."""
    f = LlvmFunction("spread", [("ptr", "y"), ("ptr", "x")], index_type=I64)
    lanes = Lanes(f, vector("float", width))
    with f.loop(1 << 16, [f.parameter("ptr", "y"), f.parameter("ptr", "x")]) as loop:
        y, x = loop.carried
        f.store(spread_factor(lanes, lanes.of("i16"), x, "bf16"), y, 4)
        loop.next = [f.shift(y, width, "float"), f.shift(x, 1, "i16")]
    text = f.finish()
    assert ("zext" in text) == (width == 1)
    source, target = np.arange(1 << 16, dtype=np.uint16), np.zeros((1 << 16, width), np.uint32)
    library = build(text, HOST, ["spread"])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("spread"))
    call(target.ctypes.data, source.ctypes.data)
    assert (target == (source.astype(np.uint32) << 16)[:, None]).all()


def test_buffers_of_factors_are_found() -> None:
    """All that the pass rounds; none that anything else is stored in."""
    names = {buffer.name for buffer in flushed_buffers(product("rows and columns", 8, 8, 8))}
    assert names == {"n", "m"}
    assert not flushed_buffers(product("rows and columns", 8, 8, 8, least=2.0**-60))
    assert not flushed_buffers(product("rows and columns", 8, 8, 8, least=0.0))


CONTRACTIONS = {
    "product": matmul(32, 64, 96),
    "convolution": Image(2, 8, 8, 32, 32, 3).contraction(),
    "gradient of an image": data_gradient(2, 8, 8, 32, 32, 3, 1),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_instructions_are_used_where_they_are(name: str) -> None:
    """Pairs of elements, where a target multiplies them and nothing small is among them."""

    def text(target: str, *, flushed: bool) -> str:
        operand = Operand("bf16", WHOLE, flushed=flushed)
        return generate(replace(CONTRACTIONS[name], operands=(operand, operand)), "k", Target.named(target)).text

    assert "dpbf16ps" in text("avx512vnni", flushed=True)
    assert "dpbf16ps" not in text("avx512vnni", flushed=False)
    assert "dpbf16ps" not in text("avx512", flushed=True)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", MODELS)
def test_training_steps_have_the_same_bits(name: str) -> None:
    """Fused or not: f32 holds the products."""
    graph, hyper = step_of(name, 20)
    batches = [{**feeds(graph, seed), **hyper} for seed in range(STEPS)]
    assert not other_bits(graph, [HOST, PLAIN, *FUSED], batches, Options(precision=RoundedFactors()))
    assert not other_bits(graph, UNFUSED, batches, Options(precision=RoundedFactors()))
