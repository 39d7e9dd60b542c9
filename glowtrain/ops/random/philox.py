"""Counter-based random numbers (Philox4x32-10) and dropout.

Philox is a keyed bijection on 128-bit counters (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"):
element i of a draw is a function of a key (the seed), a counter (the step), a stream (which draw of the step) and i,
and of nothing else. So drawing is pure, the interpreter and compiled code draw the same bits, and the number of threads
does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, attribute, constant, operator, static
from glowtrain.loops import Const, Expr, Statement, Tensor, call, cast, flatten, pointwise
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.arithmetic import Sqrt
from glowtrain.ops.elementwise.logic import BitShift, BitwiseAnd, BitwiseXor, Cast, GreaterOrEqual, Identity, Where
from glowtrain.ops.elementwise.transcendental import Cos, Log
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Expand, reshape
from glowtrain.types import Array, DType, TensorType, boolean, f32, f64, i64, u32, u64

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_MASK = 0xFFFFFFFF
_FRACTION = 24
"""Bits of a uniform number: f32 holds them exactly."""

Word = TypeVar("Word")


class Arithmetic(Protocol[Word]):
    """32-bit arithmetic on some representation of words: NumPy arrays, loop expressions, graph values."""

    def high(self, a: int, b: Word) -> Word:
        """The upper half of the 64-bit product."""

    def low(self, a: int, b: Word) -> Word:
        """The lower half of the product."""

    def xor(self, a: Word, b: Word) -> Word: ...

    def add(self, a: Word, b: int) -> Word:
        """The sum modulo 2^32."""


def philox(words: Arithmetic[Word], counter: tuple[Word, ...], key: tuple[Word, ...]) -> tuple[Word, ...]:
    """Philox4x32-10: four random words from four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_ in range(ROUNDS):
        if round_:
            k0, k1 = words.add(k0, KEY_STEPS[0]), words.add(k1, KEY_STEPS[1])
        high0, low0 = words.high(MULTIPLIERS[0], c0), words.low(MULTIPLIERS[0], c0)
        high1, low1 = words.high(MULTIPLIERS[1], c2), words.low(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = words.xor(words.xor(high1, c1), k0), low1, words.xor(words.xor(high0, c3), k1), low0
    return c0, c1, c2, c3


class ArrayWords:
    """Words in u64 arrays, so that products do not overflow."""

    def high(self, a: int, b: Array) -> Array:
        return (b * np.uint64(a)) >> np.uint64(32)

    def low(self, a: int, b: Array) -> Array:
        return (b * np.uint64(a)) & np.uint64(_MASK)

    def xor(self, a: Array, b: Array) -> Array:
        return a ^ b

    def add(self, a: Array, b: int) -> Array:
        return (a + np.uint64(b)) & np.uint64(_MASK)


class LoopWords:
    """Words as u32 expressions of the loop language."""

    def high(self, a: int, b: Expr) -> Expr:
        return call("mulhi_u32", b, a)

    def low(self, a: int, b: Expr) -> Expr:
        return call("mul", b, a)

    def xor(self, a: Expr, b: Expr) -> Expr:
        return call("xor", a, b)

    def add(self, a: Expr, b: int) -> Expr:
        return call("add", a, b)


class ValueWords:
    """Words in u64 values of a graph."""

    def high(self, a: int, b: Value) -> Value:
        result: Value = BitShift(direction="RIGHT")(b * a, _word(32))
        return result

    def low(self, a: int, b: Value) -> Value:
        result: Value = BitwiseAnd()(b * a, _word(_MASK))
        return result

    def xor(self, a: Value, b: Value) -> Value:
        result: Value = BitwiseXor()(a, b)
        return result

    def add(self, a: Value, b: int) -> Value:
        result: Value = BitwiseAnd()(a + _word(b), _word(_MASK))
        return result


def _word(value: int) -> Value:
    return constant(np.array(value, np.uint64))


@dataclass(frozen=True)
class CounterDraw(Operator):
    """Takes key: i64[] and counter: i64[]; gives a draw of ``shape``. Draws of one step differ by their ``stream``."""

    shape: tuple[int, ...]
    stream: int = 0

    domain: ClassVar[str] = "glowtrain"
    differentiable: ClassVar[bool] = False
    reason: ClassVar[str] = "random numbers do not depend on a float"

    def result_dtype(self) -> DType:
        """Element type of the draw."""
        raise NotImplementedError

    def infer(self, *inputs: TensorType) -> TensorType:
        if inputs != (TensorType(i64), TensorType(i64)):
            raise self.fail("takes a key and a counter, both i64[]", *inputs)
        if math.prod(self.shape) > 1 << 32 or not 0 <= self.stream <= _MASK:
            raise self.fail("a draw has at most 2^32 elements, and a stream from 0 to 2^32 - 1", *inputs)
        return TensorType(self.result_dtype(), self.shape)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        key, counter = (draw.integers((), -(1 << 40), 1 << 40) for _ in range(2))
        return Sample(cls.draw_operator(draw, shape=draw.shape(), stream=draw.integer(0, 3)), (key, counter))


@operator
@dataclass(frozen=True)
class RandomBits(CounterDraw):
    """u32 words: ``word`` (0 to 3) of Philox for the counter (i, stream, counter's halves) at flat position i."""

    word: int = attribute(0, choices=(1, 2, 3))

    def result_dtype(self) -> DType:
        return u32

    def reference(self, key: Array, counter: Array) -> Array:
        position = np.arange(math.prod(self.shape), dtype=np.uint64)
        whole = (position, np.uint64(self.stream) + 0 * position, *_array_halves(counter))
        return philox(ArrayWords(), whole, _array_halves(key))[self.word].astype(np.uint32).reshape(self.shape)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Statement]:
        key, counter = (_loop_halves(tensor[()]) for tensor in inputs)

        def word(*index: Expr) -> Expr:
            position = cast(flatten(index, self.shape), u32)
            return philox(LoopWords(), (position, Const(self.stream, u32), *counter), key)[self.word]

        return pointwise(outputs[0], word)

    def decompose(self, key: Value, counter: Value) -> Value:
        """On 64-bit integers, for runtimes that know nothing of Philox."""
        position = constant(np.arange(math.prod(self.shape), dtype=np.uint64).reshape(self.shape))
        whole = (position, _word(self.stream), *_value_halves(counter))
        result: Value = Cast(to=u32)(philox(ValueWords(), whole, _value_halves(key))[self.word])
        return result


def _array_halves(number: Array) -> tuple[Array, Array]:
    bits = np.asarray(number).astype(np.int64).view(np.uint64)
    return bits & np.uint64(_MASK), bits >> np.uint64(32)


def _loop_halves(number: Expr) -> tuple[Expr, Expr]:
    return cast(number, u32), cast(call("shift_right", number, 32), u32)


def _value_halves(number: Value) -> tuple[Value, Value]:
    bits = as_dtype(number, u64)
    return BitwiseAnd()(bits, _word(_MASK)), BitShift(direction="RIGHT")(bits, _word(32))


@operator
@dataclass(frozen=True)
class Uniform(CounterDraw):
    """Numbers in [0, 1), multiples of 2^-24."""

    dtype: DType = attribute(f32, choices=(f64,))

    def result_dtype(self) -> DType:
        return self.dtype

    def infer(self, *inputs: TensorType) -> TensorType:
        if self.dtype not in (f32, f64):
            raise self.fail(f"dtype must be f32 or f64, not {self.dtype}", *inputs)
        return super().infer(*inputs)

    def reference(self, key: Array, counter: Array) -> Array:
        return self.fraction(0, key, counter)

    def fraction(self, word: int, key: Array, counter: Array) -> Array:
        """The upper bits of a word as a number in [0, 1)."""
        bits = RandomBits(self.shape, self.stream, word).reference(key, counter)
        return np.asarray((bits >> 8).astype(self.dtype.numpy) * self.dtype.numpy.type(2.0**-_FRACTION))

    def decompose(self, key: Value, counter: Value) -> Value:
        return _fraction(RandomBits(self.shape, self.stream)(key, counter), self.dtype)


def _fraction(bits: Value, dtype: DType) -> Value:
    """The upper bits of a word as a number in [0, 1)."""
    upper = BitShift(direction="RIGHT")(bits, constant(np.array(8, np.uint32)))
    return as_dtype(upper, dtype) * 2.0**-_FRACTION


@operator
@dataclass(frozen=True)
class Normal(Uniform):
    """Numbers of the standard normal distribution (Box and Muller 1958), from words 0 and 1 of the draw."""

    def reference(self, key: Array, counter: Array) -> Array:
        radius, angle = (self.fraction(word, key, counter) for word in (0, 1))
        one, turn = self.dtype.numpy.type(2.0**-_FRACTION), self.dtype.numpy.type(2 * math.pi)
        return np.asarray(np.sqrt(-2 * np.log(radius + one)) * np.cos(angle * turn))

    def decompose(self, key: Value, counter: Value) -> Value:
        words = (RandomBits(self.shape, self.stream, word)(key, counter) for word in (0, 1))
        radius, angle = (_fraction(word, self.dtype) for word in words)
        result: Value = Sqrt()(-2 * Log()(radius + 2.0**-_FRACTION)) * Cos()(angle * (2 * math.pi))
        return result


@operator
@dataclass(frozen=True)
class TrainingDropout(Operator):
    """Takes x, ratio: f[], key: i64[] and counter: i64[]; gives y = x * mask / (1 - ratio), and the mask.

    An element is kept where its uniform number (see :class:`Uniform`) is at least ``ratio``, compared in f32. A pure
    function: equal operands drop the same elements, so every dropout of a step needs a ``stream`` of its own. The mask
    counts as constant in gradients.
    """

    stream: int = 0

    domain: ClassVar[str] = "glowtrain"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        if len(inputs) != 4:
            raise self.fail(f"takes x, ratio, key and counter, not {len(inputs)} operands", *inputs)
        x, ratio, key, counter = inputs
        if not x.dtype.is_float or not ratio.dtype.is_float or ratio.size != 1:
            raise self.fail("x must be float and ratio one float", *inputs)
        Uniform(x.shape, self.stream).infer(key, counter)
        return x, x.with_dtype(boolean)

    def reference(self, x: Array, ratio: Array, key: Array, counter: Array) -> tuple[Array, Array]:
        rate = ratio.reshape(())
        mask = Uniform(x.shape, self.stream).reference(key, counter) >= rate.astype(np.float32)
        return np.where(mask, x / (1 - rate).astype(x.dtype), 0).astype(x.dtype), mask

    def decompose(self, x: Value, ratio: Value, key: Value, counter: Value) -> tuple[Value, Value]:
        rate = reshape(ratio, ())
        mask = GreaterOrEqual()(Uniform(x.shape, self.stream)(key, counter), as_dtype(rate, f32))
        return Where()(mask, x / as_dtype(1 - rate, x.dtype), 0.0), mask

    def vjp(self, g: Any, y: Any, x: Value, ratio: Value, key: Value, counter: Value) -> Grads:
        return (*_dropout_grads(g[0], y, x, ratio), None, None)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        x, ratio = draw.floats(draw.shape()), draw.floats((), 0.1, 0.8)
        return Sample(cls(draw.integer(0, 3)), (x, ratio, draw.integers((), -9, 9), draw.integers((), 0, 99)))


def _dropout_grads(g: Value | None, y: tuple[Value, Value], x: Value, ratio: Value) -> Grads:
    if g is None:
        return None, None
    kept = 1 - reshape(ratio, ())
    d_x = Where()(y[1], g / as_dtype(kept, x.dtype), 0.0)
    d_ratio = as_dtype(ReduceSum(keepdims=False)(g * y[0]), ratio.dtype) / kept
    return d_x, reshape(d_ratio, ratio.shape)


@operator
@dataclass(frozen=True)
class Dropout(Operator):
    """ONNX's dropout: takes x and an optional ratio (0.5); gives y and the mask.

    In inference y is x and the mask all true. With ``training_mode`` every call drops the same elements: those that
    ONNX's reference implementation drops for the same ``seed`` (NumPy's RandomState), without a seed those of
    :class:`TrainingDropout` for key, counter and stream 0. Making a model trainable puts TrainingDropout with a step
    counter in its place.
    """

    training_mode: bool = static(2, False)
    seed: int | None = None

    setting_inputs: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, TensorType]:
        if len(inputs) not in (1, 2) or inputs[0] is None:
            raise self.fail("takes x and an optional ratio", *inputs)
        ratio = inputs[1] if len(inputs) == 2 and inputs[1] is not None else TensorType(f32)
        y, mask = TrainingDropout().infer(inputs[0], ratio, TensorType(i64), TensorType(i64))
        return y, mask

    def reference(self, x: Array, ratio: Array | None = None) -> tuple[Array, Array]:
        if not self.training_mode:
            return x, np.ones(x.shape, bool)
        rate = np.array(0.5, x.dtype) if ratio is None else ratio.reshape(())
        if self.seed is None:
            return TrainingDropout().reference(x, rate, np.array(0), np.array(0))
        mask = self._uniform(x.shape) >= rate.astype(np.float64)
        scaled = x * (1 / (1 - rate.astype(x.dtype)))
        return np.where(mask, scaled, np.zeros((), x.dtype)), mask

    def _uniform(self, shape: tuple[int, ...]) -> Array:
        """The numbers in [0, 1) that decide, f64."""
        return np.asarray(np.random.RandomState((self.seed or 0) % (1 << 32)).uniform(0, 1, shape))

    def decompose(self, x: Value, ratio: Value | None = None) -> tuple[Value, Value]:
        if not self.training_mode:
            return Identity()(x), Expand(shape=x.shape)(constant(True))
        rate = constant(0.5, x.dtype) if ratio is None else reshape(ratio, ())
        if self.seed is None:
            y, mask = TrainingDropout()(x, rate, constant(0, i64), constant(0, i64))
            return y, mask
        mask = GreaterOrEqual()(constant(self._uniform(x.shape)), as_dtype(rate, f64))
        return Where()(mask, x * (1.0 / (1.0 - as_dtype(rate, x.dtype))), 0.0), mask

    def vjp(self, g: Any, y: Any, x: Value, *rest: Value | None) -> Grads:
        if not self.training_mode:
            return (g[0], *(None for _ in rest))
        ratio = rest[0] if rest else None
        d_x, d_ratio = _dropout_grads(g[0], y, x, constant(0.5, x.dtype) if ratio is None else ratio)
        return (d_x, None if ratio is None else d_ratio)[: 1 + len(rest)]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        ratio = draw.floats((), 0.1, 0.8) if draw.boolean() else None
        return Sample(cls(draw.boolean(), draw.choice((None, 3))), (draw.floats(draw.shape()), ratio))
