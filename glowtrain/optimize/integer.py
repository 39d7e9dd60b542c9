"""Computing with the integers themselves between DequantizeLinear and QuantizeLinear.

    Conv, MatMul, Gemm of dequantized bytes    exact products of bytes with sums in i32, times the scales
    ConvTranspose of dequantized bytes         the same for each phase of its strides; what follows, in each phase
    QuantizeLinear of such a product           one factor s_x s_w / s_y, rounding, zero point, saturation
    QuantizeLinear of sums, products, means    one linear form in the numbers, likewise
    Relu and Clip before it                    bounds on the integers
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
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.graph import Constant, Graph, Node, Operator, Value, constant, rewrite
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
    DequantizeLinear,
    QuantizeLinear,
    known,
    limits,
    quantize_units,
    quantized_array,
)
from glowtrain.ops.quantized.integer_products import BYTES, ConvInteger, MatMulInteger
from glowtrain.ops.quantized.integer_transposed import ConvTransposeInteger, Interleave
from glowtrain.ops.tensor.move import Concat, Transpose, reshape
from glowtrain.optimize.tables import as_table
from glowtrain.stages import Explain, Refused
from glowtrain.types import SMALL_INTEGERS, Array, DType, f32, i8, i32, u8

Rule = Callable[[Node], Sequence[Value] | Refused | None]

SAME_SCALE = 1e-6
"""Relative difference up to which a bias counts as given in units of s_x s_w."""


@dataclass(frozen=True)
class IntegerArithmetic:
    """The pass: what is quantized is computed with the integers themselves."""

    explain: Explain | None = None

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return in_integers(graph, self.explain)


def in_integers(graph: Graph, explain: Explain | None = None) -> Graph:
    """The graph with every rule of this module applied; the same object if none fits."""

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


def _not_bytes(node: Node) -> Refused | None:
    """Why a product has no two operands in bytes; nothing to say where none is quantized at all."""
    for number, operand in enumerate(node.inputs[:2]):
        inner = operand.node if operand is not None else None
        other = node.inputs[1 - number]
        if other is None or dequantized(other) is None:
            continue
        if inner is None or not isinstance(inner.operator, DequantizeLinear):
            return Refused(f"operand {number} is not quantized, only operand {1 - number} is")
        return Refused(f"operand {number} is not dequantized from bytes with scales and zero points that are known")
    return None


# ---- what values are -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """A real tensor as (numbers - zero) · scale; scale and zero point stand for all, or for each place on ``axis``."""

    numbers: Value
    scale: Array
    zero: Value | None
    axis: int

    @property
    def uniform(self) -> bool:
        """Whether there is one scale for all."""
        return self.scale.size == 1

    def real(self, numbers: Value) -> Value:
        """Other numbers with this scale, dequantized."""
        operands = (numbers, constant(self.scale)) + (() if self.zero is None else (self.zero,))
        result: Value = DequantizeLinear()(*operands)
        return result

    def same(self, other: Numbers) -> bool:
        """Whether the other tensor has the same type of numbers, one scale and one zero point with this one."""
        types = self.numbers.dtype == other.numbers.dtype
        return types and self.scale == other.scale and _zero(self.zero) == _zero(other.zero)


def _zero(zero: Value | None) -> int:
    array = known(zero)
    return 0 if array is None else int(array.item())


def dequantized(value: Value | None) -> Numbers | None:
    """What a value in f32 was dequantized from, with scales and zero points that are known."""
    node = value.node if value is not None else None
    if value is None or node is None or not isinstance(node.operator, DequantizeLinear) or value.dtype != f32:
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    scales = known(scale)
    if x is None or scales is None or scales.dtype != np.float32 or node.operator.block_size:
        return None
    if zero is not None and known(zero) is None:
        return None
    axis = 0 if scales.size == 1 else node.operator.axis % x.rank
    return Numbers(x, scales, zero, axis)


def _bytes(value: Value | None) -> Numbers | None:
    """A value dequantized from bytes; known numbers of fewer bits become bytes."""
    found = dequantized(value)
    if found is None or found.numbers.dtype in BYTES:
        return found
    if found.numbers.dtype not in SMALL_INTEGERS or not isinstance(found.numbers, Constant):
        return None
    wide = (i8 if limits(found.numbers.dtype)[0] else u8).numpy
    zero = known(found.zero)
    numbers = Constant(found.numbers.array.astype(wide), found.numbers.name)
    return replace(found, numbers=numbers, zero=None if zero is None else constant(zero.astype(wide)))


def _scaled(total: Value, factor: Array) -> Value:
    """Sums in i32 as real numbers."""
    result: Value = Mul()(Cast(f32)(total), constant(factor))
    return result


def sums(value: Value) -> tuple[Value, Array] | None:
    """The sums and the factor of :func:`_scaled`."""
    node = value.node
    if node is None or not isinstance(node.operator, Mul) or node.inputs[0] is None:
        return None
    cast, factor = node.inputs[0].node, known(node.inputs[1])
    if cast is None or factor is None or not isinstance(cast.operator, Cast) or cast.operator.to != f32:
        return None
    total = cast.inputs[0]
    return (total, factor) if total is not None and total.dtype == i32 else None


# ---- products --------------------------------------------------------------------------------------------------------


def convolution(node: Node) -> Sequence[Value] | Refused | None:
    """Conv of dequantized bytes, with one scale for the input and one for all or each channel of the weight."""
    operator = node.operator
    assert isinstance(operator, Conv)
    x, w = _bytes(node.inputs[0]), _bytes(node.inputs[1])
    if x is None or w is None:
        return _not_bytes(node)
    if not x.uniform or w.axis != 0:
        return Refused("the input has several scales, or the weight's are not one for each output channel")
    integer = ConvInteger(**operator.attributes())
    column = (-1, *(1,) * (w.numbers.rank - 2))
    total = integer(x.numbers, w.numbers, *_zeros(x, w))
    return _product(total, x.scale.reshape(()) * _spread(w.scale, column), node.inputs[2:], column)


def transposed_convolution(node: Node) -> Sequence[Value] | Refused | None:
    """ConvTranspose of dequantized bytes, likewise, phase by phase."""
    operator = node.operator
    assert isinstance(operator, ConvTranspose)
    x, w = _bytes(node.inputs[0]), _bytes(node.inputs[1])
    if x is None or w is None:
        return _not_bytes(node)
    scale = _each_output(operator, w, w.scale)
    zero = known(w.zero)
    if not x.uniform or scale is None:
        return Refused("the input has several scales, or the weight's are not one for each output channel")
    zeros = x.zero, None if zero is None else constant(_each_output(operator, w, zero))
    integer = ConvTransposeInteger(**operator.attributes())
    column = (-1, *(1,) * (w.numbers.rank - 2))
    factor = x.scale.reshape(()) * _spread(scale, column)
    totals = integer.phases(x.numbers, w.numbers, *zeros)
    phases = [_product(total, factor, node.inputs[2:], column)[0] for total in totals]
    return (integer.joined(phases, operator.geometry(x.numbers, w.numbers)),)


def _each_output(operator: ConvTranspose, w: Numbers, array: Array) -> Array | None:
    """Scales or zero points of a weight [C, M/group, k...] for all, or each of the M output channels.

    Groups share those of axis 1; axis 0 has one for each group where a group has one input channel.
    """
    if array.size == 1:
        return array.reshape(())
    if w.axis == 1:
        return np.tile(array, operator.group)
    alone = w.axis == 0 and w.numbers.shape[0] == operator.group
    return np.repeat(array, w.numbers.shape[1]) if alone else None


def matrix_product(node: Node) -> Sequence[Value] | Refused | None:
    """MatMul of dequantized bytes, with one scale for the left side and one for all or each column of the right."""
    a, b = _bytes(node.inputs[0]), _bytes(node.inputs[1])
    if a is None or b is None:
        return _not_bytes(node)
    if not a.uniform or not (b.uniform or b.axis == b.numbers.rank - 1 > 0):
        return Refused("the left side has several scales, or the right side's are not one for each column")
    total = MatMulInteger()(a.numbers, b.numbers, *_zeros(a, b))
    return _product(total, a.scale.reshape(()) * _spread(b.scale, (-1,)), (), (-1,))


def general_product(node: Node) -> Sequence[Value] | Refused | None:
    """Gemm, likewise; C in units of the product's scale is added to the sums."""
    operator = node.operator
    assert isinstance(operator, Gemm)
    a, b = _bytes(node.inputs[0]), _bytes(node.inputs[1])
    if a is None or b is None:
        return _not_bytes(node)
    if not a.uniform or not (b.uniform or b.axis == (0 if operator.transB else 1)):
        return Refused("the left side has several scales, or the right side's are not one for each column")
    left = _turned(a.numbers) if operator.transA else a.numbers
    right = _turned(b.numbers) if operator.transB else b.numbers
    factor = a.scale.reshape(()) * _spread(b.scale, (-1,)) * np.float32(operator.alpha)
    total = MatMulInteger()(left, right, *_zeros(a, b))
    biases = [c if c is None or operator.beta == 1 else c * operator.beta for c in node.inputs[2:]]
    return _product(total, factor, biases, (-1,))


def _zeros(*operands: Numbers) -> list[Value | None]:
    return [operand.zero for operand in operands]


def _spread(scale: Array, column: tuple[int, ...]) -> Array:
    return scale.reshape(() if scale.size == 1 else column)


def _turned(matrix: Value) -> Value:
    if isinstance(matrix, Constant):
        return Constant(np.ascontiguousarray(matrix.array.T), matrix.name)
    result: Value = Transpose(perm=(1, 0))(matrix)
    return result


def _product(total: Value, factor: Array, biases: Sequence[Value | None], column: tuple[int, ...]) -> Sequence[Value]:
    """The product with its scale, and with a bias: among the sums where it is given in their units."""
    bias = next((bias for bias in biases if bias is not None), None)
    if bias is None:
        return (_scaled(total, factor),)
    units = _in_units(bias, factor)
    if units is not None:
        return (_scaled(total + constant(units.reshape(column) if units.ndim == 1 else units), factor),)
    return (_scaled(total, factor) + (reshape(bias, (*bias.shape, *column[1:])) if bias.rank == 1 else bias),)


def _in_units(bias: Value, factor: Array) -> Array | None:
    """A bias that was dequantized from i32 with the product's own scale, as integers."""
    found = dequantized(bias)
    if found is None or found.numbers.dtype != i32 or _any(found.zero) or not isinstance(found.numbers, Constant):
        return None
    if not found.uniform and found.axis != found.numbers.rank - 1:
        return None
    scales = np.broadcast_to(found.scale.reshape(-1), factor.reshape(-1).shape) if found.uniform else found.scale
    same = scales.size == factor.size and np.allclose(scales, factor.reshape(-1), rtol=SAME_SCALE, atol=0)
    return found.numbers.array if same else None


def _any(zero: Value | None) -> bool:
    array = known(zero)
    return array is not None and bool(array.any())


# ---- quantizing ------------------------------------------------------------------------------------------------------


def quantizing(node: Node) -> Sequence[Value] | Refused | None:
    """A product quantized again, or the same numbers as before."""
    operator, value = node.operator, node.inputs[0]
    assert isinstance(operator, QuantizeLinear)
    scale, zero = known(node.inputs[1]), (*node.inputs, None)[2]
    if value is None or scale is None or scale.size != 1 or scale.dtype != np.float32:
        return Refused("the scale of the result is not one known number in f32")
    if operator.block_size or operator.precision or node.output.dtype not in INTEGERS:
        return Refused("the result is quantized in blocks, with another precision, or to no integer")
    if not 0 < scale.item() < np.inf or (zero is not None and known(zero) is None):
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
    bounds = [known(bound) for bound in node.inputs[1:]]
    if any(bound is not None and found is None for bound, found in zip(node.inputs[1:], bounds, strict=True)):
        return value, None, None
    low, high = (*(None if found is None else float(found.item()) for found in bounds), None, None)[:2]
    return node.inputs[0], low, high


def _number(real: float, scale: Array, zero: Value | None, node: Node) -> int:
    """A real number quantized as the node does."""
    quotient = np.asarray(np.float32(real) / scale, np.float32)
    return int(quantized_array(quotient, known(zero), node.output.dtype).item())


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
