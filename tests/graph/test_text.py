"""The text form: what is printed reads back as the same graph, and mistakes name their line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import TextError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import (
    Constant,
    Graph,
    Input,
    Node,
    Operator,
    Value,
    Variable,
    arrays_of,
    constant,
    parse,
    registered,
    to_text,
    verify,
)
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import Shrink
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.elementwise.logic import Cast, Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.tensor.move import Concat, Reshape, Transpose
from glowtrain.ops.tensor.split import Split
from glowtrain.types import DTYPES, TensorType, bf16, f32, f64, i64, type_of

NAMES = st.one_of(
    st.just(""),
    st.sampled_from(
        ["x", "fc1.weight", "/layer1/Conv_output_0", "onnx::Gemm_12", "12", "inf", "graph", "h~1", "-", "a:"]
    ),
    st.text(max_size=8),
)


def mlp() -> Graph:
    x = Input(f32[4, 8], "x")
    weight = Variable("fc1.weight", np.ones((3, 8), np.float32))
    h = Gemm(transB=True)(x, weight, Variable("fc1.bias", np.zeros(3, np.float32), trainable=False))
    h.name = "h"
    return Graph((x,), {"y": Tanh()(h)}, {weight: weight * 0.5}, "mlp")


def same_graph(first: Graph, second: Graph) -> None:
    """Structure, types, names, attributes and contents are equal."""
    assert first.name == second.name
    assert list(first.outputs) == list(second.outputs)
    twins: dict[Value, Value] = dict(zip(first.inputs, second.inputs, strict=True))
    twins.update(zip(first.leaves, second.leaves, strict=True))
    for node, other in zip(first.nodes, second.nodes, strict=True):
        assert (node.name, len(node.inputs)) == (other.name, len(other.inputs))
        assert [None if v is None else twins[v] for v in node.inputs] == list(other.inputs)
        same_operator(node.operator, other.operator)
        twins.update(zip(node.outputs, other.outputs, strict=True))
    assert [twins[value] for value in first.roots] == list(second.roots)
    for value, twin in twins.items():
        assert (type(value), value.type, value.name) == (type(twin), twin.type, twin.name)
        if isinstance(value, Constant) and isinstance(twin, Constant):
            np.testing.assert_array_equal(value.array, twin.array)
        if isinstance(value, Variable) and isinstance(twin, Variable):
            assert (value.initial is twin.initial, value.trainable) == (True, twin.trainable)


def same_operator(first: Operator, second: Operator) -> None:
    assert type(first) is type(second)
    for name in vars(first):
        mine, other = getattr(first, name), getattr(second, name)
        if isinstance(mine, Graph):
            same_graph(mine, other)
        else:
            assert repr(mine) == repr(other)


def test_a_graph_reads_as_expected() -> None:
    assert to_text(mlp()) == (
        "graph mlp(%x: f32[4,8]) {\n"
        "  %fc1.weight: f32[3,8] = variable @fc1.weight\n"
        "  %fc1.bias: f32[3] = variable @fc1.bias frozen\n"
        "  %0: f32[] = constant 0.5\n"
        "  %h: f32[4,3] = Gemm{transB=true}(%x, %fc1.weight, %fc1.bias)\n"
        "  %1: f32[4,3] = Tanh(%h)\n"
        "  %2: f32[3,8] = Mul(%fc1.weight, %0)\n"
        "  output y = %1\n"
        "  %fc1.weight <- %2\n"
        "}\n"
    )


def test_a_graph_comes_back_from_its_text() -> None:
    graph = mlp()
    same_graph(graph, parse(to_text(graph), arrays_of(graph)))


def step(draw: st.DrawFn, values: list[Value]) -> Node:
    """A node over values of shape [2, 3]."""
    x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return Node(Add(), (x, y), draw(NAMES))
    if kind == 1:
        return Node(Tanh(), (x,), draw(NAMES))
    if kind == 2:
        return Node(Transpose((1, 0)), (Reshape((3, 2))(x),))
    if kind == 3:
        return Node(Concat(-1), Split(num_outputs=3, axis=1)(x))
    if kind == 4:
        return Node(Where(), (x < y, x, constant(draw(st.floats(width=32)), f32)))
    return Node(Cast(f32), (Cast(draw(st.sampled_from(sorted(DTYPES.values(), key=str))))(x),), draw(NAMES))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    x = Input(f32[2, 3], draw(NAMES))
    number = st.floats(width=32, allow_nan=False)
    rows = draw(st.lists(number, min_size=3, max_size=3))
    values: list[Value] = [x, constant(np.array([rows, rows], np.float32)), constant(np.zeros((2, 3), np.float32))]
    values.append(Variable(draw(NAMES), np.ones((2, 3), np.float32), draw(st.booleans())))
    for _ in range(draw(st.integers(0, 8))):
        node = step(draw, values)
        node.output.name = draw(NAMES)
        values.append(node.output)
    outputs = draw(st.dictionaries(NAMES, st.sampled_from(values), min_size=1, max_size=3))
    return Graph((x,), outputs, {values[3]: values[-1]} if draw(st.booleans()) else {}, draw(NAMES))


@given(graphs())
def test_random_graphs_come_back_from_their_text(graph: Graph) -> None:
    text, arrays = to_text(graph), arrays_of(graph)
    read = parse(text, arrays)
    same_graph(graph, read)
    assert to_text(read) == text


@given(st.sampled_from(sorted(DTYPES)), st.data())
def test_inline_constants_keep_every_bit(name: str, data: st.DataObject) -> None:
    dtype = DTYPES[name].numpy
    raw = data.draw(st.binary(min_size=4 * dtype.itemsize, max_size=4 * dtype.itemsize))
    if DTYPES[name].is_stored:  # a code lies at the low end of its byte
        bits = 8 if name.startswith("f8") else int(name[1])
        raw = bytes(byte & (1 << bits) - 1 for byte in raw)
    array = np.frombuffer(raw, np.uint8) % 2 == 1 if name == "bool" else np.frombuffer(raw, dtype)
    graph = Graph((), {"y": Constant(array[:4].reshape(2, 2))})
    read = parse(to_text(graph)).outputs["y"]
    assert isinstance(read, Constant)
    kept = array[:4].reshape(2, 2)
    if DTYPES[name].is_float or DTYPES[name].is_stored:
        numbers = ~np.isnan(kept.astype(np.float64))
        assert (np.isnan(read.array.astype(np.float64)) == ~numbers).all()
        kept, array = kept[numbers], read.array[numbers]
    else:
        array = read.array
    assert array.tobytes() == kept.tobytes()


@pytest.mark.parametrize("cls", list(registered()), ids=lambda cls: cls.key())
def test_every_operator_comes_back_from_its_text(cls: type[Operator]) -> None:
    for seed in range(3):
        sample = cls.sample(ChoiceDraw(seed))
        inputs = [None if array is None else Input(type_of(array), f"x{i}") for i, array in enumerate(sample.inputs)]
        node = Node(sample.operator, inputs, "here")
        graph = Graph(
            tuple(value for value in inputs if value is not None), {f"y{v.index}": v for v in node.outputs}, name="one"
        )
        same_graph(graph, parse(to_text(graph), arrays_of(graph)))


def test_a_body_is_printed_inside_its_node() -> None:
    h, x = Input(f64[2], "h"), Input(f64[2], "x")
    scale = constant(np.linspace(0, 1, 20).reshape(10, 2))
    body = Graph((h, x), {"next": h + x, "y": h * scale}, name="body")
    start, xs = Input(f64[2], "start"), Input(f64[5, 2], "xs")
    graph = Graph((start, xs), {"end": Scan(body=body, num_scan_inputs=1)(start, xs)[0]}, name="loop")
    text = to_text(graph)
    assert "Scan{num_scan_inputs=1,body=graph body(%h: f64[2], %x: f64[2]) {" in text
    same_graph(graph, parse(text, arrays_of(graph)))


def test_large_constants_are_arrays() -> None:
    graph = Graph((), {"a": Constant(np.arange(16)), "b": Constant(np.arange(17)), "c": Constant(np.arange(18), "c")})
    arrays = arrays_of(graph)
    assert sorted(arrays) == ["%1", "c"]
    same_graph(graph, parse(to_text(graph), arrays))


def test_comments_and_spaces_do_not_matter() -> None:
    graph = mlp()
    text = to_text(graph).replace("(", " ( ").replace("{\n", "{ # a comment\n\n")
    same_graph(graph, parse(text, arrays_of(graph)))


MISTAKES = [
    ("Tanh(%h)", "Tahn(%h)", "line 6: there is no operator Tahn"),
    ("Tanh(%h)", "Tanh(%q)", "line 6: %q is not defined before this line"),
    ("Tanh(%h)", "Tanh(%h, %h)", "line 6: Tanh"),
    ("Tanh(%h)", "Tanh{alpha=1}(%h)", "line 6: Tanh: "),
    ("%1: f32[4,3]", "%1: f32[4,4]", "line 6: Tanh gives [f32[4,3]], not [f32[4,4]]"),
    ("f32[4,3] = Gemm", "f33[4,3] = Gemm", "line 5: 'f33[4,3]' is not a tensor type"),
    ("transB=true", "transB=maybe", "line 5: expected an attribute, found 'maybe'"),
    ("variable @fc1.bias", "variable @other", "line 3: there is no array @other"),
    ("fc1.bias: f32[3]", "fc1.bias: f32[4]", "line 3: array @fc1.bias is float32[3], not f32[4]"),
    ("constant 0.5", "constant [0.5, 1.0]", "line 4: these elements do not make a f32[]"),
    ("%fc1.weight <- %2", "%x <- %2", "line 9: %x is not a variable"),
    ("%fc1.weight <- %2", "%fc1.weight <- %2\n  %fc1.weight <- %2", "line 10: %fc1.weight is updated twice"),
    ("%1: f32[4,3] = T", "%h: f32[4,3] = T", "line 6: %h is defined twice"),
    ("output y", "output ;", "line 8: cannot read"),
    ("}\n", "", "line 10: expected value, found 'the end'"),
    ("}\n", "}\nmore", "line 11: expected end, found 'more'"),
    ("graph mlp", "graf mlp", "line 1: expected graph, found 'graf'"),
]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES)
def test_mistakes_name_their_line(old: str, new: str, message: str) -> None:
    text = to_text(mlp())
    assert old in text
    with pytest.raises(TextError) as error:
        parse(text.replace(old, new), arrays_of(mlp()))
    assert message in str(error.value)


def test_str_of_a_graph_is_its_text() -> None:
    graph = mlp()
    assert str(graph) == to_text(graph)
    verify(parse(str(graph), arrays_of(graph)))


def test_bf16_constants_are_exact() -> None:
    graph = Graph((), {"y": constant(0.1, bf16), "n": constant(7, i64)})
    read = parse(to_text(graph)).outputs["y"]
    assert isinstance(read, Constant)
    assert read.type == TensorType(bf16)
    assert read.array == np.asarray(0.1).astype(bf16.numpy)


def test_a_zero_keeps_its_sign() -> None:
    """-0.0 equals the default 0.0, but it is another attribute."""
    x = Input(f32[3], "x")
    graph = Graph((x,), {"y": Shrink(bias=-0.0)(x), "z": Shrink(bias=0.0)(x)})
    text = to_text(graph)
    assert "Shrink{bias=-0.0}(%x)" in text
    assert "Shrink(%x)" in text
    same_graph(graph, parse(text))
