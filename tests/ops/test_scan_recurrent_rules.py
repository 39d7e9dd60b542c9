"""Scan and the recurrent operators: exact cases and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain
from glowtrain.compiler.walk import arrive, until
from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import OPERATORS, Constant, Graph, Input, Operator, topological
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN, Recurrent
from glowtrain.program.program import leaves_of
from glowtrain.types import f32, f64
from tests.ops.rules import reference, run


def running_sum(**attributes: Any) -> Scan:
    total, x, scale = Input(f64[2], "total"), Input(f64[2], "x"), Input(f64[()], "scale")
    following = total + x * scale
    body = Graph((total, x, scale), {"total": following, "y": following * 1.0}, name="sums")
    return Scan(body, 1, num_captured=1, **attributes)


def test_scan_carries_its_state_in_every_direction_and_axis() -> None:
    x, scale, start = np.arange(6.0).reshape(3, 2), np.array(2.0), np.array([100.0, 0.0])
    forward = start + np.cumsum(2 * x, 0)
    total, y = reference(running_sum(), start, x, scale)
    np.testing.assert_array_equal(total, forward[-1])
    np.testing.assert_array_equal(y, forward)
    backward = start + np.cumsum(2 * x[::-1], 0)
    scan = running_sum(scan_input_directions=(1,), scan_output_axes=(-1,), scan_input_axes=(1,))
    np.testing.assert_array_equal(reference(scan, start, x.T, scale)[1], backward.T)
    scan = running_sum(scan_output_directions=(1,))
    np.testing.assert_array_equal(reference(scan, start, x, scale)[1], forward[::-1])


def test_scan_of_nothing_returns_its_states() -> None:
    total, y = reference(running_sum(), np.ones(2), np.zeros((0, 2)), np.array(1.0))
    np.testing.assert_array_equal(total, [1, 1])
    assert y.shape == (0, 2)


@pytest.mark.parametrize("layer", [RNN(), GRU(), GRU(linear_before_reset=1), LSTM()], ids=str)
def test_recurrent_weights_get_one_contraction_after_the_loop(layer: Recurrent) -> None:
    """No matrix of R's size is carried through the gradient's loop."""
    steps, batch, inner, hidden = 5, 2, 3, 4
    rows = layer.gates * hidden
    shapes = ((steps, batch, inner), (1, rows, inner), (1, rows, hidden), (1, 2 * rows))
    x, w, r, bias = (Input(f64[shape], name) for shape, name in zip(shapes, "xwrb", strict=True))
    y, *_ = layer(x, w, r, bias)
    gradients = pullback([y], [Constant(np.ones(y.shape))], [w, r])
    scans = [n.operator for n in topological([g for g in gradients if g is not None]) if isinstance(n.operator, Scan)]
    carried = [value.shape for scan in scans for value in scan.body.inputs[: scan.num_states]]
    assert len(scans) >= 2
    assert set(carried) <= {(batch, hidden), (hidden,)}


def test_operand_read_twice_by_a_scan_is_counted_once_each() -> None:
    x = Input(f64[2, 2], "x")
    total, a, b = Input(f64[2], "total"), Input(f64[2], "a"), Input(f64[2], "b")
    body = Graph((total, a, b), {"total": total + a * b}, name="squares")
    results = Scan(body, 2, scan_input_axes=(1, 0))(Constant(np.zeros(2)), x, x)
    (gradient,) = pullback([results], [Constant(np.ones(2))], [x])
    assert gradient is not None
    values = np.array([[1.0, 2.0], [3.0, 5.0]])
    np.testing.assert_allclose(run([gradient], {x: values})[0], 2 * values.T)


# Recurrent operators.


def test_sequence_lengths_stop_each_row_at_its_end() -> None:
    random = np.random.default_rng(0)
    x, w, r = random.normal(size=(4, 2, 3)), random.normal(size=(1, 2, 3)), random.normal(size=(1, 2, 2))
    lengths = np.array([2, 4], np.int32)
    for direction in ("forward", "reverse"):
        rnn = RNN(direction=direction)
        y, h = reference(rnn, x, w, r, None, lengths)
        alone, alone_h = reference(rnn, x[:2, :1], w, r)
        np.testing.assert_allclose(y[:2, :, :1], alone)
        np.testing.assert_array_equal(y[2:, :, 0], 0)
        np.testing.assert_allclose(h[:, :1], alone_h)


@pytest.mark.parametrize("key", ["LSTM", "GRU", "RNN"])
def test_batch_first_layout_only_moves_axes(key: str) -> None:
    random = np.random.default_rng(1)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[key]
    x, w, r = (
        random.normal(size=(4, 2, 3)),
        random.normal(size=(2, 2 * gates, 3)),
        random.normal(size=(2, 2 * gates, 2)),
    )
    operator: Any = OPERATORS[key]
    first = reference(operator(direction="bidirectional"), x, w, r)
    second = reference(operator(direction="bidirectional", layout=1), x.swapaxes(0, 1), w, r)
    np.testing.assert_allclose(second[0], first[0].transpose(2, 0, 1, 3))
    np.testing.assert_allclose(second[1], first[1].swapaxes(0, 1))


# Bad input: each message names the operator, what is wrong and the types.


@pytest.mark.parametrize(
    ("operator", "types", "message"),
    [
        (running_sum(), (f64[3], f64[4, 2], f64[()]), r"operand 0 gives the body f64\[3\]"),
        (running_sum(), (f64[2], f64[4, 2]), "takes 3 operands"),
        (running_sum(scan_input_axes=(2,)), (f64[2], f64[4, 2], f64[()]), "axis 2 is outside"),
        (LSTM(), (f32[1, 2, 3], f32[1, 16, 3], f32[1, 12, 4]), r"R must have shape \[1, 16, 4\]"),
        (GRU(activations=("Tanh",)), (f32[1, 2, 3], f32[1, 3, 3], f32[1, 3, 1]), "must name 2 functions"),
        (RNN(activations=("Sine",)), (f32[1, 2, 3], f32[1, 1, 3], f32[1, 1, 1]), "'Sine' is not one of"),
        (RNN(hidden_size=3), (f32[1, 2, 3], f32[1, 1, 3], f32[1, 1, 1]), "hidden_size is 3"),
    ],
)
def test_bad_types_are_explained(operator: Operator, types: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        operator.infer(*types)


def test_body_may_not_reach_outside() -> None:
    outer, total, x = Input(f64[2], "outer"), Input(f64[2], "total"), Input(f64[2], "x")
    scan = Scan(Graph((total, x), {"total": total + x * outer}), 1)
    with pytest.raises(ShapeError, match="captured operand"):
        scan.infer(f64[2], f64[3, 2])


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("directions", [(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)])
def test_states_that_are_stacked(directions: tuple[int, ...], steps: int) -> None:
    """What a step gets of a state, what it makes of it, and both again of one that only counts."""
    h, n, x = Input(f64[3], "h"), Input(f64[()], "n"), Input(f64[3], "x")
    outputs = {"h.next": h * 2.0 + x, "n.next": n + 1.0}
    body = Graph((h, n, x), {**outputs, "before": h, "after": outputs["h.next"], "count": n}, name="states")
    scan = Scan(body, 1, scan_input_directions=(0,), scan_output_directions=directions)
    xs = np.random.default_rng(steps).integers(-3, 4, (steps, 3)).astype(np.float64)
    operands = np.ones(3), np.zeros(()), xs
    values = tuple(Input(f64[a.shape], name) for a, name in zip(operands, "hnx", strict=True))
    graph = Graph(values, {f"y{place}": y for place, y in enumerate(scan(*values))})
    feeds = dict(zip("hnx", operands, strict=True))
    results = glowtrain.compile(graph)(feeds)
    for got, wanted in zip(results.values(), reference(scan, *operands), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("layer", [RNN(), LSTM()], ids=str)
def test_loops_of_a_gradient_copy_nothing_but_states(layer: Recurrent) -> None:
    """Residuals that are states are read from their slots, gates' gradients are made where they are stacked."""
    steps, batch, inner, hidden = 5, 2, 3, 4
    rows = layer.gates * hidden
    shapes = ((steps, batch, inner), (1, rows, inner), (1, rows, hidden), (1, 2 * rows))
    _, w, r, _ = inputs = tuple(Input(f64[shape], name) for shape, name in zip(shapes, "xwrb", strict=True))
    y, *_ = layer(*inputs)
    gradients = pullback([y], [Constant(np.ones(y.shape))], [w, r])
    program = arrive(Graph(inputs, {"dw": gradients[0], "dr": gradients[1]}), stages=until("program"))
    copies = [i for repeat in program.instructions for i in leaves_of(repeat.children) if i.name == "copy"]
    stacked = [buffer.name for copy in copies for buffer in copy.writes if not buffer.name.startswith("state")]
    assert not stacked


def test_what_follows_from_stacked_values_is_not_stacked() -> None:
    """The activation of an LSTM's cell follows from the gates and the cell before, which are stacked."""
    steps, batch, inner, hidden = 5, 2, 3, 4
    shapes = ((steps, batch, inner), (1, 16, inner), (1, 16, hidden))
    x, w, r = (Input(f64[shape], name) for shape, name in zip(shapes, "xwr", strict=True))
    y, *_ = LSTM()(x, w, r)
    gradients = pullback([y], [Constant(np.ones(y.shape))], [w, r])
    backward = next(
        n for n in reversed(topological([g for g in gradients if g is not None])) if n.operator.key() == "Scan"
    )
    read = backward.inputs[backward.operator.num_states :]  # type: ignore[attr-defined]
    assert len([value for value in read if value is not None and value.shape == (steps, batch, hidden)]) == 5 + 1
