"""Reductions, indexing, softmax, normalizations, losses and random numbers: exact cases, conventions and ONNX's own reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.graph import Graph, Input, Operator, Value, registered
from glowtrain.graph.reverse import pullback
from glowtrain.ops.index import Gather, GatherElements, GatherND, OneHot, ScatterAdd, ScatterElements, ScatterND
from glowtrain.ops.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from glowtrain.ops.normalization import (
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LpNormalization,
    UnbiasedBatchNormalization,
)
from glowtrain.ops.random import ArrayWords, Dropout, Normal, RandomBits, TrainingDropout, Uniform, philox
from glowtrain.ops.reduction import (
    ArgMax,
    ArgMin,
    CumSum,
    ReduceL2,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from glowtrain.ops.softmax import Hardmax, LogSoftmax, Softmax
from glowtrain.types import TensorType, bf16, boolean, f16, f32, f64, i32, i64, type_of

MODULES = ("reduction", "index", "softmax", "normalization", "loss", "random")


def run(outputs: list[Value], feeds: dict[Input, Any]) -> list[Any]:
    """The outputs of a graph in the interpreter."""
    graph = Graph(tuple(feeds), {f"out{i}": value for i, value in enumerate(outputs)})
    known = evaluate(graph, {value.name: array for value, array in feeds.items()})
    return [known[value] for value in outputs]


def gradients(operator: Operator, arrays: list[Any], wanted: int = 0, output: int = 0, g: Any = None) -> Any:
    """The gradient of an operand through one output, for the cotangent ``g`` (ones)."""
    inputs = [Input(type_of(np.asarray(array)), f"x{i}") for i, array in enumerate(arrays)]
    results = operator(*inputs)
    result = results[output] if isinstance(results, tuple) else results
    cotangent = Input(result.type, "g")
    ones = np.ones(result.shape, result.dtype.numpy) if g is None else np.asarray(g, result.dtype.numpy)
    (gradient,) = pullback([result], [cotangent], [inputs[wanted]])
    assert gradient is not None
    feeds = {value: np.asarray(array) for value, array in zip(inputs, arrays, strict=True)}
    return run([gradient], {**feeds, cotangent: ones})[0]


class Dice:
    """Seeded choices for :meth:`Operator.sample`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def choice(self, options: Any) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def boolean(self) -> bool:
        return bool(self.integer(0, 1))

    def shape(self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5) -> tuple[int, ...]:
        return tuple(self.integer(min_extent, max_extent) for _ in range(self.integer(min_rank, max_rank)))

    def floats(self, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()) -> Any:
        values = np.linspace(low, high, int(np.prod(shape)) + 2)[1:-1]
        for point in avoid:
            values = np.where(abs(values - point) < 0.05, point + 0.05, values)
        return self.rng.permutation(values).reshape(shape)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Any:
        return self.rng.integers(low, high + 1, shape)

    def booleans(self, shape: tuple[int, ...]) -> Any:
        return self.rng.integers(0, 2, shape).astype(bool)


# --- Conformance with ONNX's reference implementation


def onnx_model(operator: Operator, arrays: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node; static fields become initializers at their input positions."""
    import dataclasses

    attributes, statics = {}, {}
    for field in dataclasses.fields(operator):  # type: ignore[arg-type]
        value = getattr(operator, field.name)
        if "input" in field.metadata:
            statics[field.metadata["input"]] = None if value is None else np.asarray(value)
        elif value is not None:
            attributes[field.name] = int(value) if isinstance(value, bool) else value
    operands, names, feeds = iter(arrays), [], {}
    for position in range(len(arrays) + len(statics)):
        array = statics[position] if position in statics else next(operands)
        names.append("" if array is None else f"x{position}")
        if array is not None:
            feeds[f"x{position}"] = array
    types = operator.infer(*(None if array is None else type_of(array) for array in arrays))
    count = len(types) if isinstance(types, tuple) else 1
    node = onnx.helper.make_node(operator.onnx, names, [f"y{i}" for i in range(count)], **attributes)
    infos = [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(count)]
    opsets = [onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos, outputs), opset_imports=opsets), feeds


def conforming() -> list[str]:
    """ONNX's operators of these families that draw nothing."""
    names = [cls for cls in registered() if cls.__module__.rpartition(".")[2] in MODULES and not cls.domain]
    return [cls.onnx for cls in names if cls is not Dropout]


@pytest.mark.parametrize("name", conforming())
def test_reference_agrees_with_onnx(name: str) -> None:
    (cls,) = registered(lambda cls: cls.key() == name)
    for seed in range(12):
        sample = cls.sample(Dice(seed))
        arrays = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in sample.inputs]
        while arrays[-1] is None:
            arrays.pop()
        model, feeds = onnx_model(sample.operator, arrays)
        expected = ReferenceEvaluator(model).run(None, feeds)
        results = sample.operator.reference(*arrays)
        for result, other in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
            np.testing.assert_allclose(result, other, rtol=2e-5, atol=2e-5, err_msg=f"{sample.operator} seed {seed}")
