"""Windows of signal processing, and the mel filter bank: tensors that follow from attributes alone.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.graph import Draw, Sample, Value, constant, operator, static
from glowtrain.ops.tensor.shape import FromType
from glowtrain.types import Array, DType, TensorType, f32, f64


@dataclass(frozen=True)
class CosineWindow(FromType):
    """w[n] = Σ_j (-1)^j a_j cos(2πjn / N), for n = 0 ... ``size`` - 1.

    N is ``size`` where ``periodic``, else ``size`` - 1, so that the window is symmetric. A symmetric window of one
    element is 1.
    """

    size: int = static(0)
    output_datatype: DType = f32
    periodic: bool = True

    coefficients: ClassVar[tuple[float, ...]] = ()
    """a_0, a_1, ..."""

    def infer(self, *inputs: TensorType) -> TensorType:
        if inputs:
            raise self.fail("takes no operand besides the size", *inputs)
        if self.size < 0:
            raise self.fail("size must not be negative")
        return TensorType(self.output_datatype, (self.size,))

    def constant(self, *types: TensorType) -> Array:
        period = self.size if self.periodic else self.size - 1
        if period < 1:
            return np.ones(self.size, self.output_datatype.numpy)
        turns = 2 * math.pi * np.arange(self.size) / period
        terms = (a * (-1) ** j * np.cos(j * turns) for j, a in enumerate(self.coefficients))
        return np.asarray(sum(terms), self.output_datatype.numpy)

    def decompose(self, *inputs: Value) -> Value:
        return constant(self.constant())

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(draw.integer(1, 12), draw.choice((f32, f64)), draw.boolean()), ())


@operator
@dataclass(frozen=True)
class HannWindow(CosineWindow):
    """w[n] = 0.5 - 0.5 cos(2πn / N)"""

    coefficients: ClassVar[tuple[float, ...]] = (0.5, 0.5)


@operator
@dataclass(frozen=True)
class HammingWindow(CosineWindow):
    """w[n] = 25/46 - 21/46 cos(2πn / N)"""

    coefficients: ClassVar[tuple[float, ...]] = (25 / 46, 21 / 46)


@operator
@dataclass(frozen=True)
class BlackmanWindow(CosineWindow):
    """w[n] = 0.42 - 0.5 cos(2πn / N) + 0.08 cos(4πn / N)"""

    coefficients: ClassVar[tuple[float, ...]] = (0.42, 0.5, 0.08)


@operator
@dataclass(frozen=True)
class MelWeightMatrix(FromType):
    """Triangular filters, evenly spaced on the mel scale: [dft_length // 2 + 1, num_mel_bins].

    mel(f) = 2595 log10(1 + f / 700). Edges (in hertz) fall on whole bins of the spectrum; each triangle peaks at 1.
    """

    num_mel_bins: int = static(0)
    dft_length: int = static(1)
    sample_rate: int = static(2)
    lower_edge_hertz: float = static(3)
    upper_edge_hertz: float = static(4)
    output_datatype: DType = f32

    def infer(self, *inputs: TensorType) -> TensorType:
        if inputs:
            raise self.fail("takes no operand besides the five that must be known when compiling", *inputs)
        if self.num_mel_bins < 1 or self.dft_length < 1 or self.sample_rate < 1:
            raise self.fail("num_mel_bins, dft_length and sample_rate must be positive")
        if not 0 <= self.lower_edge_hertz <= self.upper_edge_hertz:
            raise self.fail("0 <= lower_edge_hertz <= upper_edge_hertz must hold")
        if self._edges()[-1] > self.dft_length // 2 + 1:
            raise self.fail("triangles end beyond the spectrum (sample_rate / 2 hertz); lower upper_edge_hertz")
        return TensorType(self.output_datatype, (self.dft_length // 2 + 1, self.num_mel_bins))

    def constant(self, *types: TensorType) -> Array:
        left, peak, right = (self._edges()[start:][: self.num_mel_bins] for start in range(3))
        bins = np.arange(self.dft_length // 2 + 1)[:, None]
        rising = (bins >= left) & (bins <= peak)
        falling = (bins > peak) & (bins < right)
        up = np.where(peak == left, 1.0, (bins - left) / np.maximum(peak - left, 1))
        down = (right - bins) / np.maximum(right - peak, 1)
        return np.where(rising, up, np.where(falling, down, 0.0)).astype(self.output_datatype.numpy)

    def _edges(self) -> Array:
        """The spectrum's bins at which triangles begin, peak and end: each begins where its neighbour peaks."""
        low, high = (2595 * math.log10(1 + edge / 700) for edge in (self.lower_edge_hertz, self.upper_edge_hertz))
        count = self.num_mel_bins + 2
        mels = np.arange(count) * ((high - low) / count) + low
        hertz = 700 * (np.power(10.0, mels / 2595) - 1)
        return np.asarray((self.dft_length + 1) * hertz // self.sample_rate, np.int64)

    def decompose(self, *inputs: Value) -> Value:
        return constant(self.constant())

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        rate = draw.choice((8000, 8192))
        low, high = draw.choice((0.0, 100.0)), draw.choice((1000.0, rate / 2))
        return Sample(cls(draw.integer(1, 8), 2 * draw.integer(2, 16), rate, low, high, draw.choice((f32, f64))), ())
