"""The six peer models in PyTorch, with seeded batches and reference losses and gradients.

The models are the yardstick for training: each is exported to ONNX, imported, and its losses and gradients are
compared with the ones PyTorch computes here. Sizes are arguments, so that tests can use small ones. No model holds a
dropout layer unless `dropout` is given, because two random generators cannot be compared step by step.

Compare MobileNetV2 and ResNet-20 in float64. In float32 a rounding error moves some activation across a kink of ReLU
and its gradient jumps, so that PyTorch's own float32 and float64 runs differ by up to 1e-2, in gradients and losses.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class PeerModel(Protocol):
    """What every model of this file offers beside being an `nn.Module`."""

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Seeded inputs and int64 labels for one step."""
        ...


def images(seed: int, shape: tuple[int, ...], classes: int) -> Batch:
    """Standard normal images of `shape` (batch first) and uniform labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x, torch.randint(0, classes, shape[:1], generator=generator)


def _he_normal(module: nn.Module) -> None:
    """He normal convolutions (He et al. 2015): PyTorch's default makes twenty layers of BatchNorm ill-conditioned."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


class Mlp(nn.Module):
    """Linear layers with ReLU between them: x f32[batch, widths[0]] -> logits f32[batch, widths[-1]]."""

    def __init__(self, widths: tuple[int, ...] = (784, 512, 256, 10), dropout: float = 0.0) -> None:
        super().__init__()
        self.widths = widths
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for fan_in, fan_out in pairwise(widths[1:]):
            layers += [nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(fan_in, fan_out)]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of flat images."""
        logits: Tensor = self.body(x)
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal inputs f32[batch, widths[0]] and labels."""
        return images(seed, (batch, self.widths[0]), self.widths[-1])


class Cnn(nn.Module):
    """Two conv-BatchNorm-ReLU-pool stages, a plain convolution and a linear head for f32[batch, 1, 28, 28].

    Only the plain convolution has a bias: before a BatchNorm its gradient would be zero, with no norm to compare with.
    """

    def __init__(self, channels: tuple[int, int] = (16, 32), classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.classes = classes
        self.conv1 = nn.Conv2d(1, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels[1])
        self.conv3 = nn.Conv2d(channels[1], channels[1], 3, padding=1)
        self.max_pool = nn.MaxPool2d(2)
        self.avg_pool = nn.AvgPool2d(2)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(channels[1] * 7 * 7, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.max_pool(functional.relu(self.bn1(self.conv1(x))))
        x = self.avg_pool(functional.relu(self.bn2(self.conv2(x))))
        x = functional.relu(self.conv3(x))
        logits: Tensor = self.head(self.dropout(torch.flatten(x, 1)))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images f32[batch, 1, 28, 28] and labels."""
        return images(seed, (batch, 1, 28, 28), self.classes)


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a 1x1 convolution with BatchNorm where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """relu(F(x) + shortcut(x))"""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet20(nn.Module):
    """CIFAR ResNet of 6n+2 layers, n = `depth` (He et al. 2015, section 4.2), for f32[batch, 3, 32, 32]."""

    def __init__(self, width: int = 16, depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(3):
            for block in range(depth):
                blocks.append(_BasicBlock(inputs, width << stage, 2 if stage and not block else 1))
                inputs = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)
        _he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images f32[batch, 3, 32, 32] and labels."""
        return images(seed, (batch, 3, 32, 32), self.classes)


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Module:
    """Convolution without bias, BatchNorm, and ReLU6 where `act`."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([nn.ReLU6()] if act else []))


class _InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise, 1x1 linear projection; a residual sum where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers = [_conv_bn(inputs, hidden, 1)] if expand != 1 else []
        layers += [_conv_bn(hidden, hidden, 3, stride, hidden), _conv_bn(hidden, outputs, 1, act=False)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's value, plus x where the shapes agree."""
        y: Tensor = self.body(x)
        return x + y if self.residual else y


# Expansion, channels, repeats, first stride: Sandler et al. 2018, table 2, with the strides of the stem and of the
# second stage set to 1, as is usual for 32x32 images.
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """MobileNetV2 (Sandler et al. 2018) for f32[batch, 3, size, size]; `width` scales every stage's channels.

    Above 32x32 the stem and the second stage have the paper's stride of 2.
    """

    def __init__(self, width: float = 1.0, classes: int = 10, dropout: float = 0.0, size: int = 32) -> None:
        super().__init__()
        self.classes, self.size = classes, size
        early = 2 if size > 32 else 1
        inputs = self._channels(32, width)
        layers = [_conv_bn(3, inputs, 3, early)]
        for stage, (expand, channels, repeats, stride) in enumerate(_MOBILENET_STAGES):
            first_stride = early if stage == 1 else stride
            outputs = self._channels(channels, width)
            for repeat in range(repeats):
                layers.append(_InvertedResidual(inputs, outputs, 1 if repeat else first_stride, expand))
                inputs = outputs
        last = self._channels(1280, width)
        layers.append(_conv_bn(inputs, last, 1))
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = nn.Linear(last, classes)

    @staticmethod
    def _channels(channels: int, width: float) -> int:
        """The scaled count, rounded to a multiple of 8 and never below 8."""
        return max(8, int(channels * width + 4) // 8 * 8)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.head(self.dropout(self.features(x).mean((2, 3))))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images f32[batch, 3, size, size] and labels."""
        return images(seed, (batch, 3, self.size, self.size), self.classes)


@dataclass(frozen=True)
class LstmConfig:
    """Sizes of `LstmModel`; `per_token` asks for logits at every position (a character model)."""

    vocabulary: int = 64
    embedding: int = 32
    hidden: int = 64
    layers: int = 1
    bidirectional: bool = False
    classes: int = 10
    length: int = 20
    per_token: bool = False


class LstmModel(nn.Module):
    """Embedding, LSTM and a linear head: tokens i64[batch, length] -> logits of the last step or of every step."""

    def __init__(self, config: LstmConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or LstmConfig()
        self.embed = nn.Embedding(c.vocabulary, c.embedding)
        self.lstm = nn.LSTM(c.embedding, c.hidden, c.layers, batch_first=True, bidirectional=c.bidirectional)
        self.head = nn.Linear(c.hidden * (2 if c.bidirectional else 1), c.vocabulary if c.per_token else c.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, classes], or [batch, length, vocabulary] where `per_token`."""
        y, _ = self.lstm(self.embed(tokens))
        logits: Tensor = self.head(y if self.config.per_token else y[:, -1])
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Uniform tokens, and labels: classes, or the next tokens where `per_token`."""
        c = self.config
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(0, c.vocabulary, (batch, c.length + 1), generator=generator)
        if c.per_token:
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        return text[:, :-1].contiguous(), torch.randint(0, c.classes, (batch,), generator=generator)


@dataclass(frozen=True)
class GptConfig:
    """Sizes of `Gpt`."""

    vocabulary: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 4
    length: int = 64
    dropout: float = 0.0


class _Attention(nn.Module):
    """Causal self-attention written out with matrix products, a mask and softmax (Vaswani et al. 2017)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        # An f32 number: the dynamo exporter writes factors as f32 in f64 models too.
        self.scale = float(np.float32(1.0 / math.sqrt(config.width // config.heads)))
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        mask = torch.tril(torch.ones(config.length, config.length)).view(1, 1, config.length, config.length)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """x and result: [batch, time, width]."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * self.scale
        mask: Tensor = self.get_buffer("mask")[:, :, :time, :time]
        weights = functional.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
        merged: Tensor = self.out((weights @ v).transpose(1, 2).contiguous().view(batch, time, width))
        return merged


class _GptBlock(nn.Module):
    """Pre-norm transformer block with a GELU (erf) MLP of four times the width."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.width)
        self.attention = _Attention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x + attention, then + MLP."""
        x = x + self.dropout(self.attention(self.ln1(x)))
        y: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.ln2(x)))))
        return y


class Gpt(nn.Module):
    """Decoder-only transformer: tokens i64[batch, length] -> logits f32[batch, length, vocabulary]."""

    def __init__(self, config: GptConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or GptConfig()
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.positions = nn.Embedding(c.length, c.width)
        self.blocks = nn.ModuleList(_GptBlock(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Uniform tokens and the next tokens as labels, both i64[batch, length]."""
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(0, self.config.vocabulary, (batch, self.config.length + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


# Sizes as the issue names them; `small=True` of `build` divides the work for tests.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "mlp": (Mlp, lambda: Mlp((20, 16, 12, 10))),
    "cnn": (Cnn, lambda: Cnn((4, 6))),
    "resnet20": (ResNet20, lambda: ResNet20(width=4)),
    "mobilenetv2": (MobileNetV2, lambda: MobileNetV2(width=0.1)),
    "lstm": (lambda: LstmModel(LstmConfig()), lambda: LstmModel(LstmConfig(12, 6, 5, length=7))),
    "lstm2": (
        lambda: LstmModel(LstmConfig(layers=2, per_token=True)),
        lambda: LstmModel(LstmConfig(12, 6, 5, layers=2, length=7, per_token=True)),
    ),
    "bilstm2": (
        lambda: LstmModel(LstmConfig(layers=2, bidirectional=True)),
        lambda: LstmModel(LstmConfig(12, 6, 5, layers=2, bidirectional=True, length=7)),
    ),
    "gpt": (lambda: Gpt(GptConfig()), lambda: Gpt(GptConfig(11, 16, 2, 4, 8))),
}


def build(name: str, *, small: bool = False, seed: int = 0) -> nn.Module:
    """A seeded model of `MODELS`; the global random generator is left as it was.

    Raises KeyError for an unknown name.
    """
    full, reduced = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (reduced if small else full)()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over all leading axes; the last axis of `logits` holds the classes."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def make_batches(module: PeerModel, count: int, batch: int, seed: int = 0) -> list[Batch]:
    """`count` batches with the seeds `seed`, `seed + 1`, …"""
    return [module.make_batch(seed + step, batch) for step in range(count)]


def sgd(lr: float = 0.05, momentum: float = 0.9) -> OptimizerFactory:
    """SGD with momentum, as PyTorch computes it (velocity without dampening)."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(lr: float = 1e-3) -> OptimizerFactory:
    """Adam with PyTorch's defaults (betas 0.9 and 0.999, eps 1e-8 after bias correction)."""
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


def _copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """An independent copy in training mode and `dtype`, so that a reference never changes what it measures."""
    return copy.deepcopy(module).to(dtype).train()


def cast_inputs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in `dtype` where it is floating point; tokens stay as they are."""
    return x.to(dtype) if x.is_floating_point() else x


def reference_gradients(
    module: nn.Module, batch: Batch, dtype: torch.dtype = torch.float32
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss of one batch in training mode and its gradient for each parameter, by name; `module` stays as it is."""
    twin = _copy(module, dtype)
    loss = cross_entropy(twin(cast_inputs(batch[0], dtype)), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad.numpy().copy() for name, p in twin.named_parameters() if p.grad is not None}
    return float(loss.detach()), grads


def train_losses(
    module: nn.Module, batches: Iterable[Batch], optimizer: OptimizerFactory, dtype: torch.dtype = torch.float32
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Loss of each step before its update, and the state dict (parameters and buffers) after the last one."""
    twin = _copy(module, dtype)
    rule = optimizer(twin.parameters())
    losses: list[float] = []
    for x, labels in batches:
        rule.zero_grad()
        loss = cross_entropy(twin(cast_inputs(x, dtype)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        losses.append(float(loss.detach()))
    return losses, {name: value.numpy().copy() for name, value in twin.state_dict().items()}


def gradient_errors(
    reference: dict[str, np.ndarray], values: dict[str, np.ndarray], floor: float = 1e-6
) -> dict[str, float]:
    """Norm of each difference over the norm of its reference, at least `floor` times the norm of all references.

    The floor is for gradients that are zero in exact arithmetic, such as that of a BatchNorm's bias before another
    1x1 convolution with BatchNorm (17 in MobileNetV2): only noise, which has no direction to agree with.
    """
    total = math.sqrt(sum(float(np.vdot(g, g)) for g in reference.values()))
    scale = {name: max(float(np.linalg.norm(g)), floor * total) for name, g in reference.items()}
    return {name: float(np.linalg.norm(values[name] - g)) / scale[name] for name, g in reference.items()}
