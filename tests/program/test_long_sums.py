"""Long sums over few results in parts: the same results up to rounding, exactly the same in integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glowtrain.backends.target import Target
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.loops import Buffer, Expr, For, Index, Load, Reduce, Store, call, indices_of, reduce
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse
from glowtrain.program.passes.long_sums import COLUMNS, CONTRACTION, FEW, LONG_CONTRACTION, ROWS, WORK, SplitSums, split
from glowtrain.program.program import Kernel, Program
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify
from glowtrain.types import f32, f64, i64
from tests.cpu.native_program import Native
from tests.cpu.nests import program
from tests.program.random_programs import RandomPrograms


def summed(text: str) -> str:
    """The kernels of a program's text after the pass."""
    lines = to_text(SplitSums().run(parse(text))).splitlines()
    return "\n".join(line for line in lines if line.startswith("kernel") or line.startswith("  for"))


def text_of(results: str, sum_: str, **inputs: str) -> str:
    declared = "".join(f"  input      {name}: {type_}\n" for name, type_ in inputs.items())
    indices, shape = results.split(" of ")
    return f"program sums\n{declared}  output     y: {shape}\n\nkernel total:\n  for {indices}: {sum_}\n"


def test_a_sum_over_few_columns() -> None:
    text = text_of("c<16 of f32[16]", "y[c] = sum(n<64, h<40: x[n, h, c]) * 2", x="f32[64,40,16]")
    assert summed(text) == (
        "kernel total.parts:\n"
        "  for i0<32, i1<16: total.parts[i0, i1] = sum(n<2, h<40: x[2*i0 + n, h, i1])\n"
        "kernel total:\n"
        "  for c<16: y[c] = sum(r0<32: total.parts[r0, c]) * 2"
    )


def test_a_maximum_over_everything() -> None:
    text = text_of("_<1 of f32[1]", "y[_] = max(n<31, h<4000: x[n, h])", x="f32[31,4000]")
    assert "total.parts[i0, i1] = max(h<4000: x[i0, h])" in summed(text)


UNTOUCHED = {
    "little work": ("c<16 of f32[16]", "y[c] = sum(n<100: x[n, c])", {"x": "f32[100,16]"}),
    "many rows": ("c<64 of f32[64]", "y[c] = sum(n<5000: x[c, n])", {"x": "f32[64,5000]"}),
    "many columns": ("c<20000 of f32[20000]", "y[c] = sum(n<128: x[n, c])", {"x": "f32[128,20000]"}),
    "a matrix product with many tiles": (
        "a<64, b<64 of f32[64,64]",
        "y[a, b] = sum(n<4095: x[n, a] * z[n, b])",
        {"x": "f32[4095,64]", "z": "f32[4095,64]"},
    ),
    "a long matrix product with very many tiles": (
        "a<192, b<192 of f32[192,192]",
        "y[a, b] = sum(n<8192: x[n, a] * z[n, b])",
        {"x": "f32[8192,192]", "z": "f32[8192,192]"},
    ),
    "parts that were many beside an operand": (
        "a<16, b<1024 of f32[16,1024]",
        "y[a, b] = sum(n<4096: x[n, a] * z[n, b])",
        {"x": "f32[4096,16]", "z": "f32[4096,1024]"},
    ),
    "short sums": ("c<1000 of f32[1000]", "y[c] = sum(n<100: x[n, c])", {"x": "f32[100,1000]"}),
    "no divisor": ("c<16 of f32[16]", "y[c] = sum(n<4099: x[n, c])", {"x": "f32[4099,16]"}),
    "an order of its own": ("_<1 of f32[1]", "y[_] = sum(n<65536 by 8: x[n])", {"x": "f32[65536]"}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNTOUCHED))
def test_what_stays_whole(name: str) -> None:
    results, sum_, inputs = UNTOUCHED[name]
    text = text_of(results, sum_, **inputs)
    assert summed(text).count("kernel") == 1


def test_a_matrix_product_with_few_tiles_is_cut() -> None:
    sum_ = "y[a, b] = sum(n<4096: x[n, a] * z[n, b])"
    text = text_of("a<32, b<64 of f32[32,64]", sum_, x="f32[4096,32]", z="f32[4096,64]")
    assert "for i0<8, i1<32, i2<64: total.parts[i0, i1, i2] = sum(n<512: x[512*i0 + n, i1] * z[512*i0 + n, i2])" in (
        summed(text)
    )


def test_the_gradient_of_weights_is_cut_by_images() -> None:
    """It sums products over all images and pixels: a part has some images, and at least 2,048 products."""
    sum_ = "y[a, b] = sum(n<32, h<192: x[n, h, a] * z[n, h, b])"
    text = text_of("a<48, b<64 of f32[48,64]", sum_, x="f32[32,192,48]", z="f32[32,192,64]")
    assert "  for i0<2, i1<48, i2<64: total.parts[i0, i1, i2] = sum(n<16, h<192: x[16*i0 + n, h, i1] * " in summed(text)
    assert "  for a<48, b<64: y[a, b] = sum(r0<2: total.parts[r0, a, b])" in summed(text)


def product_text(rows: int, columns: int, type_: str = "f32", sum_: str = "sum(n<{}: x[n] * w[n, c])") -> str:
    """The product of a vector and a matrix."""
    inputs = {"x": f"{type_}[{rows}]", "w": f"{type_}[{rows},{columns}]"}
    return text_of(f"c<{columns} of {type_}[{columns}]", f"y[c] = {sum_.format(rows, rows)}", **inputs)


@pytest.mark.parametrize(("rows", "columns"), [(784, 512), (784, 128), (784, 44)])
def test_a_product_of_a_vector_and_a_matrix_has_its_parts_in_registers(rows: int, columns: int) -> None:
    assert summed(product_text(rows, columns)) == (
        f"kernel total:\n  for c<{columns}: y[c] = sum(p0<8: sum(n<98: x[98*p0 + n] * w[98*p0 + n, c]))"
    )


def test_a_product_of_integers_stays_whole() -> None:
    assert summed(product_text(784, 512, "i32")) == ("kernel total:\n  for c<512: y[c] = sum(n<784: x[n] * w[n, c])")


IN_MEMORY = {
    "less than some vectors": (2048, 24, "sum(n<{}: x[n] * w[n, c])"),
    "too few tasks": (4096, 64, "sum(n<{}: x[n] * w[n, c])"),
    "a large matrix": (1024, 1024, "sum(n<{}: x[n] * w[n, c])"),
    "two sums": (784, 512, "sum(n<{}: x[n] * w[n, c]) * sum(m<{}: w[m, c])"),
    "no product": (784, 512, "sum(n<{}: w[n, c])"),
}


@pytest.mark.parametrize("name", sorted(IN_MEMORY))
def test_other_parts_are_in_memory(name: str) -> None:
    assert "kernel total.parts:" in summed(product_text(*IN_MEMORY[name][:2], sum_=IN_MEMORY[name][2]))


def test_a_sum_of_what_is_computed_around_it_stays() -> None:
    """Its other operand is another sum's index."""
    x, y = Buffer("x", f32[2048, 64, 16], "input"), Buffer("y", f32[16], "output")
    (c,) = indices_of((16,))

    def inner(n: Expr) -> Expr:
        return reduce("add", (64,), lambda h: Load(x, (n, h, c)) * Load(x, (h, h, c)))

    kernel = Kernel("k", (For((c,), (Store(y, (c,), reduce("add", (2048,), inner)),)),))
    found = split(kernel)
    verify(program(*found))
    assert len(found) == 2, "the outer sum alone is cut"


def random_sum(draw: ChoiceDraw, dtype: object) -> Kernel:
    """One or two long sums over boxes of any rank, of products, with offsets, in any layout."""
    outer = [draw.integer(1, 6) for _ in range(draw.integer(0, 3))]
    inner = [draw.integer(1, 12) for _ in range(draw.integer(1, 3))]
    inner[draw.integer(0, len(inner) - 1)] *= max(1, -(-WORK // (math.prod(outer) * math.prod(inner))))
    y = Buffer("y", dtype[tuple(outer)], "output")  # type: ignore[index]
    indices = indices_of(tuple(outer))
    buffers: list[Buffer] = []

    def operand(own: tuple[Index, ...]) -> Expr:
        axes = [axis for axis in (*own, *indices) if draw.integer(0, 3)]
        axes.sort(key=lambda axis: draw.integer(0, 9))
        buffers.append(Buffer(f"x{len(buffers)}", dtype[tuple(a.extent for a in axes)], "input"))  # type: ignore[index]
        return Load(buffers[-1], tuple(axes))

    def one() -> Expr:
        own = indices_of(tuple(inner), "r")
        body = operand(own) * operand(own) if draw.integer(0, 1) else operand(own)
        return Reduce(("add", "max", "min")[draw.integer(0, 2)], own, body)

    value = call("max", one(), one()) if draw.integer(0, 1) else one()
    return Kernel("k", (For(indices, (Store(y, indices, value),)),))


@pytest.mark.parametrize("seed", range(12))
def test_random_sums(seed: int) -> None:
    kernel = random_sum(ChoiceDraw(seed), i64)
    whole, parts = program(kernel), program(*split(kernel))
    verify(parts)
    random = np.random.default_rng(seed)
    feeds = {name: random.integers(-9, 10, b.shape) for name, b in whole.inputs.items()}
    assert np.array_equal(evaluate(whole, feeds)[0]["y"], evaluate(parts, feeds)[0]["y"])


def test_random_sums_are_cut_and_stay() -> None:
    """Both happen among those above."""
    found = [len(split(random_sum(ChoiceDraw(seed), i64))) for seed in range(12)]
    assert 1 in found
    assert max(found) > 1


def test_results_that_are_floats_are_close() -> None:
    kernel = random_sum(ChoiceDraw(3), f64)
    assert len(split(kernel)) > 1
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=b.shape) for name, b in program(kernel).inputs.items()}
    whole, parts = (evaluate(program(*kernels), feeds)[0]["y"] for kernels in ((kernel,), split(kernel)))
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_programs_with_repeats_keep_their_meaning() -> None:
    for seed in range(20):
        programs = RandomPrograms(ChoiceDraw(seed))
        p = programs.program()
        after: Program = SplitSums().run(p)
        verify(after)
        feeds = programs.feeds(p)
        for a, b in zip(evaluate(p, feeds), evaluate(after, feeds), strict=True):
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5)


def gradient(pixels: int, c: int, k: int, *, images: int = 8, inner: str = "n, h") -> str:
    """The gradient of a 1x1 convolution's weights."""
    shape = "{},{}" if inner == "n, h" else "{1},{0}"
    x, dy = (f"f32[{shape.format(images, pixels)},{channels}]" for channels in (c, k))
    sum_ = f"y[k, c] = sum(n<{images}, h<{pixels}: x[{inner}, c] * dy[{inner}, k])"
    return text_of(f"k<{k}, c<{c} of f32[{k},{c}]", sum_, x=x, dy=dy)


def test_a_gradient_of_few_products_is_cut_in_two_between_images() -> None:
    assert summed(gradient(36, 32, 192)) == (
        "kernel total.parts:\n"
        "  for i0<2, i1<192, i2<32: total.parts[i0, i1, i2] = "
        "sum(n<4, h<36: x[4*i0 + n, h, i2] * dy[4*i0 + n, h, i1])\n"
        "kernel total:\n"
        "  for k<192, c<32: y[k, c] = sum(r0<2: total.parts[r0, k, c])"
    )


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("its parts are more than a quarter of the operands", gradient(9, 56, 336)),
        ("an image's pixels lie farther apart than the images", gradient(36, 32, 192, inner="h, n")),
        ("each half would be short", gradient(30, 32, 128, images=7)),
        ("it is enough work to wait for", gradient(144, 64, 256)),
    ],
)
def test_other_gradients_stay_whole(why: str, text: str) -> None:
    assert ".parts" not in summed(text), why


def test_work_that_is_worth_waiting_for() -> None:
    assert 144 * 8 * 64 * 256 > FEW > 36 * 8 * 32 * 192


def test_every_cut_makes_parts_worth_their_memory() -> None:
    for cut in (ROWS, COLUMNS, CONTRACTION, LONG_CONTRACTION):
        assert cut.elements >= 64
        assert cut.parts >= 8


def test_very_long_sums_have_more_parts() -> None:
    """In f32 each addition to a long chain is rounded more coarsely than the one before it."""
    text = text_of("_<1 of f32[1]", "y[_] = sum(n<4294967296, k<3: x[k])", x="f32[3]")
    assert "total.parts[i0, i1] = sum(n<524288, k<3: x[k])" in summed(text)


def test_equal_elements_do_not_drift() -> None:
    text = text_of("_<1 of f32[1]", "y[_] = sum(n<2147483648, a<2, b<3: x[a, b])", x="f32[2,3]")
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    (found, _) = Native(SplitSums().run(parse(text)), Target.host()).run({"x": x})
    assert found["y"] == pytest.approx(21 * 2.0**31, rel=1e-3)
