"""The convolution's trilinear form in NumPy, and the loop nests of its input gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glowtrain.loops import Const, Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.contraction.products import product
from glowtrain.ops.convolution.geometry import PhaseAxis, SlidingWindow
from glowtrain.ops.reduce.reduction import accumulator, widened
from glowtrain.types import Array


def columns(x: Array, geometry: SlidingWindow, group: int) -> Array:
    """The matrix of each group: rows (n, position), columns (channel, tap); f16 and bf16 in f32."""
    view = geometry.view(geometry.pad(widened(x), 0))
    view = view.reshape(x.shape[0], group, x.shape[1] // group, *view.shape[2:])
    r = geometry.rank
    view = view.transpose(1, 0, *range(3, 3 + r), 2, *range(3 + r, 3 + 2 * r))
    taps = math.prod(view.shape[2 + r :])
    return view.reshape(group, x.shape[0] * math.prod(geometry.out), taps)


def position_rows(g: Array, group: int) -> Array:
    """``g[n, o, position...]`` as a matrix of each group: rows (n, position), columns (channel)."""
    positions = math.prod(g.shape[2:])
    split = widened(g).reshape(g.shape[0], group, g.shape[1] // group, positions)
    return split.transpose(1, 0, 3, 2).reshape(group, g.shape[0] * positions, g.shape[1] // group)


def convolve(x: Array, w: Array, geometry: SlidingWindow, group: int) -> Array:
    """The convolution in the accumulator's type."""
    weights = widened(w).reshape(group, w.shape[0] // group, math.prod(w.shape[1:]))
    rows = columns(x, geometry, group) @ weights.transpose(0, 2, 1)
    split = rows.reshape(group, x.shape[0], *geometry.out, w.shape[0] // group)
    r = geometry.rank
    return split.transpose(1, 0, r + 2, *range(2, r + 2)).reshape(x.shape[0], w.shape[0], *geometry.out)


def scatter(g: Array, w: Array, geometry: SlidingWindow, group: int) -> Array:
    """The input gradient, tap by tap, in the accumulator's type."""
    weights = widened(w).reshape(group, w.shape[0] // group, math.prod(w.shape[1:]))
    taps = (position_rows(g, group) @ weights).reshape(group, g.shape[0], *geometry.out, w.shape[1], *geometry.kernel)
    r = geometry.rank
    taps = taps.transpose(1, 0, r + 2, *range(2, r + 2), *range(r + 3, 2 * r + 3))
    taps = taps.reshape(g.shape[0], group * w.shape[1], *geometry.out, *geometry.kernel)
    padded = geometry.pad(np.zeros((g.shape[0], group * w.shape[1], *geometry.spatial), taps.dtype), 0)
    for tap in geometry.taps():
        padded[:, :, *geometry.tap_slice(tap)] += taps[(slice(None),) * (geometry.rank + 2) + tap]
    return geometry.crop(padded)


def gather_nests(
    y: Tensor, x: Tensor, w: Tensor, geometry: SlidingWindow, group: int, bias: Tensor | None
) -> list[Statement]:
    """One nest for each phase of the stride: within a phase, positions and taps are affine in the output's
    subscripts."""
    return [_phase_nest(y, x, w, axes, group, bias) for axes in geometry.phases()]


def _phase_nest(
    y: Tensor, x: Tensor, w: Tensor, axes: Sequence[PhaseAxis], group: int, bias: Tensor | None
) -> Statement:
    per_group = w.shape[0] // group
    n, block, inner, *rest = indices = indices_of((y.shape[0], group, w.shape[1], *(axis.extent for axis in axes)))
    channel = block * w.shape[1] + inner

    def term(o: Expr, *hit: Expr) -> Expr:
        points = list(zip(axes, rest, hit, strict=True))
        source = (n, block * per_group + o, *(axis.subscript(q, m) for axis, q, m in points))
        tap = (block * per_group + o, inner, *(axis.tap(m) for axis, _, m in points))
        return product(x.load(source, fill=0), w[tap])

    taps = [axis.taps for axis in axes]
    wide = accumulator(y.dtype)
    value: Expr = reduce("add", (per_group, *taps), term) if all(taps) else Const(0.0, wide)
    if bias is not None:
        start = cast(bias[(channel,)], wide)
        value = value + start if all(taps) else start
    target = (n, channel, *(axis.target(q) for axis, q in zip(axes, rest, strict=True)))
    return For(indices, (y.store(target, value),))
