"""Reductions in nests: of every type, in the order that the program or the target gives, in one pass where they can."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.cpu.loop_nest.reduction import identity
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.target import Target
from glowtrain.loops import (
    Buffer,
    Cast,
    Expr,
    For,
    Index,
    Load,
    Reduce,
    Store,
    call,
    indices_of,
    reduce,
    substitute,
)
from glowtrain.loops.functions import fused_multiply_add
from glowtrain.program.interpret import functions
from glowtrain.program.verify import verify
from glowtrain.types import DTYPES, Array, DType, TensorType, bf16, boolean, f32, f64
from tests.cpu.native_program import Native, spread
from tests.cpu.nests import TARGETS, check, feeds_of, program

COMPUTED = [dtype for dtype in DTYPES.values() if not dtype.is_stored]


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("dtype", [f32, f64])
def test_sums_round_as_their_length_allows(target: str, dtype: DType, random: np.random.Generator) -> None:
    """Along the reduction, and along an outer loop, at lengths around multiples of the width."""
    width = max(TARGETS[target].width(dtype.name), 2)
    for length in (1, width - 1, width, width + 1, 2 * width, 4 * width + 1, 9 * width - 1):
        x, y, z = (Buffer(n, TensorType(dtype, s), k) for n, s, k in (
            ("x", (5, length), "input"), ("y", (5,), "output"), ("z", (length,), "output")))  # fmt: skip
        (i,), (j,) = indices_of((5,)), indices_of((length,), "j")
        rows = For((i,), (Store(y, (i,), reduce("add", (length,), lambda r: Load(x, (i, r)) * Load(x, (i, r)))),))
        columns = For((j,), (Store(z, (j,), reduce("add", (5,), lambda r: Load(x, (r, j)))),))
        p = program([rows, columns])
        check(p, feeds_of(random, p), TARGETS[target], 4 * length * float(np.finfo(dtype.numpy).eps))


@pytest.mark.spread(21)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_every_reduction_of_every_type(target: str, dtype: DType, random: np.random.Generator) -> None:
    """Several over one box share a pass; remainders on both loops; boxes of two loops, and empty ones."""
    ops = ["add", "mul", "max", "min"] + (["and", "or"] if dtype == boolean else [])
    ops = ops[2:] if dtype.name in ("f16", "bf16") else ops
    x = Buffer("x", TensorType(dtype, (3, 3, 19)), "input", (2, 0, 1))
    (i,), (j,) = indices_of((3,)), indices_of((19,), "j")
    kernels = []
    for n, op in enumerate(ops):
        y, z, e = (Buffer(f"{c}{n}", TensorType(dtype, (s,)), "output") for c, s in (("y", 3), ("z", 19), ("e", 3)))
        rows = Store(y, (i,), Reduce(op, r := indices_of((3, 19), "r"), Load(x, (i, *r))))
        empty = Store(e, (i,), Reduce(op, r := indices_of((0, 2), "q"), Load(x, (i, *r))))
        columns = Store(z, (j,), Reduce(op, r := indices_of((3, 3), "r"), Load(x, (*r, j))))
        kernels.append((rows, empty, columns))
    p = program([For((i,), tuple(s for k in kernels for s in k[:2])), For((j,), tuple(k[2] for k in kernels))])
    low = 0 if dtype.kind in ("uint", "bool") else -2
    feeds = {"x": random.integers(low, 3, x.shape).astype(dtype.numpy)}
    check(p, feeds, TARGETS[target])


def partial_sum(element: Expr, index: Index, count: int) -> Expr:
    """The sum of squares in f32, of the elements in f64."""
    return Reduce("add", (index,), element * element if element.dtype == f32 else element, count)


def in_partial_sums(factors: Array, count: int) -> Array:
    """The same in NumPy, along the last axis: element i added to partial sum i mod ``count``, these half with half."""
    totals = np.zeros((*factors.shape[:-1], count), factors.dtype)
    for at in range(factors.shape[-1]):
        a, total = factors[..., at], totals[..., at % count]
        totals[..., at % count] = fused_multiply_add(a, a, total) if a.dtype == np.float32 else a + total
    while count > 1:
        count //= 2
        totals = totals[..., :count] + totals[..., count:]
    return np.asarray(totals[..., 0])


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", [*sorted(TARGETS), "generic"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_partial_sums_that_a_program_counts_have_one_order(
    name: str, dtype: DType, random: np.random.Generator
) -> None:
    """On every target, along the reduction and along an outer loop; f64 adds, f32 adds products without rounding."""
    target = TARGETS.get(name) or Target.named(name)
    for length, count in [*((n, 8) for n in (1, 2, 7, 8, 9, 16, 17, 23, 31, 49, 64, 100)), (37, 4), (37, 16)]:
        x = Buffer("x", TensorType(dtype, (5, length)), "input")
        across = Buffer("t", TensorType(dtype, (length, 19)), "input")
        y, z = Buffer("y", TensorType(dtype, (5,)), "output"), Buffer("z", TensorType(dtype, (19,)), "output")

        (i,), (j,), (r, s) = indices_of((5,)), indices_of((19,), "j"), indices_of((length, length), "r")
        rows = For((i,), (Store(y, (i,), partial_sum(Load(x, (i, r)), r, count)),))
        columns = For((j,), (Store(z, (j,), partial_sum(Load(across, (s, j)), s, count)),))
        p = program([rows, columns])
        verify(p)
        feeds = feeds_of(random, p)
        results, *_ = Native(p, target).run(feeds)
        np.testing.assert_array_equal(results["y"], in_partial_sums(feeds["x"], count))
        np.testing.assert_array_equal(results["z"], in_partial_sums(feeds["t"].T, count))


def test_kernels_of_other_partial_sums_share_no_code(random: np.random.Generator) -> None:
    x, y, z = Buffer("x", f32[5, 37], "input"), Buffer("y", f32[5], "output"), Buffer("z", f32[5], "output")
    kernels = []
    for count, buffer in ((8, y), (4, z)):
        (i,), (r,) = indices_of((5,)), indices_of((37,), "r")
        kernels.append([For((i,), (Store(buffer, (i,), partial_sum(Load(x, (i, r)), r, count)),))])
    p = program(*kernels)
    feeds = feeds_of(random, p)
    results, *_ = Native(p, Target.host()).run(feeds)
    for count, name in ((8, "y"), (4, "z")):
        np.testing.assert_array_equal(results[name], in_partial_sums(feeds["x"], count))


def test_partial_sums_stay_when_expressions_are_rewritten() -> None:
    (i, j), (r,) = indices_of((5, 5)), indices_of((37,), "r")
    changed = substitute(partial_sum(Load(Buffer("x", f32[5, 37], "input"), (i, r)), r, 4), {i: j})
    assert isinstance(changed, Reduce)
    assert changed.partials == 4


@pytest.mark.parametrize("name", [*sorted(TARGETS), "generic"])
def test_products_that_others_share_are_added_without_rounding(name: str, random: np.random.Generator) -> None:
    """Another reduction over the same index computes the product first."""
    target, (i,), (r,) = TARGETS.get(name) or Target.named(name), indices_of((5,)), indices_of((23,), "r")
    x, y, z = Buffer("x", f32[5, 23], "input"), Buffer("y", f32[5], "output"), Buffer("z", f32[5], "output")
    square = Load(x, (i, r)) * Load(x, (i, r))
    sums = Reduce("add", (r,), call("abs", square - 1.0), 8), Reduce("add", (r,), square, 8)
    p = program([For((i,), tuple(Store(buffer, (i,), value) for buffer, value in zip((y, z), sums, strict=True)))])
    feeds = feeds_of(random, p)
    results, *_ = Native(p, target).run(feeds)
    np.testing.assert_array_equal(results["z"], in_partial_sums(feeds["x"], 8))


def test_identities_are_those_of_the_evaluator() -> None:
    for dtype in COMPUTED:
        for op in ("add", "mul", "max", "min"):
            assert functions.number(identity(op, dtype), dtype) == functions.identity(op, dtype), (op, dtype)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_maxima_propagate_nan_wherever_it_stands(target: str, random: np.random.Generator) -> None:
    x, y, z = Buffer("x", f32[21, 21], "input"), Buffer("y", f32[21], "output"), Buffer("z", f32[21], "output")
    (i,) = indices_of((21,))
    low = reduce("min", (21,), lambda r: Load(x, (r, i)))
    p = program([For((i,), (Store(y, (i,), reduce("max", (21,), lambda r: Load(x, (i, r)))), Store(z, (i,), low)))])
    array = random.integers(-5, 5, (21, 21)).astype(np.float32)
    np.fill_diagonal(array, np.nan)
    outputs, _ = Native(p, TARGETS[target]).run({"x": array})
    assert np.isnan(outputs["y"]).all()
    assert np.isnan(outputs["z"]).all()


def test_an_inner_reduction_is_computed_once(random: np.random.Generator) -> None:
    """The maximum inside of a sum of exponentials, both over the same box: loops, not a loop in a loop."""
    x, y = Buffer("x", f32[40, 300], "input"), Buffer("y", f32[40], "output")
    (i,) = indices_of((40,))
    largest = reduce("max", (300,), lambda r: Load(x, (i, r)))
    total = reduce("add", (300,), lambda r: call("max", Load(x, (i, r)) - largest, 0.0))
    p = program([For((i,), (Store(y, (i,), total * 2 + largest),))])
    text = generate(spread(p), Target.named("avx2")).text
    assert text.count("phi i64") == 3, text
    check(p, feeds_of(random, p), Target.host(), 1e-3)


def test_what_no_loop_changes_is_computed_before_it() -> None:
    x, y = Buffer("x", f32[100], "input"), Buffer("y", f32[100], "output")
    (i,) = indices_of((100,))
    total = reduce("add", (100,), lambda r: call("abs", Load(x, (r,))))
    p = program([For((i,), (Store(y, (i,), Load(x, (i,)) / call("sqrt", total)),))])
    text = generate(spread(p), Target.named("avx2")).text
    first = text.index("loop", text.rindex("phi i64") - 200)
    assert "sqrt" in text[:first]
    assert "sqrt" not in text[first:]


def test_sums_over_one_box_share_a_pass(random: np.random.Generator) -> None:
    x, y, z = Buffer("x", f32[9, 300], "input"), Buffer("y", f32[9], "output"), Buffer("z", f32[9], "output")
    (i,) = indices_of((9,))
    total = reduce("add", (300,), lambda r: Load(x, (i, r)))
    squares = reduce("add", (300,), lambda r: Load(x, (i, r)) * Load(x, (i, r)))
    p = program([For((i,), (Store(y, (i,), total), Store(z, (i,), squares)))])
    assert generate(spread(p), Target.named("avx2")).text.count("phi i64") == 2
    check(p, feeds_of(random, p), Target.host(), 1e-3)


@pytest.mark.parametrize("fill", [None, 0])
def test_sums_over_one_box_read_once_what_both_are_of(fill: int | None, random: np.random.Generator) -> None:
    """Elements inside of a border too, and what they are converted to."""
    x, y, z = Buffer("x", bf16[9, 300], "input"), Buffer("y", f32[9], "output"), Buffer("z", f32[9], "output")
    (i,), border = indices_of((9,)), 0 if fill is None else 3

    def element(r: Expr) -> Expr:
        return Cast(Load(x, (i, r - border), fill), f32)

    extent = 300 + 2 * border
    total = reduce("add", (extent,), element)
    squares = reduce("add", (extent,), lambda r: element(r) * element(r))
    stores = Store(y, (i,), total), Store(z, (i,), squares)
    one, both = (program([For((i,), stores[:count])]) for count in (1, 2))
    reads, others = (generate(spread(p), Target.named("avx512")).text for p in (one, both))
    for instruction in ("load <", "zext <"):
        assert reads.count(instruction) == others.count(instruction), instruction
    check(both, feeds_of(random, both), Target.host(), 1e-3)
