"""The text of programs and plans: golden files, and the grammar in the small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Variable
from glowtrain.loops import (
    Accumulate,
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Ref,
    Statement,
    Store,
    call,
    cast,
    flatten,
    indices_of,
    reduce,
    select,
    unflatten,
)
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.normalize.batch_and_layer import LayerNormalization
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Reshape, Transpose
from glowtrain.program.memory.plan import plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.schedule import schedule
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.program.statement_text import expression_text, statement_text
from glowtrain.program.text import plan_text, to_text
from glowtrain.types import boolean, f32, f64, i32, i64
from tests.stages import fuse, lower

Golden = Callable[[str, str], None]

X = Buffer("x", f32[4, 3], "input")
P, Q = indices_of((4, 3))


def text(expr: Expr) -> str:
    return expression_text(expr, (P, Q))


# ---- expressions


def test_arithmetic_has_as_few_parentheses_as_it_needs() -> None:
    a, b = Load(X, (P, Q)), Load(X, (Q, P))
    assert text((a + b) * 2 - a / (b - 1)) == "(x[i0, i1] + x[i1, i0]) * 2 - x[i0, i1] / (x[i1, i0] - 1)"
    assert text(a - (b - a)) == "x[i0, i1] - (x[i1, i0] - x[i0, i1])"
    assert text(-(a * b) + -a) == "-(x[i0, i1] * x[i1, i0]) + -x[i0, i1]"
    assert text((a < b) & (a >= 0)) == "x[i0, i1] < x[i1, i0] & x[i0, i1] >= 0"
    assert (
        text(select(a < b, call("max", a, 0), call("exp", b)))
        == "select(x[i0, i1] < x[i1, i0], max(x[i0, i1], 0), exp(x[i1, i0]))"
    )


def test_numbers_are_the_shortest_of_their_type() -> None:
    x = Load(X, (P, Q))
    assert [text(x * v) for v in (0.1, 1.0, -2.5, float("inf"), float("nan"), 0.7978845608028654)] == [
        f"x[i0, i1] * {shown}" for shown in ("0.1", "1", "-2.5", "inf", "nan", "0.7978846")
    ]
    assert text(cast(x, f64) + 0.7978845608028654) == "f64(x[i0, i1]) + 0.7978845608028654"
    assert text(Const(True, boolean)) == "true"
    assert text(-Const(2.0, f32) * x) == "-(2) * x[i0, i1]"


def test_a_number_says_its_type_where_nothing_beside_it_does() -> None:
    y = Buffer("y", f32[4, 3], "output")
    assert statement_text(Store(y, (P, Q), Const(0.5, f32)), (P, Q)) == "y[i0, i1] = 0.5"
    assert statement_text(Store(y, (P, Q), Const(0.5, f64)), (P, Q)) == "y[i0, i1] = 0.5:f64"
    assert statement_text(Let(Ref(f32, "half"), Const(0.5, f32))) == "let half = 0.5:f32"
    assert text(cast(Const(-3, i64), f32)) == "f32(-3)"
    assert text(cast(Const(-3, i32), f32)) == "f32(-3:i32)"
    assert text(Const(2.0, f32) < Const(3.0, f32)) == "2:f32 < 3"
    assert text(reduce("add", (3,), lambda r: Const(1.0, f32))) == "sum(r0<3: 1:f32)"


def test_subscripts_are_affine() -> None:
    flat = flatten((P, Q), (4, 3))
    assert text(Load(X, tuple(unflatten(flat, (4, 3))))) == "x[i0, i1]"
    assert text(Load(X, tuple(unflatten(flatten((Q, P), (3, 4)), (4, 3))))) == "x[(4*i1 + i0) // 3, (4*i1 + i0) % 3]"
    assert text(Load(X, (P * -1 + 3, Q * 2 - 1), fill=0)) == "x[-i0 + 3, 2*i1 - 1; fill 0]"


def test_arithmetic_of_integers_keeps_its_order_and_what_it_reads() -> None:
    read = Load(Buffer("n", i64[4], "input"), (P,))
    assert text(read * (P % 3)) == "n[i0] * (i0 % 3)"
    assert text(read * (P * Q)) == "n[i0] * (i0 * i1)"
    assert text((P % 3) * read) == "i0 % 3 * n[i0]"
    assert text(P % 3 + read) == "i0 % 3 + n[i0]"
    assert text(read * 0) == "n[i0] * 0"
    assert text(P * 0 + Q) == "i1"


def test_reductions_and_what_they_share() -> None:
    mean = Ref(f32, "mean")
    square = reduce("add", (3,), lambda r: _square(Load(X, (P, r)) - mean))
    variance = Let(Ref(f32, "variance"), square)
    assert statement_text(variance, (P,)) == "let variance = sum(r0<3: with s = x[i0, r0] - mean?; s * s)"
    assert text(reduce("max", (2, 2), lambda r, s: Load(X, (r, s)))) == "max(r0<2, r1<2: x[r0, r1])"
    assert text(reduce("and", (3,), lambda r: Load(X, (P, r)) < 1)) == "all(r0<3: x[i0, r0] < 1)"


def _square(x: Expr) -> Expr:
    return x * x


def test_messages_are_short_whatever_the_expression() -> None:
    """Sharing makes the tree of this expression 2**60 large."""
    value: Expr = Load(X, (P, Q))
    for _ in range(60):
        value = value * value + 1
    assert len(statement_text(Store(X, (P, Q), value), (P, Q))) <= 160
    assert len(text(value)) <= 160


def test_statements() -> None:
    y = Buffer("y", f32[4, 3], "output")
    body: tuple[Statement, ...] = (
        For((P, Q), (Store(y, (P, Q), Const(0.0, f32)),)),
        For(
            (P,),
            (
                For(
                    (Q,),
                    (Accumulate("add", y, (P + 2, Q), Load(X, (P, Q))), Accumulate("max", y, (P, Q), Load(X, (P, Q)))),
                ),
            ),
            serial=True,
        ),
    )
    assert to_text(Program("p", {"x": X}, {"y": y}, {}, (Kernel("k", body),))) == (
        "program p\n"
        "  input      x: f32[4,3]\n"
        "  output     y: f32[4,3]\n"
        "kernel k:\n"
        "  for i0<4, i1<3: y[i0, i1] = 0\n"
        "  for serial i0<4:\n"
        "    for i1<3:\n"
        "      y[i0 + 2, i1] += x[i0, i1]\n"
        "      y[i0, i1] max= x[i0, i1]\n"
    )


def test_indices_do_not_take_the_names_of_buffers_or_of_each_other() -> None:
    i, j, t = Index(2, "i0"), Index(3, "i0"), Index(4, "i0")
    odd = Buffer("i0", f32[4, 2, 3], "output")
    kernel = Kernel("k", (For((i,), (For((j,), (Store(odd, (t, i, j), Const(1.0, f32)),)),)),))
    listing = to_text(Program("p", {}, {"y": odd}, {}, (Repeat("r", t, (kernel,)),)))
    assert "repeat r i0_1<4:" in listing
    assert "i0[i0_1, i0_1_1, i0_1_1_1] = 1" in listing or "i0[i0_1, i0_2, i0_3] = 1" in listing


# ---- whole programs


def mlp() -> Graph:
    """A training step of two layers."""
    random = np.random.default_rng(0)
    x = Input(f32[8, 6], "x")
    w, b, v = (
        Variable(n, random.normal(size=s).astype(np.float32)) for n, s in (("w", (6, 5)), ("b", (5,)), ("v", (5, 3)))
    )
    y = Softmax()(Relu()(x @ w + b) @ v)
    loss = ReduceSum(keepdims=False)(y * y)
    gradients = pullback([loss], [Input(f32[()], "seed")], [w, b, v])
    seed = gradients[0]
    assert seed is not None
    return Graph(
        (x, _seed(seed)),
        {"loss": loss},
        {p: p - 0.1 * g for p, g in zip((w, b, v), gradients, strict=True)},
        name="mlp",
    )


def _seed(gradient: object) -> Input:
    """The cotangent among the leaves of a gradient."""
    leaves = Graph((), {"g": gradient}).leaves  # type: ignore[dict-item]
    return next(leaf for leaf in leaves if isinstance(leaf, Input) and leaf.name == "seed")


def attention() -> Graph:
    """Rows, moves and a batched contraction."""
    tokens, table = Input(i64[2, 4], "tokens"), Variable("table", np.zeros((10, 6), np.float32))
    scale, bias = (Variable(name, np.ones(6, np.float32)) for name in ("scale", "bias"))
    h = LayerNormalization()(Gather()(table, tokens), scale, bias)[0]
    heads = Transpose(perm=(0, 2, 1, 3))(Reshape(shape=(2, 4, 3, 2))(h))
    scores = Softmax()(heads @ Transpose(perm=(0, 1, 3, 2))(heads))
    mixed = Reshape(shape=(2, 4, 6))(Transpose(perm=(0, 2, 1, 3))(scores @ heads))
    return Graph((tokens,), {"y": mixed}, name="attention")


def convolution() -> Graph:
    x = Input(f32[1, 2, 6, 6], "x")
    w, v = Variable("w", np.zeros((4, 2, 3, 3), np.float32)), Variable("v", np.zeros((4, 4, 3, 3), np.float32))
    same = Conv(pads=(1, 1, 1, 1))
    return Graph((x,), {"y": Conv(strides=(2, 2))(Relu()(same(x, w)), v)}, name="convolution")


def recurrence() -> Graph:
    x, start, w = Input(f32[5, 3], "x"), Input(f32[1, 3], "start"), Variable("w", np.zeros((3, 3), np.float32))
    state, step, weight = Input(f32[1, 3], "state"), Input(f32[3,], "step"), Input(f32[3, 3], "weight")
    after = Tanh()(step + state @ weight)
    body = Graph((state, step, weight), {"after": after, "seen": after * 2}, name="cell")
    last, stacked = Scan(body, 1, num_captured=1)(start, x, w)
    return Graph((x, start), {"last": last, "stacked": stacked}, name="recurrence")


def test_golden_programs(golden: Golden) -> None:
    for graph in (attention(), convolution(), recurrence()):
        golden(f"{graph.name}.program.txt", to_text(lower(graph)))


def test_golden_plan(golden: Golden) -> None:
    golden("mlp.plan.txt", plan_text(plan(schedule(fuse(assign_layouts(lower(mlp())))))))


def test_equal_programs_have_equal_text() -> None:
    assert to_text(fuse(lower(mlp()))) == to_text(fuse(lower(mlp())))
    assert str(lower(mlp())) == to_text(lower(mlp()))
