"""The discrete Fourier transform, of whole signals and of overlapping frames.

Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.core.family import Grads, Move
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.indexing.scatter import ScatterAdd
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, widened
from glowtrain.ops.signal.factorized import transformed
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.types import Array, Shape, TensorType


def _ordered(x: Value, order: Shape) -> Value:
    """``x`` with its axes in another order."""
    result: Value = x if order == tuple(range(x.rank)) else Transpose(order)(x)
    return result


@operator
@dataclass(frozen=True)
class DFT(Operator):
    """The discrete Fourier transform along ``axis`` of x[..., 1] (real) or x[..., 2] (complex).

    The axis is cut off or continued with zeros to ``dft_length``. ``onesided``: a real signal to the first n // 2 + 1
    positions of its spectrum; with ``inverse`` back from them to a real signal (default length 2 (extent - 1)).
    """

    inverse: bool = False
    onesided: bool = False
    dft_length: int | None = static(1, None)
    axis: int = static(2, -2)

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != 1:
            raise self.fail(f"takes 1 operand, not {len(inputs)}", *inputs)
        (x,) = inputs
        if not x.dtype.is_float or x.rank < 2 or x.shape[-1] not in (1, 2):
            raise self.fail("the operand must be floating, [..., 1] for real or [..., 2] for complex numbers", x)
        if not -x.rank <= self.axis < x.rank or self.axis in (-1, x.rank - 1):
            raise self.fail(f"axis must be in [{-x.rank}, -2] or [0, {x.rank - 2}], not {self.axis}", x)
        if self.onesided and x.shape[-1] != 1 + self.inverse:
            raise self.fail("onesided takes real numbers, or with inverse complex ones", x)
        axis, n = self.axis % x.rank, self.length(x)
        if n < 1:
            raise self.fail(f"a transform needs at least 1 point, not {n}", x)
        parts = 1 if self.inverse and self.onesided else 2
        return x.with_shape((*x.shape[:axis], self.results(n), *x.shape[axis + 1 : -1], parts))

    def length(self, x: Any) -> int:
        """The number of points."""
        extent: int = x.shape[self.axis]
        default = 2 * (extent - 1) if self.inverse and self.onesided else extent
        return default if self.dft_length is None else self.dft_length

    def results(self, n: int) -> int:
        """The extent of the result along the axis."""
        return n // 2 + 1 if self.onesided and not self.inverse else n

    def reference(self, x: Array) -> Array:
        n, axis, wide = self.length(x), self.axis % x.ndim, widened(x)
        z = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
        if self.onesided:
            y = np.fft.irfft(z, n, axis) if self.inverse else np.fft.rfft(z, n, axis)
        else:
            y = np.fft.ifft(z, n, axis) if self.inverse else np.fft.fft(z, n, axis)
        parts = [y.real] if self.inverse and self.onesided else [y.real, y.imag]
        return np.stack(parts, -1).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        axis = self.axis % x.rank
        order = (*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1)
        back = tuple(order.index(a) for a in range(x.rank))
        moved = _ordered(as_dtype(x, accumulator(x.dtype)), order)
        lead, rest = moved.shape[:-2], moved.shape[-2:]
        flat = reshape(moved, (math.prod(lead), *rest))
        y = transformed(flat, self.length(x), inverse=self.inverse, onesided=self.onesided)
        return as_dtype(_ordered(reshape(y, (*lead, *y.shape[1:])), back), x.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        inverse, onesided = draw.boolean(), draw.boolean()
        signal = draw.shape(min_rank=1, max_rank=3, max_extent=4)
        axis = draw.integer(0, len(signal) - 1)
        signal = (*signal[:axis], draw.integer(2, 9), *signal[axis + 1 :])
        parts = 1 + inverse if onesided else draw.integer(1, 2)
        length = draw.choice((None, draw.integer(1, 10)))
        position = draw.choice((axis, axis - len(signal) - 1))
        return Sample(cls(inverse, onesided, length, position), (draw.floats((*signal, parts)),))


@operator
@dataclass(frozen=True)
class Frames(Move):
    """y[b, f, n, c] = x[b, f · ``step`` + n, c] for n < ``length``, as many frames as fit."""

    length: int
    step: int

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        (x,) = inputs
        if x.rank != 3:
            raise self.fail("the operand must be [batch, places, parts]", x)
        if self.length < 1 or self.step < 1 or x.shape[1] < self.length:
            raise self.fail(f"frames of {self.length} places, {self.step} apart, do not fit into the signal", x)
        return x.with_shape((x.shape[0], self.count(x.shape[1]), self.length, x.shape[2]))

    def count(self, positions: int) -> int:
        """The number of frames."""
        return (positions - self.length) // self.step + 1

    def _places(self, count: int) -> Array:
        return np.arange(count)[:, None] * self.step + np.arange(self.length)

    def reference(self, x: Array) -> Array:
        return x[:, self._places(self.count(x.shape[1]))]

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (OverlapAdd(self.length, self.step, x.shape[1])(g),)

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        b, f, n, c = index
        return b, f * self.step + n, c

    def decompose(self, x: Value) -> Value:
        result: Value = Gather(axis=1)(x, constant(self._places(self.count(x.shape[1]))))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        length, step = draw.integer(1, 5), draw.integer(1, 6)
        return Sample(cls(length, step), (draw.floats((draw.integer(1, 2), draw.integer(length, 12), 2)),))


@operator
@dataclass(frozen=True)
class OverlapAdd(Operator):
    """x[b, t, c] = Σ_f g[b, f, t - f · ``step``, c] for t < ``places``: the gradient of :class:`Frames`."""

    length: int
    step: int
    places: int

    domain: ClassVar[str] = "glowtrain"

    @property
    def frames(self) -> Frames:
        """The operator whose transpose this is."""
        return Frames(self.length, self.step)

    def infer(self, *inputs: TensorType) -> TensorType:
        (g,) = inputs
        if not g.dtype.is_number:
            raise self.fail(f"elements of type {g.dtype} do not add up; cast them first", g)
        if g.rank != 4 or g.shape[1:3] != (self.frames.count(self.places), self.length):
            raise self.fail("the operand must be [batch, frames, length, parts] for these places", g)
        return g.with_shape((g.shape[0], self.places, g.shape[3]))

    def reference(self, g: Array) -> Array:
        result = np.zeros((g.shape[0], self.places, g.shape[3]), widened(g).dtype)
        where: Any = (slice(None), self.frames._places(g.shape[1]))
        np.add.at(result, where, g)
        return result.astype(g.dtype)

    def vjp(self, g: Value, y: Value, x: Value) -> Grads:
        return (self.frames(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (g,), (x,) = inputs, outputs
        b, t, c = indices = indices_of(x.shape)
        overlaps = -(-self.length // self.step)

        def term(k: Expr) -> Expr:
            f = t // self.step - k
            return cast(g.load((b, f, t - f * self.step, c), fill=0), accumulator(g.dtype))

        return [For(indices, (x.store(indices, reduce("add", (overlaps,), term)),))]

    def decompose(self, g: Value) -> Value:
        positions = constant(self.frames._places(g.shape[1]))
        result: Value = ScatterAdd((g.shape[0], self.places, g.shape[3]), axis=1)(positions, g)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        length, step, positions = draw.integer(1, 5), draw.integer(1, 6), draw.integer(5, 12)
        frames = Frames(length, step).count(positions)
        return Sample(cls(length, step, positions), (draw.floats((draw.integer(1, 2), frames, length, 2)),))


@operator
@dataclass(frozen=True)
class STFT(Operator):
    """The transforms of windowed frames of a signal [batch, positions, 1 or 2]: [batch, frames, bins, 2].

    Frames are ``frame_length`` positions long (else as long as the window, else as the signal) and ``frame_step``
    apart. ``onesided``: the first frame_length // 2 + 1 bins of a real signal.
    """

    frame_step: int = static(1)
    frame_length: int | None = static(3, None)
    onesided: bool = True

    def infer(self, *inputs: TensorType | None) -> TensorType:
        signal, window = self._operands(*inputs)
        if not signal.dtype.is_float or signal.rank != 3 or signal.shape[-1] not in (1, 2):
            raise self.fail("the signal must be floating, [batch, places, 1 or 2]", *inputs)
        length = self.length(signal, window)
        if window is not None and (window.dtype != signal.dtype or window.shape != (length,)):
            raise self.fail(f"the window must be {signal.dtype}[{length}]", *inputs)
        if self.onesided and signal.shape[-1] == 2:
            raise self.fail("onesided takes a real signal", *inputs)
        frames = Frames(length, self.frame_step).infer(signal).shape[1]
        result: TensorType = signal.with_shape((signal.shape[0], frames, self.bins(length), 2))
        return result

    def _operands(self, *inputs: Any) -> tuple[Any, Any]:
        if not 1 <= len(inputs) <= 2 or inputs[0] is None:
            raise self.fail("takes a signal and an optional window", *inputs)
        return inputs[0], inputs[1] if len(inputs) == 2 else None

    def length(self, signal: Any, window: Any) -> int:
        """The positions of a frame."""
        if self.frame_length is not None:
            return self.frame_length
        return int(signal.shape[1] if window is None else window.shape[0])

    def bins(self, length: int) -> int:
        """The positions of a frame's spectrum."""
        return length // 2 + 1 if self.onesided else length

    def reference(self, *inputs: Any) -> Array:
        signal, window = self._operands(*inputs)
        length = self.length(signal, window)
        frames = Frames(length, self.frame_step).reference(widened(signal))
        if window is not None:
            frames = frames * widened(window)[:, None]
        return DFT(onesided=self.onesided).reference(frames).astype(signal.dtype)

    def decompose(self, *inputs: Any) -> Value:
        wide = (None if x is None else as_dtype(x, accumulator(x.dtype)) for x in self._operands(*inputs))
        return as_dtype(self._spectra(*wide), inputs[0].dtype)

    def _spectra(self, signal: Any, window: Any) -> Value:
        length = self.length(signal, window)
        frames = Frames(length, self.frame_step)(signal)
        batch, count, _, parts = frames.shape
        flat = reshape(frames, (batch * count, length, parts))
        spectra = transformed(flat, length, inverse=False, onesided=self.onesided, window=window)
        return reshape(spectra, (batch, count, *spectra.shape[1:]))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        length, parts = draw.integer(1, 6), draw.integer(1, 2)
        signal = draw.floats((draw.integer(1, 2), draw.integer(length, 12), parts))
        window = draw.floats((length,)) if draw.boolean() else None
        given = draw.choice((None, length))
        stft = cls(draw.integer(1, 4), given, parts == 1 and draw.boolean())
        return Sample(stft, (signal,) if window is None else (signal, window))
