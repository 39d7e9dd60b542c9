"""Thirty small modules of different kinds, with inputs and losses: what torch.compile is tested and timed on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """``loss(module, *inputs)`` calls a module, once or several times; ``make`` and ``inputs`` take random numbers from
    PyTorch's generator. ``random``: the module draws numbers itself, other ones than PyTorch's."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    loss: Loss
    random: bool = False


def classes(module: nn.Module, *inputs: Tensor) -> Tensor:
    return F.cross_entropy(module(*inputs[:-1]).flatten(0, -2), inputs[-1].flatten())


def squares(module: nn.Module, *inputs: Tensor) -> Tensor:
    return F.mse_loss(module(*inputs[:-1]), inputs[-1])


def images(count: int = 16, size: int = 16, channels: int = 3, labels: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(count, channels, size, size), torch.randint(0, labels, (count,))


def tokens(count: int = 8, length: int = 24, words: int = 50) -> tuple[Tensor, Tensor]:
    return torch.randint(0, words, (count, length)), torch.randint(0, words, (count, length))


def vectors(count: int = 64, size: int = 64, labels: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(count, size), torch.randint(0, labels, (count,))


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(h)))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def resnet() -> nn.Module:
    blocks = ResidualBlock(16), ResidualBlock(16)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def frozen_statistics() -> nn.Module:
    """BatchNorm by its running statistics, whose affine part is trained."""
    return resnet().eval()


def depthwise() -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 1)]
    for _ in range(2):
        parts += [nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 16, 1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.gate = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.stem(x))
        h = h * self.gate(h.mean((2, 3)))[:, :, None, None]
        return self.head(h.amax((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu(self.down(x))
        deep = F.relu(self.middle(F.avg_pool2d(wide, 2)))
        return self.out(torch.cat([wide, self.up(deep)], 1))


class Convolutions1d(nn.Module):
    """Dilated, causal convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(16, 16, 3, dilation=2**i) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(F.pad(x, (2 * 2**i, 0))))
        return x


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.read, self.write = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.read(x).chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.write(h.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, size: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(size, heads, causal)
        self.mlp = mlp(size, 4 * size, size, activation=nn.GELU)
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norms[0](x), mask)
        return x + self.mlp(self.norms[1](x))


class TinyGpt(nn.Module):
    """The embedding is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(24, 32)
        self.blocks = nn.ModuleList([Block(32, 4, causal=True) for _ in range(2)])
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MaskedEncoder(nn.Module):
    """Attention that leaves padding out: word 0."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32, padding_idx=0)
        self.block = Block(32, 4, causal=False)
        self.head = nn.Linear(32, 50)

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0)[:, None, None, :]
        return self.head(self.block(self.words(words), there))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.first = nn.Parameter(torch.zeros(1, 1, 32))
        self.blocks = nn.Sequential(Block(32, 4, causal=False), Block(32, 4, causal=False))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(torch.cat([self.first.expand(len(h), -1, -1), h], 1))[:, 0])


class EncoderLayer(nn.Module):
    """PyTorch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.recurrent = kind(24, 32, batch_first=True, **options)
        self.head = nn.Linear(32 * (1 + options.get("bidirectional", False)), 50)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.recurrent(self.words(words))[0])


class Cells(nn.Module):
    """A loop over time in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(16, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 32)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class GraphNetwork(nn.Module):
    """Messages along edges, added up at nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.messages, self.nodes, self.head = mlp(32, 32, 16), mlp(32, 32, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for _ in range(2):
            sent = self.messages(torch.cat([x[edges[0]], x[edges[1]]], -1))
            received = torch.zeros_like(x).index_add(0, edges[1], sent)
            x = x + self.nodes(torch.cat([x, received], -1))
        return self.head(x)


class GraphAttention(nn.Module):
    """Weights of edges by a softmax over those that end at the same node, by scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.scores, self.head = nn.Linear(16, 16), nn.Linear(32, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        raw = F.leaky_relu(self.scores(torch.cat([x[edges[0]], x[edges[1]]], -1))[:, 0], 0.2)
        weights = raw.exp()
        total = torch.zeros(len(x)).scatter_add(0, edges[1], weights)
        sent = self.values(x)[edges[0]] * (weights / total[edges[1]])[:, None]
        index = edges[1][:, None].expand_as(sent)
        return self.head(torch.zeros_like(x).scatter_add(0, index, sent))


def nodes() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(100, 16), torch.randint(0, 100, (2, 600)), torch.randint(0, 3, (100,))


class Autoencoder(nn.Module):
    """A variational autoencoder, whose noise is an input and whose result is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 128, 32), mlp(16, 128, 64)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, logarithm = self.encoder(x).chunk(2, -1)
        made = self.decoder(mean + noise * torch.exp(0.5 * logarithm))
        divergence = -0.5 * (1 + logarithm - mean.square() - logarithm.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(made, x.sigmoid()) + 0.01 * divergence


def own(module: nn.Module, *inputs: Tensor) -> Tensor:
    return module(*inputs)


class Experts(nn.Module):
    """The best two of four experts for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 64, 64) / 8), nn.Parameter(torch.randn(4, 64, 10) / 8)

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).topk(2, -1)
        weights = torch.zeros(len(x), 4).scatter(1, which, best.softmax(-1))
        each = torch.einsum("enh,eho->eno", F.relu(torch.einsum("nd,edh->enh", x, self.up)), self.down)
        return torch.einsum("ne,eno->no", weights, each)


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 256) / 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.sigmoid(F.linear(x, self.weight)), self.weight.t())


class SeveralHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.label, self.box = mlp(64, 128, 64), nn.Linear(64, 10), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.relu(self.trunk(x))
        return {"label": self.label(h), "box": self.box(h).sigmoid()}


def label_and_box(module: nn.Module, x: Tensor, label: Tensor) -> Tensor:
    found = module(x)
    return F.cross_entropy(found["label"], label) + F.smooth_l1_loss(found["box"], torch.full_like(found["box"], 0.3))


def triplets(module: nn.Module, one: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Three calls before one backward: metric learning."""
    return F.triplet_margin_loss(*(F.normalize(module(x), dim=-1) for x in (one, near, far)), margin=0.5)


def similar(module: nn.Module, one: Tensor, other: Tensor) -> Tensor:
    """Two calls of a siamese network, compared with each other."""
    a, b = F.normalize(module(one), dim=-1), F.normalize(module(other), dim=-1)
    return F.cross_entropy(a @ b.t() / 0.1, torch.arange(len(a)))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.judge = mlp(16, 128, 64), mlp(64, 128, 1, activation=nn.Tanh)

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(noise)
        return made, self.judge(made)


def adversarial(module: nn.Module, noise: Tensor, real: Tensor) -> Tensor:
    made, judged = module(noise)
    return F.softplus(-judged).mean() + (made.mean(0) - real.mean(0)).square().sum()


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(200, 32), nn.Embedding(300, 32, padding_idx=0)
        self.mlp = mlp(64, 64, 1)

    def forward(self, user: Tensor, items: Tensor) -> Tensor:
        liked = self.items(items)
        there = (items != 0).unsqueeze(-1)
        mean = (liked * there).sum(1) / there.sum(1).clamp(min=1)
        return self.mlp(torch.cat([self.users(user), mean], -1))[:, 0]


def ratings() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randint(0, 200, (64,)), torch.randint(0, 300, (64, 12)), torch.randn(64)


class Fourier(nn.Module):
    """A field by sines of coordinates, whose layers are added to a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, 32))
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        h = torch.cat([angles.sin(), angles.cos()], -1)
        for layer in self.layers:
            h = h + torch.sin(layer(h))
        return self.head(h)


class StateSpace(nn.Module):
    """A linear recurrence in closed form: a kernel of decaying exponentials over time."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.mix = nn.Parameter(torch.rand(16)), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        time = torch.arange(x.shape[1], dtype=x.dtype)
        ages = (time[:, None] - time[None, :]).clamp(min=0)
        kernel = torch.exp(-ages[..., None] * F.softplus(self.decay)) * (time[:, None] >= time[None, :])[..., None]
        return self.mix(F.silu(torch.einsum("tsc,bsc->btc", kernel, x)))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.norm, self.tokens, self.channels = nn.LayerNorm(32), mlp(16, 32, 16), mlp(32, 64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + self.tokens(self.norm(h).transpose(1, 2)).transpose(1, 2)
        return self.head((h + self.channels(self.norm(h))).mean(1))


def normalized() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.InstanceNorm2d(16, affine=True), nn.ELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10))


def sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 24, 16), torch.randn(16, 24, 16)


ZOO: dict[str, Case] = {
    "multilayer perceptron": Case(lambda: mlp(784, 256, 128, 10), lambda: vectors(64, 784), classes),
    "convolutional": Case(cnn, images, classes),
    "residual, batch norm": Case(resnet, images, classes),
    "batch norm, running statistics": Case(frozen_statistics, images, classes),
    "depthwise": Case(depthwise, images, classes),
    "squeeze and excite": Case(SqueezeExcite, images, classes),
    "group and instance norm": Case(normalized, images, classes),
    "u-net": Case(UNet, lambda: (torch.randn(8, 1, 16, 16), torch.randn(8, 1, 16, 16)), squares),
    "dilated convolutions": Case(Convolutions1d, lambda: (torch.randn(8, 16, 32), torch.randn(8, 16, 32)), squares),
    "gpt, tied": Case(TinyGpt, tokens, classes),
    "encoder with masks": Case(MaskedEncoder, tokens, classes),
    "vision transformer": Case(VisionTransformer, images, classes),
    "encoder layer": Case(EncoderLayer, lambda: (torch.randn(8, 24, 32), torch.randn(8, 24, 32)), squares),
    "mixer": Case(Mixer, images, classes),
    "lstm": Case(lambda: Tagger(nn.LSTM), tokens, classes),
    "lstm, two layers, both ways": Case(lambda: Tagger(nn.LSTM, num_layers=2, bidirectional=True), tokens, classes),
    "gru": Case(lambda: Tagger(nn.GRU), tokens, classes),
    "cells in a loop": Case(Cells, lambda: (torch.randn(16, 8, 16), torch.randint(0, 10, (16,))), classes),
    "state space": Case(StateSpace, sequences, squares),
    "graph network": Case(GraphNetwork, nodes, classes),
    "graph attention": Case(GraphAttention, nodes, classes),
    "variational autoencoder": Case(Autoencoder, lambda: (torch.randn(64, 64), torch.randn(64, 16)), own),
    "mixture of experts": Case(Experts, vectors, classes),
    "tied autoencoder": Case(TiedAutoencoder, lambda: (x := torch.randn(128, 256), x.sigmoid()), squares),
    "several heads": Case(SeveralHeads, vectors, label_and_box),
    "metric learning": Case(lambda: mlp(64, 128, 32), lambda: tuple(torch.randn(3, 64, 64)), triplets),
    "siamese": Case(cnn, lambda: (torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16)), similar),
    "adversarial": Case(Adversaries, lambda: (torch.randn(64, 16), torch.randn(64, 64)), adversarial),
    "recommender": Case(Recommender, ratings, squares),
    "fourier features": Case(Fourier, lambda: (torch.rand(256, 2), torch.rand(256, 3)), squares),
    "dropout": Case(dropped, vectors, classes, random=True),
}
