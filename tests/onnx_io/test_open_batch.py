"""Files that were exported for one batch, with that batch opened: the same results for each example alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from glowtrain import load
from glowtrain.errors import BindingError, ModelError
from glowtrain.graph import Graph, Template
from glowtrain.types import Array
from tests.onnx_io.onnx_models import interpreted, model, node


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def opened(proto: ModelProto, batch: int) -> Graph:
    template = load(proto, open_batch=True)
    assert isinstance(template, Template)
    assert template.symbols == ("batch",)
    return template.bind({"batch": batch})


def same_for_each_example(proto: ModelProto, batch: int, *shape: int) -> None:
    """A batch of five gives what the file as it is gives for batches with each of the examples."""
    x = np.random.default_rng(0).standard_normal((5, *shape)).astype(np.float32)
    y = interpreted(opened(proto, 5), {"x": x})["y"]
    alone = load(proto)
    assert isinstance(alone, Graph)
    for place, example in enumerate(x):
        expected = interpreted(alone, {"x": np.stack([example] * batch)})["y"][0]
        np.testing.assert_allclose(y[place], expected, rtol=1e-5, atol=1e-6)


def chain(nodes: list[NodeProto], batch: int, *shape: int, **constants: Array) -> ModelProto:
    return model(nodes, {"x": [batch, *shape]}, ["y"], constants)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("target", [lambda n: [n, 12], lambda n: [n, -1], lambda n: [-1, 12], lambda n: [n, 2, -1]])
def test_flattening_to_a_fixed_batch(batch: int, target: object) -> None:
    nodes = [node("Reshape", "x s", "f"), node("Softmax", "f", "y")]
    same_for_each_example(chain(nodes, batch, 3, 4, s=ints(*target(batch))), batch, 3, 4)  # type: ignore[operator]


@pytest.mark.parametrize("batch", [2, 3])
def test_the_batch_merged_with_heads_and_with_time(batch: int) -> None:
    """As attention does: [time, batch · heads, d], and [time · batch, features] before the last layer."""
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("Reshape", "t heads", "h"),
        node("Softmax", "h", "p"),
        node("Reshape", "p rows", "r"),
        node("MatMul", "r w", "m"),
        node("Reshape", "m back", "b"),
        node("Transpose", "b", "y", perm=[1, 0, 2]),
    ]
    w = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    targets = {"heads": ints(5, batch * 2, 4), "rows": ints(5 * batch, 8), "back": ints(5, batch, 8)}
    same_for_each_example(chain(nodes, batch, 5, 8, w=w, **targets), batch, 5, 8)


def test_expanding_to_the_shape_of_a_batch() -> None:
    nodes = [
        node("ReduceMean", "x axis", "m"),
        node("Expand", "m s", "e"),
        node("Sub", "x e", "y"),
    ]
    same_for_each_example(chain(nodes, 2, 3, 4, axis=ints(2), s=ints(2, 3, 4)), 2, 3, 4)


def test_inputs_with_another_first_axis_stay() -> None:
    nodes = [node("MatMul", "x table", "m"), node("Add", "m more", "y")]
    proto = model(nodes, {"x": [2, 3], "table": [3, 4], "more": [2, 4]}, ["y"])
    template = load(proto, open_batch=True)
    assert isinstance(template, Template)
    assert {name: spec.shape for name, spec in template.inputs.items()} == {
        "x": ("batch", 3),
        "table": (3, 4),
        "more": ("batch", 4),
    }


def test_bound_at_once() -> None:
    graph = load(chain([node("Relu", "x", "y")], 2, 3), {"batch": 7}, open_batch=True)
    assert isinstance(graph, Graph)
    assert graph.outputs["y"].shape == (7, 3)


NO = {
    "a Reshape that mixes examples": (
        [node("Reshape", "x s", "y", "mix")],
        {"s": ints(3, 2, 4)},
        r"node 'mix' \(Reshape\) of \[2, 3, 4\] to \[3, 2, 4\] does not say where the batch goes",
    ),
    "a token for each example": (
        [node("Expand", "t s", "e", "tokens"), node("Concat", "x e", "y", "join", axis=1)],
        {"t": np.ones((1, 1, 4), np.float32), "s": ints(2, 1, 4)},
        r"node 'join' \(Concat\): .*; node 'tokens' \(Expand\) holds the size 2. The file is for batches of 2 only",
    ),
    "an initializer for each example": (
        [node("Add", "x w", "y", "sum")],
        {"w": np.ones((2, 3, 4), np.float32)},
        r"node 'sum' \(Add\): .*; initializer 'w' holds the size 2",
    ),
    "an axis of unknown contents": (
        [node("Concat", "x x", "c", axis=0), node("Reshape", "c s", "y", "part")],
        {"s": ints(2, 2, 3, 4)},
        r"node 'part' \(Reshape\) of \[4, 3, 4\] to \[2, 2, 3, 4\] does not say where the batch goes",
    ),
}


@pytest.mark.parametrize("case", NO)
def test_what_keeps_it_closed_is_named(case: str) -> None:
    nodes, constants, message = NO[case]
    with pytest.raises(ModelError, match=message):
        load(chain(nodes, 2, 3, 4, **constants), open_batch=True)


def test_a_merged_batch_of_one_is_not_guessed() -> None:
    """Of [5, 1, 8] as [5, 2, 4] the batch may be in the first axis or in the second."""
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t s", "y", "heads")]
    with pytest.raises(ModelError, match=r"node 'heads' \(Reshape\) .* does not say where the batch goes"):
        load(chain(nodes, 1, 5, 8, s=ints(5, 2, 4)), open_batch=True)


def test_no_batch_to_open() -> None:
    with pytest.raises(BindingError, match=r"no fixed batch to open; its inputs are: x f32\[n,3\]"):
        load(model([node("Relu", "x", "y")], {"x": ["n", 3]}, ["y"]), open_batch=True)
