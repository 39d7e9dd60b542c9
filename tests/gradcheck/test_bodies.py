"""Parts of random programs, through ONNX: an If and a Loop with drawn bodies load as what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from glowtrain import load, save
from glowtrain.backends.interpreter import evaluate
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.programs.bodies import DrawnBody, branch, loop_body
from glowtrain.gradcheck.programs.generator import Composer
from glowtrain.graph import Graph, Input, Value, constant
from glowtrain.ops.control.scan import run_body
from glowtrain.types import Array

OPSET = 24
BRANCHES = [seed for seed in range(25) if seed != 5]
LOOPS = [seed for seed in range(25) if seed != 16]
"""Seeds of what is drawn; those left out give operators that ONNX does not have in f64."""


def composer(seed: int) -> Composer:
    """With two values to begin with."""
    found = Composer(ChoiceDraw(seed, "parts"))
    found.leaf(found.floats((2, 3), -1.5, 1.5))
    found.leaf(found.floats((3,), -1.5, 1.5))
    return found


def part(inputs: Sequence[Input], results: dict[str, Value], own: int = 0) -> ModelProto:
    """A graph as a model whose inputs but the first ``own`` are those of the scope around it."""
    model = save(Graph(tuple(inputs), results), opset=OPSET)
    del model.graph.input[own:]
    return model


def whole(graph: GraphProto, *parts: ModelProto) -> ModelProto | None:
    """A model with the functions of its parts; ``None`` where two of them have functions, whose names may clash."""
    functions = [list(model.functions) for model in parts if model.functions]
    if len(functions) > 1:
        return None
    domains = {entry.domain: entry for model in parts for entry in model.opset_import}
    imports = [*(entry for entry in domains.values() if entry.domain), helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, functions=functions[0] if functions else [], opset_imports=imports)


def declared(values: Sequence[Input]) -> list[ValueInfoProto]:
    return [
        helper.make_tensor_value_info(v.name, helper.np_dtype_to_tensor_dtype(v.dtype.numpy), v.shape) for v in values
    ]


def run(model: ModelProto, leaves: dict[Input, Array], **further: Array) -> list[Array]:
    graph = load(model)
    assert isinstance(graph, Graph)
    known = evaluate(graph, {**{value.name: array for value, array in leaves.items()}, **further})
    return [known[value] for value in graph.outputs.values()]


@pytest.mark.parametrize("seed", BRANCHES)
def test_an_if_with_drawn_branches(seed: int) -> None:
    around = composer(seed)
    first = branch(around)
    second = around.shaped(branch(around), first.shape)
    inputs = list(around.leaves)
    parts = [part(inputs, {"r": value}) for value in (first, second)]
    node = helper.make_node("If", ["which"], ["y"], then_branch=parts[0].graph, else_branch=parts[1].graph)
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    result = helper.make_tensor_value_info("y", TensorProto.DOUBLE, first.shape)
    model = whole(helper.make_graph([node], "model", [which, *declared(inputs)], [result]), *parts)
    if model is not None:
        for taken, value in ((True, first), (False, second)):
            (found,) = run(model, around.leaves, which=np.asarray(taken))
            np.testing.assert_allclose(found, around.number(value), rtol=1e-5, atol=1e-6)


def stepwise(body: DrawnBody, results: Sequence[Value], state: Array, count: int) -> tuple[Array, list[Array]]:
    """What a loop of at most ``count`` steps gives, step by step."""
    assert body.outer is not None
    graph, captured = body.graph(results), [body.outer.number(value) for value in body.captured]
    going, pieces = np.asarray(True), []
    for step in range(count):
        if not going:
            break
        going, state, piece = run_body(graph, [going, state, np.asarray(step), *captured])
        pieces.append(piece)
    return state, pieces


@pytest.mark.parametrize("seed", LOOPS)
def test_a_loop_with_a_drawn_body(seed: int) -> None:
    """Of up to 12 steps, so unrolled or kept as a loop, and stopped by its own condition now and then."""
    around = composer(seed)
    count, limit = around.draw.integer(1, 12), around.draw.integer(1, 12)
    start = around.pool[1]
    body, results = loop_body(around, start, constant(np.asarray(limit)))
    going, state, step = body.arguments
    outer = {inner: value for value, inner in body.captured.items()}
    assert all(isinstance(value, Input) for value in outer.values())
    for inner, value in outer.items():
        inner.name = value.name
    inner_inputs = [step, going, state, *outer]
    model = part(inner_inputs, dict(zip(("kept", "after", "piece"), results, strict=True)), own=3)
    node = helper.make_node("Loop", ["count", "", start.name], ["last", "pieces"], body=model.graph)
    number = helper.make_tensor("count", TensorProto.INT64, [], [count])
    known, pieces = stepwise(body, results, around.number(start), count)
    ends = [
        helper.make_tensor_value_info("last", TensorProto.DOUBLE, known.shape),
        helper.make_tensor_value_info("pieces", TensorProto.DOUBLE, None),
    ]
    outermost = helper.make_graph([node], "model", declared(list(around.leaves)), ends, [number])
    loop = whole(outermost, model)
    assert loop is not None
    last, *stacked = run(loop, around.leaves)
    np.testing.assert_allclose(last, known, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stacked[0][: len(pieces)], np.stack(pieces), rtol=1e-5, atol=1e-6)
