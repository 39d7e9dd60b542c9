"""The QOperator form: operators on quantized tensors instead of float ones between Quantize- and DequantizeLinear.

ONNX has QLinearConv and QLinearMatMul; the others are ONNX Runtime's, of the domain com.microsoft
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md), which ``gt.save`` writes as they are with
``domains=[DOMAIN]``. What has no such form stays between DequantizeLinear and QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Constant, Model, Node, Operator, Value, rewrite
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import LeakyRelu, Sigmoid
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.microsoft.base import DOMAIN
from glowtrain.ops.microsoft.linear import MatMulIntegerToFloat, QGemm
from glowtrain.ops.microsoft.quantized import (
    QLinearAdd,
    QLinearAveragePool,
    QLinearConcat,
    QLinearGlobalAveragePool,
    QLinearLeakyRelu,
    QLinearMul,
    QLinearSigmoid,
    QLinearSoftmax,
)
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear, limits
from glowtrain.ops.quantized.qlinear import QLinearConv, QLinearMatMul
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.ops.tensor.move import Concat
from glowtrain.ops.tensor.pad import Pad
from glowtrain.optimize.integer_products import SAME_SCALE
from glowtrain.quantization.checks import check_model
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.types import Array, i8, i32, u8

__all__ = ["DOMAIN", "qoperator"]

NEWEST_SOFTMAX = 13
"""The operator set from which on Softmax has one axis."""


def qoperator(model: Model) -> Model:
    """The QOperator form of a model in QDQ form, with scales that are constants, in bytes."""
    check_model(model)
    return model.map(lambda graph: rewrite(graph, _change))


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """What DequantizeLinear reads: integers, their scale and their zero point."""

    numbers: Value
    scale: Constant
    zero: Constant
    axis: int

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.numbers, self.scale, self.zero

    @property
    def uniform(self) -> bool:
        return self.scale.type.size == 1


def _change(node: Node) -> Sequence[Value] | None:
    if isinstance(node.operator, Gemm):
        return _real_product(node, node.operator)
    if isinstance(node.operator, MatMul):
        return _real_matrices(node)
    if not isinstance(node.operator, QuantizeLinear) or node.operator.block_size:
        return None
    value, scale, zero = (*node.inputs, None)[:3]
    if not isinstance(scale, Constant) or not isinstance(zero, Constant) or scale.type.size != 1 or value is None:
        return None
    inner, clips = _unclipped(value)
    if inner.node is None or inner.node.outputs[0] is not inner or zero.dtype not in (i8, u8):
        return None
    numbers = _quantized(inner.node, scale, zero)
    return None if numbers is None else (_clipped(numbers, clips, Parameters(scale.array, zero.array)),)


def _tensor(value: Value | None) -> QuantizedTensor | None:
    """What a value was dequantized from, if that is bytes or a bias, with one scale for all or for each channel."""
    node = None if value is None else value.node
    if node is None or not isinstance(node.operator, DequantizeLinear) or node.operator.block_size:
        return None
    numbers, scale, zero = (*node.inputs, None)[:3]
    if numbers is None or not isinstance(scale, Constant) or numbers.dtype not in (i8, u8, i32):
        return None
    if not isinstance(zero, Constant):
        return None
    return QuantizedTensor(numbers, scale, zero, node.operator.axis % max(numbers.rank, 1))


def _unclipped(value: Value) -> tuple[Value, list[Node]]:
    """A value without what clips it, and the nodes that do."""
    clips: list[Node] = []
    while value.node is not None and value.node.operator.quantized == "clips":
        bounds = value.node.inputs[1:]
        if value.node.inputs[0] is None or not all(bound is None or isinstance(bound, Constant) for bound in bounds):
            break
        clips.append(value.node)
        value = value.node.inputs[0]
    return value, clips


def _clipped(numbers: Value, clips: list[Node], parameters: Parameters) -> Value:
    """Integers between the quantized bounds; saturation to the type does it for most clips, such as ReLU."""
    least, greatest = limits(numbers.dtype)
    ends = np.array([least, greatest]).astype(numbers.dtype.numpy)
    real = parameters.dequantized(ends)
    for node in reversed(clips):
        bounds = [bound.array if isinstance(bound, Constant) else None for bound in node.inputs[1:]]
        real = np.asarray(node.operator.reference(real, *bounds))
    low, high = parameters.quantized(real)
    if (low, high) == (ends[0], ends[1]):
        return numbers
    result: Value = Clip()(numbers, Constant(np.asarray(low)), Constant(np.asarray(high)))
    return result


def _quantized(node: Node, scale: Constant, zero: Constant) -> Value | None:
    """The operator on quantized tensors that gives a node's result with this scale and zero point."""
    operator, operands = node.operator, node.inputs
    if isinstance(operator, (QGemm, MatMulIntegerToFloat)) and (operands[0] is None or operands[0].dtype != zero.dtype):
        return None
    if isinstance(operator, QGemm) and len(node.inputs) == 7:
        result: Value = operator(*node.inputs, scale, zero)
        return result
    if isinstance(operator, MatMulIntegerToFloat) and len(node.inputs) == 6:
        a, b, sa, sb, za, zb = node.inputs
        product: Value = QLinearMatMul()(a, sa, za, b, sb, zb, scale, zero)
        return product
    tensors = [_tensor(value) for value in node.inputs if value is not None]
    if not tensors or tensors[0] is None:
        return None
    if isinstance(operator, Conv):
        return _convolution(node, tensors, scale, zero)
    if operator.quantized == "passes":
        return _passed(node, tensors[0], scale, zero)
    if any(tensor is None or not tensor.uniform or tensor.numbers.dtype != zero.dtype for tensor in tensors):
        return None
    parts = [part for tensor in tensors if tensor is not None for part in tensor.parts]
    if isinstance(operator, Concat):
        joined: Value = QLinearConcat(operator.axis)(scale, zero, *parts)
        return joined
    found = next((form for kind, form in FORMS if isinstance(operator, kind)), None)
    form = None if found is None else found(operator)
    applied: Value | None = None if form is None else form(*parts, scale, zero)
    return applied


def _convolution(node: Node, tensors: list[QuantizedTensor | None], scale: Constant, zero: Constant) -> Value | None:
    x, w, *rest = tensors
    if x is None or w is None or not x.uniform or x.numbers.dtype != zero.dtype or w.numbers.dtype == i32:
        return None
    bias = rest[0] if rest else None
    if rest and not _in_products(bias, x, w):
        return None
    if not w.uniform and w.axis != 0:
        return None
    operands = [*x.parts, *w.parts, scale, zero] + ([] if bias is None else [bias.numbers])
    result: Value = QLinearConv(**node.operator.attributes())(*operands)
    return result


def _in_products(bias: QuantizedTensor | None, a: QuantizedTensor, b: QuantizedTensor, factor: float = 1.0) -> bool:
    """Whether a bias is in units of the products, alpha · s_a · s_b, as operators on quantized tensors take it."""
    if bias is None or bias.numbers.dtype != i32 or bias.zero.array.any():
        return False
    units = factor * a.scale.array.reshape(-1).astype(np.float64) * b.scale.array.reshape(-1)
    scales = bias.scale.array.reshape(-1)
    fits = 1 in (units.size, scales.size) or units.size == scales.size
    return fits and bool(np.allclose(scales, units, rtol=SAME_SCALE, atol=0))


def _real_product(node: Node, operator: Gemm) -> Sequence[Value] | None:
    """Gemm of quantized matrices, with a bias in their units: QGemm with a real result."""
    a, b, bias = (_tensor(value) for value in (*node.inputs, None)[:3])
    if a is None or b is None or not a.uniform or operator.beta != 1 or i32 in (a.numbers.dtype, b.numbers.dtype):
        return None
    if not b.uniform and b.axis != (0 if operator.transB else 1):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None and not _in_products(bias, a, b, operator.alpha):
        return None
    form = QGemm(operator.alpha, operator.transA, operator.transB)
    return (form(*a.parts, *b.parts, None if bias is None else bias.numbers),)


def _real_matrices(node: Node) -> Sequence[Value] | None:
    """MatMul of quantized matrices, with a real result."""
    a, b = (_tensor(value) for value in node.inputs)
    if a is None or b is None or not a.uniform or i32 in (a.numbers.dtype, b.numbers.dtype) or b.numbers.rank < 2:
        return None
    if not b.uniform and (b.axis != b.numbers.rank - 1 or b.numbers.rank != 2):
        return None
    return (MatMulIntegerToFloat()(a.numbers, b.numbers, a.scale, b.scale, a.zero, b.zero),)


def _passed(node: Node, tensor: QuantizedTensor, scale: Constant, zero: Constant) -> Value | None:
    """The same operator on integers, where scale and zero point stay."""
    same = tensor.uniform and np.array_equal(tensor.scale.array.reshape(()), scale.array.reshape(()))
    if not same or tensor.numbers.dtype != zero.dtype or _number(tensor.zero.array) != _number(zero.array):
        return None
    rest = list(node.inputs[1:])
    if isinstance(node.operator, Pad) and node.operator.mode == "constant":  # 0 is no 0 among the numbers
        given = [value for value in rest if value is not None]
        margin = given[0] if given else Constant(np.zeros((), np.float32))
        if not isinstance(margin, Constant):
            return None
        numbers = Parameters(tensor.scale.array.reshape(()), tensor.zero.array.reshape(())).quantized(margin.array)
        rest = [Constant(numbers.reshape(()))]
    if any(value is not None and value.dtype.is_float for value in rest):
        return None
    try:
        return Node(node.operator, [tensor.numbers, *rest], node.name).outputs[0]
    except ShapeError:  # an operator on real numbers alone
        return None


def _number(zero: Array) -> int:
    return int(zero.reshape(()).astype(np.int64))


Form = Callable[[Operator], Operator | None]


def _average(operator: Operator) -> Operator | None:
    attributes = operator.attributes()
    dilations = attributes.pop("dilations")
    return QLinearAveragePool(**attributes) if all(dilation == 1 for dilation in dilations) else None


def _of(form: type[Operator]) -> Form:
    return lambda operator: form(**operator.attributes())


def _forms() -> Iterator[tuple[type[Operator], Form]]:
    yield Add, _of(QLinearAdd)
    yield Mul, _of(QLinearMul)
    yield Sigmoid, _of(QLinearSigmoid)
    yield LeakyRelu, _of(QLinearLeakyRelu)
    yield Softmax, lambda operator: QLinearSoftmax(NEWEST_SOFTMAX, operator.attributes()["axis"])
    yield GlobalAveragePool, lambda operator: QLinearGlobalAveragePool()
    yield AveragePool, _average


FORMS = tuple(_forms())
"""Operators on quantized tensors with one scale each, that take the numbers, scale and zero point of their operands and
the scale and zero point of the result."""
