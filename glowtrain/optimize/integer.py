"""Computing with the integers themselves between DequantizeLinear and QuantizeLinear.

    Conv, MatMul, Gemm of dequantized bytes    exact products of bytes with sums in i32, times the scales
    ConvTranspose of dequantized bytes         the same for each phase of its strides; what follows, in each phase
    QuantizeLinear of such a product           one factor s_x s_w / s_y, rounding, zero point, saturation
    QuantizeLinear of sums, products, means    one linear form in the numbers, likewise
    Relu and Clip before it                    bounds on the integers
    MatMul, Gemm of floats and scaled integers the integers' product, times the scales
    other functions of one quantized tensor    a table of 256 numbers, if they are costly
    moves, Concat and MaxPool                  the same of the integers, dequantized afterwards
    QuantizeLinear of DequantizeLinear         nothing, where scale and zero point are the same

Everything else stays in floats, and is fused by the program's passes into loops that read and write bytes.

Sums of integers are exact where floats round, so a quantized result may be the other neighbour of a tie: one unit away
from that of the operators one by one. ONNX Runtime's fused kernels compute the numbers of this form (Jacob et al.,
Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, arXiv:1712.05877).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Graph, Node, Operator, Value, constant, rewrite
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.core.family import Elementwise, Move
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.microsoft.quantized import (
    QLinearAdd,
    QLinearAveragePool,
    QLinearGlobalAveragePool,
    QLinearMul,
)
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool, GlobalAveragePool
from glowtrain.ops.quantized.convert import (
    INTEGERS,
    QuantizeLinear,
    constant_array,
    limits,
    quantize_units,
    quantized_array,
)
from glowtrain.ops.quantized.integer_products import BYTES
from glowtrain.ops.quantized.integer_transposed import Interleave
from glowtrain.ops.tensor.move import Concat
from glowtrain.optimize.integer_numbers import Numbers, dequantized, sums
from glowtrain.optimize.integer_products import convolution, general_product, matrix_product, transposed_convolution
from glowtrain.optimize.tables import as_table
from glowtrain.stages import Explain, Refused
from glowtrain.types import Array, DType, f32

Rule = Callable[[Node], Sequence[Value] | Refused | None]


@dataclass(frozen=True)
class IntegerArithmetic:
    """The pass: what is quantized is computed with the integers themselves."""

    explain: Explain | None = None

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return in_integers(graph, self.explain)


def in_integers(graph: Graph, explain: Explain | None = None) -> Graph:
    """The graph with every rule of :data:`RULES` applied; the same object if none fits."""

    def change(node: Node) -> Sequence[Value] | None:
        result = _change(node)
        if not isinstance(result, Refused):
            return result
        if explain is not None:
            explain(str(node), result.why)
        return None

    return rewrite(graph, change)


def _change(node: Node) -> Sequence[Value] | Refused | None:
    for kinds, rule in RULES:
        if isinstance(node.operator, kinds):
            return rule(node)
    return None


# ---- quantizing ------------------------------------------------------------------------------------------------------


def quantizing(node: Node) -> Sequence[Value] | Refused | None:
    """A product quantized again, or the same numbers as before."""
    operator, value = node.operator, node.inputs[0]
    assert isinstance(operator, QuantizeLinear)
    scale, zero = constant_array(node.inputs[1]), (*node.inputs, None)[2]
    if value is None or scale is None or scale.size != 1 or scale.dtype != np.float32:
        return Refused("the scale of the result is not one known number in f32")
    if operator.block_size or operator.precision or node.output.dtype not in INTEGERS:
        return Refused("the result is quantized in blocks, with another precision, or to no integer")
    if not 0 < scale.item() < np.inf or (zero is not None and constant_array(zero) is None):
        return Refused("the scale is not positive and finite, or the zero point is not known")
    if _phases(value):
        return by_phases(node)
    before = dequantized(value)
    if before is not None and before.uniform and before.same(Numbers(node.output, scale, zero, 0)):
        return (before.numbers,)
    numbers = _requantized(node, value, scale.reshape(()), zero)
    numbers = as_table(node) if numbers is None else numbers
    return None if numbers is None else (numbers,)


def _requantized(node: Node, value: Value, scale: Array, zero: Value | None) -> Value | None:
    value, low, high = _bounds(value)
    numbers = _numbers(value, scale, zero, node.output.dtype)
    if numbers is None:
        return None
    ends = [None if end is None else _number(end, scale, zero, node) for end in (low, high)]
    least, greatest = limits(node.output.dtype)
    kept = [
        end if end is not None and end != limit else None for end, limit in zip(ends, (least, greatest), strict=True)
    ]
    if kept == [None, None]:
        return numbers
    bounds = [None if end is None else constant(np.array(end, node.output.dtype.numpy)) for end in kept]
    result: Value = Clip()(numbers, *bounds)
    return result


def _numbers(value: Value, scale: Array, zero: Value | None, dtype: DType) -> Value | None:
    """A value in integers, where what computes it can be computed with the integers of its operands."""
    found = sums(value)
    if found is not None:
        factor = _ratio(found[1], scale)
        return None if factor is None else quantize_units(Mul()(Cast(f32)(found[0]), constant(factor)), zero, dtype)
    node = value.node
    if node is None or len(node.outputs) > 1:
        return None
    operands = [dequantized(operand) for operand in node.inputs]
    given = [operand for operand in operands if operand is not None and operand.uniform]
    if len(given) != len(node.inputs) or dtype not in BYTES or any(g.numbers.dtype != dtype for g in given):
        return None
    quantized = _on_quantized(node.operator)
    parts = [part for g in given for part in (g.numbers, constant(g.scale.reshape(())), g.zero)]
    return None if quantized is None else quantized(*parts, constant(scale), zero)


def _ratio(factor: Array, scale: Array) -> Array | None:
    """A product's scale in units of the result's; none where it is no number of f32, as with 0 it would make NaN."""
    with np.errstate(over="ignore"):
        result: Array = factor / scale
    return result if np.isfinite(result).all() else None


def _on_quantized(operator: Operator) -> Operator | None:
    """The same on quantized tensors: it takes numbers, scale and zero point of each, then the result's two."""
    match operator:
        case Add():
            return QLinearAdd()
        case Mul():
            return QLinearMul()
        case GlobalAveragePool():
            return QLinearGlobalAveragePool()
        case AveragePool() if all(dilation == 1 for dilation in operator.dilations):
            attributes = operator.attributes()
            del attributes["dilations"]
            return QLinearAveragePool(**attributes)
    return None


def _bounds(value: Value) -> tuple[Value, float | None, float | None]:
    """A value without the Relu or Clip around it, and their bounds. Rounding is monotone, so they can come after."""
    node = value.node
    if node is None or not isinstance(node.operator, (Relu, Clip)) or node.inputs[0] is None:
        return value, None, None
    if isinstance(node.operator, Relu):
        return node.inputs[0], 0.0, None
    bounds = [constant_array(bound) for bound in node.inputs[1:]]
    if any(bound is not None and found is None for bound, found in zip(node.inputs[1:], bounds, strict=True)):
        return value, None, None
    low, high = (*(None if found is None else float(found.item()) for found in bounds), None, None)[:2]
    return node.inputs[0], low, high


def _number(real: float, scale: Array, zero: Value | None, node: Node) -> int:
    """A real number quantized as the node does."""
    quotient = np.asarray(np.float32(real) / scale, np.float32)
    return int(quantized_array(quotient, constant_array(zero), node.output.dtype).item())


# ---- phases ----------------------------------------------------------------------------------------------------------


def by_phases(node: Node) -> Sequence[Value] | None:
    """What is computed element by element from one image in phases and scalars, phase by phase."""
    images = [value for value in node.inputs if value is not None and _phases(value)]
    scalars = [value for value in node.inputs if value is not None and value not in images]
    if len(images) != 1 or node.operator.random or any(value.type.size != 1 for value in scalars):
        return None
    (image,) = images
    if image.node is None or node.output.shape != image.shape:
        return None
    results: list[Value] = []
    for phase in _phases(image):
        fresh = Node(node.operator, [phase if value is image else value for value in node.inputs])
        changed = _change(fresh)
        results += fresh.outputs if changed is None or isinstance(changed, Refused) else changed
    return (image.node.operator(*results),)


def _phases(value: Value) -> tuple[Value | None, ...]:
    """The phases of an image of real numbers; none of other values."""
    interleaved = value.node is not None and isinstance(value.node.operator, Interleave) and value.dtype == f32
    return value.node.inputs if interleaved and value.node is not None else ()


# ---- what commutes with dequantizing ---------------------------------------------------------------------------------


def moving(node: Node) -> Sequence[Value] | None:
    """A move of dequantized numbers."""
    found = dequantized(node.inputs[0])
    if found is None or not found.uniform or len(node.outputs) != 1 or len(node.inputs) != 1:
        return None
    return (found.real(node.operator(found.numbers)),)


def joining(node: Node) -> Sequence[Value] | None:
    """Tensors with one scale and zero point, joined."""
    parts = [dequantized(value) for value in node.inputs]
    first = parts[0]
    if first is None or any(part is None or not part.uniform or not first.same(part) for part in parts):
        return None
    return (first.real(node.operator(*(part.numbers for part in parts if part is not None))),)


def largest(node: Node) -> Sequence[Value] | None:
    """The greatest of some numbers is that of the greatest integer, as scales are positive."""
    found = dequantized(node.inputs[0])
    if found is None or not found.uniform or not found.scale > 0 or found.numbers.dtype not in BYTES:
        return None
    numbers, places = node.operator(found.numbers)
    return found.real(numbers), places


RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    (Conv, convolution),
    (ConvTranspose, transposed_convolution),
    (MatMul, matrix_product),
    (Gemm, general_product),
    (QuantizeLinear, quantizing),
    (MaxPool, largest),
    (Concat, joining),
    (Move, moving),
    (Elementwise, by_phases),
)
