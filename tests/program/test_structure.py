"""Which kernels share code: the key of a kernel's structure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glowtrain.loops import Buffer, Const, Expr, For, Index, Load, Store, Tensor, call, cast, indices_of, reduce
from glowtrain.program.analysis.kernel_key import structure
from glowtrain.program.program import Kernel
from glowtrain.types import TensorType, f32, f64, i64

Value = Callable[[Buffer, Buffer, Index], Expr]


def kernel(
    name: str = "x",
    extent: int = 8,
    dtype: TensorType = f32[8],
    value: Value = lambda x, y, i: Load(x, (i,)) * 2.0 + Load(y, (i,)),
    one: bool = False,
) -> Kernel:
    """``out[i] = value(x, y, i)``; with ``one``, x and y are the same buffer."""
    x = Buffer(f"{name}.x", dtype, "input")
    y = x if one else Buffer(f"{name}.y", dtype, "variable")
    out = Buffer(f"{name}.out", dtype)
    (i,) = indices_of((extent,), name)
    return Kernel(name, (For((i,), (Store(out, (i,), value(x, y, i)),)),))


def test_names_and_kinds_of_buffers_do_not_count() -> None:
    exchanged = kernel("c", value=lambda x, y, i: Load(y, (i,)) * 2.0 + Load(x, (i,)))
    assert structure(kernel("a")) == structure(kernel("b")) == structure(exchanged)


def shared(x: Buffer, y: Buffer, i: Index) -> Expr:
    loaded = Load(x, (i,))
    return loaded * loaded + Load(y, (i,))


def twice(x: Buffer, y: Buffer, i: Index) -> Expr:
    return Load(x, (i,)) * Load(x, (i,)) + Load(y, (i,))


DIFFERENT = {
    "as it is": kernel(),
    "shorter loop": kernel(extent=7),
    "larger buffers": kernel(dtype=f32[9]),
    "another element type": kernel(dtype=f64[8], value=lambda x, y, i: Load(x, (i,)) * 2.0 + Load(y, (i,))),
    "the same buffer twice": kernel(one=True),
    "another number": kernel(value=lambda x, y, i: Load(x, (i,)) * 3.0 + Load(y, (i,))),
    "negative zero": kernel(value=lambda x, y, i: Load(x, (i,)) * -0.0 + Load(y, (i,))),
    "zero": kernel(value=lambda x, y, i: Load(x, (i,)) * 0.0 + Load(y, (i,))),
    "another function": kernel(value=lambda x, y, i: Load(x, (i,)) * 2.0 - Load(y, (i,))),
    "another place": kernel(value=lambda x, y, i: Load(x, (Const(7, i64) - i,)) * 2.0 + Load(y, (i,))),
    "filled": kernel(value=lambda x, y, i: Load(x, (i,), 0.0) * 2.0 + Load(y, (i,))),
    "filled with one": kernel(value=lambda x, y, i: Load(x, (i,), 1.0) * 2.0 + Load(y, (i,))),
    "a cast": kernel(value=lambda x, y, i: cast(cast(Load(x, (i,)), f64), f32) + Load(y, (i,))),
    "shared": kernel(value=shared),
    "not shared": kernel(value=twice),
    "a sum": kernel(value=lambda x, y, i: reduce("add", (8,), lambda r: Load(x, (r,)) * Load(y, (i,)))),
    "a product": kernel(value=lambda x, y, i: reduce("mul", (8,), lambda r: Load(x, (r,)) * Load(y, (i,)))),
    "a shorter sum": kernel(value=lambda x, y, i: reduce("add", (7,), lambda r: Load(x, (r,)) * Load(y, (i,)))),
}


def test_everything_else_counts() -> None:
    keys: dict[object, str] = {}
    for name, each in DIFFERENT.items():
        assert keys.setdefault(structure(each), name) == name


def test_layouts_count() -> None:
    a, b = kernel(dtype=f32[8]), kernel(dtype=f32[8])
    assert structure(a) == structure(b)
    moved = Buffer("m", f32[2, 4], layout=(1, 0))
    i = indices_of((2, 4))
    keys = [
        structure(Kernel("copy", (For(i, (Store(moved, i, Load(source, i)),)),)))
        for source in (Buffer("s", f32[2, 4]), Buffer("s", f32[2, 4], layout=(1, 0)))
    ]
    assert keys[0] != keys[1]


def test_indices_of_repeats_are_told_apart() -> None:
    t, u = Index(8, "t"), Index(8, "t")
    x, y = Buffer("x", f32[8, 8]), Buffer("y", f32[8])
    (i,) = indices_of((8,))

    def step(at: Index) -> Kernel:
        return Kernel("step", (For((i,), (Store(y, (i,), Load(x, (at, i))),)),))

    assert structure(step(t), [t]) == structure(step(t), [t])
    assert structure(step(t), [t]) != structure(step(u), [u])
    assert structure(step(t), [t, u]) != structure(step(u), [t, u])


def test_deep_expressions_are_no_problem() -> None:
    def deep(x: Buffer, y: Buffer, i: Index) -> Expr:
        value: Expr = Load(x, (i,))
        for _ in range(5000):
            value = call("neg", value)
        return value + Load(y, (i,))

    assert structure(kernel("a", value=deep)) == structure(kernel("b", value=deep))


@pytest.mark.parametrize("nested", [1, 3])
def test_tensors_with_a_prefix(nested: int) -> None:
    """A slice at an outer index has the structure of the access that it stands for."""
    t = Index(4, "t")
    x, y = Buffer("x", f32[4, 8]), Buffer("y", f32[8])
    (i,) = indices_of((8,))
    kernels = [
        Kernel("k", (For((i,), (Store(y, (i,), value),)),))
        for value in (Tensor(x, (t,))[(i,)], Load(x, (t, i)))
        for _ in range(nested)
    ]
    assert len({structure(each, [t]) for each in kernels}) == 1
