"""The operators, attributes and shapes that ONNX Runtime's own gradient tests walk, checked by ``gradcheck.check``.

The rows are facts of ``orttraining/orttraining/test/gradient/gradient_ops_test.cc`` in microsoft/onnxruntime (2020):
what it checks at opset 9 to 12 and of domain ``com.microsoft``; the data are drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from glowtrain import gradcheck

SAME, SHAPE = (2, 3, 4, 5), (2, 3, 4)
BROADCASTS = (
    (SAME, SAME), (SAME, ()), ((), SAME), (SAME, (5,)), ((4, 5), SAME), ((1, 4, 5), (2, 3, 1, 1)),
    ((3, 4, 5), (2, 1, 1, 1)), ((2, 1, 1, 5), (1, 3, 4, 1)),
)  # fmt: skip
PRODUCTS = (
    ((2, 4), (4, 3)), ((2, 3, 4), (2, 4, 3)), ((2, 3, 4), (4, 3)), ((3, 4), (2, 4, 3)), ((2, 3, 4, 5), (2, 3, 5, 4)),
    ((2, 3, 4, 5), (5, 4)), ((2, 3, 4, 5), (3, 5, 4)), ((2, 1, 4, 5), (1, 3, 5, 4)),
)  # fmt: skip
REDUCTIONS: tuple[dict[str, Any], ...] = (
    {}, {"axes": [0, 1, 2], "keepdims": 0}, {"axes": [0, 2]}, {"axes": [0, 1], "keepdims": 0},
    {"axes": [1], "keepdims": 1}, {"axes": [2], "keepdims": 0}, {"axes": [-2], "keepdims": 1},
    {"axes": [-2, -1], "keepdims": 0}, {"axes": [-1, -3], "keepdims": 0},
)  # fmt: skip
GEMMS: tuple[tuple[Sequence[Sequence[int]], dict[str, Any]], ...] = (
    (((1, 4), (4, 3), ()), {}), (((1, 4), (4, 3), (3,)), {}), (((2, 4), (4, 3), ()), {}), (((2, 4), (4, 3), (3,)), {}),
    (((2, 4), (4, 3), (1, 3)), {}), (((2, 4), (4, 3), (2, 3)), {}), (((4, 2), (4, 3), (3,)), {"transA": 1}),
    (((2, 4), (3, 4), (3,)), {"transB": 1}), (((4, 2), (3, 4), (3,)), {"transA": 1, "transB": 1}),
    (((2, 4), (4, 3), (2, 3)), {"alpha": 0.7, "beta": 5.0}), (((2, 4), (4, 3), (3,)), {"alpha": 0.7, "beta": 5.0}),
)  # fmt: skip
MAX_POOLS: tuple[tuple[Sequence[int], dict[str, Any]], ...] = (
    ((2, 2, 9), {"kernel_shape": [2]}),
    ((2, 3, 5, 5), {"kernel_shape": [2, 2], "strides": [1, 1]}),
    ((1, 1, 5, 5), {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}),
    ((1, 1, 32, 32), {"kernel_shape": [5, 5], "strides": [3, 3]}),
    ((2, 1, 3, 3, 3), {"kernel_shape": [2, 2, 2]}),
)
AVERAGE_POOLS: tuple[tuple[Sequence[int], dict[str, Any]], ...] = (
    ((2, 3, 8), {"kernel_shape": [2], "strides": [2]}),
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [1, 1]}),
    ((2, 3, 8, 8, 8), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ((1, 3, 8), {"kernel_shape": [3], "strides": [3], "pads": [1, 0]}),
    ((1, 3, 7, 8), {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1}),
    ((1, 3, 7, 7), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1]}),
    ((1, 3, 8, 8, 8), {"kernel_shape": [3, 3, 3], "strides": [3, 3, 3], "pads": [1, 1, 1, 0, 0, 0]}),
    ((1, 4, 7, 7, 7), {"kernel_shape": [3] * 3, "strides": [3] * 3, "pads": [1] * 6, "count_include_pad": 1}),
)
PERMUTATIONS = ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])


@dataclass(frozen=True)
class Row:
    """One node: the ``first`` constants, inputs of floats by their shapes, then ``given`` constants.

    ``positive``: floats are taken as |x| + 1.
    """

    operator: str
    shapes: Sequence[Sequence[int]]
    attributes: dict[str, Any] = field(default_factory=dict)
    given: tuple[Any, ...] = ()
    first: tuple[Any, ...] = ()
    domain: str = ""
    opset: int = 12
    outputs: int = 1
    positive: bool = False

    def __str__(self) -> str:
        return f"{self.operator}-{list(map(list, self.shapes))}-{self.attributes or ''}".replace(" ", "")


def rows() -> list[Row]:
    """All of them."""
    found = [Row(name, (SHAPE,)) for name in ("Erf", "Sin", "Tanh", "Relu")]
    found += [Row("Sqrt", (SHAPE,), positive=True), Row("Cast", (SHAPE,), {"to": TensorProto.FLOAT})]
    found += [Row(name, (SHAPE,), domain="com.microsoft", opset=1) for name in ("Gelu", "FastGelu")]
    found += [Row(name, shapes) for name in ("Add", "Sub", "Mul") for shapes in BROADCASTS]
    found += [Row("Div", shapes, positive=True) for shapes in BROADCASTS]
    found += [Row("Pow", (SHAPE,), given=(np.float32([power]),)) for power in (2, 3)]
    found += [Row("MatMul", shapes) for shapes in PRODUCTS]
    found += [Row("Gemm", shapes, attributes) for shapes, attributes in GEMMS]
    found += [Row(name, ((4, 3, 2),), axes) for name in ("ReduceMean", "ReduceSum") for axes in REDUCTIONS]
    found += [Row("Split", ((9, 5),), {"axis": 0}, outputs=3)]
    found += [Row("MaxPool", (shape,), attributes) for shape, attributes in MAX_POOLS]
    found += [Row("AveragePool", (shape,), attributes) for shape, attributes in AVERAGE_POOLS]
    found += [Row("GlobalAveragePool", (shape,)) for shape in ((2, 3, 5, 5), (2, 1, 3, 3))]
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    found += [Row("Conv", ((2, 1, 5, 5), (1, 1, 3, 3), (1,)), window)]
    found += [Row("Conv", ((2, 1, 7, 5), (1, 1, 3, 3), (1,)), {**window, "strides": [2, 2]})]
    found += [Row("Concat", [(2,)] * 3, {"axis": 0}), Row("Concat", [(2, 2)] * 3, {"axis": 1})]
    found += [Row("Concat", [(1, 2, 3)] * 3, {"axis": 2})]
    found += [Row("Concat", ((2, 2), (2, 4)), {"axis": axis}) for axis in (1, -1)]
    found += [Row("Transpose", (SHAPE,)), *(Row("Transpose", (SHAPE,), {"perm": perm}) for perm in PERMUTATIONS)]
    found += [Row("Unsqueeze", ((2, 3),), {"axes": axes}) for axes in ([0, 3], [0, 1], [0, 2, 4])]
    found += [Row("Squeeze", ((1, 2, 3, 1),), {"axes": [0, 3]}), Row("Squeeze", ((1, 1, 2, 3, 4),), {"axes": [0, 1]})]
    found += [Row("Squeeze", ((1, 2, 1, 3, 1),), axes) for axes in ({"axes": [0, 2, 4]}, {"axes": [2]}, {})]
    found += [Row("Softmax", ((3, 4, 5),), axis) for axis in ({}, {"axis": 0}, {"axis": 2})]
    found += [Row("LayerNormalization", (SHAPE, (4,), (4,)), opset=17)]
    found += _normalizations() + _losses() + _indexing()
    return found


def _normalizations() -> list[Row]:
    shapes = ((3, 3, 2, 4), (3, 1, 2, 4), (1, 4, 2), (6, 5, 1, 3, 2, 4))
    return [
        Row("BatchNormalization", (shape, *[shape[1:2]] * 2), {"epsilon": 1e-5, "momentum": 0.1, "training_mode": 1},
            given=(np.zeros(shape[1], np.float32), np.ones(shape[1], np.float32)), opset=15)
        for shape in shapes
    ]  # fmt: skip


def _losses() -> list[Row]:
    random = np.random.default_rng(3)
    found = []
    for batch, reduction in (((5,), "mean"), ((5,), "sum"), ((2, 2, 3), "mean"), ((2, 2, 3), "sum")):
        labels = random.integers(0, 7, batch)
        weights = ((), (random.uniform(0.1, 2, 7).astype(np.float32),))
        shape = (batch[0], 7, *batch[1:])
        found += [
            Row("SoftmaxCrossEntropyLoss", (shape,), {"reduction": reduction}, given=(labels, *weight))
            for weight in weights
        ]
    return found


def _indexing() -> list[Row]:
    shape = (5, 4, 3, 2)
    indices = ([3, 1], [4, 1, 1, 0, 3, 4, 4, 2, 0, 1], [[0, 4, 4], [2, 1, 0]])
    found = [Row("Gather", (shape,), {"axis": 0}, given=(np.int64(each),)) for each in indices]
    found += [Row("Gather", (shape,), {"axis": 1}, given=(np.int64([0, 3, 3, 1, 2, 0, 0, 1]),))]
    found += [Row("GatherND", ((2, 2),), given=(np.int64(each),)) for each in ([[1, 1], [1, 1]], [[0, 1], [1, 0]])]
    found += [Row("GatherND", ((2, 2, 3),), {"batch_dims": 1}, given=(np.int64([[1], [0]]),))]
    found += [Row("GatherND", ((2, 2, 3),), {"batch_dims": 2}, given=(np.int64([[[1], [0]], [[2], [1]]]),))]
    condition = np.random.default_rng(4).random((4, 3, 2)) > 0.5
    found += [Row("Where", ((4, 3, 2), (4, 3, 2)), first=(condition,))]
    begins, ends = np.int64([1, 0]), np.int64([2, 3])
    found += [Row("Slice", ((2, 4),), given=(begins, ends))]
    steps = np.int64([0, 1]), np.int64([1, 2])
    found += [Row("Slice", (each,), given=(begins, ends, *steps)) for each in ((2, 4), (2, 4, 2))]
    return found


def model_of(row: Row) -> onnx.ModelProto:
    """A model of one node, whose inputs that are given are constants."""
    floats = [f"x{number}" for number in range(len(row.shapes))]
    known = {f"c{number}": array for number, array in enumerate((*row.first, *row.given))}
    names = [*list(known)[: len(row.first)], *floats, *list(known)[len(row.first) :]]
    results = [f"y{number}" for number in range(row.outputs)]
    node = helper.make_node(row.operator, names, results, domain=row.domain, **row.attributes)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(floats, row.shapes, strict=True)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    constants = [
        helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(array)))
        for name, array in known.items()
    ]
    opsets = [helper.make_opsetid("", max(row.opset, 12)), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([*constants, node], "row", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("row", rows(), ids=str)
def test_gradients(row: Row, tmp_path: Path) -> None:
    onnx.save(model_of(row), tmp_path / "row.onnx")
    random = np.random.default_rng(0)
    data = {f"x{n}": random.normal(size=shape).astype(np.float32) for n, shape in enumerate(row.shapes)}
    if row.positive:
        data = {name: np.float32(np.abs(array) + 1) for name, array in data.items()}
    report = gradcheck.check(tmp_path / "row.onnx", data)
    assert report.passed, str(report)
    assert {f"x{n}" for n in range(len(row.shapes))} <= {check.subject for check in report.checks}
