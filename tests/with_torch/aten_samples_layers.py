"""Samples: layers, convolutions, pooling, resampling, normalizations, recurrent layers, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from aten_samples import Draw, exactly, function, layer, normal, real, truth, unit, whole
from torch import nn

aten = torch.ops.aten


class _RunningMean(nn.Module):
    """A buffer that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.linear(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.mean[0] += 1
        return h - self.mean


class _Unpooled(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{rank}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{rank}d")(2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.unpool(*self.pool(x))


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 4, mode="sum")

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> Any:
        return self.bag(x, per_sample_weights=weights)


class _Twice(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(self.module(x) * 2 + 1)


class _Packed(nn.Module):
    """Layers over sequences of several lengths."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, states = self.module(packed)
        return *nn.utils.rnn.pad_packed_sequence(y), states


class _First(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.module(*inputs)[0]


class _WithStates(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        return self.module(x, (h, c) if isinstance(self.module, nn.LSTM) else h + c)


class _SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x, **self.options)


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.attention(x, x, x, key_padding_mask=padding)


class _Masked(nn.Module):
    def __init__(self, transformer: nn.Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[0])
        return self.transformer(source, target, tgt_mask=mask)


class _LogProbabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8])

    def forward(self, x: torch.Tensor) -> Any:
        return self.loss.log_prob(x)


def _halved() -> nn.Module:
    """A layer that normalizes by its statistics within a module that trains."""
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    module[1].eval()
    return module


def _functional_norm(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return aten._native_batch_norm_legit_functional(x, w, w, m, v, False, 0.1, 1e-5)[0]


def switched(name: str, make: Callable[[], nn.Module], *draws: Draw, **options: Any) -> None:
    """A layer in training mode and out of it."""
    layer(name, make, *draws, **options)
    layer(f"{name} in eval mode", lambda: make().eval(), *draws, **options)


def lazily(make: Callable[[], nn.Module], *shape: int) -> Callable[[], nn.Module]:
    """A lazy layer that has seen an input."""

    def made() -> nn.Module:
        module = make()
        module(torch.randn(shape))
        return module

    return made


layer("nn.LazyLinear", lazily(lambda: nn.LazyLinear(4), 2, 3), real(2, 3))
layer("nn.Flatten and Unflatten", lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 6))), real(2, 3, 4))
layer("nn.Embedding", lambda: nn.Embedding(5, 4, padding_idx=0), whole(2, 3))
for how in ("sum", "mean", "max"):
    layer(f"nn.EmbeddingBag {how}", lambda how=how: nn.EmbeddingBag(5, 4, mode=how), whole(3, 4))
    layer(
        f"nn.EmbeddingBag {how} with offsets",
        lambda how=how: nn.EmbeddingBag(5, 4, mode=how),
        whole(6),
        exactly(0, 2, 3),
    )
layer("nn.EmbeddingBag with padding", lambda: nn.EmbeddingBag(5, 4, padding_idx=1), whole(3, 4))
layer(
    "nn.EmbeddingBag with a last offset",
    lambda: nn.EmbeddingBag(5, 4, mode="sum", include_last_offset=True),
    whole(6),
    exactly(0, 2, 2, 6),
)
layer("nn.EmbeddingBag frozen", lambda: nn.EmbeddingBag(5, 4).requires_grad_(False), whole(3, 4))
layer("nn.EmbeddingBag weighted", _Weighted, whole(3, 4), real(3, 4))
for name in (
    "ReLU",
    "ReLU6",
    "ELU",
    "SELU",
    "CELU",
    "GELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
):
    layer(f"nn.{name}", getattr(nn, name), normal(2, 4))
layer("nn.Threshold", lambda: nn.Threshold(0.1, 20), normal(2, 4))
layer("nn.RReLU in eval mode", lambda: nn.RReLU().eval(), normal(2, 4))

for rank, image in ((1, (7,)), (2, (7, 6)), (3, (5, 6, 4))):
    convolution, transposed = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
    shape = (2, 4, *image)
    layer(f"nn.Conv{rank}d", lambda c=convolution: c(4, 6, 3), real(*shape))
    layer(
        f"nn.Conv{rank}d with everything",
        lambda c=convolution: c(4, 6, 2, stride=2, padding=1, dilation=2, groups=2, bias=False),
        real(*shape),
    )
    layer(f"nn.Conv{rank}d of one image", lambda c=convolution: c(4, 6, 3, padding=1), real(*shape[1:]))
    layer(f"nn.Conv{rank}d same", lambda c=convolution: c(4, 6, 4, padding="same"), real(*shape))
    layer(f"nn.Conv{rank}d valid", lambda c=convolution: c(4, 6, 3, padding="valid"), real(*shape))
    layer(f"nn.ConvTranspose{rank}d", lambda c=transposed: c(4, 6, 3), real(*shape))
    layer(
        f"nn.ConvTranspose{rank}d with everything",
        lambda c=transposed: c(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        real(*shape),
    )
    layer(f"nn.ConvTranspose{rank}d of one image", lambda c=transposed: c(4, 6, 3, bias=False), real(*shape[1:]))
    layer(f"nn.LazyConv{rank}d", lazily(lambda rank=rank: getattr(nn, f"LazyConv{rank}d")(6, 3), *shape), real(*shape))
    most, mean = getattr(nn, f"MaxPool{rank}d"), getattr(nn, f"AvgPool{rank}d")
    layer(f"nn.MaxPool{rank}d", lambda p=most: p(2), real(*shape))
    layer(
        f"nn.MaxPool{rank}d with everything",
        lambda p=most: p(3, stride=2, padding=1, dilation=1, ceil_mode=True),
        real(*shape),
    )
    layer(f"nn.MaxPool{rank}d with dilation", lambda p=most: p(2, stride=1, dilation=2), real(*shape))
    layer(f"nn.MaxPool{rank}d of one image", lambda p=most: p(2), real(*shape[1:]))
    layer(f"nn.MaxPool{rank}d with indices", lambda p=most: p(2, return_indices=True), real(*shape))
    layer(f"nn.AvgPool{rank}d", lambda p=mean: p(2), real(*shape))
    layer(f"nn.AvgPool{rank}d with everything", lambda p=mean: p(3, stride=2, padding=1, ceil_mode=True), real(*shape))
    layer(
        f"nn.AvgPool{rank}d without its padding",
        lambda p=mean: p(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
        real(*shape),
    )
    layer(f"nn.AvgPool{rank}d of one image", lambda p=mean: p(2), real(*shape[1:]))
    for kind in ("Avg", "Max"):
        adaptive = getattr(nn, f"Adaptive{kind}Pool{rank}d")
        for size in (1, 2, 3):
            layer(f"nn.Adaptive{kind}Pool{rank}d to {size}", lambda a=adaptive, size=size: a(size), real(*shape))
        layer(f"nn.Adaptive{kind}Pool{rank}d of one image", lambda a=adaptive: a(2), real(*shape[1:]))
    layer(f"nn.LPPool{rank}d", lambda rank=rank: getattr(nn, f"LPPool{rank}d")(2, 2), real(*shape, low=0.1))
    layer(f"nn.MaxUnpool{rank}d", lambda rank=rank: _Unpooled(rank), real(*shape))
    switched(f"nn.BatchNorm{rank}d", lambda rank=rank: getattr(nn, f"BatchNorm{rank}d")(4, momentum=0.3), real(*shape))
    layer(
        f"nn.InstanceNorm{rank}d", lambda rank=rank: getattr(nn, f"InstanceNorm{rank}d")(4, affine=True), real(*shape)
    )
    layer(
        f"nn.Dropout{rank}d",
        lambda rank=rank: getattr(nn, f"Dropout{rank}d")(0.3),
        real(100, 100, *[2] * rank, low=1),
        random=True,
    )
    for pads in ("Constant", "Zero", "Reflection", "Replication", "Circular"):
        given = {"Constant": (1, 2.5)}.get(pads, (1,))
        layer(
            f"nn.{pads}Pad{rank}d",
            lambda pads=pads, rank=rank, given=given: getattr(nn, f"{pads}Pad{rank}d")(*given),
            real(*shape),
        )
for mode in ("reflect", "replicate", "circular"):
    layer(
        f"nn.Conv2d with padding mode {mode}",
        lambda mode=mode: nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode),
        real(2, 3, 5, 6),
    )
layer(
    "nn.Conv2d of unequal axes",
    lambda: nn.Conv2d(3, 4, (3, 1), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
    real(2, 3, 7, 6),
)
layer("nn.Conv2d depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), real(2, 4, 6, 6))
layer("nn.MaxPool2d of unequal axes", lambda: nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0)), real(2, 3, 7, 6))
function("avg_pool2d with its own divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), real(2, 3, 4, 4))
function(
    "avg_pool3d with its own divisor", lambda x: F.avg_pool3d(x, 2, padding=1, divisor_override=3), real(2, 3, 4, 4, 4)
)
function(
    "avg_pool2d with its own divisor and windows that end outside",
    lambda x: F.avg_pool2d(x, (4, 3), (2, 3), 1, ceil_mode=True, divisor_override=2),
    real(1, 3, 9, 8),
)
for size in ((1, 1), (2, 2), (3, None)):
    function(
        f"adaptive_max_pool2d to {size} with indices",
        lambda x, size=size: F.adaptive_max_pool2d(x, size, return_indices=True),
        real(2, 3, 4, 6),
    )
function(
    "fractional max pooling",
    lambda x, at: F.fractional_max_pool2d(x, (2, 3), (5, 1), None, True, at),
    real(2, 3, 9, 8),
    real(2, 3, 2, low=0, high=1),
    constants=(1,),
)
function(
    "fractional max pooling of volumes",
    lambda x, at: F.fractional_max_pool3d(x, (2, 3, 2), (3, 4, 2), None, True, at),
    real(2, 3, 6, 7, 5),
    real(2, 3, 3, low=0, high=1),
    constants=(1,),
)
layer("nn.AdaptiveAvgPool2d of unequal axes", lambda: nn.AdaptiveAvgPool2d((3, None)), real(2, 3, 7, 6))
function(
    "adaptive pooling's own operators",
    lambda x, y: (aten._adaptive_avg_pool2d(x, [2, 2]), aten._adaptive_avg_pool3d(y, [2, 2, 2])),
    real(2, 3, 4, 5),
    real(2, 3, 4, 4, 4),
)
function("max pooling's own operators", lambda x: aten.max_pool2d_with_indices(x, 2)[0], real(2, 3, 4, 5))
function(
    "convolution",
    lambda x, w: (
        aten.convolution(x, w, None, [1], [1], [1], False, [0], 1),
        aten.convolution(x, w, None, [1], [0], [1], True, [0], 1),
    ),
    real(2, 3, 6),
    real(3, 3, 3),
)
function("conv without a batch's axis", F.conv1d, real(3, 6), real(4, 3, 2))
layer("nn.Fold", lambda: nn.Fold((4, 5), (2, 2)), real(2, 12, 12))
layer("nn.Fold with everything", lambda: nn.Fold((6, 5), (2, 3), dilation=1, padding=1, stride=2), real(2, 12, 12))
layer("nn.Unfold", lambda: nn.Unfold((2, 3)), real(2, 3, 4, 5))
layer("nn.Unfold with everything", lambda: nn.Unfold((2, 3), dilation=2, padding=1, stride=2), real(2, 3, 6, 7))
layer("nn.LocalResponseNorm", lambda: nn.LocalResponseNorm(3), real(2, 5, 4, 4))

for mode, rank in (
    ("nearest", 1),
    ("nearest", 2),
    ("nearest", 3),
    ("linear", 1),
    ("bilinear", 2),
    ("trilinear", 3),
    ("bicubic", 2),
):
    image = (5, 4, 3)[:rank]
    layer(f"nn.Upsample {mode} {rank}", lambda mode=mode: nn.Upsample(scale_factor=2, mode=mode), real(2, 3, *image))
    function(
        f"interpolate {mode} {rank} to a size",
        lambda x, mode=mode, rank=rank: F.interpolate(x, size=(7, 3, 5)[:rank], mode=mode),
        real(2, 3, *image),
    )
    function(
        f"interpolate {mode} {rank} by a fraction",
        lambda x, mode=mode: F.interpolate(x, scale_factor=1.7, mode=mode),
        real(2, 3, *image),
    )
    function(
        f"interpolate {mode} {rank} by a fraction of the result",
        lambda x, mode=mode: F.interpolate(x, scale_factor=1.7, mode=mode, recompute_scale_factor=True),
        real(2, 3, *image),
    )
    if mode != "nearest":
        function(
            f"interpolate {mode} {rank} with aligned corners",
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode, align_corners=True),
            real(2, 3, *image),
        )
function(
    "upsampling's own operators",
    lambda x: (
        aten.upsample_nearest1d(x[0], [7]),
        aten.upsample_nearest2d(x, [7, 3]),
        aten.upsample_nearest3d(x[None], [2, 7, 3]),
        aten.upsample_linear1d(x[0], [7], False),
        aten.upsample_bilinear2d(x, [7, 3], True),
        aten.upsample_trilinear3d(x[None], [2, 7, 3], False),
        aten.upsample_bicubic2d(x, [7, 3], False),
    ),
    real(2, 3, 5, 4),
)
for mode in ("bilinear", "bicubic"):
    for given in ({"size": (3, 9)}, {"scale_factor": (0.6, 1.7)}, {"size": (3, 2), "align_corners": True}):
        function(
            f"interpolate {mode} antialiased by {given}",
            lambda x, mode=mode, given=given: F.interpolate(x, mode=mode, antialias=True, **given),
            real(2, 3, 7, 5),
        )
function(
    "antialiased upsampling's own operators",
    lambda x: (
        aten._upsample_bilinear2d_aa(x, [3, 7], False, 0.5, 1.7),
        aten._upsample_bicubic2d_aa(x, [3, 7], False),
        aten._upsample_bilinear2d_aa.vec(x, None, False, [0.5, 1.7]),
        aten._upsample_bicubic2d_aa.vec(x, [3, 7], False, None),
    ),
    real(2, 3, 7, 5),
)
layer("nn.UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), real(2, 3, 5, 4))
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        function(
            f"grid_sample {mode} {padding}",
            lambda x, g, mode=mode, padding=padding: F.grid_sample(x, g, mode, padding, align_corners=False),
            real(2, 3, 5, 4),
            real(2, 3, 2, 2, low=-1.3, high=1.3),
        )
function("affine_grid", lambda t: F.affine_grid(t, [2, 3, 5, 4], align_corners=False), real(2, 2, 3))

switched("nn.BatchNorm2d with the mean of all statistics", lambda: nn.BatchNorm2d(4, momentum=None), real(3, 4, 5, 5))
switched("nn.BatchNorm1d of features", lambda: nn.BatchNorm1d(4), real(6, 4))
switched("nn.BatchNorm2d without statistics", lambda: nn.BatchNorm2d(4, track_running_stats=False), real(3, 4, 5, 5))
switched("nn.BatchNorm2d without parameters", lambda: nn.BatchNorm2d(4, affine=False), real(3, 4, 5, 5))
layer("nn.BatchNorm2d twice", lambda: _Twice(nn.BatchNorm2d(4)), real(3, 4, 5, 5))
layer("nn.BatchNorm2d with statistics but not training", _halved, real(3, 4, 5, 5))
layer("nn.SyncBatchNorm", lambda: nn.SyncBatchNorm(4).eval(), real(3, 4, 5, 5))
function(
    "batch norm's own operators",
    lambda x, w, m, v: (
        aten._native_batch_norm_legit_no_training(x, w, w, m, v, 0.1, 1e-5)[0],
        *aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5),
        aten.batch_norm(x, w, w, m, v, False, 0.1, 1e-5, False),
    ),
    real(3, 4, 5),
    real(4),
    real(4),
    real(4, low=0.5),
    constants=(2, 3),
)
function(
    "batch norm's functional operator out of training",
    _functional_norm,
    real(3, 4, 5),
    real(4),
    real(4),
    real(4, low=0.5),
    constants=(2, 3),
)
layer("nn.LayerNorm without parameters", lambda: nn.LayerNorm(4, elementwise_affine=False), real(2, 3, 4))
layer("nn.LayerNorm without a bias", lambda: nn.LayerNorm(4, bias=False), real(2, 3, 4))
layer("nn.RMSNorm of two axes", lambda: nn.RMSNorm((3, 4), eps=1e-3, elementwise_affine=False), real(2, 3, 4))
layer("nn.GroupNorm of features", lambda: nn.GroupNorm(2, 6, affine=False), real(3, 6))
layer("nn.InstanceNorm2d of one image", lambda: nn.InstanceNorm2d(4), real(4, 5, 5))
layer(
    "nn.InstanceNorm2d with statistics in eval mode",
    lambda: nn.InstanceNorm2d(4, track_running_stats=True).eval(),
    real(3, 4, 5, 5),
)
function(
    "layer and group norm's own operators",
    lambda x, w: (
        *aten.native_layer_norm(x, [4], w, w, 1e-5),
        *aten.native_group_norm(x, None, None, 3, 4, 4, 2, 1e-5),
    ),
    real(3, 4, 4),
    real(4),
)
layer("a running mean without gradients", _RunningMean, real(3, 4))
function(
    "functional batch norm",
    lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    real(3, 4, 5),
    reference=None,
)
layer("spectral norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)).eval(), real(2, 3))
layer("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), real(2, 3))
layer("nn.Dropout", lambda: nn.Dropout(0.3), real(100, 200, low=1), random=True)
layer("nn.AlphaDropout", lambda: nn.AlphaDropout(0.3), normal(100, 200), random=True)

for kind in ("LSTM", "GRU", "RNN"):
    recurrent = getattr(nn, kind)
    layer(f"nn.{kind}", lambda r=recurrent: r(3, 4), real(5, 2, 3))
    layer(f"nn.{kind} batch first", lambda r=recurrent: r(3, 4, batch_first=True), real(2, 5, 3))
    layer(f"nn.{kind} of layers", lambda r=recurrent: r(3, 4, num_layers=3), real(5, 2, 3))
    layer(
        f"nn.{kind} in both directions",
        lambda r=recurrent: r(3, 4, num_layers=2, bidirectional=True, batch_first=True),
        real(2, 5, 3),
    )
    layer(f"nn.{kind} without biases", lambda r=recurrent: r(3, 4, bias=False, bidirectional=True), real(5, 2, 3))
    layer(f"nn.{kind} of one sequence", lambda r=recurrent: r(3, 4, num_layers=2), real(5, 3))
    layer(
        f"nn.{kind} with dropout in eval mode",
        lambda r=recurrent: r(3, 4, num_layers=2, dropout=0.5).eval(),
        real(5, 2, 3),
    )
    layer(
        f"nn.{kind} with dropout",
        lambda r=recurrent: _First(r(3, 64, num_layers=2, dropout=0.3)),
        real(5, 100, 3),
        random=True,
    )
    layer(
        f"nn.{kind} with states",
        lambda r=recurrent: _WithStates(r(3, 4, num_layers=2, bidirectional=True)),
        real(5, 2, 3),
        real(4, 2, 4),
        real(4, 2, 4),
    )
    layer(
        f"nn.{kind} of one sequence with states",
        lambda r=recurrent: _WithStates(r(3, 4)),
        real(5, 3),
        real(1, 4),
        real(1, 4),
    )
    layer(f"nn.{kind}Cell", lambda kind=kind: getattr(nn, f"{kind}Cell")(3, 4), real(2, 3))
    layer(
        f"nn.{kind}Cell of one example without biases",
        lambda kind=kind: getattr(nn, f"{kind}Cell")(3, 4, bias=False),
        real(3),
    )
for options in ({}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}):
    layer(f"nn.LSTM with projections, {options}", lambda o=options: nn.LSTM(3, 5, proj_size=2, **o), real(4, 3, 3))
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    layer(
        f"nn.{kind.__name__} over packed sequences",
        lambda k=kind: _Packed(k(3, 5, num_layers=2, bidirectional=True)), real(4, 3, 3), exactly(2, 4, 1),
    )  # fmt: skip
layer("nn.LSTM with projections of one sequence", lambda: nn.LSTM(3, 5, proj_size=2), real(4, 3))
layer("nn.RNN with relu", lambda: nn.RNN(3, 4, 2, nonlinearity="relu", bidirectional=True), real(5, 2, 3))

layer("nn.MultiheadAttention", _SelfAttention, real(2, 5, 8))
layer("nn.MultiheadAttention without weights", lambda: _SelfAttention(need_weights=False), real(2, 5, 8))
layer("nn.MultiheadAttention in eval mode", lambda: _SelfAttention().eval(), real(2, 5, 8))
layer("nn.MultiheadAttention by heads", lambda: _SelfAttention(average_attn_weights=False), real(2, 5, 8))
layer(
    "nn.MultiheadAttention with a causal mask",
    lambda: _SelfAttention(attn_mask=nn.Transformer.generate_square_subsequent_mask(5)),
    real(2, 5, 8),
    reference=None,
)
layer(
    "nn.MultiheadAttention without weights, causal",
    lambda: _SelfAttention(
        attn_mask=nn.Transformer.generate_square_subsequent_mask(5), is_causal=True, need_weights=False
    ),
    real(2, 5, 8),
)
layer(
    "nn.MultiheadAttention with a mask of booleans",
    lambda: _SelfAttention(attn_mask=torch.ones(5, 5).triu(1) > 0),
    real(2, 5, 8),
)
layer(
    "nn.MultiheadAttention with padding",
    _Padded,
    real(2, 5, 8),
    exactly([False, False, False, True, True], [False] * 5),
)
layer(
    "nn.MultiheadAttention of other keys",
    lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=7),
    real(5, 2, 8),
    real(4, 2, 6),
    real(4, 2, 7),
)
layer(
    "nn.MultiheadAttention with biases of keys",
    lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
    real(5, 2, 8),
    real(4, 2, 8),
    real(4, 2, 8),
)
for name, shape in (
    ("attention", (2, 3, 5, 4)),
    ("attention of three axes", (2, 5, 4)),
    ("attention of two axes", (5, 4)),
    ("attention of five axes", (2, 2, 3, 5, 4)),
):
    function(name, F.scaled_dot_product_attention, real(*shape), real(*shape), real(*shape))
function(
    "attention, causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
)
function(
    "attention, causal, more keys",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    real(2, 3, 4, 4),
    real(2, 3, 6, 4),
    real(2, 3, 6, 4),
)
function(
    "attention, scaled",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    real(2, 3, 5, 4),
    real(2, 3, 6, 4),
    real(2, 3, 6, 7),
)
function(
    "attention with a mask",
    F.scaled_dot_product_attention,
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(5, 5),
)
function(
    "attention with a mask of its own for each head",
    F.scaled_dot_product_attention,
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(2, 3, 5, 5),
)
function(
    "attention of three axes with a mask",
    F.scaled_dot_product_attention,
    real(2, 5, 4),
    real(2, 5, 4),
    real(2, 5, 4),
    real(2, 5, 5),
)
function(
    "attention of five axes with a mask",
    F.scaled_dot_product_attention,
    real(2, 2, 3, 5, 4),
    real(2, 2, 3, 5, 4),
    real(2, 2, 3, 5, 4),
    real(2, 1, 3, 5, 5),
)
function(
    "attention with a mask of booleans",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m | torch.eye(5, dtype=torch.bool)),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    real(2, 3, 5, 4),
    truth(2, 1, 5, 5),
)
function(
    "attention of grouped queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    real(2, 6, 5, 4),
    real(2, 2, 5, 4),
    real(2, 2, 5, 4),
)
function(
    "attention with dropout",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2),
    real(20, 3, 50, 4),
    real(20, 3, 50, 4),
    real(20, 3, 50, 40, low=1),
    random=True,
)
function(
    "attention with dropout, causal, of grouped queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True, enable_gqa=True),
    real(20, 6, 50, 4),
    real(20, 3, 50, 4),
    real(20, 3, 50, 40, low=1),
    random=True,
)
function(
    "attention with dropout and a mask",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, dropout_p=0.2),
    unit(20, 3, 50, 4),
    unit(20, 3, 50, 4),
    real(20, 3, 50, 40, low=1),
    unit(50, 50),
    random=True,
)
for first in (True, False):
    for activation in ("relu", "gelu"):
        layer(
            f"nn.TransformerEncoderLayer {first} {activation}",
            lambda first=first, activation=activation: nn.TransformerEncoderLayer(
                8, 2, 16, dropout=0, norm_first=first, activation=activation, batch_first=True
            ),
            real(2, 5, 8),
        )
layer(
    "nn.TransformerEncoderLayer in eval mode",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
    real(2, 5, 8),
)
layer(
    "nn.TransformerEncoder",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0), 2, nn.LayerNorm(8)),
    real(5, 2, 8),
)
layer(
    "nn.TransformerEncoder in eval mode",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
    real(2, 5, 8),
)
layer(
    "nn.TransformerDecoder",
    lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0), 2),
    real(5, 2, 8),
    real(4, 2, 8),
)
layer(
    "nn.Transformer",
    lambda: _Masked(nn.Transformer(8, 2, 1, 1, 16, dropout=0)),
    real(5, 2, 8),
    real(4, 2, 8),
    reference=None,
)
layer("nn.AdaptiveLogSoftmaxWithLoss's probabilities", _LogProbabilities, real(4, 8))
for orthogonal_map in ("matrix_exp", "householder"):
    layer(
        f"nn.Linear with orthogonal weights by {orthogonal_map}",
        lambda how=orthogonal_map: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map=how),
        real(3, 4),
    )
