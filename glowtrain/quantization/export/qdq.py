"""The QDQ form of operators on quantized tensors: the float operator between DequantizeLinear and QuantizeLinear.

The inverse of :mod:`~glowtrain.quantization.export.qoperator`, for files that ONNX Runtime's quantizer wrote in
QOperator form too. Only float operators have gradients, so this is where training on from such a file begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.graph import Constant, Graph, Node, Operator, Value, rewrite
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.microsoft.base import channels_behind, channels_first
from glowtrain.ops.microsoft.linear import (
    MatMulIntegerToFloat,
    MicrosoftDequantizeLinear,
    MicrosoftQLinearConv,
    MicrosoftQuantizeLinear,
    QGemm,
)
from glowtrain.ops.microsoft.quantized import (
    QLinearAdd,
    QLinearConcat,
    QLinearGlobalAveragePool,
    QLinearMul,
    QLinearUnary,
    QLinearWhere,
)
from glowtrain.ops.pooling.pooling import GlobalAveragePool
from glowtrain.ops.quantized.convert import INTEGERS, DequantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.qlinear import QLinearConv, QLinearMatMul
from glowtrain.ops.tensor.move import Concat, reshape
from glowtrain.ops.tensor.pad import Pad
from glowtrain.quantization.export.constants import Arrays
from glowtrain.types import Array, DType

Operands = Sequence[Value | None]


def qdq(graph: Graph) -> Graph:
    """A graph with every operator on quantized tensors in QDQ form; the same object if it has none.

    Operators stay that have no such form: those with a scale for each row of the left operand, or with a bias in units
    that are computed from inputs.
    """
    return rewrite(graph, _Expanding().node)


@dataclass
class _Expanding:
    arrays: Arrays = field(default_factory=Arrays)
    singles: dict[Value, Value] = field(default_factory=dict)
    """Scales and zero points of one element, as numbers."""

    def node(self, node: Node) -> Sequence[Value] | None:
        for kind, form in FORMS:
            if isinstance(node.operator, kind):
                operands = (*node.inputs, *(None,) * (9 - len(node.inputs)))
                result = form(self, node, operands)
                return None if result is None else (_with_name(result, node.outputs[0]),)
        if node.operator.quantized in ("passes", "clips"):
            return self.on_numbers(node)
        return None

    # --- tensors -----------------------------------------------------------------------------------------------------

    def real(self, x: Value, scale: Value, zero: Value | None, axis: int = 1) -> Value:
        """The real numbers of a tensor; they share scale and zero point with the QuantizeLinear that made it."""
        maker = x.node
        if maker is not None and isinstance(maker.operator, QuantizeLinear) and self.matches(maker, scale, zero):
            scale, zero = _given(maker.inputs)[1], (*maker.inputs, None)[2]
        operands = [self.single(part) for part in (scale, zero) if part is not None]
        result: Value = DequantizeLinear(axis)(x, *operands)
        return result

    def matches(self, maker: Node, scale: Value, zero: Value | None) -> bool:
        """Whether a QuantizeLinear has this scale and zero point."""
        pairs = [(maker.inputs[1], scale), ((*maker.inputs, None)[2], zero)]
        arrays = [[np.zeros(()) if value is None else self.arrays.of(value) for value in pair] for pair in pairs]
        return all(a is not None and b is not None and np.array_equal(a.ravel(), b.ravel()) for a, b in arrays)

    def numbers(self, y: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
        """Real numbers quantized."""
        if zero is None:
            result: Value = QuantizeLinear(output_dtype=dtype)(y, self.single(scale))
        else:
            result = QuantizeLinear()(y, self.single(scale), self.single(zero))
        return result

    def single(self, value: Value) -> Value:
        if value.type.size != 1 or not value.rank:
            return value
        if value not in self.singles:
            array = self.arrays.of(value)
            number = reshape(value, ()) if array is None else Constant(array.reshape(()), value.name)
            self.singles[value] = number
        return self.singles[value]

    def bias(self, c: Value | None, *factors: Value | float) -> list[Value] | None:
        """A bias in units of the product of some scales; ``None`` where these are not known."""
        if c is None:
            return []
        unit: Array = np.ones((), np.float32)
        for factor in factors:
            array = self.arrays.of(factor) if isinstance(factor, Value) else np.float32(factor)
            if array is None:
                return None
            unit = unit * (array.reshape(()) if array.size == 1 else array.reshape(-1))
        scale = Constant(unit.astype(np.float32))
        return [DequantizeLinear(c.rank - 1)(c, scale)]

    # --- operators ---------------------------------------------------------------------------------------------------

    def convolution(self, node: Node, operands: Operands) -> Value | None:
        x, sx, zx, w, sw, zw, sy, zy, _ = _given(operands)
        attributes, bias = node.operator.attributes(), self.bias(operands[8], sx, sw)
        if bias is None:
            return None
        last = bool(attributes.pop("channels_last", False))
        image = self.real(x, sx, zx)
        result: Value = Conv(**attributes)(channels_first(image) if last else image, self.real(w, sw, zw, 0), *bias)
        return self.numbers(channels_behind(result) if last else result, sy, zy, node.output.dtype)

    def matrix_product(self, node: Node, operands: Operands) -> Value | None:
        a, sa, za, b, sb, zb, sy, zy, _ = _given(operands)
        if sa.type.size != 1 or sb.rank > 1:
            return None
        product: Value = MatMul()(self.real(a, sa, za), self.real(b, sb, zb, b.rank - 1))
        return self.numbers(product, sy, zy, node.output.dtype)

    def real_product(self, node: Node, operands: Operands) -> Value | None:
        a, b, sa, sb, za, zb, bias, *_ = _given(operands)
        if sb.rank > 1:
            return None
        product: Value = MatMul()(self.real(a, sa, za), self.real(b, sb, zb, b.rank - 1))
        return product if operands[6] is None else product + bias

    def general_product(self, node: Node, operands: Operands) -> Value | None:
        a, sa, za, b, sb, zb, _, sy, zy = _given(operands)
        operator = node.operator
        assert isinstance(operator, QGemm)
        bias = self.bias(operands[6], sa, sb, operator.alpha)
        if bias is None:
            return None
        gemm = Gemm(alpha=operator.alpha, transA=operator.transA, transB=operator.transB)
        product: Value = gemm(self.real(a, sa, za), self.real(b, sb, zb, 0 if operator.transB else 1), *bias)
        return product if operands[8] is None else self.numbers(product, sy, zy, node.output.dtype)

    def binary(self, node: Node, operands: Operands) -> Value:
        a, sa, za, b, sb, zb, sy, zy, _ = _given(operands)
        function = Add() if isinstance(node.operator, QLinearAdd) else Mul()
        return self.numbers(function(self.real(a, sa, za), self.real(b, sb, zb)), sy, zy, node.output.dtype)

    def unary(self, node: Node, operands: Operands) -> Value:
        x, sx, zx, sy, zy, *_ = _given(operands)
        operator, numbers = node.operator, self.real(x, sx, zx)
        assert isinstance(operator, QLinearUnary)
        if not isinstance(operator, QLinearGlobalAveragePool):
            return self.numbers(operator.apply(numbers), sy, zy, node.output.dtype)
        pooled: Value = GlobalAveragePool()(channels_first(numbers) if operator.channels_last else numbers)
        result = channels_behind(pooled) if operator.channels_last else pooled
        return self.numbers(result, sy, zy, node.output.dtype)

    def concatenation(self, node: Node, operands: Operands) -> Value:
        sy, zy, *parts = _given(node.inputs)
        assert isinstance(node.operator, QLinearConcat)
        tensors = [self.real(x, s, z) for x, s, z in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]
        return self.numbers(Concat(axis=node.operator.axis)(*tensors), sy, zy, node.output.dtype)

    def choice(self, node: Node, operands: Operands) -> Value:
        condition, x, sx, zx, y, sy, zy, sz, zz = _given(operands)
        chosen: Value = Where()(condition, self.real(x, sx, zx), self.real(y, sy, zy))
        return self.numbers(chosen, sz, zz, node.output.dtype)

    def standard(self, node: Node, operands: Operands) -> Value:
        operator = node.operator
        assert isinstance(operator, (MicrosoftQuantizeLinear, MicrosoftDequantizeLinear))
        return operator.define(*operands[:3])

    # --- moves and bounds of numbers ---------------------------------------------------------------------------------

    def on_numbers(self, node: Node) -> Sequence[Value] | None:
        """What passes on quantized numbers, or clips them, on the real numbers instead."""
        x = node.inputs[0]
        maker = None if x is None else x.node
        if x is None or x.dtype not in INTEGERS or maker is None or not isinstance(maker.operator, QuantizeLinear):
            return None
        scale, zero = maker.inputs[1], (*maker.inputs, None)[2]
        if scale is None or scale.type.size != 1 or maker.operator.block_size:
            return None
        rest = list(node.inputs[1:])
        if isinstance(node.operator, Clip):
            rest = [None if end is None else self.real(end, scale, zero) for end in rest]
        elif isinstance(node.operator, Pad) and node.operator.mode == "constant":
            margin = rest[0] if rest and rest[0] is not None else Constant(np.zeros((), x.dtype.numpy))
            rest = [self.real(margin, scale, zero), *rest[1:]]
        elif any(value is not None and value.dtype in INTEGERS for value in rest):
            return None
        fresh = Node(node.operator, [self.real(x, scale, zero), *rest], node.name).outputs
        numbers = [self.numbers(y, scale, zero, x.dtype) if y.dtype.is_float else y for y in fresh]
        return [_with_name(new, old) for new, old in zip(numbers, node.outputs, strict=True)]


def _given(operands: Operands) -> list[Value]:
    """Operands, of which zero points and biases may be absent all the same."""
    return list(operands)  # type: ignore[arg-type]


def _with_name(value: Value, old: Value) -> Value:
    """The value under the old one's name; what it quantizes is called so."""
    maker, name = value.node, old.name
    if maker is not None and isinstance(maker.operator, QuantizeLinear) and maker.inputs[0] is not None and name:
        real = maker.inputs[0]
        real.name = real.name or name.removesuffix("_quantized").removesuffix(".quantized")
    value.name = value.name or name
    return value


Form = Callable[[_Expanding, Node, Operands], Value | None]

FORMS: tuple[tuple[type[Operator] | tuple[type[Operator], ...], Form], ...] = (
    ((QLinearConv, MicrosoftQLinearConv), _Expanding.convolution),
    (QLinearMatMul, _Expanding.matrix_product),
    (MatMulIntegerToFloat, _Expanding.real_product),
    (QGemm, _Expanding.general_product),
    ((QLinearAdd, QLinearMul), _Expanding.binary),
    (QLinearUnary, _Expanding.unary),
    (QLinearConcat, _Expanding.concatenation),
    (QLinearWhere, _Expanding.choice),
    ((MicrosoftQuantizeLinear, MicrosoftDequantizeLinear), _Expanding.standard),
)
"""The QDQ form of each operator, from its operands, absent ones among them."""
