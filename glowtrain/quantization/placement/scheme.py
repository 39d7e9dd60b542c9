"""Schemes: how a range of real numbers becomes a scale and a zero point.

real = scale · (quantized - zero point), as ONNX's DequantizeLinear has it. Zero is always exactly representable, since
padding, ReLU and sparse weights are full of it. Formulas: Jacob et al., "Quantization and Training of Neural Networks
for Efficient Integer-Arithmetic-Only Inference" (2018), section 2.1; the rounding of scales to powers of two and the
symmetric forms on unsigned integers follow Glow's quantization schemas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear, limits
from glowtrain.quantization.checks import check_count
from glowtrain.types import SMALL_INTEGERS, Array, DType, i4, i8, i16, u4, u8, u16

Form = Literal["asymmetric", "symmetric", "positive"]
Granularity = Literal["tensor", "channel", "block"]
FORMS: tuple[Form, ...] = ("asymmetric", "symmetric", "positive")
GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "block")
INTEGERS: tuple[DType, ...] = (i8, u8, i16, u16, i4, u4)
"""The types that schemes quantize to."""

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales below the least normal f32 lose their digits, and their reciprocals overflow."""
MARGIN = 1e-6
"""Rounding of a scale to f32, as a part of it: a power of two is not doubled for it."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """Scales f32 and zero points in the quantized type, of one shape: [] or one per place or block on ``axis``."""

    scale: Array
    zero_point: Array
    axis: int = 1
    block_size: int = 0

    def __post_init__(self) -> None:
        check_parameters(self.scale, self.zero_point)

    def quantized(self, x: Array) -> Array:
        """Integers: saturate(round(x / scale) + zero point)."""
        return QuantizeLinear(self.axis, self.block_size).reference(x, self.scale, self.zero_point)

    def dequantized(self, q: Array) -> Array:
        """Real numbers f32 of integers."""
        return DequantizeLinear(self.axis, self.block_size).reference(q, self.scale, self.zero_point)

    def rounded(self, x: Array) -> Array:
        """The representable real numbers nearest to ``x``."""
        return self.dequantized(self.quantized(x))


def check_parameters(scale: Array, zero_point: Array, where: str = "") -> None:
    """Raise :class:`QuantizationError` for scales that are not positive and finite, or shapes that differ."""
    prefix = f"{where}: " if where else ""
    wrong = scale[~(np.isfinite(scale) & (scale > 0))]
    if wrong.size:
        raise QuantizationError(f"{prefix}a scale must be positive and finite, not {wrong.reshape(-1)[0]}")
    if scale.shape != zero_point.shape:
        shapes = f"{list(scale.shape)} and {list(zero_point.shape)}"
        raise QuantizationError(f"{prefix}scales and zero points must have one shape, not {shapes}")


def zero_point_array(value: Any, dtype: DType, where: str = "zero point") -> Array:
    """Zero points in the quantized type. Raises :class:`QuantizationError` for numbers that the type does not hold."""
    array = np.asarray(value)
    low, high = limits(dtype)
    if not np.array_equal(array, np.rint(array)) or (array.size and (array.min() < low or array.max() > high)):
        outside = array[(array < low) | (array > high) | (array != np.rint(array))].reshape(-1)[0]
        raise QuantizationError(f"{where}: {outside} is not a number of {dtype}, which holds {low} to {high}")
    return array.astype(np.int32).astype(dtype.numpy)


@dataclass(frozen=True)
class Scheme:
    """How tensors are quantized.

    ``form`` "asymmetric": the range is used as it is; "symmetric": it is widened to be symmetric about 0, so the zero
    point is 0 in signed types and the middle (128) in unsigned ones; "positive": symmetric, but for ranges without
    negative numbers the zero point is the type's least number, so no half of it is wasted. ``granularity`` says what
    shares a scale: the tensor, the places of one channel, or ``block`` neighbours along the axis that is summed over.
    ``power_of_two`` rounds scales up to powers of two; ``narrow`` leaves out the least number (i8: -127 to 127), so
    that the type is symmetric. Raises :class:`QuantizationError` for choices that contradict each other.
    """

    dtype: DType = i8
    form: Form = "asymmetric"
    granularity: Granularity = "tensor"
    block: int = 0
    power_of_two: bool = False
    narrow: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in INTEGERS:
            known = ", ".join(map(str, INTEGERS))
            raise QuantizationError(f"{self}: numbers are quantized to one of {known}, not {self.dtype}")
        if self.form not in FORMS or self.granularity not in GRANULARITIES:
            choices = f"form is one of {', '.join(FORMS)}; granularity one of {', '.join(GRANULARITIES)}"
            raise QuantizationError(f"{self}: {choices}")
        check_count("block", self.block)
        if (self.granularity == "block") != (self.block > 0):
            rule = "block is the number of weights that share a scale: at least 1 with granularity 'block', else 0"
            raise QuantizationError(f"{self}: {rule}")

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer that are used."""
        low, high = limits(self.dtype)
        return low + self.narrow, high

    @property
    def middle(self) -> int:
        """The zero point of symmetric forms."""
        low, high = limits(self.dtype)
        return (low + high + 1) // 2

    @property
    def least_opset(self) -> int:
        """The first ONNX operator set whose QuantizeLinear and DequantizeLinear say this scheme."""
        if self.dtype in SMALL_INTEGERS or self.dtype in (i16, u16) or self.granularity == "block":
            return 21
        return 13 if self.granularity == "channel" else 10

    def with_(self, **changes: Any) -> Scheme:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def parameters(self, low: Any, high: Any, *, axis: int = 1, where: str = "", zeros: bool = False) -> Parameters:
        """Scales and zero points for ranges [low, high] (numbers, or arrays of one for each channel or block).

        Ranges are widened to hold 0. With ``zeros`` a range [0, 0] has scale 1, as a channel of weights that are all
        zero needs it. Raises :class:`QuantizationError`, beginning with ``where``, for ranges that are empty, not
        finite, only zero, or so small that f32 cannot hold their scale.
        """
        lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
        check_ranges(lows, highs, where, zeros=zeros)
        lows, highs = np.minimum(lows, 0.0), np.maximum(highs, 0.0)
        steps, zero = self._affine(lows, highs)
        scale = np.where(lows == highs, 1.0, steps)
        if self.power_of_two:
            scale = 2.0 ** np.ceil(np.log2(scale * (1 - MARGIN)))
        with np.errstate(over="ignore"):
            scale = np.asarray(scale, np.float32)
        if (scale < SMALLEST_SCALE).any() or not np.isfinite(scale).all():
            raise QuantizationError(_about(where, lows, highs, "is beyond what a scale in f32 can say"))
        if zero is None:
            least, greatest = self.limits
            zero = np.clip(np.rint(least - lows / scale), least, greatest)
        block = self.block if self.granularity == "block" else 0
        return Parameters(scale, zero_point_array(zero, self.dtype), axis, block)

    def _affine(self, lows: Array, highs: Array) -> tuple[Array, Array | None]:
        """Scales in f64 and zero points; ``None`` where these follow from the rounded scales."""
        least, greatest = self.limits
        if self.form == "asymmetric":
            return (highs - lows) / (greatest - least), None
        middle = np.full(lows.shape, float(self.middle))
        steps = np.maximum(highs / (greatest - self.middle), lows / (least - self.middle))
        if self.form == "symmetric":
            return steps, middle
        one_sided = lows == 0
        return np.where(one_sided, highs / (greatest - least), steps), np.where(one_sided, float(least), middle)

    def __str__(self) -> str:
        words = [str(self.dtype), self.form, f"per {self.granularity}"]
        if self.block:
            words[-1] = f"per {self.granularity} of {self.block}"
        words += [word for word, said in (("power of two", self.power_of_two), ("narrow", self.narrow)) if said]
        return " ".join(words)


def check_ranges(lows: Array, highs: Array, where: str, *, zeros: bool) -> None:
    """Raise :class:`QuantizationError` unless all ranges are finite and not empty (nor, without ``zeros``, only 0)."""
    if lows.shape != highs.shape or not lows.size:
        raise QuantizationError(_about(where, lows, highs, "is no range: one lower and one upper bound for each"))
    faults = {
        "is not a number: NaN was observed": np.isnan(lows) | np.isnan(highs),
        "is infinite": np.isinf(lows) | np.isinf(highs),
        "is empty: its lower bound is above its upper one": lows > highs,
    }
    if not zeros:
        faults["holds only zeros, which need no scale"] = (lows == 0) & (highs == 0)
    for fault, found in faults.items():
        if found.any():
            raise QuantizationError(_about(where, lows[found], highs[found], fault))


def _about(where: str, lows: Array, highs: Array, fault: str) -> str:
    low, high = (float(array.reshape(-1)[0]) if array.size else float("nan") for array in (lows, highs))
    advice = "keep its readers in float (keep=...), or calibrate with other data"
    return f"{where or 'a tensor'}: the range [{low:g}, {high:g}] {fault}; {advice}"


ACTIVATIONS = Scheme(u8, "asymmetric")
"""Bytes without a sign: what VNNI multiplies with signed weights."""
WEIGHTS = Scheme(i8, "symmetric", "channel", narrow=True)
