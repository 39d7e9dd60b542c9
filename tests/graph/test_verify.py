"""The verifier: every broken invariant is found, and all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import GraphError, InputError
from glowtrain.graph import Constant, Graph, Input, Node, Operator, Value, Variable, verify
from glowtrain.graph.specialise.binding import Trimmed
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.types import TensorType, f32, i64

X = f32[2, 3]


def sound() -> Graph:
    x, w = Input(X, "x"), Variable("w", np.ones((2, 3), np.float32))
    return Graph((x,), {"y": Tanh()(x * w + np.float32(1))}, {w: w - x})


def test_sound_graphs_pass() -> None:
    verify(sound())
    verify(Graph((), {}))


def test_what_is_no_graph_is_refused() -> None:
    @gt.model(x=f32["batch", 3])
    def network(x: Value) -> Value:
        return Tanh()(x)

    with pytest.raises(InputError, match=r"verify takes a graph, not Template; bind its dimensions: \.bind\(dims\)"):
        gt.verify(network)
    with pytest.raises(InputError, match=r"verify takes a graph, not 'model.onnx' \(str\)"):
        gt.verify("model.onnx")


def undeclared_input() -> Graph:
    return Graph((), {"y": Tanh()(Input(X, "q"))})


def equal_names() -> Graph:
    x, w = Input(X, "x"), Variable("x", np.ones((2, 3), np.float32))
    return Graph((x,), {"y": x + w})


def nameless() -> Graph:
    x = Input(X)
    return Graph((x,), {"": Tanh()(x)})


def declared_twice() -> Graph:
    x = Input(X, "x")
    return Graph((x, x), {"y": Tanh()(x)})


def wrong_type() -> Graph:
    x = Input(X, "x")
    y = Node(Tanh(), (x,), "act").output
    y.type = f32[2, 4]
    return Graph((x,), {"y": y})


def rule_broken_later() -> Graph:
    x, z = Input(X, "x"), Input(X, "z")
    y = x + z
    z.type = f32[5]
    return Graph((x, z), {"y": y})


def wrong_count() -> Graph:
    x = Input(X, "x")
    node = Node(Tanh(), (x,))
    node.outputs = (*node.outputs, Value(X, "", node, 1))
    return Graph((x,), {"y": node.outputs[0]})


def too_many_operands() -> Graph:
    x = Input(X, "x")
    node = Node(Scan(body=Graph((x,), {"y": x}), num_scan_inputs=1), (Input(f32[4, 2, 3], "xs"),))
    node.inputs = ()
    return Graph((), {"y": node.outputs[0]})


def cycle() -> Graph:
    x = Input(X, "x")
    first = Node(Add(), (x, x), "first")
    second = Node(Tanh(), first.outputs, "second")
    first.inputs = (x, second.output)
    return Graph((x,), {"y": second.output})


def stranger() -> Graph:
    x = Input(X, "x")
    node = Node(Tanh(), (x,), "act")
    return Graph((x,), {"y": Node(Tanh(), (Value(X, "s", node, 0),), "next").output})


def foreign_output() -> Graph:
    x = Input(X, "x")
    return Graph((x,), {"y": Value(X, "s", Node(Tanh(), (x,)), 0)})


def loose_value() -> Graph:
    return Graph((), {"y": Tanh()(Value(X, "loose"))})


@dataclass(frozen=True)
class Unknown(Operator):
    onnx = "Unknown"

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]


def unregistered() -> Graph:
    x = Input(X, "x")
    return Graph((x,), {"y": Unknown()(x)})


def wrong_array() -> Graph:
    c = Constant(np.zeros(3, np.float32), "c")
    c.array = np.zeros(3)
    return Graph((), {"y": Tanh()(c)})


def wrong_initial() -> Graph:
    w = Variable("w", np.zeros(3, np.float32))
    w.source = np.zeros(4, np.float32)
    return Graph((), {"y": Tanh()(w)})


def wrong_update() -> Graph:
    w = Variable("w", np.zeros(3, np.float32))
    return Graph((), {}, {w: Constant(np.zeros(3, np.int64))})


def update_of_an_input() -> Graph:
    x = Input(X, "x")
    return Graph((x,), {"y": x}, {x: x})  # type: ignore[dict-item]


def variable_in_a_body() -> Graph:
    x, xs = Input(X, "x"), Input(f32[4, 2, 3], "xs")
    body = Graph((x,), {"y": Tanh()(x)})
    node = Node(Scan(body=body, num_scan_inputs=1), (xs,), "loop")
    body.updates[Variable("w", np.ones((2, 3), np.float32))] = x
    return Graph((xs,), {"ys": node.output})


def declared_constant() -> Graph:
    c = Constant(np.zeros(3, np.float32), "c")
    return Graph((c,), {"y": Tanh()(c)})  # type: ignore[arg-type]


def result_without_output() -> Graph:
    x = Input(X, "x")
    return Graph((x,), {"y": x}, results={"ys": ("y", "z")})


def trimmed_too_far() -> Graph:
    x, size = Input(X, "x"), Constant(np.array(1))
    return Graph((x,), {"y": x, "n": size}, results={"y": Trimmed("y", "n", 2)})


BROKEN: list[tuple[Callable[[], Graph], str]] = [
    (undeclared_input, "input 'q' (f32[2,3]) is used but not declared"),
    (equal_names, "name 'x' is used 2 times (input and variable)"),
    (nameless, "input of type f32[2,3] has no name"),
    (nameless, "an output has no name"),
    (declared_twice, "input 'x' is declared 2 times"),
    (wrong_type, "Tanh 'act': output 0 has type f32[2,4] but the operator gives f32[2,3]"),
    (rule_broken_later, "Add: Add(f32[2,3], f32[5]): extents [3, 5] on axis -1 do not broadcast"),
    (wrong_count, "Tanh: has 2 outputs, not 1"),
    (too_many_operands, "Scan: "),
    (cycle, "depends on itself through"),
    (stranger, "Tanh 'next': operand 0 (<Value s: f32[2,3]>) is not an output of its node"),
    (foreign_output, "y: its value <Value s: f32[2,3]> is not an output of its node"),
    (loose_value, "<Value loose: f32[2,3]> is neither an input, a constant, a variable nor a node's output"),
    (unregistered, "operator Unknown is not registered"),
    (wrong_array, "constant 'c' has type f32[3] but holds float64[3]"),
    (wrong_initial, "variable 'w' has type f32[3] but holds float32[4]"),
    (wrong_update, "variable 'w' has type f32[3] but its update has type i64[3]"),
    (update_of_an_input, "is updated but is not a variable"),
    (variable_in_a_body, "a graph that is an attribute cannot have variables or updates"),
    (declared_constant, "is declared as an input but is a constant"),
    (result_without_output, "a result is made of 'z', which is not an output"),
    (trimmed_too_far, "output 'y' (f32[2,3]) cannot be trimmed on axis 2 to i64[]"),
]


@pytest.mark.parametrize(("make", "message"), BROKEN, ids=lambda item: getattr(item, "__name__", ""))
def test_a_broken_graph_is_refused(make: Callable[[], Graph], message: str) -> None:
    with pytest.raises(GraphError) as error:
        verify(make())
    assert any(message in problem for problem in error.value.problems), error.value.problems


def test_all_problems_are_named_at_once() -> None:
    x, w = Input(X, "x"), Variable("x", np.ones((2, 3), np.float32))
    y = Unknown()(x + w) * Input(X, "q")
    y.type = f32[1]
    with pytest.raises(GraphError) as error:
        verify(Graph((x,), {"": y}, {w: Constant(np.zeros(2, np.int64))}))
    assert len(error.value.problems) == 6
    assert all(problem in str(error.value) for problem in error.value.problems)
    assert i64[2] == Constant(np.zeros(2, np.int64)).type
