"""Convolutions, pools and blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from counterparts import counterpart, derivative, plain, when
from counterparts_moves import margins
from counterparts_pointwise import activated
from torch import Tensor
from torch.nn import functional

from glowtrain.types import type_of

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAX_POOL = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}

Pairs = list[tuple[int, int]]


def same_pads(total: int, upper: bool) -> tuple[int, int]:
    """Padding that is split in two: an odd place goes to the end, or to the start."""
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def pads_of(op: Any, spatial: Sequence[int], kernel: Sequence[int]) -> Pairs:
    """The padding of each axis, as ``auto_pad`` or ``pads`` says."""
    rank = len(spatial)
    strides, dilations = op.strides or (1,) * rank, op.dilations or (1,) * rank
    if not op.auto_pad.startswith("SAME"):
        pads = op.pads or (0,) * 2 * rank
        return list(zip(pads[:rank], pads[rank:], strict=True))
    pairs = []
    for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        total = max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pairs.append(same_pads(total, op.auto_pad == "SAME_UPPER"))
    return pairs


def or_ones(given: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(given) or (1,) * rank


@counterpart("Conv")
def conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    pairs = pads_of(op, x.shape[2:], w.shape[2:])
    strides, dilations = or_ones(op.strides, rank), or_ones(op.dilations, rank)
    if all(before == after for before, after in pairs):
        return CONV[rank](x, w, bias, strides, [before for before, _ in pairs], dilations, op.group)
    return CONV[rank](functional.pad(x, margins(pairs)), w, bias, strides, 0, dilations, op.group)


@counterpart("com.microsoft.FusedConv")
def fused_conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None, other: Tensor | None = None) -> Tensor:
    y = conv(op, x, w, bias)
    return activated(y if other is None else y + other, op.activation, op.activation_params)


@counterpart("ConvTranspose")
def conv_transpose(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """The whole result, then cut: PyTorch has no padding of two sizes and no wanted shape."""
    rank = x.ndim - 2
    strides, dilations = or_ones(op.strides, rank), or_ones(op.dilations, rank)
    whole = TRANSPOSED[rank](x, w, None, strides, 0, 0, op.group, dilations)
    extra = op.output_padding or (0,) * rank
    pads = op.pads or (0,) * 2 * rank
    pairs = []
    for a, (n, full) in enumerate(zip(x.shape[2:], whole.shape[2:], strict=True)):
        if op.output_shape:
            wanted = op.output_shape[a - rank]
        elif op.auto_pad.startswith("SAME"):
            wanted = n * strides[a] if strides[a] <= full - (n - 1) * strides[a] else full + extra[a]
        else:
            pairs.append((-pads[a], extra[a] - pads[a + rank]))
            continue
        begin, _ = same_pads(max(0, full + extra[a] - wanted), op.auto_pad == "SAME_UPPER")
        pairs.append((-begin, wanted - full + begin))
    y = functional.pad(whole, margins(pairs))
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _plain_conv(op: Any, x: Tensor, w: Tensor) -> Tensor:
    rank = x.ndim - 2
    pairs = list(zip(op.pads[:rank], op.pads[rank:], strict=True))
    return CONV[rank](functional.pad(x, margins(pairs)), w, None, op.strides, 0, op.dilations, op.group)


@counterpart("glowtrain.ConvInputGradient")
def conv_input_gradient(op: Any, g: Tensor, w: Tensor) -> Tensor:
    shape = (g.shape[0], w.shape[1] * op.group, *op.spatial)
    return derivative(lambda x: _plain_conv(op, x, w), shape, g)


@counterpart("glowtrain.ConvWeightGradient")
def conv_weight_gradient(op: Any, g: Tensor, x: Tensor) -> Tensor:
    shape = (g.shape[1], x.shape[1] // op.group, *op.kernel_shape)
    return derivative(lambda w: _plain_conv(op, x, w), shape, g)


@counterpart("CausalConvWithState")
def causal_conv(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None, past: Tensor | None = None) -> Any:
    taps = w.shape[2]
    before = torch.zeros(*x.shape[:2], taps - 1, dtype=x.dtype) if past is None else past
    whole = torch.cat([before, x], 2)
    y = functional.conv1d(whole, w, bias, groups=x.shape[1])
    return y if op.activation == "none" else functional.silu(y), whole[:, :, whole.shape[2] - taps + 1 :]


# --- pools -----------------------------------------------------------------------------------------------------------


def windows(op: Any, x: Tensor, fill: float, pairs: Pairs | None = None, out: Sequence[int] | None = None) -> Tensor:
    """The taps of each window, [N, C, out..., taps], by PyTorch's unfold; what lies outside is ``fill``."""
    kernel, rank = tuple(op.kernel_shape), x.ndim - 2
    strides, dilations = or_ones(op.strides, rank), or_ones(op.dilations, rank)
    pairs = pads_of(op, x.shape[2:], kernel) if pairs is None else pairs
    out = places_of(op, x) if out is None else out
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    needed = [(n - 1) * s + span for n, s, span in zip(out, strides, spans, strict=True)]
    after = [m - n - before for m, n, (before, _) in zip(needed, x.shape[2:], pairs, strict=True)]
    x = functional.pad(x, margins([(before, end) for (before, _), end in zip(pairs, after, strict=True)]), value=fill)
    for axis, (span, stride, dilation) in enumerate(zip(spans, strides, dilations, strict=True)):
        x = x.unfold(2 + axis, span, stride)[..., ::dilation]
    return x.flatten(-rank)


def places_of(op: Any, x: Tensor) -> Sequence[int]:
    """The result's spatial extents."""
    types = op.infer(type_of(x.detach().numpy()))
    return (types[0] if isinstance(types, tuple) else types).shape[2:]


def _symmetric(op: Any, x: Tensor) -> list[int] | None:
    """The padding in PyTorch's form, where it has one."""
    pairs = pads_of(op, x.shape[2:], op.kernel_shape)
    small = all(before == after and before <= k // 2 for (before, after), k in zip(pairs, op.kernel_shape, strict=True))
    return [before for before, _ in pairs] if small else None


@counterpart("MaxPool")
def max_pool(op: Any, x: Tensor) -> Any:
    rank, pads = x.ndim - 2, _symmetric(op, x)
    if pads is None:
        return windows(op, x, -math.inf).amax(-1), None
    strides, dilations = or_ones(op.strides, rank), or_ones(op.dilations, rank)
    y, places = MAX_POOL[rank](x, op.kernel_shape, strides, pads, dilations, op.ceil_mode, return_indices=True)
    if y.shape[2:] != torch.Size(places_of(op, x)) or op.storage_order:
        return windows(op, x, -math.inf).amax(-1), None
    planes = torch.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * rank)
    return y, places + planes * math.prod(x.shape[2:])


@counterpart("AveragePool")
def average_pool(op: Any, x: Tensor) -> Tensor:
    rank, pads = x.ndim - 2, _symmetric(op, x)
    if pads is not None and set(op.dilations) <= {1}:
        y = AVERAGE_POOL[rank](
            x, op.kernel_shape, or_ones(op.strides, rank), pads, op.ceil_mode, bool(op.count_include_pad)
        )
        if y.shape[2:] == torch.Size(places_of(op, x)):
            return y
    pairs, ones = pads_of(op, x.shape[2:], op.kernel_shape), torch.ones_like(x.detach())
    if op.count_include_pad:
        ones = functional.pad(ones, margins(pairs), value=1.0)
        counts = windows(op, ones, 0.0, [(0, 0)] * rank, places_of(op, x))
    else:
        counts = windows(op, ones, 0.0)
    return windows(op, x, 0.0).sum(-1) / counts.sum(-1)


@counterpart("LpPool")
def lp_pool(op: Any, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(windows(op, x, 0.0), op.p, -1)


class _Pads:
    """A pool's window that ``windows`` understands."""

    def __init__(self, op: Any) -> None:
        self.kernel_shape, self.strides, self.dilations, self.pads = op.kernel_shape, op.strides, op.dilations, op.pads
        self.auto_pad = "NOTSET"


def _sum_pool(op: Any, x: Tensor) -> Tensor:
    rank = x.ndim - 2
    out = [
        (n + op.pads[a] + op.pads[a + rank] - (op.kernel_shape[a] - 1) * op.dilations[a] - 1) // op.strides[a] + 1
        for a, n in enumerate(x.shape[2:])
    ]
    return windows(_Pads(op), x, 0.0, None, out).sum(-1)


counterpart("glowtrain.SumPool")(_sum_pool)


@counterpart("glowtrain.SumPoolGradient")
def sum_pool_gradient(op: Any, g: Tensor) -> Tensor:
    return derivative(lambda x: _sum_pool(op, x), (*g.shape[:2], *op.spatial), g)


GLOBAL_POOLS = {
    "GlobalAveragePool": {1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d,
                          3: functional.adaptive_avg_pool3d},
    "GlobalMaxPool": {1: functional.adaptive_max_pool1d, 2: functional.adaptive_max_pool2d,
                      3: functional.adaptive_max_pool3d},
}  # fmt: skip
for _name, _pools in GLOBAL_POOLS.items():
    plain(_name, lambda x, pools=_pools: pools[x.ndim - 2](x, 1))


@counterpart("GlobalLpPool")
def global_lp_pool(op: Any, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, op.p, tuple(range(2, x.ndim)), keepdim=True)


def _blocks(op: Any, inputs: Sequence[Any]) -> bool:
    return len(op.block_shape) <= 2  # all that fold and unfold know


def _in_plane(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) == 2 else (1, *numbers)


@counterpart("Col2Im", fitted=when(_blocks))
def col2im(op: Any, x: Tensor) -> Tensor:
    rank = len(op.block_shape)
    pads = op.pads or (0,) * 2 * rank
    padded = [n + pads[a] + pads[a + rank] for a, n in enumerate(op.image_shape)]
    kernel = _in_plane(op.block_shape)
    dilation, stride = (_in_plane(or_ones(given, rank)) for given in (op.dilations, op.strides))
    y = functional.fold(x, _in_plane(padded), kernel, dilation, 0, stride)
    y = y if rank == 2 else y[:, :, 0]
    return functional.pad(y, margins([(-pads[a], -pads[a + rank]) for a in range(rank)]))


@counterpart("glowtrain.Im2Col", fitted=when(_blocks))
def im2col(op: Any, x: Tensor) -> Tensor:
    rank = len(op.block_shape)
    pads = op.pads or (0,) * 2 * rank
    x = functional.pad(x, margins([(pads[a], pads[a + rank]) for a in range(rank)]))
    dilation, stride = (_in_plane(or_ones(given, rank)) for given in (op.dilations, op.strides))
    return functional.unfold(x if rank == 2 else x[:, :, None], _in_plane(op.block_shape), dilation, 0, stride)
