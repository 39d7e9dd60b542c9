"""Graph passes: every rule fires where it may, is refused where it must be, and keeps every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import GraphError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Constant, Graph, Input, Node, Value, Variable, constant, to_text, verify
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Add, Div, Mean, Mul, Neg, Pow, Sub, Sum
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Cast, Identity, Not, Where
from glowtrain.ops.elementwise.transcendental import Exp, Tanh
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.pooling.max_pool import MaxPool, MaxPoolGradient
from glowtrain.ops.quantized.convert import DequantizeLinear
from glowtrain.ops.random.philox import Dropout, RandomBits
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMean, ReduceSum
from glowtrain.ops.tensor.move import Concat, Expand, Flatten, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from glowtrain.ops.tensor.pad import Pad, Tile
from glowtrain.ops.tensor.shape import Shape
from glowtrain.ops.tensor.split import Split
from glowtrain.optimize.cse import MergeEqual
from glowtrain.optimize.fold import Fold
from glowtrain.optimize.pipeline import Pass, optimize
from glowtrain.optimize.scan import DropUnreadStacks, MergeScans
from glowtrain.optimize.simplify import Simplify, holds_all
from glowtrain.types import DTYPES, Array, TensorType, bf16, boolean, f16, f32, f64, i32, i64

X = Input(f32[2, 3], "x")
K = Input(i64[2, 3], "k")
B = Input(boolean[2, 3], "b")
ONE, ZERO, MINUS_ZERO = constant(1.0, f32), constant(0.0, f32), constant(-0.0, f32)


def graph_of(*values: Value) -> Graph:
    """A graph over the inputs that ``values`` read."""
    outputs = {f"y{place}": value for place, value in enumerate(values)}
    bare = Graph((), outputs)
    return bare.with_(inputs=tuple(leaf for leaf in bare.leaves if isinstance(leaf, Input)))


def awkward(type_: TensorType, seed: int = 0) -> Array:
    """Values with signed zeros, infinities and NaN among them."""
    random = np.random.default_rng(seed)
    if type_.dtype.kind == "bool":
        return random.integers(0, 2, type_.shape) == 1
    if type_.dtype.is_integer:
        return random.integers(-3, 4, type_.shape).astype(type_.dtype.numpy)
    special = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 0.1])
    return random.choice(special, type_.shape).astype(type_.dtype.numpy)


def same_bits(before: Graph, after: Graph, inputs: Mapping[str, Array] | None = None) -> None:
    fed = inputs or {value.name: awkward(value.type) for value in before.inputs}
    first, second = evaluate(before, fed), evaluate(after, fed)
    for name, value in before.outputs.items():
        a, b = first[value], second[after.outputs[name]]
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        nan = np.isnan(a.astype(np.float64)) if a.dtype.kind not in "iub" else np.zeros(a.shape, bool)
        assert np.array_equal(a[~nan].view(np.uint8), b[~nan].view(np.uint8))
        assert np.array_equal(nan, np.isnan(b.astype(np.float64)) if a.dtype.kind not in "iub" else nan)


def run(step: Pass, graph: Graph) -> Graph:
    result = step.run(graph)
    verify(result)
    same_bits(graph, result)
    return result


def kinds(graph: Graph) -> list[str]:
    return [node.operator.key() for node in graph.nodes]


T = Tanh()(X)
STRETCHED = Expand((4, 2, 3))(X)

LINE, SLOPES = Relu()(Input(f32[2, 1, 7], "line")), Input(f32[2, 1, 6], "slopes")
LARGEST, POSITIONS = MaxPool(kernel_shape=(2,))(LINE)
SPREAD = MaxPoolGradient((7,), (2,), (1,), (1,), (0, 0))(SLOPES, Cast(i32)(POSITIONS))

FIRES: list[tuple[str, Value | tuple[Value, ...], list[str]]] = [
    ("x * 1", T * ONE, ["Tanh"]),
    ("1 * x", Mul()(np.ones((1, 3), np.float32), T), ["Tanh"]),
    ("x / 1", Div()(T, ONE), ["Tanh"]),
    ("x ** 1", Pow()(T, ONE), ["Tanh"]),
    ("x - 0", Sub()(T, ZERO), ["Tanh"]),
    ("x + -0", Add()(T, MINUS_ZERO), ["Tanh"]),
    ("-0 + x", Add()(MINUS_ZERO, T), ["Tanh"]),
    ("k + 0", Neg()(K) + 0, ["Neg"]),
    ("k * 1", Neg()(K) * 1, ["Neg"]),
    ("(k + 2) + 3", (K + 2) + 3, ["Add", "Add"]),
    ("-(-x)", Neg()(Neg()(X)), []),
    ("not(not b)", Not()(Not()(B)), []),
    ("identity", Identity()(Identity()(T)), ["Tanh"]),
    ("transpose by nothing", Transpose((0, 1))(T), ["Tanh"]),
    ("transpose of extents 1", Transpose((1, 0, 2))(Reshape((1, 1, 6))(T)), ["Tanh", "Reshape"]),
    ("reshape to the same", Reshape((2, -1))(T), ["Tanh"]),
    ("expand to the same", Expand((1, 3))(T), ["Tanh"]),
    ("slice of everything", Slice((0, -5), (9, 3))(T), ["Tanh"]),
    ("tile once", Tile((1, 1))(T), ["Tanh"]),
    ("pad by nothing", Pad((0, 0, 0, 0))(T), ["Tanh"]),
    ("sum of one", Sum()(T), ["Tanh"]),
    ("mean of one", Mean()(T), ["Tanh"]),
    ("max of one", Max()(T), ["Tanh"]),
    ("concat of one", Concat(0)(T), ["Tanh"]),
    ("split into one", Split((3,), axis=1)(T), ["Tanh"]),
    ("cast to the same", Cast(f32)(T), ["Tanh"]),
    ("cast through a wider type", Cast(f32)(Cast(f64)(X)), []),
    ("cast up twice", Cast(f64)(Cast(f32)(Cast(f16)(X))), ["Cast", "Cast"]),
    ("two transposes", Transpose((1, 0, 2))(Transpose((2, 0, 1))(STRETCHED)), ["Expand", "Transpose"]),
    ("transposes that cancel", Transpose((1, 0))(Transpose((1, 0))(T)), ["Tanh"]),
    ("reshape of reshape", Reshape((6,))(Reshape((3, 2))(T)), ["Tanh", "Reshape"]),
    ("unsqueeze of flatten", Unsqueeze((0,))(Flatten(0)(T)), ["Tanh", "Reshape"]),
    ("squeeze of unsqueeze", Squeeze((0,))(Unsqueeze((0,))(T)), ["Tanh"]),
    ("expand of expand", Expand((5, 4, 2, 3))(STRETCHED), ["Expand"]),
    ("expanded operand", Input(f32[4, 2, 3], "z") * STRETCHED, ["Mul"]),
    ("where true", Where()(constant(np.ones((2, 3), bool)), X, T), []),
    ("where false", Where()(constant(np.zeros((4, 1, 1), bool)), T, X), ["Expand"]),
    ("where both are one", Where()(B, T, T), ["Tanh"]),
    ("sum of integers over extents 1", ReduceSum((0,), keepdims=False)(Reshape((1, 6))(-K)), ["Neg", "Reshape"]),
    ("maximum over extents 1", ReduceMax((0,))(Reshape((1, 6))(T)), ["Tanh", "Reshape"]),
    ("maximum over no axes", ReduceMax(noop_with_empty_axes=True)(T), ["Tanh"]),
    ("concat of split", Concat(1)(*Split((1, 2), axis=1)(T)), ["Tanh"]),
    ("split of concat", Split((2, 2), axis=0)(Concat(-2)(T, X)), ["Tanh"]),
    ("gather of neighbours", Gather(1)(T, constant(np.array([-2, 2]))), ["Tanh", "Slice"]),
    ("gather of an element", Gather(-1)(T, constant(-3)), ["Tanh", "Slice", "Reshape"]),
    ("gather of all", Gather(0)(T, constant(np.arange(2))), ["Tanh"]),
    ("dropout outside of training", Dropout()(T)[0], ["Tanh"]),
    (
        "a gradient masked behind a pool",
        (LARGEST, Where()(LINE > 0.5, SPREAD, 0.0)),
        ["Relu", "MaxPool", "Greater", "Where", "Cast", "glowtrain.MaxPoolGradient"],
    ),
]

REFUSED: list[tuple[str, Value | tuple[Value, ...]]] = [
    ("x + 0 would keep -0", X + ZERO),
    ("x - -0 would keep -0", Sub()(X, MINUS_ZERO)),
    ("1 / x", Div()(ONE, X)),
    ("1 ** x", Pow()(ONE, X)),
    ("0 - x", Sub()(ZERO, X)),
    ("x * 0 keeps NaN", X * ZERO),
    ("x * 2", X * constant(2.0, f32)),
    ("a factor that widens", X * np.ones((4, 1, 1), np.float32)),
    ("(x + a) + b rounds", (X + np.float32(0.1)) + np.float32(0.2)),
    ("-(not)", Neg()(Cast(f32)(Not()(B)))),
    ("a transpose that moves", Transpose((1, 0))(X)),
    ("a slice backwards", Slice((-1,), (-9,), (0,), (-1,))(X)),
    ("a pad that shifts", Pad((1, 0, -1, 0))(X)),
    ("tile twice", Tile((2, 1))(X)),
    ("sum of two", Sum()(X, X)),
    ("minimum of two", Min()(X, X)),
    ("cast through a narrower type", Cast(f32)(Cast(f16)(X))),
    ("cast through integers", Cast(f32)(Cast(i64)(X))),
    ("cast of i64 through f64", Cast(i64)(Cast(f64)(K))),
    ("one of two reshapes is a transpose", Reshape((6,))(Transpose((1, 0))(X))),
    ("an expand that makes the shape", Tanh()(X) * Expand((4, 2, 3))(constant(np.ones((1, 3), np.float32) * 2))),
    ("where with a mixed condition", Where()(constant(np.array([True, False, True])), X, -X)),
    ("a sum over larger extents", ReduceSum((0,))(-K)),
    ("a sum of floats starts from 0, so -0 becomes 0", ReduceSum((0,))(Reshape((1, 6))(X))),
    ("a mean of floats does too", ReduceMean((0,))(Reshape((1, 6))(X))),
    ("pieces in another order", Concat(1)(*Split((1, 2), axis=1)(X)[::-1])),
    ("pieces along another axis", Concat(0)(*Split((1, 1), axis=0)(Transpose((1, 0))(Split((2, 1), axis=1)(X)[0])))),
    ("a split elsewhere", Split((1, 3), axis=0)(Concat(0)(X, -X))),
    ("gather backwards", Gather(1)(X, constant(np.array([2, 1])))),
    ("gather around the end", Gather(1)(X, constant(np.array([-1, 0])))),
    ("gather of the same twice", Gather(1)(X, constant(np.array([1, 1])))),
    ("gather of nothing", Gather(1)(X, constant(np.zeros(0, np.int64)))),
    ("dropout in training", Dropout(training_mode=True, seed=1)(X)[0]),
    ("a mask by other elements than the pool's", Where()(Exp()(LINE) > 0.5, SPREAD, 0.0)),
    ("a mask by each element's own bound", Where()(np.arange(7, dtype=np.float32) < LINE, SPREAD, 0.0)),
    ("a mask that puts -0", Where()(LINE > 0.5, SPREAD, -0.0)),
]


@pytest.mark.parametrize(("value", "left"), [row[1:] for row in FIRES], ids=[row[0] for row in FIRES])
def test_a_rule_fires(value: Value | tuple[Value, ...], left: list[str]) -> None:
    graph = graph_of(*(value if isinstance(value, tuple) else (value,)))
    result = graph
    for _ in range(3):
        result = run(Simplify(), result)
    assert kinds(result) == left


@pytest.mark.parametrize("value", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_rule_is_refused(value: Value | tuple[Value, ...]) -> None:
    graph = graph_of(*(value if isinstance(value, tuple) else (value,)))
    before = kinds(graph)
    result = run(Simplify(), graph)
    if before == ["Split", "Transpose", "Split", "Concat"]:
        before = ["Split", "Transpose"]  # the outer two cancel, the inner two must stay
    assert kinds(result) == before


def test_integer_constants_are_merged_and_folded() -> None:
    graph = graph_of((K + 2) + 3, (K * 2) * 3)
    result = optimize(graph, check=True)
    same_bits(graph, result)
    assert kinds(result) == ["Add", "Mul"]


@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)))
def test_types_that_hold_all_numbers_of_another(wide: str, narrow: str) -> None:
    """Against NumPy's safe casts, which say the same for all types that both know."""
    first, second = DTYPES[wide], DTYPES[narrow]
    if first.is_stored or second.is_stored:  # a cast through a stored type is never left out
        assert holds_all(first, second) == (first == second)
    elif bf16 in (first, second):
        exact = {f32, f64, bf16}
        expected = first in exact if second == bf16 else second in (boolean, DTYPES["i8"], DTYPES["u8"], bf16)
        assert holds_all(first, second) == expected
    elif not (first.is_float and second.is_integer):
        assert holds_all(first, second) == np.can_cast(second.numpy, first.numpy, "safe")
    else:
        largest = np.iinfo(second.numpy).max
        assert holds_all(first, second) == (
            int(first.numpy.type(largest)) == largest if first != f16 else second.size == 1
        )


class TestFold:
    def test_nodes_over_constants_become_constants(self) -> None:
        value = Exp()(constant(np.float32([1, 2, 3]))) * constant(3.0, f32)
        result = run(Fold(), graph_of(X + value))
        assert kinds(result) == ["Add"]

    def test_what_only_types_decide_is_known(self) -> None:
        result = run(Fold(), graph_of(Shape()(Tanh()(X)) + 1))
        assert kinds(result) == []

    def test_large_results_stay_computed(self) -> None:
        value = Expand((100, 100))(constant(1.0, f32))
        assert kinds(Fold(largest=9999).run(graph_of(value))) == ["Expand"]
        assert kinds(Fold(largest=10000).run(graph_of(value))) == []

    def test_variables_are_not_constants(self) -> None:
        graph = graph_of(Tanh()(Variable("w", np.ones(3, np.float32))))
        assert Fold().run(graph) is graph

    def test_random_operators_are_not_folded(self) -> None:
        graph = graph_of(Noise()())
        assert Fold().run(graph) is graph

    def test_pure_draws_are(self) -> None:
        draw = RandomBits((3,))(constant(1, i64), constant(2, i64))
        assert kinds(run(Fold(), graph_of(draw))) == []

    def test_names_are_kept(self) -> None:
        value = Exp()(constant(np.float32(1)))
        value.name = "e"
        assert run(Fold(), graph_of(value)).outputs["y0"].name == "e"

    def test_inside_bodies(self) -> None:
        (scan,) = run(Fold(), loop(lambda h, x: h * Exp()(constant(np.zeros(2))) + x)).nodes
        assert isinstance(scan.operator, Scan)
        assert kinds(scan.operator.body) == ["Mul", "Add"]


@dataclass(frozen=True)
class Noise(Shape):
    random = True

    def infer(self, *inputs: TensorType) -> TensorType:
        return f32[3]

    def reference(self, *inputs: Array) -> Array:
        return np.zeros(3, np.float32)


@dataclass(frozen=True)
class Titled(Tanh):
    """An operator that writes a field otherwise than it holds it, or not at all."""

    title: str = ""

    def attributes(self) -> dict[str, Any]:
        return {}


class TestMergeEqual:
    def test_fields_count_that_are_no_attributes_in_files(self) -> None:
        graph = graph_of(Titled("a")(X), Titled("b")(X), Titled("a")(X))
        assert len(MergeEqual().run(graph).nodes) == 2

    def test_equal_nodes_and_constants(self) -> None:
        first = Tanh()(X * np.float32([1, 2, 3]))
        second = Tanh()(X * np.float32([1, 2, 3]))
        assert kinds(run(MergeEqual(), graph_of(first + second))) == ["Mul", "Tanh", "Add"]

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (X * np.float32(0.0), X * np.float32(-0.0)),
            (X - T, T - X),
            (Cast(i32)(X), Cast(i64)(X)),
            (ReduceSum((0,))(X), ReduceSum((1,))(X)),
            (X * constant(1.0, f32), X * constant(np.ones(1, np.float32))),
        ],
        ids=["signed zeros", "order", "attributes", "axes", "shapes"],
    )
    def test_what_differs_is_kept(self, first: Value, second: Value) -> None:
        graph = graph_of(first, second)
        assert len(run(MergeEqual(), graph).nodes) == len(graph.nodes)

    def test_random_operators_are_kept(self) -> None:
        graph = graph_of(Noise()() + Noise()())
        assert MergeEqual().run(graph) is graph

    def test_operators_with_several_outputs(self) -> None:
        a, b = Split((1, 2), axis=1)(X)
        c, d = Split((1, 2), axis=1)(X)
        assert kinds(run(MergeEqual(), graph_of(a, b, c, d))) == ["Split"]


def loop(step: Callable[[Value, Value], Value], *more: Callable[[Value, Value], Value]) -> Graph:
    """A Scan over 5 vectors, with scan outputs ``more``."""
    h, x = Input(f64[2], "h"), Input(f64[2], "x")
    stacks = {f"s{place}": make(h, x) for place, make in enumerate(more)}
    body = Graph((h, x), {"next": step(h, x), **stacks}, name="body")
    start, xs = Input(f64[2], "start"), Input(f64[5, 2], "xs")
    results = Node(Scan(body=body, num_scan_inputs=1), (start, xs)).outputs
    return Graph((start, xs), {f"y{place}": value for place, value in enumerate(results)}, name="loop")


class TestScans:
    def gradient(self) -> Graph:
        """A loss over a Scan, with the gradient, which runs the loop again for its residuals."""
        forward = loop(lambda h, x: Tanh()(h * 0.5 + x), lambda h, x: h * x)
        total = ReduceSum(keepdims=False)(forward.outputs["y0"]) + ReduceSum(keepdims=False)(forward.outputs["y1"])
        found = pullback([total], [constant(1.0, f64)], forward.inputs)
        outputs = {"loss": total} | {f"d{place}": value for place, value in enumerate(found) if value is not None}
        return Graph(forward.inputs, outputs)

    def scans(self, graph: Graph) -> int:
        return kinds(graph).count("Scan")

    def test_the_loop_of_the_gradient_is_merged(self) -> None:
        graph = self.gradient()
        assert self.scans(graph) == 3
        assert self.scans(run(MergeScans(), graph)) == 2
        assert self.scans(optimize(graph, check=True)) == 2

    def test_other_operands_are_kept(self) -> None:
        first = loop(lambda h, x: h + x)
        (node,) = first.nodes
        other = Node(node.operator, (Input(f64[2], "other"), node.inputs[1]))
        graph = Graph((*first.inputs, other.inputs[0]), {"a": node.outputs[0], "b": other.outputs[0]})  # type: ignore[arg-type]
        assert MergeScans().run(graph) is graph

    def test_other_states_are_kept(self) -> None:
        first = loop(lambda h, x: h + x)
        (node,) = first.nodes
        assert isinstance(node.operator, Scan)
        body = node.operator.body
        other = Node(node.operator.replace(body=body.with_(outputs={"next": body.inputs[1]})), node.inputs)
        graph = Graph(first.inputs, {"a": node.outputs[0], "b": other.outputs[0]})
        assert MergeScans().run(graph) is graph

    def test_stacks_that_nobody_reads_are_dropped(self) -> None:
        graph = loop(lambda h, x: h + x, lambda h, x: h * x, lambda h, x: h - x)
        del graph.outputs["y1"]
        result = run(DropUnreadStacks(), graph)
        (node,) = result.nodes
        assert len(node.outputs) == 2

    def test_stacks_of_loops_that_follow_one_another_are_dropped_at_once(self) -> None:
        first = loop(lambda h, x: h + x, lambda h, x: h * x)
        (node,) = first.nodes
        second = Node(node.operator, (node.outputs[0], node.inputs[1]))
        result = run(DropUnreadStacks(), first.with_(outputs={"y": second.outputs[0]}))
        assert [len(node.outputs) for node in result.nodes] == [1, 1]

    def test_stacks_that_are_read_are_kept(self) -> None:
        graph = loop(lambda h, x: h + x, lambda h, x: h * x)
        assert DropUnreadStacks().run(graph) is graph


@dataclass(frozen=True)
class Failing:
    def run(self, graph: Graph) -> Graph:
        raise GraphError("it broke")


@dataclass(frozen=True)
class Crashing:
    def run(self, graph: Graph) -> Graph:
        raise ZeroDivisionError


@dataclass(frozen=True)
class Breaking:
    def run(self, graph: Graph) -> Graph:
        return graph.with_(inputs=())


class TestPipeline:
    def test_a_failing_pass_names_those_before_it(self) -> None:
        with pytest.raises(GraphError, match=r"pass Failing failed \(before it ran: Fold, Simplify\): it broke"):
            optimize(graph_of(T), (Fold(), Simplify(), Failing()))

    def test_a_crash_keeps_its_kind(self) -> None:
        with pytest.raises(ZeroDivisionError) as error:
            optimize(graph_of(T), (Fold(), Crashing()))
        assert error.value.__notes__ == ["optimization pass Crashing failed (before it ran: Fold)"]

    def test_the_verifier_runs_on_request(self) -> None:
        graph = graph_of(T)
        optimize(graph, (Breaking(),))
        with pytest.raises(GraphError, match="pass Breaking failed"):
            optimize(graph, (Breaking(),), check=True)

    def test_nothing_to_do_gives_the_same_graph(self) -> None:
        graph = graph_of(T)
        assert optimize(graph) is graph

    def test_updates_names_and_inputs_are_kept(self) -> None:
        w = Variable("w", np.ones((2, 3), np.float32))
        named = Tanh()(X * ONE)
        named.name = "act"
        graph = Graph((X, K), {"y": named}, {w: (w + X) / ONE}, "step")
        result = optimize(graph, check=True)
        assert (result.inputs, result.name, list(result.updates)) == ((X, K), "step", [w])
        assert result.outputs["y"].name == "act"
        assert kinds(result) == ["Tanh", "Add"]

    def test_the_result_is_the_same_every_time(self) -> None:
        texts = {to_text(optimize(TestScans().gradient())) for _ in range(3)}
        assert len(texts) == 1


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Random programs in which the rules find something to do."""
    values: list[Value] = [
        X,
        ONE,
        ZERO,
        MINUS_ZERO,
        constant(np.float32([1, 1, 1])),
        Expand((2, 3))(constant(2.0, f32)),
    ]
    for _ in range(draw(st.integers(1, 12))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        operators = (Add(), Sub(), Mul(), Div(), Max())
        choice = draw(st.integers(0, 7))
        made: Value = (
            draw(st.sampled_from(operators))(a, b) if choice < 4
            else Neg()(a) if choice == 4
            else Cast(f32)(Cast(draw(st.sampled_from((f16, f64, f32))))(a)) if choice == 5
            else Expand((2, 3))(a) if choice == 6
            else Where()(a <= b, a, b)
        )  # fmt: skip
        values.append(made)
    graph = graph_of(values[-1], draw(st.sampled_from(values)))
    return graph.with_(inputs=(X,))


def test_large_weights_are_dequantized_once() -> None:
    """Other constants of that size stay computed."""
    numbers = np.zeros((300, 400), np.int8)
    weights = DequantizeLinear()(constant(numbers), np.float32(0.5), np.int8(-2))
    result = Fold().run(Graph((), {"weights": weights, "others": Cast(f32)(constant(numbers))}))
    assert isinstance(result.outputs["weights"], Constant)
    np.testing.assert_array_equal(result.outputs["weights"].array, np.ones((300, 400), np.float32))
    assert not isinstance(result.outputs["others"], Constant)


@given(programs(), st.integers(0, 9))
def test_random_programs_keep_every_bit(graph: Graph, seed: int) -> None:
    result = optimize(graph, check=True)
    same_bits(graph, result, {"x": awkward(X.type, seed)})
    assert len(result.nodes) <= len(graph.nodes)
    assert all(not isinstance(value, Constant) or value.array.size <= 6 for value in result.constants)
