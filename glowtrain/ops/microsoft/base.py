"""What the operators of the domain share.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from glowtrain.graph import Draw, Value
from glowtrain.ops.core.composite import Composite
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.quantized import convert as standard
from glowtrain.ops.quantized.convert import STEPS
from glowtrain.ops.quantized.integer_products import MatMulInteger, draw_bytes
from glowtrain.ops.quantized.scales import WithScales
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, DType, Shape, TensorType, i8, u8

DOMAIN = "com.microsoft"


class Microsoft(Composite, WithScales):
    """An operator of the domain."""

    domain: ClassVar[str] = DOMAIN

    def check_tensors(self, *inputs: TensorType | None, result: DType | None = None) -> None:
        """Where :attr:`scale_operands` says, tensors with one scale and, behind it, one zero point of their type;
        ``result`` is that of the result, if it must be a certain one."""
        for position, numbers in self.scales_among(len(inputs)).items():
            scale, zero = inputs[position], inputs[position + 1] if position + 1 < len(inputs) else None
            if any(part is not None and part.size != 1 for part in (scale, zero)):
                raise self.fail("every tensor has one scale and one zero point for all of it", *inputs)
            x = None if numbers is None else inputs[numbers]
            wanted = result if x is None else x.dtype
            if zero is not None and wanted is not None and zero.dtype != wanted:
                raise self.fail(f"a zero point must have its tensor's type {wanted}, not {zero.dtype}", *inputs)


class QuantizedResult(Microsoft):
    """An operator whose result is quantized."""

    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = STEPS


def steps(x: Value, zero: Value | None, wide: DType) -> Value:
    """x - zero point, as a real number: exact."""
    difference: Value = Cast(wide)(x)
    return difference if zero is None else difference - Cast(wide)(reshape(zero, ()))


def real(x: Value, scale: Value, zero: Value | None) -> Value:
    """The real numbers that a quantized tensor stands for."""
    return steps(x, zero, scale.dtype) * reshape(scale, ())


def quantize(x: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """Real numbers quantized with one scale for all."""
    scale = reshape(scale, ())
    if zero is None:
        result: Value = standard.QuantizeLinear(output_dtype=dtype)(x, scale)
    else:
        result = standard.QuantizeLinear()(x, scale, reshape(zero, ()))
    return result


def draw_scale(draw: Draw, low: float = 0.01, high: float = 0.1) -> Array:
    """One scale."""
    return draw.floats((), low, high)


def draw_tensor(draw: Draw, shape: Shape, dtype: DType | None = None, *, absent: bool = True) -> tuple[Any, Any, Any]:
    """A quantized tensor, its scale and its zero point, which may be absent."""
    dtype = dtype or draw.choice((i8, u8))
    zero = None if absent and draw.boolean() else draw_bytes(draw, (), dtype)
    return draw_bytes(draw, shape, dtype), draw_scale(draw), zero


def draw_result(draw: Draw, dtype: DType) -> tuple[Array, Array]:
    """The scale and the zero point of a result."""
    return draw_scale(draw, 0.05, 0.5), draw_bytes(draw, (), dtype)


def present(inputs: Any) -> list[Any]:
    """Operands without absent ones at the end."""
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def channels_first(x: Value) -> Value:
    """[N, D..., C] as [N, C, D...]."""
    result: Value = Transpose((0, x.rank - 1, *range(1, x.rank - 1)))(x)
    return result


def channels_behind(x: Value) -> Value:
    """[N, C, D...] as [N, D..., C]."""
    result: Value = Transpose((0, *range(2, x.rank), 1))(x)
    return result


def integer_product(a: Value, b: Value, sa: Value, sb: Value, za: Value | None, zb: Value | None) -> Value:
    """The product of quantized matrices as real numbers."""
    total: Value = MatMulInteger()(a, b, za, zb)
    result: Value = Cast(sa.dtype)(total) * (reshape(sa, ()) * sb)
    return result
