"""The geometry of sliding windows, shared by convolutions and pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.graph import Operator
from glowtrain.loops import Expr
from glowtrain.types import Array, Shape, TensorType

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
MOST_PADDED = 1 << 40
"""Elements of a padded input: more come of damaged pads and dilations only, and positions among them overflow."""


@dataclass(frozen=True)
class WindowAxis:
    """One spatial axis: output position p and tap k read input position p * stride + k * dilation - begin."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    begin: int = 0
    end: int = 0
    out: int = 1

    @property
    def width(self) -> int:
        """Input positions that one window spans, gaps of the dilation included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def exact_end(self) -> int:
        """The end padding up to which the last window reaches; negative if it leaves input positions unread."""
        return (self.out - 1) * self.stride + self.width - self.extent - self.begin

    @property
    def after(self) -> int:
        """End padding that lets every tap be read."""
        return max(0, self.exact_end)

    def taps_inside(self, position: int, low: int, high: int) -> int:
        """How many taps of the window at ``position`` read input positions in [low, high)."""
        start = position * self.stride - self.begin
        first, stop = (-(-(bound - start) // self.dilation) for bound in (low, high))  # of the taps, on whole steps
        return max(0, min(self.kernel, stop) - max(0, first))


@dataclass(frozen=True)
class SlidingWindow:
    """A window over all spatial axes."""

    axes: tuple[WindowAxis, ...]

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def spatial(self) -> Shape:
        """The input's extents."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def out(self) -> Shape:
        """The output's extents."""
        return tuple(axis.out for axis in self.axes)

    @property
    def kernel(self) -> Shape:
        return tuple(axis.kernel for axis in self.axes)

    @property
    def strides(self) -> Shape:
        return tuple(axis.stride for axis in self.axes)

    @property
    def dilations(self) -> Shape:
        return tuple(axis.dilation for axis in self.axes)

    @property
    def pads(self) -> Shape:
        """Declared padding in ONNX's order: all begins, then all ends."""
        return (*(axis.begin for axis in self.axes), *(axis.end for axis in self.axes))

    @property
    def exact_pads(self) -> Shape:
        """Padding in ONNX's order under which the window has exactly these positions by the floor rule."""
        return (*(axis.begin for axis in self.axes), *(axis.after for axis in self.axes))

    def source(self, position: Sequence[Expr], tap: Sequence[Expr]) -> list[Expr]:
        """Subscripts of the input element under tap ``tap`` of the window at ``position``; they may be out of range."""
        points = zip(self.axes, position, tap, strict=True)
        return [p * axis.stride + k * axis.dilation - axis.begin for axis, p, k in points]

    def taps(self) -> Iterator[Shape]:
        """All kernel positions, in row-major order."""
        return itertools.product(*(range(axis.kernel) for axis in self.axes))

    def pad(self, x: Array, fill: float) -> Array:
        """``x[N, C, spatial...]`` padded so that every tap of every window can be read."""
        if not any(axis.begin or axis.after for axis in self.axes):
            return x
        around = [(axis.begin, axis.after) for axis in self.axes]
        return np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)

    def crop(self, padded: Array) -> Array:
        """The input's positions of an array shaped as :meth:`pad` makes them."""
        inside = tuple(slice(axis.begin, axis.begin + axis.extent) for axis in self.axes)
        return padded[:, :, *inside]

    def tap_slice(self, tap: Shape) -> tuple[slice, ...]:
        """Where one tap of all windows reads in the padded input, as slices of the spatial axes."""
        starts = [(axis, k * axis.dilation) for axis, k in zip(self.axes, tap, strict=True)]
        return tuple(slice(start, start + (axis.out - 1) * axis.stride + 1, axis.stride) for axis, start in starts)

    def view(self, padded: Array) -> Array:
        """All windows of a padded input, ``[N, C, out..., kernel...]``, without copying."""
        steps = list(zip(padded.strides[2:], self.axes, strict=True))
        across = (step * axis.stride * (axis.out > 1) for step, axis in steps)  # one position may have any stride
        within = (step * axis.dilation * (axis.kernel > 1) for step, axis in steps)
        shape = (*padded.shape[:2], *self.out, *self.kernel)
        return np.lib.stride_tricks.as_strided(padded, shape, (*padded.strides[:2], *across, *within), writeable=False)

    def phases(self) -> Iterator[tuple[PhaseAxis, ...]]:
        """Every combination of offsets within the strides; together they cover the input once."""
        starts = (range(min(axis.stride, axis.extent)) for axis in self.axes)
        for start in itertools.product(*starts):
            yield tuple(PhaseAxis.of(axis, offset) for axis, offset in zip(self.axes, start, strict=True))


@dataclass(frozen=True)
class PhaseAxis:
    """The input positions ``stride * q + phase`` of one axis, which all see the same taps.

    Tap number m (of ``taps``) is kernel position ``first + step m``, in the window at position ``q + offset - back m``.
    """

    extent: int
    stride: int
    phase: int
    first: int
    step: int
    taps: int
    offset: int
    back: int

    @staticmethod
    def of(axis: WindowAxis, phase: int) -> PhaseAxis:
        """Solve position * stride + k * dilation - begin = stride * q + phase for positions and kernel positions k."""
        reach = phase + axis.begin
        hits = [k for k in range(axis.kernel) if (reach - k * axis.dilation) % axis.stride == 0]
        first = hits[0] if hits else 0
        step = axis.stride // math.gcd(axis.stride, axis.dilation)
        extent = -(-(axis.extent - phase) // axis.stride)
        offset, back = (reach - first * axis.dilation) // axis.stride, axis.dilation * step // axis.stride
        return PhaseAxis(extent, axis.stride, phase, first, step, len(hits), offset, back)

    def target(self, q: Expr) -> Expr:
        """The input index."""
        return q * self.stride + self.phase

    def subscript(self, q: Expr, m: Expr) -> Expr:
        """The window in which tap number m reads that input index; it may be out of range."""
        return q + self.offset - m * self.back

    def tap(self, m: Expr) -> Expr:
        """The kernel position of tap number m."""
        return m * self.step + self.first


def window(
    operator: Operator,
    types: Sequence[TensorType | None],
    spatial: Shape,
    kernel: Shape,
    *,
    strides: Shape,
    dilations: Shape = (),
    pads: Shape = (),
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
) -> SlidingWindow:
    """The geometry of a forward window from ONNX's attributes (empty: the default) and the input's spatial shape.

    Raises :class:`~glowtrain.errors.ShapeError` for attributes of wrong length or sign and for windows that do not fit.
    """
    axes = window_axes(operator, types, spatial, kernel, strides, dilations, pads, auto_pad)
    if auto_pad.startswith("SAME") and 0 in spatial:
        raise operator.fail(f"a window does not fit into an input of extent {list(spatial)}", *types)
    if auto_pad.startswith("SAME"):
        return bounded(
            operator, types, SlidingWindow(tuple(_same(axis, upper=auto_pad == "SAME_UPPER") for axis in axes))
        )
    room = [axis.extent + axis.begin + axis.end - axis.width for axis in axes]
    if any(free < 0 for free in room):
        padded = [axis.extent + axis.begin + axis.end for axis in axes]
        widths = [axis.width for axis in axes]
        raise operator.fail(f"a window of extent {widths} does not fit into the padded input {padded}", *types)
    return bounded(operator, types, SlidingWindow(tuple(_placed(axis, ceil_mode=ceil_mode) for axis in axes)))


def bounded(operator: Operator, types: Sequence[TensorType | None], geometry: SlidingWindow) -> SlidingWindow:
    """The window. Raises :class:`~glowtrain.errors.ShapeError` for a padded input beyond :data:`MOST_PADDED`."""
    padded = [axis.begin + axis.extent + axis.after for axis in geometry.axes]
    images = types[0].shape[:2] if types and types[0] is not None else ()
    if math.prod((*images, *padded)) > MOST_PADDED:
        raise operator.fail(f"the padded input would have spatial shape {padded}: pads or dilations too large", *types)
    return geometry


def window_axes(
    operator: Operator,
    types: Sequence[TensorType | None],
    spatial: Shape,
    kernel: Shape,
    strides: Shape,
    dilations: Shape,
    pads: Shape,
    auto_pad: str,
) -> list[WindowAxis]:
    """The checked attributes, axis by axis, with the explicit padding; ``out`` is not known yet."""
    rank = len(spatial)
    if rank < 1:
        raise operator.fail("the input needs at least one spatial axis: [N, C, D1, ...]", *types)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    for name, values in {"kernel_shape": kernel, "strides": strides, "dilations": dilations}.items():
        if len(values) != rank or any(value < 1 for value in values):
            raise operator.fail(f"{name} must hold {rank} positive numbers, not {list(values)}", *types)
    if pads and (len(pads) != 2 * rank or any(pad < 0 for pad in pads)):
        raise operator.fail(f"pads must hold {2 * rank} non-negative numbers, not {list(pads)}", *types)
    if auto_pad not in AUTO_PADS:
        raise operator.fail(f"auto_pad must be one of {', '.join(AUTO_PADS)}", *types)
    pads = pads if pads and auto_pad == "NOTSET" else (0,) * (2 * rank)
    columns = zip(spatial, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [WindowAxis(*column) for column in columns]


def _same(axis: WindowAxis, *, upper: bool) -> WindowAxis:
    """SAME padding: one position per stride; the odd pad goes to the end (upper) or to the begin."""
    out = -(-axis.extent // axis.stride)
    total = max((out - 1) * axis.stride + axis.width - axis.extent, 0)
    begin, end = split_padding(total, upper=upper)
    return replace(axis, begin=begin, end=end, out=out)


def _placed(axis: WindowAxis, *, ceil_mode: bool) -> WindowAxis:
    """As many positions as fit; with ``ceil_mode`` also a last one that reaches over the end, if it starts before
    it."""
    free = axis.extent + axis.begin + axis.end - axis.width
    if not ceil_mode:
        return replace(axis, out=free // axis.stride + 1)
    out = -(-free // axis.stride) + 1
    return replace(axis, out=out - ((out - 1) * axis.stride >= axis.extent + axis.begin))


def split_padding(total: int, *, upper: bool) -> tuple[int, int]:
    """A total padding as (begin, end); the odd one goes to the end if ``upper``."""
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)
