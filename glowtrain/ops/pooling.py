"""Pools: the maximum, mean or p-norm of each window, per channel.

A pool's gradient gathers: each input element looks at the windows that contain it, so that no two threads meet and
the order of every sum is fixed. As in a transposed convolution, the elements of one phase of the stride see one set of taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.graph import Draw, Operator, Sample, Value, constant, operator
from glowtrain.loops import (
    Const,
    Expr,
    For,
    Let,
    Ref,
    Statement,
    Tensor,
    call,
    cast,
    flatten,
    indices_of,
    reduce,
    select,
)
from glowtrain.ops.arithmetic import Abs, Pow
from glowtrain.ops.contraction import reshaped
from glowtrain.ops.convolution import Conv, ConvTranspose, output_padding
from glowtrain.ops.family import Grads
from glowtrain.ops.index import Gather, ScatterElements
from glowtrain.ops.move import Transpose
from glowtrain.ops.reduction import ReduceMax, ReduceMean, ReduceSum, accumulator, filled, widened
from glowtrain.ops.window import PhaseAxis, Window, window
from glowtrain.types import Array, Shape, TensorType, i64

_FAR = (1 << 62) - 1


@dataclass(frozen=True)
class _Pool(Operator):
    """What pools share: the attributes that describe the window, and its checks."""

    auto_pad: str = "NOTSET"
    ceil_mode: bool = False
    dilations: Shape = ()
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    kinds: ClassVar[frozenset[str]] = frozenset({"f64", "f32", "f16", "bf16"})

    def geometry(self, x: Any) -> Window:
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
        if not all(all(axis) for axis in _counts(geometry, padded=False)):
            raise self.fail(f"a window lies wholly in the padding {list(geometry.pads)}; use smaller pads", x)
        return x.with_shape((*x.shape[:2], *geometry.out))


def _counts(geometry: Window, *, padded: bool) -> list[list[int]]:
    """For each axis and place, the number of taps inside the input (with ``padded``: or its declared padding)."""
    bounds = [(-axis.begin, axis.extent + axis.end) if padded else (0, axis.extent) for axis in geometry.axes]
    pairs = zip(geometry.axes, bounds, strict=True)
    return [[axis.taps_inside(place, low, high) for place in range(axis.out)] for axis, (low, high) in pairs]


def _draw_pool(draw: Draw) -> tuple[dict[str, Any], Shape]:
    """Window attributes, and an input shape on which every window touches the input."""
    rank = draw.choice((1, 2, 2, 3))
    largest = 3 if rank < 3 else 2
    kernel, strides = (tuple(draw.integer(1, largest) for _ in range(rank)) for _ in range(2))
    dilations = tuple(draw.integer(1, 2) for _ in range(rank))
    spatial = tuple((k - 1) * d + draw.integer(1, largest + 1) for k, d in zip(kernel, dilations, strict=True))
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


@operator
@dataclass(frozen=True)
class MaxPool(_Pool):
    """The maximum of each window, and its position in the flattened input (that of the first among equals).

    Results ``y[N, C, out...]`` and ``indices``, i64 of the same shape; with ``storage_order=1`` the spatial axes count in
    column-major order. NaN in a window wins.
    """

    storage_order: int = 0

    kinds = _Pool.kinds | {"i8", "u8"}

    def infer(self, *inputs: Any) -> tuple[TensorType, TensorType]:
        pooled = self.pooled(inputs[0])
        return pooled, pooled.with_dtype(i64)

    def reference(self, *inputs: Any) -> tuple[Array, Array]:
        x = inputs[0]
        geometry = self.geometry(x)
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        positions = _positions(x.shape, self.storage_order)
        places = geometry.view(geometry.pad(positions, -1)).reshape(*x.shape[:2], *geometry.out, -1)
        values = geometry.view(geometry.pad(widened(x), lowest)).reshape(places.shape)
        # Padding must not win even over -inf, so a tie is broken by being inside.
        best = values.max(axis=-1, keepdims=True)
        wins = ((values == best) | (values != values)) & (places >= 0)
        first = wins.argmax(axis=-1)[..., None]
        taken = (np.take_along_axis(array, first, -1)[..., 0] for array in (values, places))
        return next(taken).astype(x.dtype), next(taken)

    def vjp(self, g: Any, y: Any, *inputs: Any) -> Grads:
        x, cotangent = inputs[0], g[0]
        if cotangent is None or not x.dtype.is_float:
            return (None,)
        geometry = self.geometry(x)
        gradient = MaxPoolGradient(
            geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads,
            self.storage_order,
        )  # fmt: skip
        return (gradient(cotangent, y[1]),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y, positions), x = outputs, inputs[0]
        geometry = self.geometry(x)
        n, c, *place = indices = indices_of(y.shape)
        lowest = -math.inf if x.dtype.is_float else (-128 if x.dtype.kind == "int" else 0)

        def element(tap: Sequence[Expr]) -> Expr:
            return x.load((n, c, *geometry.source(place, tap)), fill=lowest)

        best = Ref(x.dtype, "best")

        def candidate(*tap: Expr) -> Expr:
            value = element(tap)
            wins = (
                call("or", call("eq", value, best), call("isnan", value))
                if x.dtype.is_float
                else call("eq", value, best)
            )
            where = flatten((n, c, *geometry.source(place, tap)), x.shape)
            return select(_inside(geometry, place, tap, wins), where, _FAR)

        first = reduce("min", geometry.kernel, candidate)
        maximum = Let(best, reduce("max", geometry.kernel, lambda *tap: element(tap)))
        stored = positions.store(indices, _in_order(first, x.shape, self.storage_order))
        return [For(indices, (maximum, y.store(indices, best), stored))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = _draw_pool(draw)
        return Sample(cls(storage_order=draw.integer(0, 1), **chosen), (draw.floats(shape),))


def _positions(shape: Shape, storage_order: int) -> Array:
    """The number of every element, counting row-major or with column-major spatial axes."""
    spatial = shape[2:] if storage_order == 0 else shape[:1:-1]
    numbers = np.arange(math.prod(shape)).reshape(*shape[:2], *spatial)
    return numbers if storage_order == 0 else numbers.transpose(0, 1, *range(len(shape) - 1, 1, -1))


def _in_order(position: Expr, shape: Shape, storage_order: int) -> Expr:
    """A row-major position counted in the storage order instead."""
    if storage_order == 0:
        return position
    area = math.prod(shape[2:])
    flat, total, step = position % area, (position // area) * area, 1
    below = area
    for extent in shape[2:]:
        below //= extent
        total = total + (flat // below) % extent * step
        step *= extent
    return total


def _inside(geometry: Window, place: Sequence[Expr], tap: Sequence[Expr], condition: Expr) -> Expr:
    """``condition``, and the tap lies inside the input on every axis where it may not."""
    source = geometry.source(place, tap)
    for subscript, axis in zip(source, geometry.axes, strict=True):
        if axis.begin:
            condition = call("and", condition, call("ge", subscript, 0))
        if axis.after:
            condition = call("and", condition, call("lt", subscript, axis.extent))
    return condition


@dataclass(frozen=True)
class _PoolGradient(Operator):
    """What the adjoints of pools share. ``spatial`` is the input's; windows are those of a pool without ``ceil_mode``."""

    domain = "glowtrain"
    spatial: Shape
    kernel_shape: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    def geometry(self, g: Any) -> Window:
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
        """One nest for each phase: dx = sum of ``term(place, target)`` over the windows that contain the target."""
        return [self._nest(dx, axes, term) for axes in self.geometry(g).phases()]

    def _nest(self, dx: Tensor, axes: Sequence[PhaseAxis], term: Callable[..., Expr]) -> Statement:
        n, c, *rest = indices = indices_of((*dx.shape[:2], *(axis.extent for axis in axes)))
        target = (n, c, *(axis.target(q) for axis, q in zip(axes, rest, strict=True)))

        def hit(*taps: Expr) -> Expr:
            points = zip(axes, rest, taps, strict=True)
            return term((n, c, *(axis.place(q, m) for axis, q, m in points)), target)

        taps = [axis.taps for axis in axes]
        value = reduce("add", taps, hit) if all(taps) else Const(0.0, accumulator(dx.dtype))
        return For(indices, (dx.store(target, value),))


@operator
@dataclass(frozen=True)
class MaxPoolGradient(_PoolGradient):
    """dx[N, C, D...] from g[N, C, out...] and MaxPool's indices: each window's cotangent goes to its winner."""

    storage_order: int = 0

    def infer(self, *inputs: Any) -> TensorType:
        g, indices = inputs
        if indices != g.with_dtype(i64):
            raise self.fail("indices must be i64 of g's shape", *inputs)
        return self.spread(g)

    def reference(self, *inputs: Any) -> Array:
        g, indices = inputs
        shape = (*g.shape[:2], *self.spatial)
        flat = np.zeros(math.prod(shape), widened(g).dtype)
        np.add.at(flat, indices.reshape(-1), widened(g).reshape(-1))
        return flat[_positions(shape, self.storage_order)].astype(g.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        return Gather(axis=0)(self._flat(g), inputs[1]), None

    def _flat(self, x: Value) -> Value:
        ordered = x if self.storage_order == 0 else Transpose(perm=(0, 1, *range(x.rank - 1, 1, -1)))(x)
        return reshaped(ordered, (math.prod(x.shape),))

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (dx,), (g, indices) = outputs, inputs
        wide = accumulator(g.dtype)
        ordered = (*dx.shape[:2], *(dx.shape[2:] if self.storage_order == 0 else dx.shape[:1:-1]))

        def term(place: Sequence[Expr], target: Sequence[Expr]) -> Expr:
            number = flatten((*target[:2], *(target[2:] if self.storage_order == 0 else target[:1:-1])), ordered)
            won = call("eq", indices.load(place, fill=-1), number)
            return select(won, cast(g.load(place, fill=0), wide), 0)

        return self.nests(dx, g, term)

    def decompose(self, *inputs: Any) -> Value:
        g, indices = inputs
        size = math.prod((*g.shape[:2], *self.spatial))
        zeros = filled(0.0, g.type.with_shape((size,)))
        flat = ScatterElements(axis=0, reduction="add")(
            zeros, reshaped(indices, (g.type.size,)), reshaped(g, (g.type.size,))
        )
        if self.storage_order == 0:
            return reshaped(flat, (*g.shape[:2], *self.spatial))
        swapped = reshaped(flat, (*g.shape[:2], *self.spatial[::-1]))
        result: Value = Transpose(perm=(0, 1, *range(swapped.rank - 1, 1, -1)))(swapped)
        return result

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = _draw_pool(draw)
        pool = MaxPool(storage_order=draw.integer(0, 1), **chosen)
        y, indices = pool.reference(draw.floats(shape))
        geometry = pool.geometry(np.empty(shape))
        fields = (geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        return Sample(cls(*fields, pool.storage_order), (draw.floats(y.shape), indices))


@operator
@dataclass(frozen=True)
class SumPool(Operator):
    """The sum of each window of x[N, C, D...]; padding counts as zero."""

    domain = "glowtrain"
    kernel_shape: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    def geometry(self, x: Any) -> Window:
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
        return x.with_shape((*x.shape[:2], *self.geometry(x).out))

    def reference(self, *inputs: Any) -> Array:
        x = inputs[0]
        return _window_sums(widened(x), self.geometry(x)).astype(x.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        spatial = inputs[0].shape[2:]
        return (SumPoolGradient(spatial, self.kernel_shape, self.strides, self.dilations, self.pads)(g),)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,), x = outputs, inputs[0]
        geometry = self.geometry(x)
        n, c, *place = indices = indices_of(y.shape)

        def term(*tap: Expr) -> Expr:
            return cast(x.load((n, c, *geometry.source(place, tap)), fill=0), accumulator(x.dtype))

        return [For(indices, (y.store(indices, reduce("add", geometry.kernel, term)),))]

    def decompose(self, *inputs: Any) -> Value:
        """A convolution of every channel alone with ones."""
        x = inputs[0]
        images = reshaped(x, (math.prod(x.shape[:2]), 1, *x.shape[2:]))
        conv = Conv("NOTSET", self.dilations, 1, self.kernel_shape, self.pads, self.strides)
        sums = conv(images, _ones(self.kernel_shape, x))
        return reshaped(sums, (*x.shape[:2], *sums.shape[2:]))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = _draw_pool(draw)
        geometry = AveragePool(**chosen).geometry(np.empty(shape))
        pool = cls(geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        return Sample(pool, (draw.floats(shape),))


def _ones(kernel: Shape, like: Value) -> Value:
    return constant(np.ones((1, 1, *kernel)), like.dtype)


def _window_sums(x: Array, geometry: Window) -> Array:
    windows = geometry.view(geometry.pad(x, 0))
    return np.asarray(windows.sum(axis=tuple(range(2 + geometry.rank, windows.ndim))))


@operator
@dataclass(frozen=True)
class SumPoolGradient(_PoolGradient):
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
        return self.nests(outputs[0], g, lambda place, _: cast(g.load(place, fill=0), accumulator(g.dtype)))

    def decompose(self, *inputs: Any) -> Value:
        """A transposed convolution of every channel alone with ones."""
        g = inputs[0]
        images = reshaped(g, (math.prod(g.shape[:2]), 1, *g.shape[2:]))
        short = output_padding(self.geometry(g))
        spread = ConvTranspose("NOTSET", self.dilations, 1, self.kernel_shape, short, (), self.pads, self.strides)
        return reshaped(spread(images, _ones(self.kernel_shape, g)), (*g.shape[:2], *self.spatial))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        chosen, shape = _draw_pool(draw)
        geometry = AveragePool(**chosen).geometry(np.empty(shape))
        pool = cls(geometry.spatial, geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)
        return Sample(pool, (draw.floats((*shape[:2], *geometry.out)),))


def _sum_pool(geometry: Window) -> SumPool:
    return SumPool(geometry.kernel, geometry.strides, geometry.dilations, geometry.exact_pads)


@operator
@dataclass(frozen=True)
class AveragePool(_Pool):
    """The mean of each window over its taps in the input; with ``count_include_pad`` also over those in the padding.

    Taps beyond the declared padding, which ``ceil_mode`` can produce, are never counted.
    """

    count_include_pad: bool = False

    def infer(self, *inputs: Any) -> TensorType:
        return self.pooled(inputs[0])

    def counts(self, geometry: Window) -> Array:
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
        chosen, shape = _draw_pool(draw)
        return Sample(cls(count_include_pad=draw.boolean(), **chosen), (draw.floats(shape),))


@operator
@dataclass(frozen=True)
class LpPool(_Pool):
    """(sum of abs(x)^p)^(1/p) of each window; padding counts as zero."""

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
        chosen, shape = _draw_pool(draw)
        return Sample(cls(p=draw.integer(1, 3), **chosen), (draw.floats(shape, avoid=(0.0,)),))


def _power(x: Value, p: int) -> Value:
    result: Value = x * x if p == 2 else (Abs()(x) if p == 1 else Pow()(Abs()(x), float(p)))
    return result


def _root(x: Value, p: int) -> Value:
    result: Value = x if p == 1 else Pow()(x, 1.0 / p)
    return result


@dataclass(frozen=True)
class _GlobalPool(Operator):
    """One number per image and channel, ``[N, C, 1, ...]``."""

    def infer(self, *inputs: Any) -> TensorType:
        x = inputs[0]
        if not x.dtype.is_float or x.rank < 2:
            raise self.fail("the input must be floating, [N, C, D1, ...]", x)
        return x.with_shape((*x.shape[:2], *(1 for _ in x.shape[2:])))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        return Sample(cls(), (draw.floats(draw.shape(min_rank=3, max_rank=5, max_extent=3), avoid=(0.0,)),))


def _spatial(x: Any) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


@operator
@dataclass(frozen=True)
class GlobalAveragePool(_GlobalPool):
    """The mean over all spatial axes."""

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

    def reference(self, *inputs: Any) -> Array:
        return np.asarray(inputs[0].max(axis=_spatial(inputs[0]), keepdims=True))

    def decompose(self, *inputs: Any) -> Value:
        x = inputs[0]
        result: Value = ReduceMax(axes=_spatial(x), keepdims=True, noop_with_empty_axes=True)(x)
        return result


@operator
@dataclass(frozen=True)
class GlobalLpPool(_GlobalPool):
    """(sum of abs(x)^p)^(1/p) over all spatial axes."""

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
