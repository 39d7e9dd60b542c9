"""Shapes, moves, gathers, scatters and selections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from counterparts import axes_of, counterpart, when
from torch import Tensor
from torch.nn import functional


@counterpart("Concat")
def concat(op: Any, *x: Tensor) -> Tensor:
    return torch.cat(x, op.axis)


@counterpart("Expand")
def expand(op: Any, x: Tensor) -> Tensor:
    return torch.broadcast_to(x, torch.broadcast_shapes(x.shape, tuple(op.shape)))


@counterpart("Flatten")
def flatten(op: Any, x: Tensor) -> Tensor:
    axis = op.axis + x.ndim if op.axis < 0 else op.axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@counterpart("Reshape")
def reshape(op: Any, x: Tensor) -> Tensor:
    shape = [x.shape[k] if n == 0 and not op.allowzero else n for k, n in enumerate(op.shape)]
    return torch.reshape(x, shape)


@counterpart("Transpose")
def transpose(op: Any, x: Tensor) -> Tensor:
    return torch.permute(x, op.perm if op.perm is not None else tuple(range(x.ndim))[::-1])


@counterpart("Squeeze")
def squeeze(op: Any, x: Tensor) -> Tensor:
    return torch.squeeze(x) if op.axes is None else torch.squeeze(x, axes_of(x, op.axes))


@counterpart("Unsqueeze")
def unsqueeze(op: Any, x: Tensor) -> Tensor:
    rank = x.ndim + len(op.axes)
    for axis in sorted(axis % rank for axis in op.axes):
        x = torch.unsqueeze(x, axis)
    return x


@counterpart("Slice")
def slice_(op: Any, x: Tensor) -> Tensor:
    """PyTorch has no negative steps: there, the places are selected."""
    axes = op.axes if op.axes is not None else range(len(op.starts))
    steps = op.steps if op.steps is not None else (1,) * len(op.starts)
    for axis, start, end, step in zip(axes, op.starts, op.ends, steps, strict=True):
        taken = slice(start, end, step)
        if step > 0:
            x = x.movedim(axis, 0)[taken].movedim(0, axis)
        else:
            x = torch.index_select(x, axis, torch.from_numpy(np.arange(x.shape[axis])[taken].copy()))
    return x


@counterpart("Split")
def split(op: Any, x: Tensor) -> Any:
    if op.split is not None:
        return torch.split(x, list(op.split), op.axis)
    extent = x.shape[op.axis]
    size = -(-extent // op.num_outputs)
    sizes = [max(0, min(size, extent - k * size)) for k in range(op.num_outputs)]
    return torch.split(x, sizes, op.axis)


@counterpart("Tile")
def tile(op: Any, x: Tensor) -> Tensor:
    return torch.tile(x, tuple(op.repeats)) if op.repeats else x.clone()


@counterpart("Trilu")
def trilu(op: Any, x: Tensor) -> Tensor:
    return (torch.triu if op.upper else torch.tril)(x, op.k)


@counterpart("glowtrain.Interleave")
def interleave(op: Any, *phases: Tensor) -> Tensor:
    y = phases[0].new_zeros((*phases[0].shape[:2], *op.spatial))
    for phase, offset in zip(phases, op.offsets(), strict=True):
        y[:, :, *(slice(start, None, step) for start, step in zip(offset, op.strides, strict=True))] = phase
    return y


@counterpart("DepthToSpace")
def depth_to_space(op: Any, x: Tensor) -> Tensor:
    """PixelShuffle has the block's axes inside of the channels; DCR has them outside."""
    b = op.blocksize
    if op.mode == "DCR":
        x = x.unflatten(1, (b * b, -1)).transpose(1, 2).flatten(1, 2)
    return functional.pixel_shuffle(x, b)


@counterpart("SpaceToDepth")
def space_to_depth(op: Any, x: Tensor) -> Tensor:
    b = op.blocksize
    y = functional.pixel_unshuffle(x, b)
    return y.unflatten(1, (-1, b * b)).transpose(1, 2).flatten(1, 2) if op.mode == "DCR" else y


@counterpart("ReverseSequence")
def reverse_sequence(op: Any, x: Tensor, lengths: Tensor) -> Tensor:
    moved = torch.movedim(x, (op.batch_axis, op.time_axis), (0, 1))
    rows = [torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(moved, lengths.tolist(), strict=True)]
    return torch.movedim(torch.stack(rows), (0, 1), (op.batch_axis, op.time_axis))


# --- pads ------------------------------------------------------------------------------------------------------------

PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def margins(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Pairs by axis as PyTorch wants them: the last axis first."""
    return [n for pair in reversed(pairs) for n in pair]


@counterpart("Pad")
def pad(op: Any, x: Tensor, value: Tensor | None = None) -> Tensor:
    pairs = [(0, 0)] * x.ndim
    axes = axes_of(x, op.axes)
    for k, axis in enumerate(axes):
        pairs[axis] = (op.pads[k], op.pads[k + len(axes)])
    if op.mode == "constant":
        padded = functional.pad(x, margins(pairs))
        return padded if value is None else padded + value * (1 - functional.pad(torch.ones_like(x), margins(pairs)))
    x = functional.pad(x, margins([(min(a, 0), min(b, 0)) for a, b in pairs]))
    wider = [(max(a, 0), max(b, 0)) for a, b in pairs]
    limit = {"reflect": -1, "wrap": 0, "edge": 1 << 30}[op.mode]
    if all(max(pair) <= n + limit for pair, n in zip(wider, x.shape, strict=True)):
        return functional.pad(x[None, None], margins(wider), PAD_MODES[op.mode])[0, 0]
    for axis, pair in enumerate(wider):  # wider than PyTorch allows: NumPy says which places
        places = np.pad(np.arange(x.shape[axis]), pair, op.mode)
        x = torch.index_select(x, axis, torch.from_numpy(places))
    return x


@counterpart("CenterCropPad")
def center_crop_pad(op: Any, x: Tensor) -> Tensor:
    pairs = [(0, 0)] * x.ndim
    for axis, extent in zip(axes_of(x, op.axes), op.shape, strict=True):
        change = extent - x.shape[axis]
        before = change // 2 if change > 0 else -(-change // 2)
        pairs[axis] = (before, change - before)
    return functional.pad(x, margins(pairs))


# --- gathers and scatters --------------------------------------------------------------------------------------------


def wrapped(indices: Tensor, extent: int) -> Tensor:
    """Indices from 0."""
    return torch.where(indices < 0, indices + extent, indices).long()


@counterpart("Gather")
def gather(op: Any, x: Tensor, indices: Tensor) -> Tensor:
    axis = op.axis % x.ndim
    found = torch.index_select(x, axis, wrapped(indices, x.shape[axis]).reshape(-1))
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@counterpart("GatherElements")
def gather_elements(op: Any, x: Tensor, indices: Tensor) -> Tensor:
    return torch.gather(x, op.axis, wrapped(indices, x.shape[op.axis]))


@counterpart("GatherND")
def gather_nd(op: Any, x: Tensor, indices: Tensor) -> Tensor:
    def at(x: Tensor, places: Tensor) -> Tensor:
        return x[tuple(places.unbind(-1))]

    for _ in range(op.batch_dims):
        at = torch.vmap(at)
    return at(x, indices)


@counterpart("glowtrain.ScatterAdd")
def scatter_add(op: Any, indices: Tensor, updates: Tensor) -> Tensor:
    axis = op.axis % len(op.shape)
    flat = updates.reshape(*op.shape[:axis], -1, *op.shape[axis + 1 :])
    zeros = torch.zeros(op.shape, dtype=updates.dtype)
    return torch.index_add(zeros, axis, wrapped(indices, op.shape[axis]).reshape(-1), flat)


REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(op: Any, x: Tensor, axis: int, indices: Tensor, updates: Tensor) -> Tensor:
    if op.reduction == "none":
        return torch.scatter(x, axis, indices, updates)
    return torch.scatter_reduce(x, axis, indices, updates, REDUCE[op.reduction], include_self=True)


@counterpart("ScatterElements")
def scatter_elements(op: Any, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scattered(op, x, op.axis, wrapped(indices, x.shape[op.axis]), updates)


@counterpart("ScatterND")
def scatter_nd(op: Any, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    columns = [wrapped(column, n) for column, n in zip(indices.unbind(-1), x.shape, strict=False)]
    places = torch.zeros_like(columns[0])
    for column, extent in zip(columns, x.shape, strict=False):
        places = places * extent + column
    rows = x.reshape(math.prod(x.shape[:depth]), -1)
    flat = updates.reshape(places.numel(), -1)
    return _scattered(op, rows, 0, places.reshape(-1, 1).expand_as(flat), flat).reshape(x.shape)


@counterpart("TensorScatter")
def tensor_scatter(op: Any, past: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    count = update.movedim(op.axis, 1).shape[1]
    starts = torch.zeros(past.shape[0], dtype=torch.int64) if starts is None else starts
    rows = []
    for row, new, start in zip(past.movedim(op.axis, 1), update.movedim(op.axis, 1), starts.tolist(), strict=True):
        places = (start + torch.arange(count)) % row.shape[0]
        rows.append(torch.index_copy(row, 0, places, new))
    return torch.stack(rows).movedim(1, op.axis)


@counterpart("OneHot")
def one_hot(op: Any, indices: Tensor, values: Tensor) -> Tensor:
    inside = (indices >= -op.depth) & (indices < op.depth)
    on = functional.one_hot(torch.where(inside, indices % op.depth, 0), op.depth) * inside[..., None]
    return (values[0] + (values[1] - values[0]) * on).movedim(-1, op.axis)


@counterpart("TopK", "glowtrain.Selection", "glowtrain.Sorting")
def top_k(op: Any, x: Tensor) -> Any:
    return tuple(torch.topk(x, op.k, op.axis, op.largest, sorted=True))


@counterpart("glowtrain.Compress")
def compress(op: Any, x: Tensor, condition: Tensor) -> Any:
    """The operator's result goes on with the first slice."""
    whole, axis = (x.reshape(-1), 0) if op.axis is None else (x, op.axis)
    chosen = condition.nonzero()[:, 0]
    rest = torch.zeros(condition.shape[0] - chosen.shape[0], dtype=torch.int64)
    return torch.index_select(whole, axis, torch.cat([chosen, rest])), torch.tensor(chosen.shape[0])


def _planes(op: Any, inputs: Sequence[Any]) -> bool:
    return getattr(op, "storage_order", 0) == 0


@counterpart("MaxUnpool")
def max_unpool(op: Any, x: Tensor, positions: Tensor) -> Tensor:
    rank = x.ndim - 2
    strides, pads = op.strides or (1,) * rank, op.pads or (0,) * 2 * rank
    natural = [
        (n - 1) * s + k - pads[a] - pads[a + rank]
        for a, (n, s, k) in enumerate(zip(x.shape[2:], strides, op.kernel_shape, strict=True))
    ]
    flat = torch.zeros(math.prod(x.shape[:2]) * math.prod(natural), dtype=x.dtype)
    y = torch.scatter(flat, 0, positions.reshape(-1), x.reshape(-1)).reshape(*x.shape[:2], *natural)
    shape = op.output_shape or y.shape
    return functional.pad(y, margins([(0, n - m) for n, m in zip(shape, y.shape, strict=True)]))


@counterpart("glowtrain.MaxPoolGradient", fitted=when(_planes))
def max_pool_gradient(op: Any, g: Tensor, positions: Tensor) -> Tensor:
    shape = (*g.shape[:2], *op.spatial)
    flat = torch.zeros(math.prod(shape), dtype=g.dtype)
    return torch.scatter_add(flat, 0, positions.reshape(-1), g.reshape(-1)).reshape(shape)


def _taken(x: Tensor, indices: Tensor) -> Tensor:
    """x [N, C, S] at indices [N, T, P]: [N, C, T, P]."""
    (n, c, s), (_, t, p) = x.shape, indices.shape
    places = wrapped(indices, s).reshape(n, 1, t * p).expand(n, c, t * p)
    return torch.gather(x, 2, places).reshape(n, c, t, p)


@counterpart("glowtrain.GatherSum")
def gather_sum(op: Any, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return (_taken(x, indices) * weights[:, None]).sum(2)


@counterpart("glowtrain.GatherDot")
def gather_dot(op: Any, x: Tensor, indices: Tensor, g: Tensor) -> Tensor:
    return (_taken(x, indices) * g[:, :, None]).sum(1)


@counterpart("glowtrain.ScatterSum")
def scatter_sum(op: Any, g: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    terms = (g[:, :, None] * weights[:, None]).flatten(2)
    places = wrapped(indices, op.size).reshape(g.shape[0], 1, -1).expand_as(terms)
    return torch.scatter_add(torch.zeros(*g.shape[:2], op.size, dtype=g.dtype), 2, places, terms)


@counterpart("glowtrain.Resample")
def resample(op: Any, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    last = x.movedim(op.axis, -1)
    return (last[..., indices.long()] * weights).sum(-2).movedim(-1, op.axis)
