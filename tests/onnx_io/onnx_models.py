"""Small ONNX models, made by hand, and the other runtimes they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from glowtrain import load, save
from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Graph, Variable, verify
from glowtrain.types import Array

F = TensorProto.FLOAT


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    initializers: Mapping[str, Array] | None = None,
    *,
    opset: int = 18,
    ir_version: int = 8,
    **options: Any,
) -> ModelProto:
    """A model; ``inputs`` maps names to shapes (f32) or to (type code, shape)."""
    declared = [
        helper.make_tensor_value_info(name, *(shape if isinstance(shape, tuple) else (F, shape)))
        for name, shape in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(list(nodes), "model", declared, results, tensors)
    imports = [helper.make_opsetid("", opset), *options.pop("imports", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **options)


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> NodeProto:
    """A node; names are separated by spaces, ``_`` is an absent input."""
    read = ["" if item == "_" else item for item in inputs.split()]
    return helper.make_node(op, read, outputs.split(), name or f"{op}_1", **attributes)


def mlp(*, opset: int = 18, batch: int | str | None = 4, seed: int = 0) -> ModelProto:
    """relu(x W1' + b1) W2 + b2 with 6 inputs, 5 hidden units, 3 outputs."""
    nodes = [
        node("Gemm", "x fc1.weight fc1.bias", "h", "fc1", transB=1),
        node("Relu", "h", "a", "act"),
        node("MatMul", "a fc2.weight", "m", "fc2"),
        node("Add", "m fc2.bias", "y", "bias"),
    ]
    random = np.random.default_rng(seed)
    shapes = {"fc1.weight": (5, 6), "fc1.bias": (5,), "fc2.weight": (5, 3), "fc2.bias": (3,)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return model(nodes, {"x": [batch, 6]}, ["y"], weights, opset=opset)


def interpreted(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs, and new values of variables as ``<name>.next``, by the interpreter."""
    known = evaluate(graph, inputs)
    following = {f"{variable.name}.next": known[value] for variable, value in graph.updates.items()}
    return {name: known[value] for name, value in graph.outputs.items()} | following


def in_onnx_runtime(proto: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by ONNX Runtime without optimizations (which rewrite BatchNormalization in training form)."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {key: np.asarray(array) for key, array in inputs.items()}), strict=True))


def runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises on models that it does not implement."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    return state.Fail, state.InvalidArgument, state.NotImplemented, state.InvalidGraph


def checked(proto: ModelProto) -> ModelProto:
    """The model, after the full check of the onnx package."""
    onnx.checker.check_model(proto, full_check=True)
    return proto


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Normal floats, integers from 0 to 2, for every input."""
    random = np.random.default_rng(seed)
    return {
        value.name: random.integers(0, 3, value.shape).astype(value.dtype.numpy)
        if value.dtype.is_integer
        else random.standard_normal(value.shape).astype(value.dtype.numpy)
        for value in graph.inputs
    }


def trainable(graph: Graph) -> list[str]:
    """Names of trainable variables."""
    return [value.name for value in graph.variables if value.trainable]


def frozen(graph: Graph) -> list[str]:
    """Names of other variables."""
    return [value.name for value in graph.variables if not value.trainable]


def variables(graph: Graph) -> dict[str, Variable]:
    """Variables by name."""
    return {value.name: value for value in graph.variables}


def loaded(source: ModelProto, **dims: int) -> Graph:
    """The graph, with symbolic dimensions bound."""
    graph = load(source, dims)
    assert isinstance(graph, Graph)
    verify(graph)
    return graph


def same_as_onnx_runtime(source: ModelProto, tolerance: float = 1e-5) -> Graph:
    graph = loaded(source)
    inputs = random_inputs(graph)
    expected = in_onnx_runtime(source, inputs)
    for name, array in interpreted(graph, inputs).items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_allclose(array, expected[name], rtol=tolerance, atol=tolerance)
    return graph


def close(found: dict[str, Array], expected: dict[str, Array], tolerance: float = 1e-5) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def runs_the_same(graph: Graph, tolerance: float = 1e-5, opset: int | None = None) -> ModelProto:
    """Saved, checked, run in ONNX Runtime, and loaded again."""
    proto = checked(save(graph, opset=opset))
    inputs = random_inputs(graph)
    expected = interpreted(graph, inputs)
    close(in_onnx_runtime(proto, inputs), expected, tolerance)
    if not graph.updates:
        again = load(proto, {symbol: 4 for symbol in ("batch",) if graph.dims})
        assert isinstance(again, Graph)
        verify(again)
        close(interpreted(again, inputs), expected, tolerance)
    return proto


def convnet(training: bool = False) -> ModelProto:
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", "x conv.weight", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c bn.scale bn.bias bn.mean bn.var", "n", "bn"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", "p shape", "f"),
        *([node("Dropout", "f ratio", "d", "drop")] if training else [node("Identity", "f", "d")]),
        node("Gemm", "d fc.weight fc.bias", "y", transB=1),
    ]
    shapes = {"conv.weight": (3, 2, 3, 3), "fc.weight": (5, 12), "fc.bias": (5,)}
    shapes |= {f"bn.{name}": (3,) for name in ("scale", "bias", "mean", "var")}
    weights = {name: random.uniform(0.2, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    constants = {"shape": np.array([-1, 12]), "ratio": np.array(0.25, np.float32)}
    return model(nodes, {"x": ["batch", 2, 4, 4]}, ["y"], weights | constants)
