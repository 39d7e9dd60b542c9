"""Pools: the maximum, mean or p-norm of each window, per channel.

A pool's gradient gathers: each input element looks at the windows that contain it, so that no two threads meet and
the order of every sum is fixed. As in a transposed convolution, the elements of one phase of the stride see one set
of taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import (
    Const,
    Expr,
    For,
    Statement,
    Tensor,
    cast,
    indices_of,
    reduce,
)
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose, output_padding
from glowtrain.ops.convolution.geometry import PhaseAxis, SlidingWindow, window
from glowtrain.ops.core.family import Grads
from glowtrain.ops.elementwise.arithmetic import Abs, Pow
from glowtrain.ops.elementwise.logic import Equal, Where
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMean, ReduceSum, accumulator, widened
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, Shape, TensorType

MOST_PLACES = 1 << 22
"""Places of a pool along an axis, each of which is checked: more come of damaged pads only."""


@dataclass(frozen=True)
class Pool(Operator):
    """What pools share: the attributes that describe the window, and its checks."""

    auto_pad: str = "NOTSET"
    ceil_mode: bool = False
    dilations: Shape = ()
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    kinds: ClassVar[frozenset[str]] = frozenset({"f64", "f32", "f16", "bf16"})

    def geometry(self, x: Any) -> SlidingWindow:
        """The window over an input of this shape (a type, value, array or tensor)."""
        types = (x,) if isinstance(x, TensorType) else ()
        return window(
            self, types, x.shape[2:], self.kernel_shape, strides=self.strides, dilations=self.dilations, pads=self.pads,
            auto_pad=self.auto_pad, ceil_mode=self.ceil_mode,
        )  # fmt: skip

    def pooled(self, x: TensorType) -> TensorType:
        """The result type, after all checks."""
        if x.dtype.name not in self.kinds:
            raise self.fail(f"element type must be one of {', '.join(sorted(self.kinds))}", x)
        if x.rank < 3:
            raise self.fail("the input must be [N, C, D1, ...]", x)
        geometry = self.geometry(x)
        if max(geometry.out) > MOST_PLACES:
            raise self.fail(f"the window has {list(geometry.out)} places, more than {MOST_PLACES} along an axis", x)
        if not all(all(axis) for axis in _counts(geometry, padded=False)):
            raise self.fail(f"a window lies wholly in the padding {list(geometry.pads)}; use smaller pads", x)
        result: TensorType = x.with_shape((*x.shape[:2], *geometry.out))
        return result


def _counts(geometry: SlidingWindow, *, padded: bool) -> list[list[int]]:
    """For each axis and position, the number of taps inside the input (with ``padded``: or its declared padding)."""
    bounds = [(-axis.begin, axis.extent + axis.end) if padded else (0, axis.extent) for axis in geometry.axes]
    pairs = zip(geometry.axes, bounds, strict=True)
    return [[axis.taps_inside(position, low, high) for position in range(axis.out)] for axis, (low, high) in pairs]


def draw_pool(draw: Draw) -> tuple[dict[str, Any], Shape]:
    """Window attributes, and an input shape on which every window touches the input."""
    rank = draw.choice((1, 2, 2, 3))
    largest = 3 if rank < 3 else 2
    kernel, strides = (tuple(draw.integer(1, largest) for _ in range(rank)) for _ in range(2))
    dilations = tuple(draw.integer(1, 2) for _ in range(rank))
    positions = draw.shape(rank, rank, max_extent=largest + 1)
    spatial = tuple((k - 1) * d + n for k, d, n in zip(kernel, dilations, positions, strict=True))
    chosen: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    chosen["ceil_mode"] = draw.boolean()
    form = draw.choice(("plain", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if form == "pads":  # a pad of at most one tap leaves the next tap inside
        chosen["pads"] = tuple(
            min(draw.integer(0, d), (k - 1) * d) for k, d in (*zip(kernel, dilations, strict=True),) * 2
        )
    if form.isupper():
        chosen["auto_pad"], chosen["ceil_mode"], chosen["dilations"] = form, False, (1,) * rank
    return chosen, (draw.integer(1, 2), draw.integer(1, 2), *spatial)


@dataclass(frozen=True)
class PoolGradient(Operator):
    """What the adjoints of pools share. ``spatial`` is the input's; positions follow from the pads by the floor
    rule."""

    domain = "glowtrain"
    spatial: Shape
    kernel_shape: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    def geometry(self, g: Any) -> SlidingWindow:
        """The window of the pool, checked against the cotangent."""
        types = (g,) if isinstance(g, TensorType) else ()
        geometry = window(
            self, types, self.spatial, self.kernel_shape,
            strides=self.strides, dilations=self.dilations, pads=self.pads,
        )  # fmt: skip
        if geometry.out != g.shape[2:]:
            raise self.fail(f"the pool has spatial shape {list(geometry.out)}, but g has {list(g.shape[2:])}", *types)
        return geometry

    def spread(self, g: TensorType) -> TensorType:
        """The result type, after all checks."""
        if not g.dtype.is_float or g.rank < 3:
            raise self.fail("g must be floating, [N, C, out...]", g)
        self.geometry(g)
        return g.with_shape((*g.shape[:2], *self.spatial))

    def nests(self, dx: Tensor, g: Tensor, term: Callable[..., Expr]) -> list[Statement]:
        """One nest for each phase: dx = sum of ``term(position, target)`` over the windows that contain the target."""
        return [self._nest(dx, axes, term) for axes in self.geometry(g).phases()]

    def _nest(self, dx: Tensor, axes: Sequence[PhaseAxis], term: Callable[..., Expr]) -> Statement:
        n, c, *rest = indices = indices_of((*dx.shape[:2], *(axis.extent for axis in axes)))
        target = (n, c, *(axis.target(q) for axis, q in zip(axes, rest, strict=True)))

        def hit(*taps: Expr) -> Expr:
            points = zip(axes, rest, taps, strict=True)
            return term((n, c, *(axis.subscript(q, m) for axis, q, m in points)), target)

        taps = [axis.taps for axis in axes]
        value = reduce("add", taps, hit) if all(taps) else Const(0.0, accumulator(dx.dtype))
        return For(indices, (dx.store(target, value),))


@operator
@dataclass(frozen=True)
class SumPool(Operator):
    """The sum of each window of x[N, C, D...]; padding counts as zero."""

    domain = "glowtrain"
    kernel_shape: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    def geometry(self, x: Any) -> SlidingWindow:
        """The window over an input of this shape."""
        types = (x,) if isinstance(x, TensorType) else ()
        return window(
            self, types, x.shape[2:], self.kernel_shape,
            strides=self.strides, dilations=self.dilations, pads=self.pads,
        )  # fmt: skip

    def infer(self, *inputs: Any) -> TensorType:
        x = inputs[0]
        if not x.dtype.is_float or x.rank < 3:
            raise self.fail("the input must be floating, [N, C, D1, ...]", x)
        result: TensorType = x.with_shape((*x.shape[:2], *self.geometry(x).out))
        return result

    def reference(self, *inputs: Any) -> Array:
        x = inputs[0]
        return _window_sums(widened(x), self.geometry(x)).astype(x.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        spatial = inputs[0].shape[2:]
        return (SumPoolGradient(spatial, self.kernel_shape, self.strides, self.dilations, self.pads)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,), x = outputs, inputs[0]
        geometry = self.geometry(x)
        n, c, *position = indices = indices_of(y.shape)

        def term(*tap: Expr) -> Expr:
            return cast(x.load((n, c, *geometry.source(position, tap)), fill=0), accumulator(x.dtype))

        return [For(indices, (y.store(indices, reduce("add", geometry.kernel, term)),))]

    def decompose(self, *inputs: Any) -> Value:
        """A convolution of every channel alone with ones."""
        x = inputs[0]
        images = reshape(x, (math.prod(x.shape[:2]), 1, *x.shape[2:]))
        conv = Conv("NOTSET", self.dilations, 1, self.kernel_shape, self.pads, self.strides)
        sums = conv(images, _ones(self.kernel_shape, x))
        return reshape(sums, (*x.shape[:2], *sums.shape[2:]))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        geometry = AveragePool(**chosen).geometry(np.empty(shape))
        pool = cls(geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        return Sample(pool, (draw.floats(shape),))


def _ones(kernel: Shape, like: Value) -> Value:
    return constant(np.ones((1, 1, *kernel)), like.dtype)


def _window_sums(x: Array, geometry: SlidingWindow) -> Array:
    windows = geometry.view(geometry.pad(x, 0))
    return np.asarray(windows.sum(axis=tuple(range(2 + geometry.rank, windows.ndim))))


@operator
@dataclass(frozen=True)
class SumPoolGradient(PoolGradient):
    """dx[N, C, D...] from g[N, C, out...]: each element receives the sum of the cotangents of its windows."""

    def infer(self, *inputs: Any) -> TensorType:
        return self.spread(inputs[0])

    def reference(self, *inputs: Any) -> Array:
        g = inputs[0]
        geometry = self.geometry(g)
        padded = geometry.pad(np.zeros((*g.shape[:2], *self.spatial), widened(g).dtype), 0)
        for tap in geometry.taps():
            padded[:, :, *geometry.tap_slice(tap)] += g
        return geometry.crop(padded).astype(g.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        return (SumPool(self.kernel_shape, self.strides, self.dilations, self.pads)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        g = inputs[0]
        return self.nests(outputs[0], g, lambda position, _: cast(g.load(position, fill=0), accumulator(g.dtype)))

    def decompose(self, *inputs: Any) -> Value:
        """A transposed convolution of every channel alone with ones."""
        g = inputs[0]
        images = reshape(g, (math.prod(g.shape[:2]), 1, *g.shape[2:]))
        short = output_padding(self.geometry(g))
        spread = ConvTranspose("NOTSET", self.dilations, 1, self.kernel_shape, short, (), self.pads, self.strides)
        return reshape(spread(images, _ones(self.kernel_shape, g)), (*g.shape[:2], *self.spatial))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        geometry = AveragePool(**chosen).geometry(np.empty(shape))
        pool = cls(geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        return Sample(pool, (draw.floats((*shape[:2], *geometry.out)),))


def _sum_pool(geometry: SlidingWindow) -> SumPool:
    return SumPool(geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)


@operator
@dataclass(frozen=True)
class AveragePool(Pool):
    """The mean of each window over its taps in the input; with ``count_include_pad`` also over those in the padding.

    Taps beyond the declared padding, which ``ceil_mode`` can produce, are never counted.
    """

    count_include_pad: bool = False

    quantized: ClassVar[Quantized] = "rescales"

    def infer(self, *inputs: Any) -> TensorType:
        return self.pooled(inputs[0])

    def counts(self, geometry: SlidingWindow) -> Array:
        """Number of counted taps of every window, ``[out...]``."""
        counts = np.ones((), np.int64)
        for axis in _counts(geometry, padded=self.count_include_pad):
            counts = np.multiply.outer(counts, np.asarray(axis))
        return counts

    def reference(self, *inputs: Any) -> Array:
        x = inputs[0]
        geometry = self.geometry(x)
        return np.asarray(_window_sums(widened(x), geometry) / self.counts(geometry)).astype(x.dtype)

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        geometry = self.geometry(x)
        counts = self.counts(geometry)
        if (counts == counts.flat[0]).all():
            counts = counts.reshape(-1)[0]
        result: Value = _sum_pool(geometry)(x) * constant(1.0 / counts, x.dtype)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        return Sample(cls(count_include_pad=draw.boolean(), **chosen), (draw.floats(shape),))


@operator
@dataclass(frozen=True)
class LpPool(Pool):
    """(sum of abs(x)^p)^(1/p) of each window; padding counts as zero. The gradient of a window of zeros is 0."""

    p: int = 2

    def infer(self, *inputs: Any) -> TensorType:
        if self.p < 1:
            raise self.fail("p must be at least 1", *inputs)
        return self.pooled(inputs[0])

    def reference(self, *inputs: Any) -> Array:
        x = inputs[0]
        sums = _window_sums(np.abs(widened(x)) ** self.p, self.geometry(x))
        return np.asarray(sums ** (1.0 / self.p)).astype(x.dtype)

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        return _root(_sum_pool(self.geometry(x))(_power(x, self.p)), self.p)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = draw_pool(draw)
        return Sample(cls(p=draw.integer(1, 3), **chosen), (draw.floats(shape, avoid=(0.0,)),))


def _power(x: Value, p: int) -> Value:
    result: Value = x * x if p == 2 else (Abs()(x) if p == 1 else Pow()(Abs()(x), float(p)))
    return result


def _root(x: Value, p: int) -> Value:
    """The p-th root; its gradient at 0, where it has none, is 0 (as PyTorch's norms have it)."""
    if p == 1:
        return x
    zero = Equal()(x, 0.0)
    result: Value = Where()(zero, 0.0, Pow()(Where()(zero, 1.0, x), 1.0 / p))
    return result


@dataclass(frozen=True)
class _GlobalPool(Operator):
    """One number per image and channel, ``[N, C, 1, ...]``."""

    def infer(self, *inputs: Any) -> TensorType:
        x = inputs[0]
        if not x.dtype.is_float or x.rank < 2:
            raise self.fail("the input must be floating, [N, C, D1, ...]", x)
        result: TensorType = x.with_shape((*x.shape[:2], *(1 for _ in x.shape[2:])))
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.floats(draw.shape(min_rank=3, max_rank=5, max_extent=3), avoid=(0.0,)),))


def _spatial(x: Any) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


@operator
@dataclass(frozen=True)
class GlobalAveragePool(_GlobalPool):
    """The mean over all spatial axes."""

    quantized: ClassVar[Quantized] = "rescales"

    def reference(self, *inputs: Any) -> Array:
        return np.asarray(widened(inputs[0]).mean(axis=_spatial(inputs[0]), keepdims=True)).astype(inputs[0].dtype)

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        result: Value = ReduceMean(axes=_spatial(x), keepdims=True, noop_with_empty_axes=True)(x)
        return result


@operator
@dataclass(frozen=True)
class GlobalMaxPool(_GlobalPool):
    """The maximum over all spatial axes."""

    quantized: ClassVar[Quantized] = "passes"

    def reference(self, *inputs: Any) -> Array:
        return np.asarray(inputs[0].max(axis=_spatial(inputs[0]), keepdims=True, initial=-np.inf))

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        result: Value = ReduceMax(axes=_spatial(x), keepdims=True, noop_with_empty_axes=True)(x)
        return result


@operator
@dataclass(frozen=True)
class GlobalLpPool(_GlobalPool):
    """(sum of abs(x)^p)^(1/p) over all spatial axes; gradient 0 where all are zero."""

    p: int = 2

    def reference(self, *inputs: Any) -> Array:
        x = inputs[0]
        sums = (np.abs(widened(x)) ** self.p).sum(axis=_spatial(x), keepdims=True)
        return np.asarray(sums ** (1.0 / self.p)).astype(x.dtype)

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        sums = ReduceSum(axes=_spatial(x), keepdims=True, noop_with_empty_axes=True)(_power(x, self.p))
        return _root(sums, self.p)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        shape = draw.shape(min_rank=3, max_rank=5, max_extent=3)
        return Sample(cls(p=draw.integer(1, 3)), (draw.floats(shape, avoid=(0.0,)),))
