"""Operators whose bodies were built apart and compute the same are merged, whatever values are called in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Graph, Input, Node, Operator, Value
from glowtrain.graph.operator import as_tuple
from glowtrain.lower.expand import expand
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.random.draws import RandomNormalLike
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN
from glowtrain.optimize.cse import MergeEqual, merge_bodies
from glowtrain.optimize.pipeline import optimize
from glowtrain.optimize.scan import MergeScans
from glowtrain.types import f64

START, XS = Input(f64[2], "start"), Input(f64[5, 2], "xs")


def scans(graph: Graph) -> list[Scan]:
    return [node.operator for node in graph.nodes if isinstance(node.operator, Scan)]


def operands(gates: int) -> list[Input]:
    """X, W and R of a recurrent operator with 2 hidden units."""
    shapes = {"x": (3, 2, 2), "w": (1, 2 * gates, 2), "r": (1, 2 * gates, 2)}
    return [Input(f64[shape], name) for name, shape in shapes.items()]


def decomposed(operators: Sequence[Operator], gates: int) -> Graph:
    """Each operator written out over the same operands, with a body of its own."""
    inputs = operands(gates)
    results = [as_tuple(operator.decompose(*inputs))[0] for operator in operators]
    return Graph(tuple(inputs), {f"y{number}": value for number, value in enumerate(results)})


def loop(body: tuple[Value, Value, Sequence[Value]]) -> Node:
    """A Scan over 5 vectors: the body's state, slice and results."""
    state, x, results = body
    assert isinstance(state, Input)
    assert isinstance(x, Input)
    outputs = {f"{state.name}.{number}": value for number, value in enumerate(results)}
    return Node(Scan(Graph((state, x), outputs, name=state.name), num_scan_inputs=1), (START, XS))


def body_inputs(name: str) -> tuple[Input, Input]:
    return Input(f64[2], f"{name}.h"), Input(f64[2], f"{name}.x")


def cell(name: str, *more: str, factor: float = 0.5) -> tuple[Value, Value, Sequence[Value]]:
    """h' = tanh(h · factor + x), with scan outputs of the same kind as ``more``."""
    h, x = body_inputs(name)
    new = Tanh()(h * factor + x)
    stacks = {"new": lambda: new, "old": lambda: h, "product": lambda: h * x, "again": lambda: Tanh()(h * factor + x)}
    return h, x, [new, *(stacks[stack]() for stack in more)]


def both(first: Node, second: Node) -> Graph:
    outputs = (*first.outputs, *second.outputs)
    return Graph((START, XS), {f"y{number}": value for number, value in enumerate(outputs)})


def same_results(before: Graph, after: Graph) -> None:
    random = np.random.default_rng(0)
    fed = {value.name: random.standard_normal(value.shape) for value in before.inputs}
    wanted, found = evaluate(before, fed), evaluate(after, fed)
    for name, value in before.outputs.items():
        np.testing.assert_array_equal(found[after.outputs[name]], wanted[value])


@pytest.mark.parametrize(("operator", "gates"), [(LSTM(), 4), (GRU(), 3), (RNN(), 1)])
def test_cells_that_were_written_out_apart_are_one(operator: Operator, gates: int) -> None:
    graph = decomposed([operator] * 2, gates)
    first, second = scans(graph)
    assert first.body is not second.body
    merged = MergeEqual().run(graph)
    assert len(scans(merged)) == 1
    assert merged.outputs["y0"] is merged.outputs["y1"]
    same_results(graph, merged)


@pytest.mark.exhaustive
def test_any_number_of_cells_is_merged() -> None:
    cells = [LSTM(clip=1.0 + number / 100) for number in range(300)]
    merged = MergeEqual().run(decomposed([*cells, *cells], 4))
    assert len(scans(merged)) == 300


@pytest.mark.parametrize(
    ("first", "second", "gates"),
    [
        (LSTM(clip=1.0), LSTM(clip=2.0), 4),
        (LSTM(), LSTM(input_forget=1), 4),
        (GRU(), GRU(linear_before_reset=1), 3),
        (RNN(), RNN(activations=("Relu",)), 1),
        (RNN(), RNN(direction="reverse"), 1),
    ],
)
def test_cells_that_compute_something_else_are_kept(first: Operator, second: Operator, gates: int) -> None:
    graph = decomposed([first, second], gates)
    merged = optimize(graph)
    assert len(scans(merged)) == 2
    same_results(graph, merged)


def test_names_do_not_matter_and_the_order_of_inputs_does() -> None:
    assert len(scans(MergeEqual().run(both(loop(cell("a")), loop(cell("b")))))) == 1
    h, x = body_inputs("c")
    swapped = x, h, [Tanh()(h * 0.5 + x)]
    assert len(scans(MergeEqual().run(both(loop(cell("a")), loop(swapped))))) == 2


def test_loops_with_the_same_states_are_merged_and_each_stack_is_made_once() -> None:
    graph = both(loop(cell("a", "new", "old")), loop(cell("b", "product", "again", "old")))
    merged = MergeScans().run(graph)
    (scan,) = scans(merged)
    assert len(scan.body.outputs) == 1 + 3
    same_results(graph, merged)


def test_loops_with_other_states_are_kept() -> None:
    graph = both(loop(cell("a", "old")), loop(cell("b", "old", factor=0.25)))
    assert MergeScans().run(graph) is graph


def test_loops_that_draw_at_random_are_kept() -> None:
    def noisy(name: str) -> Node:
        h, x = body_inputs(name)
        return loop((h, x, [h + RandomNormalLike()(x)]))

    graph = both(noisy("a"), noisy("a"))
    assert MergeEqual().run(graph) is graph
    assert MergeScans().run(graph) is graph
    assert merge_bodies(graph) is graph


def test_loops_that_share_what_they_draw_are_merged() -> None:
    h, x = body_inputs("a")
    new = h + RandomNormalLike()(x)
    merged = MergeScans().run(both(loop((h, x, [new])), loop((h, x, [new, h]))))
    (scan,) = scans(merged)
    assert sum(node.operator.random for node in scan.body.nodes) == 1


def test_layers_on_different_operands_share_a_body() -> None:
    x, w, r = operands(4)
    first, _, _ = LSTM()(x, w, r)
    second, _, _ = LSTM()(first[:, 0], w, r)
    one, other = scans(expand(Graph((x, w, r), {"y": second})))
    assert one.body is other.body
