"""The geometry of sliding windows, shared by convolutions and pools."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Operator
from glowtrain.loops import Expr
from glowtrain.types import Array, Shape, TensorType

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """Output place p and tap k read input place p * stride + k * dilation - begin, on every spatial axis.

    All fields have one entry per spatial axis; ``out`` is the output's extent.
    """

    spatial: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape
    out: Shape

    @property
    def rank(self) -> int:
        return len(self.spatial)

    @property
    def pads(self) -> Shape:
        """Padding in ONNX's order: all begins, then all ends."""
        return (*self.begin, *self.end)

    def source(self, place: Sequence[Expr], tap: Sequence[Expr]) -> list[Expr]:
        """Subscripts of the input element under tap ``tap`` of the window at ``place``; they may be out of range."""
        geometry = zip(place, tap, self.strides, self.dilations, self.begin, strict=True)
        return [p * stride + k * dilation - begin for p, k, stride, dilation, begin in geometry]

    def taps(self) -> Iterator[Shape]:
        """All kernel positions, in row-major order."""
        return itertools.product(*(range(extent) for extent in self.kernel))

    def reach(self) -> list[tuple[int, int]]:
        """Padding (before, after) under which every tap of every window is inside the padded input."""
        last = [(p - 1) * s + (k - 1) * d for p, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations)]
        return [(b, max(0, far - b - extent + 1)) for b, far, extent in zip(self.begin, last, self.spatial)]

    def pad(self, x: Array, fill: float) -> Array:
        """``x[N, C, spatial...]`` padded so that every tap of every window can be read."""
        if not any(before or after for before, after in self.reach()):
            return x
        return np.pad(x, [(0, 0), (0, 0), *self.reach()], constant_values=fill)

    def tap_slice(self, tap: Shape) -> tuple[slice, ...]:
        """Where one tap of all windows reads in the padded input, as slices of the spatial axes."""
        geometry = zip(tap, self.dilations, self.strides, self.out, strict=True)
        return tuple(slice(k * d, k * d + (p - 1) * s + 1, s) for k, d, s, p in geometry)

    def view(self, padded: Array) -> Array:
        """All windows of a padded input, ``[N, C, out..., kernel...]``, without copying."""
        strides = padded.strides[2:]
        across = tuple(step * s for step, s in zip(strides, self.strides))
        within = tuple(step * d for step, d in zip(strides, self.dilations))
        shape = (*padded.shape[:2], *self.out, *self.kernel)
        return np.lib.stride_tricks.as_strided(padded, shape, (*padded.strides[:2], *across, *within), writeable=False)


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
    ceil_mode: int = 0,
) -> Window:
    """The geometry of a forward window from ONNX's attributes (empty: the default) and the input's spatial shape.

    Raises :class:`~glowtrain.errors.ShapeError` for attributes of wrong length or sign and for windows that do not fit.
    """
    rank = len(spatial)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    check_geometry(operator, types, rank, kernel=kernel, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    pads = pads or (0,) * (2 * rank)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = tuple(-(-extent // s) for extent, s in zip(spatial, strides))
        totals = [max((p - 1) * s + far - extent, 0) for p, s, far, extent in zip(out, strides, reach, spatial)]
        begin, end = split_padding(totals, upper=auto_pad == "SAME_UPPER")
        return Window(spatial, kernel, strides, dilations, begin, end, out)
    begin, end = (pads[:rank], pads[rank:]) if auto_pad == "NOTSET" else ((0,) * rank, (0,) * rank)
    room = [extent + b + e - far for extent, b, e, far in zip(spatial, begin, end, reach)]
    if any(free < 0 for free in room):
        padded = [extent + b + e for extent, b, e in zip(spatial, begin, end)]
        raise operator.fail(f"a window of extent {list(reach)} does not fit into the padded input {padded}", *types)
    out = tuple((-(-free // s) if ceil_mode else free // s) + 1 for free, s in zip(room, strides))
    if ceil_mode:  # a window that would start beyond input and left padding is dropped
        out = tuple(p - ((p - 1) * s >= extent + b) for p, s, extent, b in zip(out, strides, spatial, begin))
    return Window(spatial, kernel, strides, dilations, begin, end, out)


def check_geometry(
    operator: Operator, types: Sequence[TensorType | None], rank: int, *, pads: Shape, auto_pad: str, **positive: Shape
) -> None:
    """Every attribute has one positive entry per spatial axis, pads two non-negative ones, auto_pad is known."""
    if rank < 1:
        raise operator.fail("the input needs at least one spatial axis: [N, C, D1, ...]", *types)
    for name, values in positive.items():
        if len(values) != rank or any(value < 1 for value in values):
            raise operator.fail(f"{name} must hold {rank} positive numbers, not {list(values)}", *types)
    if pads and (len(pads) != 2 * rank or any(pad < 0 for pad in pads)):
        raise operator.fail(f"pads must hold {2 * rank} non-negative numbers, not {list(pads)}", *types)
    if auto_pad not in AUTO_PADS:
        raise operator.fail(f"auto_pad must be one of {', '.join(AUTO_PADS)}", *types)


def split_padding(totals: Sequence[int], *, upper: bool) -> tuple[Shape, Shape]:
    """Total padding per axis as (begin, end); the odd one goes to the end if ``upper``."""
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if upper else (large, small)
