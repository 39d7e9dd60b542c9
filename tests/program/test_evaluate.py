"""The evaluator on kernels by hand; what runs on every engine stands in texts/."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.errors import InputError, ProgramError
from glowtrain.loops import (
    Buffer,
    Const,
    For,
    Let,
    Load,
    Ref,
    Store,
    Tensor,
    indices_of,
    reduce,
)
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.interpret.storage import Memory
from glowtrain.types import f32, f64, i32, i64
from tests.program.programs import program


def test_contractions_of_every_shape(random: np.random.Generator) -> None:
    """Batches, rows, columns and sums in any order, by one matrix product."""
    a, b = Buffer("a", f32[3, 4, 5, 2], "input"), Buffer("b", f32[5, 3, 6, 2], "input")
    c = Buffer("c", f32[4, 3, 6], "output")
    m, k, n = indices_of(c.shape)
    value = reduce("add", (5, 2), lambda r, s: Load(a, (k, m, r, s)) * Load(b, (r, k, n, s)))
    p = program([For((m, k, n), (Store(c, (m, k, n), value),))], inputs=[a, b], outputs=[c])
    arrays = {"a": random.normal(size=a.shape).astype(np.float32), "b": random.normal(size=b.shape).astype(np.float32)}
    outputs, _ = evaluate(p, arrays)
    np.testing.assert_allclose(
        outputs["c"], np.einsum("kmrs,rkns->mkn", arrays["a"], arrays["b"]), rtol=1e-5, atol=1e-5
    )


def test_a_padded_convolution(random: np.random.Generator) -> None:
    x, w, y = (
        Buffer("x", f64[2, 3, 7], "input"),
        Buffer("w", f64[4, 3, 3], "input"),
        Buffer("y", f64[2, 4, 4], "output"),
    )
    n, o, i = indices_of(y.shape)
    value = reduce("add", (3, 3), lambda c, r: Load(x, (n, c, i * 2 + r - 1), 0) * Load(w, (o, c, r)))
    p = program([For((n, o, i), (Store(y, (n, o, i), value),))], inputs=[x, w], outputs=[y])
    arrays = {"x": random.normal(size=x.shape), "w": random.normal(size=w.shape)}
    padded = np.pad(arrays["x"], [(0, 0), (0, 0), (1, 1)])
    expected = [
        [[(padded[a, :, 2 * j : 2 * j + 3] * arrays["w"][b]).sum() for j in range(4)] for b in range(4)]
        for a in range(2)
    ]
    np.testing.assert_allclose(evaluate(p, arrays)[0]["y"], expected)


def test_a_let_keeps_the_value_from_before_a_store() -> None:
    """An update in place whose old value is used afterwards, as in a merged optimizer kernel."""
    v, y = Buffer("v", f32[4], "variable", initial=np.arange(4, dtype=np.float32)), Buffer("y", f32[4], "output")
    (i,) = indices_of((4,))
    old = Ref(f32, "old")
    body = (Let(old, Load(v, (i,))), Store(v, (i,), old * 2 + 1), Store(y, (i,), old))
    p = program([For((i,), body)], outputs=[y], variables={"v": v}, updates=("v",))
    outputs, state = evaluate(p, {})
    np.testing.assert_array_equal(outputs["y"], [0, 1, 2, 3])
    np.testing.assert_array_equal(state["v"], [1, 3, 5, 7])
    np.testing.assert_array_equal(v.initial, [0, 1, 2, 3])
    _, state = evaluate(p, {}, state)
    np.testing.assert_array_equal(state["v"], [3, 7, 11, 15])


def test_layouts_do_not_change_results_but_the_memory(random: np.random.Generator) -> None:
    x, t, y = (
        Buffer("x", f32[2, 3, 4], "input"),
        Buffer("t", f32[2, 3, 4], layout=(0, 2, 1)),
        Buffer("y", f32[2, 3, 4], "output"),
    )
    i, j = indices_of(t.shape), indices_of(t.shape)
    p = program([For(i, (Store(t, i, Load(x, i)),))], [For(j, (Store(y, j, Load(t, j)),))], inputs=[x], outputs=[y])
    array = random.normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(p, {"x": array})[0]["y"], array)
    assert Memory(p, {"x": array}, {}, None)[t].strides == (48, 4, 12)


def test_accesses_outside_are_errors() -> None:
    x, at, y = Buffer("x", f32[3], "input"), Buffer("at", i64[2], "input"), Buffer("y", f32[2], "output")
    (i,) = indices_of((2,))
    arrays = {"x": np.zeros(3, np.float32), "at": np.array([0, 3])}
    gathered = program([For((i,), (Store(y, (i,), Load(x, (Load(at, (i,)),))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"input x \(f32\[3\]\) is read outside"):
        evaluate(gathered, arrays)
    affine = program([For((i,), (Store(y, (i,), Load(x, (i + 2,))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"input x \(f32\[3\]\) is read outside"):
        evaluate(affine, arrays)
    stored = program([For((i,), (Store(y, (i + 1,), Load(x, (i,))),))], inputs=[x, at], outputs=[y])
    with pytest.raises(ProgramError, match=r"output y \(f32\[2\]\) is written outside"):
        evaluate(stored, arrays)


def test_what_is_never_written_shows_as_poison() -> None:
    y, n = Buffer("y", f32[2], "output"), Buffer("n", i32[1], "output")
    p = program([Store(y, (Const(0, i64),), Const(1.0, f32))], outputs=[y, n])
    outputs, _ = evaluate(p, {})
    assert outputs["y"][0] == 1
    assert np.isnan(outputs["y"][1])
    assert outputs["n"].view(np.uint32)[0] == 0xAAAAAAAA


def test_wrong_inputs_are_named() -> None:
    x, y = Buffer("x", f32[3], "input"), Buffer("y", f32[3], "output")
    p = program([For((i := indices_of((3,))), (Store(y, i, Load(x, i)),))], inputs=[x], outputs=[y])
    with pytest.raises(InputError, match=r"input 'x' \(f32\[3\]\) has no value"):
        evaluate(p, {})
    with pytest.raises(InputError, match=r"input 'x' must be f32\[3\], not float64\[3\]"):
        evaluate(p, {"x": np.zeros(3)})


def test_tensors_address_slices() -> None:
    """A prefix, as in a step of a Scan."""
    x, y = Buffer("x", f32[4, 3], "input"), Buffer("y", f32[3], "output")
    (i,) = indices_of((3,))
    p = program([For((i,), (Tensor(y).store((i,), Tensor(x, (Const(2, i64),))[i,]),))], inputs=[x], outputs=[y])
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(evaluate(p, {"x": array})[0]["y"], array[2])
