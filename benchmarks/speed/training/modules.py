"""The models of the training rows in PyTorch, and what other engines need of them as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers import export, models
from benchmarks.speed.prepared import Arrays, Prepared
from benchmarks.speed.training.rows import TrainingRow

Batch = models.Batch
DISTINCT = 4
"""Different batches, used in turn."""
STATES, STEPS = 60, 614
"""Of the recurrence of :class:`StateScan`."""
WRITTEN = ("scan", "cumprod")
"""Rows that Glowtrain builds itself: ONNX's exporters unroll loops, and have no cumulative product."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TinyMlp(nn.Module):
    """f32[batch, 8] -> f32[batch, 1] through two layers of 16 with tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Predictions [batch, 1]."""
        predictions: Tensor = self.body(x)
        return predictions

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal inputs, and the sine of their sums."""
        x = torch.randn((batch, 8), generator=_generator(seed))
        return x, x.sum(1, keepdim=True).sin()


class DigitCnn(nn.Module):
    """PyTorch's MNIST example without its dropout: f32[batch, 1, 28, 28] -> logits f32[batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.head = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(functional.max_pool2d(x, 2), 1)
        logits: Tensor = self.head(functional.relu(self.hidden(x)))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images and labels."""
        return models.images(seed, (batch, 1, 28, 28), 10)


class _EncoderBlock(nn.Module):
    """Pre-norm self-attention by PyTorch's own kernel, and a GELU MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x and result: [batch, time, width]."""
        batch, time, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        result: Tensor = x + self.down(functional.gelu(self.up(self.ln2(x))))
        return result


class ViT(nn.Module):
    """Vision transformer with a mean in place of a class token: f32[batch, 3, 32, 32] -> logits f32[batch, 10]."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.ModuleList(_EncoderBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images and labels."""
        return models.images(seed, (batch, 3, 32, 32), 10)


def _stage(inputs: int, outputs: int) -> nn.Module:
    """Convolution, GroupNorm and SiLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    """f32[batch, 3, 64, 64] -> logits f32[batch, 64, 64, 4]: two levels down, and up again in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.bottom = _stage(3, 16), _stage(16, 32), _stage(32, 64)
        self.raise_ = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.merge, self.last = _stage(64, 32), _stage(48, 16)
        self.out = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel."""
        one = self.enter(x)
        two = self.down(functional.max_pool2d(one, 2))
        up = self.raise_(self.bottom(functional.max_pool2d(two, 2)))
        up = self.merge(torch.cat((up, two), dim=1))
        up = functional.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
        logits: Tensor = self.out(self.last(torch.cat((up, one), dim=1)))
        return logits.permute(0, 2, 3, 1)

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Normal images and a class for each pixel."""
        generator = _generator(seed)
        x = torch.randn((batch, 3, 64, 64), generator=generator)
        return x, torch.randint(0, 4, (batch, 64, 64), generator=generator)


class StateScan(nn.Module):
    """States that each follow their neighbour and a common input: x f32[steps] -> their mean at each step.

    One vector of states here, the kindest form for an eager engine; scalars in the other engines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.neighbour, self.own, self.start = (nn.Parameter(0.5 * torch.randn(STATES)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the states after each step."""
        means, state = list[Tensor](), self.start + 0
        for drive in x:
            target = torch.tanh(self.neighbour * torch.roll(state, -1) + self.own * state + drive)
            state = state + 0.1 * (target - state)
            means.append(state.mean())
        return torch.stack(means)

    def make_batch(self, seed: int, batch: int) -> Batch:
        """A normal input and a smooth target."""
        return torch.randn(STEPS, generator=_generator(seed)), torch.linspace(0, 1, STEPS)


class CumulativeProduct(nn.Module):
    """The mean of cumulative products along rows: x f32[batch, 1024] around 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.01 * torch.randn(256, 1024))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of all products."""
        return torch.cumprod(self.scale * x, dim=1).mean()

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Numbers around 1; the labels are not used."""
        return 1 + 0.01 * torch.randn((batch, 1024), generator=_generator(seed)), torch.zeros(1)


class Elementwise(nn.Module):
    """The mean of five functions of x f32[1000000], scaled by a parameter for each element."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1_000_000) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of all values."""
        v = x * self.scale
        return (torch.log(v) + torch.tanh(v) + torch.sigmoid(v) + torch.erf(v) + functional.mish(v)).mean()

    def make_batch(self, seed: int, batch: int) -> Batch:
        """Numbers from 0.5 to 1.5; the labels are not used."""
        return torch.rand(1_000_000, generator=_generator(seed)) + 0.5, torch.zeros(1)


class ManyParameters(nn.Module):
    """Ten tensors of a million elements and the least that gives each a gradient: means of squares, times x f32[1]."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(1_000_000)) for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the means of squares, times x."""
        total = torch.zeros(())
        for weight in self.weights:
            total = total + (weight * weight).mean()
        return (total * x).sum()

    def make_batch(self, seed: int, batch: int) -> Batch:
        """A number; the labels are not used."""
        return torch.ones(1), torch.zeros(1)


MODULES: dict[str, Callable[[], Any]] = {
    "tiny": TinyMlp,
    "mlp": lambda: models.Mlp((784, 512, 512, 10)),
    "cnn": DigitCnn,
    "resnet20": models.ResNet20,
    "mobilenetv2": lambda: models.MobileNetV2(0.35, size=96),
    "lstm": lambda: models.LstmModel(models.LstmConfig(embedding=64, hidden=256, length=50)),
    "gpt": lambda: models.Gpt(models.GptConfig(vocabulary=65)),
    "vit": ViT,
    "segmentation": UNet,
    "scan": StateScan,
    "cumprod": CumulativeProduct,
    "elementwise": Elementwise,
    "adam": ManyParameters,
}
"""By the rows' names."""


def build(row: TrainingRow) -> Any:
    """The row's seeded module in training mode."""
    torch.manual_seed(0)
    return MODULES[row.module]().train()


def prepare(row: TrainingRow, folder: Path) -> None:
    """Write the module as ONNX, its parameters and batches. What PyTorch's exporter raises is passed on."""
    module = build(row)
    pairs = models.make_batches(module, max(DISTINCT, row.calls), row.batch)
    model = None
    if row.module not in WRITTEN:
        model = export.export(module, pairs[0][0], exporter="legacy", opset=17, training=True)
    names = ("x",) if row.loss == "value" else ("x", "labels")
    batches = [{name: t.numpy() for name, t in zip(names, pair, strict=False)} for pair in pairs]
    parameters = _arrays(module.named_parameters())
    statistics = {name: a for name, a in _arrays(module.named_buffers()).items() if ".running_" in name}
    Prepared(folder, batches, parameters, statistics, _layers(module)).write(model)


def _arrays(named: Any) -> Arrays:
    return {name: np.array(tensor.detach().numpy()) for name, tensor in named}


def _layers(module: nn.Module) -> dict[str, Any]:
    """Strides, groups and padding of convolutions, and the number of heads."""
    convolutions = {
        name: (layer.stride[0], layer.groups, layer.padding[0])
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d)
    }
    heads = [layer.heads for layer in module.modules() if hasattr(layer, "heads")]
    return {"convolutions": convolutions, "heads": heads[0] if heads else 0}
