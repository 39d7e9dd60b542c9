"""Discrete Fourier transforms as chains of small contractions with constants that are computed when compiling.

A transform of n = a·b points takes a step of a points, and goes on with b points (Cooley and Tukey 1965), in the order
of Stockham's autosort (Cochran et al. 1967, "What is the fast Fourier transform?"), so that nothing is permuted. Of a
number with a large prime factor it becomes a circular convolution (Bluestein 1970). Complex numbers are an axis of
extent 2.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.contraction.products import Einsum
from glowtrain.ops.core.family import Grads
from glowtrain.ops.reduce.reduction import accumulator, widened
from glowtrain.ops.tensor.move import Concat, Slice, Transpose, pad, reshape
from glowtrain.types import Array, TensorType

LARGEST_TABLE = 1 << 20
"""Elements of a step's constants up to which they hold the rotations as well."""
LONGEST_STEP = 256
"""Points of the longest step: a prime factor beyond it asks for a convolution."""
_DIRECT = 32
"""Points up to which one step is as fast as several."""


def roots(n: int, k: Array, sign: int) -> Array:
    """exp(sign · 2πi k / n), exact where it is 1, i, -1 or -i."""
    quarters = np.asarray(k % n * 4)
    angle = sign * (quarters % n) * (math.pi / 2 / n)
    turned = np.exp(1j * angle) * np.array([1, sign * 1j, -1, -sign * 1j])[quarters // n]
    return np.asarray(np.where(quarters % n == 0, np.round(turned), turned))


def radices(n: int) -> list[int]:
    """The steps of a transform: about 16 to 32 points first, then 8 or so, the largest prime last."""
    if n <= _DIRECT:
        return [n]
    counts = {prime: len(list(group)) for prime, group in itertools.groupby(prime_factors(n))}
    eights, twos = divmod(counts.pop(2, 0), 3)
    nines, threes = divmod(counts.pop(3, 0), 2)
    left = 2**twos * 3**threes
    steps = [8] * eights + [9] * nines + sorted(p for prime, count in counts.items() for p in [prime] * count)
    if left == 1:
        return steps
    first = min(steps, default=1)
    return [left * first, *(steps[: steps.index(first)] + steps[steps.index(first) + 1 :] if steps else [])]


def prime_factors(n: int) -> list[int]:
    """The prime factors, ascending, each as often as it divides."""
    found, prime = [], 2
    while prime * prime <= n:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return [*found, n] if n > 1 else found


@operator
@dataclass(frozen=True)
class FourierStep(Operator):
    """y[m, j, d, k·s + i] = Σ_{h, c} x[m, h·b + j, c, i] t[j, h, c, d, k]: one step of transforms along axis 1.

    Operands: x[m, a·b, c, s], of which s results stand side by side, and the table t[b or 1, a, c, d, k]; the result
    is y[m, b, d, k·s].
    """

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> TensorType:
        x, table = inputs
        if x.dtype != table.dtype or not x.dtype.is_float or x.rank != 4 or table.rank != 5:
            raise self.fail("takes x[m, a*b, c, s] and a table [b or 1, a, c, d, k], floating", *inputs)
        m, r, c, s = x.shape
        same, a, parts, d, k = table.shape
        if not a or r % a or same not in (1, r // a) or parts != c:
            raise self.fail("the table does not fit to the operand", *inputs)
        return x.with_shape((m, r // a, d, k * s))

    def _split(self, x: Any, table: Any) -> tuple[int, ...]:
        """The shape in which the points of axis 1 are a row of steps."""
        m, r, c, s = x.shape
        a = table.shape[1]
        return m, a, r // a, c, s

    def reference(self, x: Array, table: Array) -> Array:
        m, a, b, c, s = self._split(x, table)
        spread = np.broadcast_to(widened(table), (b, *table.shape[1:]))
        y = np.einsum("mhjci,jhcdk->mjdki", widened(x).reshape(m, a, b, c, s), spread, optimize=True)
        return np.asarray(y.reshape(m, b, table.shape[3], table.shape[4] * s), x.dtype)

    def vjp(self, g: Value, y: Value, x: Value, table: Value) -> Grads:
        m, a, b, c, s = self._split(x, table)
        d, k = table.shape[3:]
        split_x, split_g = reshape(x, (m, a, b, c, s)), reshape(g, (m, b, d, k, s))
        j, t = ("j", table) if table.shape[0] == b else ("", reshape(table, table.shape[1:]))
        dx = Einsum(f"mjdki,{j}hcdk->mhjci")(split_g, t)
        dt = Einsum(f"mhjci,mjdki->{j}hcdk")(split_x, split_g)
        return reshape(dx, x.shape), reshape(dt, table.shape)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        (x, table), (y,) = inputs, outputs
        m, a, b, c, s = self._split(x, table)
        n, j, d, k, i = indices = indices_of((m, b, *table.shape[3:], s), "i")
        wide = accumulator(x.dtype)

        def term(h: Expr, p: Expr) -> Expr:
            factor = table[(0 if table.shape[0] == 1 else j, h, p, d, k)]
            return cast(x[(n, h * b + j, p, i)], wide) * cast(factor, wide)

        return [For(indices, (y.store((n, j, d, k * s + i), reduce("add", (a, c), term)),))]

    def decompose(self, x: Value, table: Value) -> Value:
        m, a, b, c, s = self._split(x, table)
        j, t = ("j", table) if table.shape[0] == b else ("", reshape(table, table.shape[1:]))
        y = Einsum(f"mhjci,{j}hcdk->mjdki")(reshape(x, (m, a, b, c, s)), t)
        return reshape(y, (m, b, table.shape[3], table.shape[4] * s))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, a, b, c, d, k, s = (draw.integer(1, 3) for _ in range(7))
        table = (draw.choice((1, b)), a, draw.choice((c, c)), d, k)
        return Sample(cls(), (draw.floats((m, a * b, table[2], s)), draw.floats(table)))


@dataclass(frozen=True)
class Transform:
    """y[m, k, d] = Σ_j exp(sign · 2πi jk / n) w[j] x[m, j, c], for ``results`` positions k and ``parts`` of a number.

    x[m, n, 1] is real, x[m, n, 2] complex.
    """

    n: int
    sign: int
    results: int
    parts: int = 2

    def __call__(self, x: Value, weights: Value | None = None) -> Value:
        if max(prime_factors(self.n), default=1) > LONGEST_STEP:
            return self._chirp(x, weights)
        state, done, steps = reshape(x, (*x.shape, 1)), 1, radices(self.n)
        for position, a in enumerate(steps):
            last = position == len(steps) - 1
            k, parts = (-(-self.results // done), self.parts) if last else (a, 2)
            state = self._step(state, a, k, parts, weights if position == 0 else None)
            done *= a
        planar = reshape(state, (x.shape[0], self.parts, state.shape[3]))
        result: Value = Transpose((0, 2, 1))(fitted(planar, 2, self.results))
        return result

    def _step(self, x: Value, a: int, k: int, parts: int, weights: Value | None) -> Value:
        """A step of ``a`` points; its rotations are in the table unless that would be too large."""
        r, c = x.shape[1:3]
        b = r // a
        whole = 4 * r * k <= LARGEST_TABLE or b == 1
        j, h, positions = np.arange(b if whole else 1)[:, None, None], np.arange(a)[:, None], np.arange(k)
        turns = roots(r, (h * b + j) * positions, self.sign)
        table: Value = constant(_as_real(turns)[:, :, :c, :parts], x.dtype)
        if weights is not None and whole:
            columns = Transpose((1, 0))(reshape(weights, (a, b)))
            table = table * reshape(columns, (b, a, 1, 1, 1))
        elif weights is not None:
            x = x * reshape(weights, (r, 1, 1))
        y: Value = FourierStep()(x, table)
        return y if whole else _rotated(y, r, k, self.sign)

    def _chirp(self, x: Value, weights: Value | None) -> Value:
        """jk = (j² + k² - (k - j)²) / 2: a convolution with a chirp, by transforms of a power of two."""
        n, size = self.n, 1 << (2 * self.n - 2).bit_length()
        chirp = roots(2 * n, np.arange(n) ** 2, self.sign)
        kernel = np.zeros(size, complex)
        kernel[:n] = np.conj(chirp)
        kernel[size - n + 1 :] = np.conj(chirp[:0:-1])
        spectrum = np.fft.fft(kernel) / size
        x = x if weights is None else x * reshape(weights, (n, 1))
        x = x if x.shape[2] == 2 else fitted(x, 2, 2)
        forward = Transform(size, -1, size)(fitted(turned(x, chirp), 1, size))
        back: Value = Transform(size, 1, self.results)(turned(forward, spectrum))
        return fitted(turned(back, chirp[: self.results]), 2, self.parts)


def _as_real(m: Array) -> Array:
    """A complex table [b, a, k] as the real one that maps two parts to two: [b, a, 2, 2, k]."""
    return np.stack([np.stack([m.real, m.imag], 2), np.stack([-m.imag, m.real], 2)], 2)


def _rotated(y: Value, r: int, k: int, sign: int) -> Value:
    """y[m, j, 2, k·s + i] turned by exp(sign · 2πi j k / r)."""
    m, b, _, together = y.shape
    turns = roots(r, np.outer(np.arange(b), np.arange(k)), sign)[:, None, :, None]
    shape = (m, b, 2, k, together // k)
    return reshape(_product(reshape(y, shape), turns, 2), y.shape)


def turned(x: Value, turns: Array) -> Value:
    """x[..., n, 2] times n complex numbers."""
    return _product(x, turns[:, None], x.rank - 1)


def _product(x: Value, turns: Array, axis: int) -> Value:
    """Times complex numbers, where ``axis`` has the two parts."""
    real, imaginary = (Slice((part,), (part + 1,), (axis,))(x) for part in (0, 1))
    u, v = constant(turns.real, x.dtype), constant(turns.imag, x.dtype)
    result: Value = Concat(axis=axis)(real * u - imaginary * v, real * v + imaginary * u)
    return result


def fitted(x: Value, axis: int, extent: int) -> Value:
    """``x`` cut off, or continued with zeros, to an extent along an axis."""
    missing = extent - x.shape[axis]
    if missing < 0:
        result: Value = Slice((0,), (extent,), (axis,))(x)
        return result
    return pad(x, [missing * (position == x.rank + axis) for position in range(2 * x.rank)])


def transformed(x: Value, n: int, *, inverse: bool, onesided: bool, window: Value | None = None) -> Value:
    """The transform of x[m, n', 1 or 2] times a window, to or from one side of the spectrum if asked."""
    half = n // 2 + 1
    if inverse and onesided:
        twice = np.where(np.arange(n) * 2 % n == 0, 1.0, 2.0) * (np.arange(n) < half) / n
        return Transform(n, 1, n, 1)(fitted(fitted(x, 1, half), 1, n), constant(twice, x.dtype))
    scale = constant(np.full(n, 1 / n), x.dtype) if inverse else window
    return Transform(n, 1 if inverse else -1, half if onesided else n)(fitted(x, 1, n), scale)
