"""Values that stand for integers: what was dequantized, and sums of integers times a factor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glowtrain.graph import Constant, Value, constant
from glowtrain.ops.elementwise.arithmetic import Mul
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.quantized.convert import (
    DequantizeLinear,
    constant_array,
    limits,
)
from glowtrain.ops.quantized.integer_products import BYTES
from glowtrain.types import SMALL_INTEGERS, Array, f32, i8, i32, u8


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
    array = constant_array(zero)
    return 0 if array is None else int(array.item())


def dequantized(value: Value | None) -> Numbers | None:
    """What a value in f32 was dequantized from, with scales and zero points that are known."""
    node = value.node if value is not None else None
    if value is None or node is None or not isinstance(node.operator, DequantizeLinear) or value.dtype != f32:
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    scales = constant_array(scale)
    if x is None or scales is None or scales.dtype != np.float32 or node.operator.block_size:
        return None
    if zero is not None and constant_array(zero) is None:
        return None
    axis = 0 if scales.size == 1 else node.operator.axis % x.rank
    return Numbers(x, scales, zero, axis)


def in_bytes(value: Value | None) -> Numbers | None:
    """A value dequantized from bytes; known numbers of fewer bits become bytes."""
    found = dequantized(value)
    if found is None or found.numbers.dtype in BYTES:
        return found
    if found.numbers.dtype not in SMALL_INTEGERS or not isinstance(found.numbers, Constant):
        return None
    wide = (i8 if limits(found.numbers.dtype)[0] else u8).numpy
    zero = constant_array(found.zero)
    numbers = Constant(found.numbers.array.astype(wide), found.numbers.name)
    return replace(found, numbers=numbers, zero=None if zero is None else constant(zero.astype(wide)))


def scaled(total: Value, factor: Array) -> Value:
    """Sums in i32 as real numbers."""
    result: Value = Mul()(Cast(f32)(total), constant(factor))
    return result


def sums(value: Value) -> tuple[Value, Array] | None:
    """The sums and the factor of :func:`scaled`."""
    node = value.node
    if node is None or not isinstance(node.operator, Mul) or node.inputs[0] is None:
        return None
    cast, factor = node.inputs[0].node, constant_array(node.inputs[1])
    if cast is None or factor is None or not isinstance(cast.operator, Cast) or cast.operator.to != f32:
        return None
    total = cast.inputs[0]
    return (total, factor) if total is not None and total.dtype == i32 else None


def scaled_integers(value: Value | None, axis: int) -> tuple[Value, Value] | None:
    """A matrix of known bytes as floats, and its scales, which are one or do not differ along ``axis``."""
    node = value.node if value is not None else None
    if value is None or node is None or not isinstance(node.operator, Mul) or value.rank != 2 or value.dtype != f32:
        return None
    for numbers, scale in (node.inputs, node.inputs[::-1]):
        if isinstance(numbers, Constant) and scale is not None and numbers.shape == value.shape:
            alike = scale.type.size == 1 or (1, *scale.shape)[-2:][axis] == 1
            small = as_bytes(numbers.array) if alike and scale.shape != value.shape else None
            if small is not None:
                return Cast(f32)(Constant(small, numbers.name)), scale
    return None


def as_bytes(array: Array) -> Array | None:
    """Real numbers as i8 or u8, if all of them are such."""
    low, high = array.min(initial=0), array.max(initial=0)
    for dtype in (i8, u8):
        if limits(dtype)[0] <= low and high <= limits(dtype)[1]:
            small = array.astype(dtype.numpy)
            return small if np.array_equal(small, array) else None
    return None
