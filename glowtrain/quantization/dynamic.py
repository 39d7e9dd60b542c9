"""Products with weights in integers, without data for calibration: rows are quantized while the model runs.

Each row x of a MatMul or Gemm becomes round(x / s) + 128 in u8, where s is its largest magnitude over 127; each column
of the weight is in i8 with a scale of its own, and both scales multiply the exact sum. One scale for each row keeps a
row apart from larger ones (Yao et al., "ZeroQuant: Efficient and Affordable Post-Training Quantization for Large-Scale
Transformers", arXiv:2206.01861, section 4), where DynamicQuantizeLinear has one for a whole tensor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Model, Node, Replacements, Value, constant, translate
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.elementwise.arithmetic import Abs, Mul, Round
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.logic import Greater, Where
from glowtrain.ops.quantized.integer_products import MatMulInteger
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.optimize.integer_numbers import as_bytes, in_bytes
from glowtrain.quantization.checks import check_model, check_names
from glowtrain.quantization.export.constants import Arrays
from glowtrain.quantization.placement.placement import check_patterns, matched
from glowtrain.types import Array, f32, i8, u8

LARGEST, MIDDLE = 127, 128
"""The largest number of a row or a column, and the zero point of rows, which are in u8: processors without matrices
multiply u8 by i8."""


def dynamic(model: Model, *, keep: Collection[str] = ()) -> Model:
    """The model with products of rows by known weights in integers: MatMul and Gemm in f32 with a matrix on the right.

    Weights that are integers times a scale for each column stay what they are; others are rounded. ``keep`` are
    patterns of what stays in floating point: names of nodes, of their results, weights or layers, or operators. The
    result is of standard operators, and compiles, saves and runs as any other; it is not trained. Elements that are not
    finite give other results than in floats. Raises :class:`~glowtrain.errors.QuantizationError` for a model with
    nothing to quantize, and a pattern that fits nothing.
    """
    check_model(model)
    if isinstance(keep, str):
        raise QuantizationError(f"keep is a list of names: write [{keep!r}]")
    check_names("keep is a list of names", keep)
    return model.map(lambda graph: _Dynamic(graph, keep).run())


@dataclass(frozen=True, eq=False)
class _Columns:
    """A weight: numbers [inner, columns] in i8, and their scales, for each column or all."""

    numbers: Array
    scale: Array


@dataclass
class _Dynamic:
    """The work on one graph; ``rows`` are those that several products read, quantized once."""

    graph: Graph
    keep: Collection[str]
    arrays: Arrays = field(default_factory=Arrays)
    rows: dict[Value, tuple[Value, Value]] = field(default_factory=dict)

    def run(self) -> Graph:
        check_patterns(self.graph, self.keep)
        changed = translate(self.graph, self.change)
        if changed is self.graph:
            what = "MatMul or Gemm in f32 with a known matrix on the right"
            raise QuantizationError(f"{self.graph.name} has no {what} that may be quantized: there is nothing to do")
        return changed

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        """A product in integers; ``None`` for what stays."""
        if not isinstance(node.operator, (MatMul, Gemm)) or matched(node, self.keep):
            return None
        x, weight, bias = (*replacements.operands(node), None)[:3]
        if x is None or x.dtype != f32 or in_bytes(x) is not None or self.arrays.of(_operand(node, 0)) is not None:
            return None
        turned = isinstance(node.operator, Gemm) and node.operator.transB
        columns = self.columns(_operand(node, 1), turned=turned)
        if weight is None or columns is None or (isinstance(node.operator, Gemm) and node.operator.transA):
            return None
        numbers, scale = self.quantized(x)
        total = MatMulInteger()(numbers, Constant(columns.numbers, weight.name), constant(np.uint8(MIDDLE)))
        alpha, beta = (node.operator.alpha, node.operator.beta) if isinstance(node.operator, Gemm) else (1.0, 1.0)
        # not the product of both scales: ONNX Runtime 1.32 takes that for one scale of a whole tensor, and the first
        y: Value = Cast(f32)(total) * constant(columns.scale * np.float32(alpha)) * scale
        if bias is not None:
            y = y + (bias if beta == 1 else bias * beta)
        return (y,)

    def quantized(self, x: Value) -> tuple[Value, Value]:
        """Rows in u8, and the scale of each; rows of zeros have the scale 1."""
        if x not in self.rows:
            keepdims = x.rank > 1
            largest = ReduceMax(axes=(-1,), keepdims=keepdims)(Abs()(x))
            scale = Where()(Greater()(largest, 0.0), largest * np.float32(1 / LARGEST), 1.0)
            self.rows[x] = Cast(u8)(Round()(x / scale) + float(MIDDLE)), scale
        return self.rows[x]

    def columns(self, weight: Value, *, turned: bool) -> _Columns | None:
        """A known weight in integers; ``turned``: its rows are the columns."""
        if weight.rank != 2 or weight.dtype != f32:
            return None
        found = self._dequantized(weight, turned=turned) or self._scaled(weight, turned=turned)
        if found is not None:
            return found
        array = self.arrays.of(weight)
        if array is None or not np.isfinite(array).all():
            return None
        wide = array.T if turned else array
        largest = np.abs(wide).max(0, initial=0)
        scale = np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1)).astype(np.float32)
        numbers = np.rint(wide / scale).clip(-LARGEST, LARGEST)
        return _Columns(np.ascontiguousarray(numbers, i8.numpy), scale)

    def _dequantized(self, weight: Value, *, turned: bool) -> _Columns | None:
        """DequantizeLinear of known numbers in i8 with the zero point 0."""
        found = in_bytes(weight)
        if found is None or (found.zero is not None and self.arrays.required(found.zero).any()):
            return None
        array = self.arrays.of(found.numbers)
        if array is None or array.dtype != np.int8 or not (found.uniform or found.axis == (0 if turned else 1)):
            return None
        scale = found.scale.reshape(() if found.uniform else -1)
        return _Columns(np.ascontiguousarray(array.T if turned else array), scale)

    def _scaled(self, weight: Value, *, turned: bool) -> _Columns | None:
        """Known numbers of i8 times known scales, as a model multiplies them itself."""
        node = weight.node
        if node is None or not isinstance(node.operator, Mul):
            return None
        for numbers, scale in ((0, 1), (1, 0)):
            left, right = (self.arrays.of(_operand(node, at)) for at in (numbers, scale))
            if left is None or right is None or left.shape != weight.shape or right.size == 0:
                continue
            small = as_bytes(left)
            each = (1, 1, *right.shape)[-2:][1 if turned else 0] == 1 and right.shape != left.shape
            if small is not None and small.dtype == np.int8 and each:
                return _Columns(np.ascontiguousarray(small.T if turned else small), _flat(right))
        return None


def _flat(scale: Array) -> Array:
    return scale.reshape(() if scale.size == 1 else -1).astype(np.float32)


def _operand(node: Node, at: int) -> Value:
    value = node.inputs[at]
    assert value is not None
    return value
