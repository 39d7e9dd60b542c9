"""Rescaling of integer sums by integers alone, for processors without floating point.

What :func:`~glowtrain.optimize.integer.in_integers` leaves as a factor in floats becomes a multiplication of integers
and a shift (:class:`~glowtrain.ops.quantized.fixed_point.Rescale`): products of bytes, sums and products of
activations, and their means over an image. Factors are kept to 31 bits, those of floats to 24: so a result can be one
unit from that of the factor in floats where this is next to a tie. Ties themselves round to even in both, and powers of
two give the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Graph, Node, Value, constant, rewrite
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.microsoft.quantized import QLinearAdd, QLinearGlobalAveragePool, QLinearMul
from glowtrain.ops.quantized.convert import QuantizeLinear, constant_array
from glowtrain.ops.quantized.fixed_point import BITS, Rescale, fixed_point
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.integer_numbers import sums
from glowtrain.types import Array, DType, i8, i16, i32, u8, u16

TERM_BITS = 21
"""Bits of the factors of a sum of two bytes, so that it stays inside of i32."""

RESCALED = frozenset({i8, u8, i16, u16})
LARGEST = 2.0 ** (BITS - 1)
"""Factors from here on, and those that are not above 0, stay in floats."""


@dataclass(frozen=True)
class FixedPoint:
    """The pass: :class:`~glowtrain.optimize.integer.IntegerArithmetic`, with sums rescaled by integers alone."""

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return in_fixed_point(graph)


def in_fixed_point(graph: Graph) -> Graph:
    """The graph with its products in integers, and these rescaled by integers."""
    return rewrite(in_integers(graph), _change)


def _change(node: Node) -> Sequence[Value] | None:
    operands = [constant_array(value) for value in node.inputs]
    match node.operator:
        case QuantizeLinear():
            return _quantized_sums(node, operands)
        case QLinearAdd() if _settled(operands, (1, 4, 6)):
            return _linear(node, operands)
        case QLinearMul() if _settled(operands, (1, 4, 6)):
            return _product(node, operands)
        case QLinearGlobalAveragePool(channels_last=False) if _settled(operands, (1, 3)):
            return _mean(node, operands)
    return None


def _settled(operands: Sequence[Array | None], scales: Sequence[int]) -> bool:
    """Whether scales are known, and those of operands and their product fit that of the result, the last."""
    if any(operands[place] is None for place in scales):
        return False
    *given, result = (_item(operands[place]) for place in scales)
    return result > 0 and all(0 < scale < LARGEST * result for scale in (*given, math.prod(given)))


def _quantized_sums(node: Node, operands: Sequence[Array | None]) -> Sequence[Value] | None:
    """Sums in i32 times a factor, in units of the result's scale."""
    found = sums(node.inputs[0]) if node.inputs[0] is not None else None
    scale = operands[1]
    if found is None or scale is None or scale.size != 1 or node.output.dtype not in RESCALED:
        return None
    with np.errstate(all="ignore"):
        factor = found[1] / scale.reshape(())
    if not ((factor > 0) & (factor < LARGEST)).all():
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return (_rescaled(found[0], factor, zero, node.output.dtype),)


def _rescaled(total: Value, factor: Array, zero: Value | None, dtype: DType) -> Value:
    multiplier, shift = fixed_point(factor)
    offset = constant(np.zeros((), dtype.numpy)) if zero is None else zero
    result: Value = Rescale()(total, constant(multiplier), constant(shift), _scalar(offset))
    return result


def _scalar(value: Value) -> Value:
    array = constant_array(value)
    return value if array is None or not array.shape else constant(array.reshape(()))


def _linear(node: Node, operands: Sequence[Array | None]) -> Sequence[Value]:
    """a · s_a / s_c + b · s_b / s_c with factors in units of one power of two."""
    ratios = [float(_item(operands[place]) / _item(operands[6])) for place in (1, 4)]
    shift = TERM_BITS - max(math.frexp(ratio)[1] for ratio in ratios)
    factors = [round(math.ldexp(ratio, shift)) for ratio in ratios]
    total: Value = _centred(node, 0) * factors[0] + _centred(node, 3) * factors[1]
    return (_rescaled(total, np.array(math.ldexp(1.0, -shift)), node.inputs[7], node.output.dtype),)


def _product(node: Node, operands: Sequence[Array | None]) -> Sequence[Value]:
    factor = _item(operands[1]) * _item(operands[4]) / _item(operands[6])
    total = _centred(node, 0) * _centred(node, 3)
    return (_rescaled(total, np.array(factor), node.inputs[7], node.output.dtype),)


def _mean(node: Node, operands: Sequence[Array | None]) -> Sequence[Value]:
    centred = _centred(node, 0)
    axes = tuple(range(2, centred.rank))
    count = math.prod(centred.shape[axis] for axis in axes)
    factor = _item(operands[1]) / _item(operands[3]) / count
    return (_rescaled(ReduceSum(axes=axes)(centred), np.array(factor), node.inputs[4], node.output.dtype),)


def _item(scale: Array | None) -> float:
    assert scale is not None
    return float(scale.item())


def _centred(node: Node, place: int) -> Value:
    """An operand less its zero point, in i32."""
    x, zero = node.inputs[place], node.inputs[place + 2]
    wide: Value = Cast(i32)(x)
    return wide if zero is None else wide - Cast(i32)(_scalar(zero))
