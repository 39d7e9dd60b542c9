"""Operations and bytes of kernels: beside counts by hand, and beside what the evaluator computes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive, until
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Variable
from glowtrain.loops import (
    FUNCTIONS,
    Accumulate,
    Apply,
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
    affine,
    call,
    cast,
    indices_of,
    select,
    statements,
)
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.quantized.integer_products import MatMulInteger
from glowtrain.program.analysis.work_count import WorkCount, trips_of, work_of
from glowtrain.program.interpret import vectorize
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.interpret.vectorize import Evaluation
from glowtrain.program.program import Kernel, Program, Repeat
from glowtrain.types import Array, f16, f32, f64, i32, i64
from tests.program.programs import program
from tests.program.random_graphs import RandomGraph
from tests.program.test_evaluate_random import Points


def counted(*body: Statement) -> WorkCount:
    return work_of(Kernel("k", body))


def buffer(name: str, *shape: int, dtype: Any = f32, kind: Any = "input") -> Buffer:
    return Buffer(name, dtype[shape], kind)


def works(graph: Graph) -> dict[str, WorkCount]:
    """The work of each kernel of a graph, not fused."""
    return {leaf.name: work_of(leaf) for leaf, _ in trips_of(arrive(graph, stages=until("lowered")))}


def test_a_contraction_is_two_operations_a_product() -> None:
    x, w = Input(f32[5, 7], "x"), Variable("w", np.ones((7, 3), np.float32))
    found = works(Graph((x,), {"y": x @ w}))["matmul"]
    assert found == WorkCount({"f32": 2 * 5 * 7 * 3}, 0, 4 * (5 * 7 + 7 * 3), 4 * 5 * 3, 5 * 7 * 3)


def test_a_convolution_counts_its_padding_and_reads_its_input_once() -> None:
    x, w = Input(f32[2, 3, 6, 6], "x"), Variable("w", np.ones((4, 3, 3, 3), np.float32))
    found = works(Graph((x,), {"y": Conv(pads=(1, 1, 1, 1))(x, w)}))["conv"]
    assert found.operations == {"f32": 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)}
    assert (found.read, found.written) == (4 * (2 * 3 * 36 + 4 * 27), 4 * 2 * 4 * 36)


def test_a_strided_window_reads_only_what_it_touches() -> None:
    x, y = buffer("x", 9), buffer("y", 3, kind="output")
    (i,), (r,) = indices_of((3,)), indices_of((2,), "r")
    found = counted(For((i,), (Store(y, (i,), Reduce("add", (r,), Load(x, (i * 4 + r,)))),)))
    assert found == WorkCount({"f32": 6}, 0, 4 * 5, 12), "0 1, 4 5 and 8: 9 is outside"


def test_what_does_not_depend_on_a_loop_counts_once() -> None:
    """A softmax: the greatest and the sum of a row for each row, exp for each element, although all of it stands in
    one expression."""
    x, y = buffer("x", 4, 8), buffer("y", 4, 8, kind="output")
    i, j = indices_of((4, 8))
    r, s = indices_of((8,), "r")[0], indices_of((8,), "s")[0]
    greatest = Reduce("max", (r,), Load(x, (i, r)))
    total = Reduce("add", (s,), call("exp", Load(x, (i, s)) - greatest))
    found = counted(For((i, j), (Store(y, (i, j), call("exp", Load(x, (i, j)) - greatest) / total),)))
    one = 4 * 8
    assert found.operations == {"f32": one + (one + one + one) + (one + one + one)}
    assert found.functions == one + one + one, "exp in the sum, exp of the result, the division"
    assert found.bytes == 2 * 4 * one


def test_shared_expressions_and_names_count_once() -> None:
    x, y, z = buffer("x", 16), buffer("y", 16, kind="output"), buffer("z", 16, kind="output")
    (i,) = indices_of((16,))
    name, square = Ref(f32, "t"), Load(x, (i,)) * Load(x, (i,))
    body = Let(name, square), Store(y, (i,), name + square), Store(z, (i,), name + 1.0)
    assert counted(For((i,), body)) == WorkCount({"f32": 16 * 3}, 0, 64, 128)


def test_choices_comparisons_and_conversions_are_no_operations() -> None:
    x, y = buffer("x", 8), buffer("y", 8, dtype=f64, kind="output")
    (i,) = indices_of((8,))
    value = select(Load(x, (i,)) > 0.0, Load(x, (i,)), 0.0)
    assert counted(For((i,), (Store(y, (i,), cast(value, f64)),))) == WorkCount({}, 0, 32, 64)


def test_kinds_follow_the_types() -> None:
    (i,) = indices_of((8,))
    found = {}
    for dtype in (f16, f32, f64, i32):
        x, y = buffer("x", 8, dtype=dtype), buffer("y", 8, dtype=dtype, kind="output")
        found[dtype.name] = counted(For((i,), (Store(y, (i,), Load(x, (i,)) + Load(x, (i,))),)))
    assert {name: dict(work.operations) for name, work in found.items()} == {
        "f16": {"f32": 8}, "f32": {"f32": 8}, "f64": {"f64": 8}, "i32": {"int": 8},
    }  # fmt: skip
    assert found["f16"].bytes == 32


def test_products_of_bytes_are_a_kind_of_their_own() -> None:
    x, w = Input(gt.u8[16, 32], "x"), Variable("w", np.ones((32, 16), np.int8))
    found = works(Graph((x,), {"y": MatMulInteger()(x, w)}))
    assert found["matmulinteger"].operations == {"i8": 2 * 16 * 32 * 16}


def test_a_gather_reads_indices_and_as_many_elements_as_there_are_points() -> None:
    x, at, y = buffer("x", 1000), buffer("at", 6, dtype=i64), buffer("y", 6, kind="output")
    (i,) = indices_of((6,))
    found = counted(For((i,), (Store(y, (i,), Load(x, (Load(at, (i,)),))),)))
    assert found == WorkCount({}, 0, 6 * 4 + 6 * 8, 24)


def test_an_accumulation_adds_and_reads_what_was_there() -> None:
    x, y = buffer("x", 4, 5), buffer("y", 5, kind="activation")
    i, j = indices_of((4, 5))
    adding = For((i, j), (Accumulate("add", y, (j,), Load(x, (i, j))),), serial=True)
    assert counted(adding) == WorkCount({"f32": 20}, 0, 4 * (20 + 5), 20)
    (k,) = indices_of((5,))
    cleared = For((k,), (Store(y, (k,), Const(0.0, f32)),))
    assert counted(cleared, adding) == WorkCount({"f32": 20}, 0, 80, 20), "it wrote that itself"


def test_a_serial_loop_computes_anew_what_it_changes() -> None:
    y = buffer("y", 1, kind="variable")
    (i,) = indices_of((10,))
    at = (Const(0, i64),)
    assert counted(For((i,), (Store(y, at, Load(y, at) * 2.0),), serial=True)).operations == {"f32": 10}
    assert counted(For((i,), (Store(y, at, Load(buffer("x", 1), at) * 2.0),), serial=True)).operations == {"f32": 1}


def test_a_variable_that_is_updated_is_read_and_written() -> None:
    w, g = buffer("w", 100, kind="variable"), buffer("g", 100)
    (i,) = indices_of((100,))
    found = counted(For((i,), (Store(w, (i,), Load(w, (i,)) - Load(g, (i,)) * 0.5),)))
    assert found == WorkCount({"f32": 200}, 0, 800, 400)


def test_what_stands_in_a_repeat_runs_once_for_each_trip() -> None:
    x, y = buffer("x", 7, 4), buffer("y", 7, 4, kind="output")
    t, (i,) = Index(7, "t"), indices_of((4,))
    step = Kernel("step", (For((i,), (Store(y, (t, i), Load(x, (t, i)) + 1.0),)),))
    never = Repeat("never", Index(0, "n"), (Kernel("not", step.body),))
    found = list(trips_of(program(Repeat("steps", t, (step,)), never, inputs=[x], outputs=[y])))
    assert [(leaf.name, trips) for leaf, trips in found] == [("step", 7)]
    assert work_of(found[0][0]) == WorkCount({"f32": 4}, 0, 16, 16), "of one trip"


SEEDS = range(25)


def programs(seed: int) -> tuple[Graph, Program]:
    graph = RandomGraph(ChoiceDraw(seed)).graph()
    return graph, arrive(graph, stages=until("lowered"))


class Spy:
    """How many numbers of each type the evaluator computes, each expression once."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.seen: set[Expr] = set()

    def computed(self, compute: Callable[[Evaluation, Expr], Array]) -> Callable[[Evaluation, Expr], Array]:
        def spied(evaluation: Evaluation, expr: Expr) -> Array:
            result = compute(evaluation, expr)
            if expr not in self.seen:
                self.seen.add(expr)
                self.count(evaluation, expr, result)
            return result

        return spied

    def count(self, evaluation: Evaluation, expr: Expr, result: Array) -> None:
        match expr:
            case Apply(function=name, arguments=arguments) if arguments[-1].dtype.is_float:
                self.operations[arguments[-1].dtype.name] += FUNCTIONS[name].operations * np.size(result)
            case Reduce(indices=indices, body=body) if body.dtype.is_float:
                steps = np.size(result) * math.prod(index.extent for index in indices)
                self.operations[body.dtype.name] += steps
                if isinstance(body, Apply) and body not in self.seen and body.function == "mul":
                    self.seen.add(body)  # a matrix product of NumPy's, which never shows the products
                    fixed = {index for index, span in evaluation.scope.spans.items() if span.axis is None}
                    free = evaluation.facts.free(body) - fixed
                    self.operations[body.dtype.name] += math.prod(index.extent for index in free)


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_are_the_numbers_that_the_evaluator_computes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, lowered = programs(seed)
    spy, generator = Spy(), np.random.default_rng(seed)
    monkeypatch.setattr(vectorize.Evaluation, "_compute", spy.computed(vectorize.Evaluation._compute))
    evaluate(lowered, {v.name: generator.normal(size=v.shape).astype(v.dtype.numpy) for v in graph.inputs})
    found: Counter[str] = Counter()
    for leaf, _ in trips_of(lowered):
        found.update({kind: n for kind, n in work_of(leaf).operations.items() if kind in ("f32", "f64")})
    assert found == +spy.operations + accumulated(lowered)


def accumulated(lowered: Program) -> Counter[str]:
    """The additions of floats by accumulations, which the evaluator leaves to NumPy."""
    found: Counter[str] = Counter()
    for leaf, _ in trips_of(lowered):
        for loop in statements(leaf.nests):
            if isinstance(loop, For):
                added = [s.buffer.dtype for s in loop.body if isinstance(s, Accumulate) and s.buffer.dtype.is_float]
                found.update({dtype.name: math.prod(index.extent for index in loop.indices) for dtype in added})
    return found


class Touched(Points):
    """Which elements of which buffers are read."""

    def __init__(self, arrays: dict[Buffer, Array]) -> None:
        super().__init__(arrays)
        self.read: dict[Buffer, set[tuple[int, ...]]] = {}

    def value(self, expr: Expr, env: dict[Any, Any]) -> Any:
        if isinstance(expr, Load):
            place = self.place(expr.index, env)
            if all(0 <= i < extent for i, extent in zip(place, expr.buffer.shape, strict=True)):
                self.read.setdefault(expr.buffer, set()).add(place)
        return super().value(expr, env)


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_those_that_a_run_point_by_point_touches(seed: int) -> None:
    """Not fewer; and the same number, unless subscripts depend on data or several loads of a buffer overlap."""
    _, lowered = programs(seed)
    kernels = [k for k in lowered.instructions if isinstance(k, Kernel) and not k.written & set(k.reads)]
    for kernel in kernels:
        touched = Touched({b: np.zeros(b.shape, b.dtype.numpy) for b in kernel.operands})
        with np.errstate(all="ignore"):
            touched.body(kernel.body, {})
        exact = sum(len(places) * b.dtype.size for b, places in touched.read.items())
        assert work_of(kernel).read >= exact, kernel.name
        if len(set(kernel.reads)) == len(kernel.survey.loads):
            assert work_of(kernel).read == exact or depends_on_data(kernel), kernel.name


def depends_on_data(kernel: Kernel) -> bool:
    """Whether a subscript is not an affine expression of loop indices."""
    return not all(affine(at).is_linear for load in kernel.survey.loads for at in load.index)
