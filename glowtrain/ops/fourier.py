"""Discrete Fourier transforms, as matrix products with constants that are computed when compiling.

A transform of n = a·b points whose matrix would be large is done in two steps of a and of b points with a rotation
between them (Cooley and Tukey 1965); one of a large prime number of points becomes a circular convolution (Bluestein
1970). Complex numbers are a last axis of extent 2. Semantics: https://onnx.ai/onnx/operators/ at the newest opset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator, static
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.family import Grads, Move
from glowtrain.ops.index import Gather, ScatterAdd
from glowtrain.ops.move import Slice, Transpose, pad, reshape
from glowtrain.ops.reduction import accumulator, widened
from glowtrain.types import Array, Shape, TensorType

LARGEST_MATRIX = 1 << 18
"""Elements of a transform's matrix up to which it is one product: below this, steps would cost more than they save."""


def roots(n: int, k: Array, sign: int) -> Array:
    """exp(sign · 2πi k / n), exact where it is 1, i, -1 or -i."""
    quarters = np.asarray(k % n * 4)
    angle = sign * (quarters % n) * (math.pi / 2 / n)
    turned = np.exp(1j * angle) * np.array([1, sign * 1j, -1, -sign * 1j])[quarters // n]
    return np.asarray(np.where(quarters % n == 0, np.round(turned), turned))


def matrix(n: int, rows: int, columns: int, sign: int) -> Array:
    """exp(sign · 2πi j k / n) for j < ``rows`` and k < ``columns``."""
    return roots(n, np.outer(np.arange(rows), np.arange(columns)), sign)


def as_real(m: Array) -> Array:
    """A complex matrix [j, k] as the real one that maps [j, 2] to [k, 2]: [2j, 2k]."""
    blocks = np.array([[m.real, m.imag], [-m.imag, m.real]])
    return blocks.transpose(2, 0, 3, 1).reshape(2 * m.shape[0], 2 * m.shape[1])


@dataclass(frozen=True)
class Transform:
    """Σ_j exp(sign · 2πi jk / n) x[j] for the second last axis of x[..., n, 2]."""

    n: int
    sign: int

    def __call__(self, x: Value) -> Value:
        if 4 * self.n * self.n <= LARGEST_MATRIX:
            return self.direct(x)
        factor = next((f for f in range(math.isqrt(self.n), 1, -1) if self.n % f == 0), 1)
        return self.split(x, factor) if factor > 1 and not _is_long(self.n // factor) else self.chirp(x)

    def direct(self, x: Value) -> Value:
        """One product with the matrix."""
        return linear(x, as_real(matrix(self.n, self.n, self.n, self.sign)), (self.n, 2))

    def split(self, x: Value, a: int) -> Value:
        """j = b·j1 + j2 and k = k1 + a·k2: a transform over j1, rotations, and one over j2."""
        b, lead, r = self.n // a, x.shape[:-2], x.rank - 2
        swap = Transpose((*range(r), r + 1, r, r + 2))
        columns = Transform(a, self.sign)(swap(reshape(x, (*lead, a, b, 2))))
        turned = rotated(columns, roots(self.n, np.outer(np.arange(b), np.arange(a)), self.sign))
        rows = Transform(b, self.sign)(swap(turned))
        return reshape(swap(rows), x.shape)

    def chirp(self, x: Value) -> Value:
        """jk = (j² + k² - (k - j)²) / 2: a convolution with a chirp, by transforms of a power of two."""
        n = self.n
        size = 1 << (2 * n - 2).bit_length()
        chirp = roots(2 * n, np.arange(n) ** 2, self.sign)
        kernel = np.zeros(size, complex)
        kernel[:n] = np.conj(chirp)
        kernel[size - n + 1 :] = np.conj(chirp[:0:-1])
        spectrum = np.fft.fft(kernel) / size
        padded = _fitted(rotated(x, chirp), -2, size)
        convolved = Transform(size, 1)(rotated(Transform(size, -1)(padded), spectrum))
        return rotated(_fitted(convolved, -2, n), chirp)


def _is_long(n: int) -> bool:
    """Whether a transform of n points has a prime step too long for one product."""
    largest, factor = n, 2
    while factor * factor <= largest:
        if largest % factor == 0:
            largest //= factor
        else:
            factor += 1
    return 4 * largest * largest > LARGEST_MATRIX


def linear(x: Value, m: Array, last: Shape) -> Value:
    """The last two axes of ``x``, flattened, times a real matrix; ``last`` are the two axes of the result."""
    lead = x.shape[:-2]
    return reshape(reshape(x, (math.prod(lead), m.shape[0])) @ constant(m, x.dtype), (*lead, *last))


def rotated(x: Value, turn: Array) -> Value:
    """``x[..., 2]`` times complex numbers, element by element."""
    real, imaginary = (constant(part[..., None], x.dtype) for part in (turn.real, turn.imag))
    swapped = Gather(axis=-1)(x, constant(np.array([1, 0])))
    turned: Value = x * real + swapped * (imaginary * constant(np.array([-1.0, 1.0]), x.dtype))
    return turned


def _fitted(x: Value, axis: int, extent: int) -> Value:
    """``x`` cut off, or continued with zeros, to an extent."""
    axis, missing = axis % x.rank, extent - x.shape[axis]
    if missing < 0:
        result: Value = Slice((0,), (extent,), (axis,))(x)
        return result
    return pad(x, [missing * (place == x.rank + axis) for place in range(2 * x.rank)])


def transformed(x: Value, n: int, *, inverse: bool, onesided: bool) -> Value:
    """The transform of the second last axis of x[..., m, 1 or 2], to or from one side of the spectrum if asked."""
    half, sign = n // 2 + 1, 1 if inverse else -1
    if inverse and onesided:
        return _real_inverse(_fitted(x, -2, half), n)
    x = _fitted(x, -2, n)
    results = half if onesided else n
    scale = 1 / n if inverse and n else 1.0
    if x.shape[-1] == 1 and 2 * n * results <= LARGEST_MATRIX:
        m = matrix(n, n, results, sign) * scale
        return linear(x, np.stack([m.real, m.imag], -1).reshape(n, 2 * results), (results, 2))
    if x.shape[-1] == 1:
        x = pad(x, (0,) * (2 * x.rank - 1) + (1,))
    whole = Transform(n, sign)(x)
    return _fitted(whole * scale if inverse else whole, -2, results)


def _real_inverse(x: Value, n: int) -> Value:
    """The real signal with this half of a spectrum; imaginary parts at 0 and at n / 2 do not count."""
    half = n // 2 + 1
    twice = np.where(np.arange(half) * 2 % n == 0, 1.0, 2.0)[:, None]
    if 2 * n * half <= LARGEST_MATRIX:
        m = matrix(n, half, n, 1) * twice / n
        return linear(x, np.stack([m.real, -m.imag], 1).reshape(2 * half, n), (n, 1))
    scaled = x * constant(twice / n, x.dtype)
    whole = Transform(n, 1)(_fitted(scaled, -2, n))
    result: Value = Slice((0,), (1,), (-1,))(whole)
    return result


@operator
@dataclass(frozen=True)
class DFT(Operator):
    """The discrete Fourier transform along ``axis`` of x[..., 1] (real) or x[..., 2] (complex).

    The axis is cut off or continued with zeros to ``dft_length``. ``onesided``: a real signal to the first n // 2 + 1
    places of its spectrum; with ``inverse`` back from them to a real signal (default length 2 (extent - 1)).
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
        last = x if order == tuple(range(x.rank)) else Transpose(order)(x)
        y = transformed(last, self.length(x), inverse=self.inverse, onesided=self.onesided)
        back = tuple(order.index(a) for a in range(x.rank))
        result: Value = y if last is x else Transpose(back)(y)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        inverse, onesided = draw.boolean(), draw.boolean()
        signal = draw.shape(min_rank=1, max_rank=3, max_extent=4)
        axis = draw.integer(0, len(signal) - 1)
        signal = (*signal[:axis], draw.integer(2, 9), *signal[axis + 1 :])
        parts = 1 + inverse if onesided else draw.integer(1, 2)
        length = draw.choice((None, draw.integer(1, 10)))
        place = draw.choice((axis, axis - len(signal) - 1))
        return Sample(cls(inverse, onesided, length, place), (draw.floats((*signal, parts)),))


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

    def count(self, places: int) -> int:
        """The number of frames."""
        return (places - self.length) // self.step + 1

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
        places = constant(self.frames._places(g.shape[1]))
        result: Value = ScatterAdd((g.shape[0], self.places, g.shape[3]), axis=1)(places, g)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        length, step, places = draw.integer(1, 5), draw.integer(1, 6), draw.integer(5, 12)
        frames = Frames(length, step).count(places)
        return Sample(cls(length, step, places), (draw.floats((draw.integer(1, 2), frames, length, 2)),))


@operator
@dataclass(frozen=True)
class STFT(Operator):
    """The transforms of windowed frames of a signal [batch, places, 1 or 2]: [batch, frames, bins, 2].

    Frames are ``frame_length`` places long (else as long as the window, else as the signal) and ``frame_step`` apart.
    ``onesided``: the first frame_length // 2 + 1 bins of a real signal.
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
        """The places of a frame."""
        if self.frame_length is not None:
            return self.frame_length
        return int(signal.shape[1] if window is None else window.shape[0])

    def bins(self, length: int) -> int:
        """The places of a frame's spectrum."""
        return length // 2 + 1 if self.onesided else length

    def reference(self, *inputs: Any) -> Array:
        signal, window = self._operands(*inputs)
        length = self.length(signal, window)
        frames = Frames(length, self.frame_step).reference(widened(signal))
        if window is not None:
            frames = frames * widened(window)[:, None]
        return DFT(onesided=self.onesided).reference(frames).astype(signal.dtype)

    def decompose(self, *inputs: Any) -> Value:
        signal, window = self._operands(*inputs)
        length = self.length(signal, window)
        frames = Frames(length, self.frame_step)(signal)
        if window is not None and self._is_direct(signal, length):
            return self._direct(frames, window)
        windowed = frames if window is None else frames * reshape(window, (length, 1))
        return transformed(windowed, length, inverse=False, onesided=self.onesided)

    def _is_direct(self, signal: Value, length: int) -> bool:
        return signal.shape[-1] == 1 and 2 * length * self.bins(length) <= LARGEST_MATRIX

    def _direct(self, frames: Value, window: Value) -> Value:
        """The window goes into the matrix, so that the product reads the signal itself."""
        batch, count, length, _ = frames.shape
        bins = self.bins(length)
        m = matrix(length, length, bins, -1)
        both = constant(np.stack([m.real, m.imag], -1).reshape(length, 2 * bins), frames.dtype)
        flat = reshape(frames, (batch * count, length))
        return reshape(flat @ (both * reshape(window, (length, 1))), (batch, count, bins, 2))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        length, parts = draw.integer(1, 6), draw.integer(1, 2)
        signal = draw.floats((draw.integer(1, 2), draw.integer(length, 12), parts))
        window = draw.floats((length,)) if draw.boolean() else None
        given = draw.choice((None, length))
        stft = cls(draw.integer(1, 4), given, parts == 1 and draw.boolean())
        return Sample(stft, (signal,) if window is None else (signal, window))
