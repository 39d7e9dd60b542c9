"""Products of dequantized bytes as exact products of the bytes, with sums in i32, times the scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glowtrain.graph import Constant, Node, Value, constant
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.quantized.convert import (
    DequantizeLinear,
    constant_array,
)
from glowtrain.ops.quantized.integer_products import ConvInteger, MatMulInteger
from glowtrain.ops.quantized.integer_transposed import ConvTransposeInteger
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.optimize.integer_numbers import Numbers, dequantized, in_bytes, scaled, scaled_integers
from glowtrain.stages import Refused
from glowtrain.types import Array, i32

SAME_SCALE = 1e-6
"""Relative difference up to which a bias counts as given in units of s_x s_w."""


def convolution(node: Node) -> Sequence[Value] | Refused | None:
    """Conv of dequantized bytes, with one scale for the input and one for all or each channel of the weight."""
    operator = node.operator
    assert isinstance(operator, Conv)
    x, w = in_bytes(node.inputs[0]), in_bytes(node.inputs[1])
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
    x, w = in_bytes(node.inputs[0]), in_bytes(node.inputs[1])
    if x is None or w is None:
        return _not_bytes(node)
    scale = _each_output(operator, w, w.scale)
    zero = constant_array(w.zero)
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
    a, b = in_bytes(node.inputs[0]), in_bytes(node.inputs[1])
    if a is None or b is None:
        return with_scaled_columns(node) or _not_bytes(node)
    if not a.uniform or not (b.uniform or b.axis == b.numbers.rank - 1 > 0):
        return Refused("the left side has several scales, or the right side's are not one for each column")
    total = MatMulInteger()(a.numbers, b.numbers, *_zeros(a, b))
    return _product(total, a.scale.reshape(()) * _spread(b.scale, (-1,)), (), (-1,))


def general_product(node: Node) -> Sequence[Value] | Refused | None:
    """Gemm, likewise; C in units of the product's scale is added to the sums."""
    operator = node.operator
    assert isinstance(operator, Gemm)
    a, b = in_bytes(node.inputs[0]), in_bytes(node.inputs[1])
    if a is None or b is None:
        return with_scaled_columns(node) or _not_bytes(node)
    if not a.uniform or not (b.uniform or b.axis == (0 if operator.transB else 1)):
        return Refused("the left side has several scales, or the right side's are not one for each column")
    left = _turned(a.numbers) if operator.transA else a.numbers
    right = _turned(b.numbers) if operator.transB else b.numbers
    factor = a.scale.reshape(()) * _spread(b.scale, (-1,)) * np.float32(operator.alpha)
    total = MatMulInteger()(left, right, *_zeros(a, b))
    biases = [c if c is None or operator.beta == 1 else c * operator.beta for c in node.inputs[2:]]
    return _product(total, factor, biases, (-1,))


def with_scaled_columns(node: Node) -> Sequence[Value] | None:
    """A real matrix times known integers with a scale for all or each column: the scales multiply the sums, so that the
    real weight is not made in each call. The sums are as near to the exact ones.
    """
    operator, (x, weight, *rest) = node.operator, node.inputs
    found = scaled_integers(weight, 1 if isinstance(operator, Gemm) and operator.transB else 0)
    if x is None or x.rank < 2 or found is None:
        return None
    numbers, scale = found
    y = operator(x, numbers) * reshape(scale, () if scale.type.size == 1 else (-1,))
    if isinstance(operator, Gemm) and rest and rest[0] is not None:
        y = y + (rest[0] if operator.beta == 1 else rest[0] * operator.beta)
    return (y,)


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
        return (scaled(total, factor),)
    units = _in_units(bias, factor)
    if units is not None:
        return (scaled(total + constant(units.reshape(column) if units.ndim == 1 else units), factor),)
    return (scaled(total, factor) + (reshape(bias, (*bias.shape, *column[1:])) if bias.rank == 1 else bias),)


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
    array = constant_array(zero)
    return array is not None and bool(array.any())


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
