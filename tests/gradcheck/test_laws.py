"""Small graphs that show what samples of single operators do not: each stage of the compiler gives what the
interpreter gives, and the recurrent cells follow the equations of the specification.

They are written as plain functions because the planted mistakes (``mistakes_in_*.py``) call them too.
"""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import evaluate
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.oracles import drawn
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.logic import Cast, Where
from glowtrain.ops.random.draws import RandomNormal
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.sequence.recurrent import GRU, LSTM
from glowtrain.ops.tensor.move import Transpose
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.interpret.evaluate import evaluate as run
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse
from glowtrain.types import f32, f64, type_of


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def interpreted(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    known = evaluate(graph, inputs)
    return {name: known[value] for name, value in graph.outputs.items()}


def test_lstm_follows_onnx() -> None:
    """ONNX's equations (operator LSTM), gates i, o, f, c, written for one direction without peepholes."""
    random = np.random.default_rng(0)
    x, w, r = random.standard_normal((4, 2, 3)), random.standard_normal((1, 20, 3)), random.standard_normal((1, 20, 5))
    h, c = np.zeros((2, 5)), np.zeros((2, 5))
    for step in x:
        i, o, f, new = np.split(step @ w[0].T + h @ r[0].T, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        h = sigmoid(o) * np.tanh(c)
    found = LSTM(hidden_size=5).reference(x, w, r)
    np.testing.assert_allclose(found[1][0], h, rtol=1e-12)
    np.testing.assert_allclose(found[2][0], c, rtol=1e-12)


def test_gru_follows_onnx() -> None:
    """ONNX's equations (operator GRU), gates z, r, h."""
    random = np.random.default_rng(0)
    x, w, r = random.standard_normal((4, 2, 3)), random.standard_normal((1, 15, 3)), random.standard_normal((1, 15, 5))
    h = np.zeros((2, 5))
    for step in x:
        z, reset = np.split(sigmoid(step @ w[0, :10].T + h @ r[0, :10].T), 2, axis=1)
        h = (1 - z) * np.tanh(step @ w[0, 10:].T + (reset * h) @ r[0, 10:].T) + z * h
    np.testing.assert_allclose(GRU(hidden_size=5).reference(x, w, r)[1][0], h, rtol=1e-12)


def test_passes_keep_results() -> None:
    """What the rules of the optimizer look for, each with numbers that tell a wrong rule."""
    x = Input(f64[2, 3, 4], "x")
    turned = Transpose(perm=(2, 0, 1))(Transpose(perm=(1, 0, 2))(x))
    cast = Cast(to=f64)(Cast(to=f32)(x))
    chosen = Where()(constant(np.array(True)), x, -x)
    values: tuple[Value, ...] = (x + 1.0, x * 1.0, x - 0.0, turned, cast, chosen, *_sums(x), *_both_ways(x))
    graph = Graph((x,), {f"y{k}": value for k, value in enumerate(values)})
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 3, 4))}
    found = interpreted(optimize(graph, check=True), inputs)
    for name, expected in interpreted(graph, inputs).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def _sums(x: Value) -> tuple[Value, Value]:
    """Equal operators, operands and types: only an attribute differs."""
    square = x @ Transpose(perm=(0, 2, 1))(x)
    lopsided = square * constant(np.arange(9.0).reshape(3, 3))
    return ReduceSum(axes=(1,), keepdims=False)(lopsided), ReduceSum(axes=(2,), keepdims=False)(lopsided)


def _both_ways(x: Value) -> tuple[Value, Value]:
    """Running sums over the first axis, from both ends, by Scans that share their body's states."""
    state, item = Input(f64[3, 4], "state"), Input(f64[3, 4], "item")
    total = state * 0.5 + item
    scans = (Scan(Graph((state, item), {"next": total, "y": total}), 1, (), (), (way,), (way,)) for way in (0, 1))
    first, second = (scan(constant(np.zeros((3, 4))), x)[1] for scan in scans)
    return first, second


def test_random_draws_differ() -> None:
    """Two equal random nodes are two draws."""
    first, second = RandomNormal(shape=(8,))(), RandomNormal(shape=(8,))()
    graph = optimize(Graph((), {"a": first, "b": second}))
    assert graph.outputs["a"] is not graph.outputs["b"]


def _native(graph: Graph, inputs: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    found = ladder.run_compiled(graph, inputs)
    for name, expected in interpreted(graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=1e-6, err_msg=name)


def test_long_rows() -> None:
    """Many vectors, with and without a tail, and rows shorter than one."""
    for extent in (1, 3, 16, 64, 257):
        x = Input(f32[extent], "x")
        _native(Graph((x,), {"y": gt.nn.sigmoid(x)}), {"x": np.linspace(-3, 3, extent, dtype=np.float32)})


def test_tails_of_reductions() -> None:
    """Sums over extents that no vector width divides, beside numbers that must not count."""
    for extent in (1, 5, 19, 35):
        x = Input(f32[6, extent + 7], "x")
        rows = gt.ops.tensor.move.Slice(starts=(0,), ends=(extent,), axes=(1,))(x)
        y = ReduceSum(axes=(1,), keepdims=False)(gt.nn.tanh(rows))
        _native(Graph((x,), {"y": y}), {"x": np.linspace(-1, 5, 6 * (extent + 7), dtype=np.float32).reshape(6, -1)})


def test_kernels_are_told_apart() -> None:
    """Kernels that differ in one number only are two functions."""
    x, z = Input(f32[40], "x"), Input(f32[40], "z")
    inputs = {"x": np.linspace(0, 1, 40, dtype=np.float32), "z": np.linspace(2, 3, 40, dtype=np.float32)}
    _native(Graph((x, z), {"a": gt.nn.tanh(x * 2.0), "b": gt.nn.tanh(z * 3.0)}), inputs)


def test_outputs_are_told_apart() -> None:
    """Equal shapes everywhere: only the buffers' places differ."""
    x, z = Input(f32[24], "x"), Input(f32[24], "z")
    inputs = {"x": np.linspace(0, 1, 24, dtype=np.float32), "z": np.linspace(2, 3, 24, dtype=np.float32)}
    _native(Graph((x, z), {"a": gt.nn.tanh(x) - z, "b": gt.nn.sigmoid(z) * x, "c": x / z}), inputs)


@pytest.mark.parametrize("example", range(12))
def test_a_loop_and_its_steps_are_the_same(example: int) -> None:
    """``Scan.unrolled`` on drawn axes and directions."""
    sample = drawn(Scan, 0, example)
    scan, arrays = sample.operator, [array for array in sample.inputs if array is not None]
    assert isinstance(scan, Scan)
    values = [Input(type_of(array), f"x{k}") for k, array in enumerate(arrays)]
    unrolled = Graph(tuple(values), {f"y{k}": value for k, value in enumerate(scan.unrolled(*values))})
    assert not any(isinstance(node.operator, Scan) for node in unrolled.nodes)
    found = interpreted(unrolled, {value.name: array for value, array in zip(values, arrays, strict=True)})
    for array, expected in zip(found.values(), scan.reference(*arrays), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-12)


def test_a_loop_of_no_steps_unrolled() -> None:
    state, item = Input(f64[2], "state"), Input(f64[2], "item")
    scan = Scan(Graph((state, item), {"next": state + item, "y": state * item}), 1, (1,), (1,))
    last, stacked = scan.unrolled(state, Input(f64[2, 0], "items"))
    assert last is state
    assert stacked.shape == (2, 0)


ROW_BY_ROW = """program p
  input      x: f32[3,64]
  output     y: f32[3,64]
  activation rows: f32[3,64]
  activation twice: f32[3,64]
  activation more: f32[3,64]
repeat loop t<3:
  kernel one_row:
    for i<64: rows[t, i] = x[t, i]
  kernel all_rows:
    for i<3, j<64: twice[i, j] = rows[0, j] * 2
  kernel next:
    for i<3, j<64: more[i, j] = twice[i, j] + 1
  kernel last:
    for i<64: y[t, i] = more[0, i]
"""


def test_rows_that_trips_write_one_by_one_are_carried() -> None:
    program = parse(ROW_BY_ROW)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)}
    planned = plan(program)
    verify_plan(planned)
    np.testing.assert_array_equal(run(program, feeds, plan=planned)[0]["y"], run(program, feeds)[0]["y"])
