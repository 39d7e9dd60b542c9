"""Networks as people write them with PyTorch's own layers, small, for checking what its exporters make of them.

Each has `make_input(seed, batch)`. Their parameters are random numbers around PyTorch's initial values (see `build`),
so that a number found in an exported file says which parameter it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

NOISE = 0.02
"""Standard deviation of what is added to each parameter."""


class ExportedModel(Protocol):
    """What every model of this file offers beside being an `nn.Module`."""

    def make_input(self, seed: int, batch: int) -> Tensor:
        """A seeded input for one call."""
        ...


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _tokens(seed: int, count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed))


class Mlp(nn.Module):
    """x f32[batch, 20] through two hidden layers with GELU and Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(20, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        logits: Tensor = self.body(x)
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Normal numbers."""
        return _normal(seed, batch, 20)


class Cnn(nn.Module):
    """x f32[batch, 3, 16, 16]: convolutions with BatchNorm, both poolings, grouped and strided ones, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d((2, 2)),
            nn.Flatten(),
        )
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Normal numbers."""
        return _normal(seed, batch, 3, 16, 16)


class Recurrent(nn.Module):
    """tokens i64[batch, 9]: an embedding, two bidirectional layers of `kind`, and a head on the last step."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.body = kind(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        y, _ = self.body(self.embed(tokens))
        logits: Tensor = self.head(y[:, -1])
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Uniform tokens."""
        return _tokens(seed, 13, batch, 9)


class Encoder(nn.Module):
    """x f32[batch, 7, 16]: PyTorch's TransformerEncoder of two layers, and a head on the mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        logits: Tensor = self.head(self.body(x).mean(dim=1))
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Normal numbers."""
        return _normal(seed, batch, 7, 16)


class _RmsNorm(nn.Module):
    """RMSNorm written out, as before PyTorch had the layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x over its root mean square, times the weight."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class _GptBlock(nn.Module):
    """Pre-norm block: rotary causal attention with shared key heads, then a gated SiLU MLP (Touvron et al. 2023)."""

    def __init__(self, width: int, heads: int, shared: int, written: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.size, self.written = heads, shared, width // heads, written
        self.norm1, self.norm2 = ((_RmsNorm if written else nn.RMSNorm)(width) for _ in range(2))
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x and result [batch, time, width]; cos and sin [time, size]."""
        batch, time, width = x.shape
        y = self.norm1(x)
        q = self.query(y).view(batch, time, self.heads, self.size).transpose(1, 2)
        k, v = self.key_value(y).view(batch, time, 2 * self.shared, self.size).transpose(1, 2).chunk(2, dim=1)
        q, k = (t * cos + self._turned(t) * sin for t in (q, k))
        if self.written:
            mixed = self._attention(q, *(t.repeat_interleave(self.heads // self.shared, dim=1) for t in (k, v)))
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        y = self.norm2(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(self.size)).masked_fill(hidden, float("-inf"))
        return scores.softmax(dim=-1) @ v

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)


class Gpt(nn.Module):
    """tokens i64[batch, 8]: a decoder with RMSNorm, rotary positions, SiLU gates and grouped heads.

    `written` spells out normalization and attention instead of calling PyTorch's.
    """

    def __init__(self, written: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList(_GptBlock(16, 4, 2, written) for _ in range(2))
        self.norm = (_RmsNorm if written else nn.RMSNorm)(16)
        self.head = nn.Linear(16, 11, bias=False)
        angles = torch.outer(torch.arange(8.0), 10000.0 ** (-torch.arange(0, 4, 2) / 4)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, 8, 11]."""
        x, time = self.tokens(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.get_buffer("cos")[:time], self.get_buffer("sin")[:time])
        logits: Tensor = self.head(self.norm(x))
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Uniform tokens."""
        return _tokens(seed, 11, batch, 8)


def _stage(inputs: int, outputs: int) -> nn.Module:
    """Convolution, GroupNorm and ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU())


class UNet(nn.Module):
    """x f32[batch, 1, 16, 16]: two levels down, up again with ConvTranspose2d and with bilinear interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.bottom = _stage(1, 4), _stage(4, 8), _stage(8, 8)
        self.pool = nn.MaxPool2d(2)
        self.raise_ = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.merge, self.last = _stage(16, 4), _stage(8, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [batch, 2, 16, 16]."""
        one = self.enter(x)
        two = self.down(self.pool(one))
        up = self.merge(torch.cat((self.raise_(self.bottom(self.pool(two))), two), dim=1))
        up = functional.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
        result: Tensor = self.out(self.last(torch.cat((up, one), dim=1)))
        return result

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Normal numbers."""
        return _normal(seed, batch, 1, 16, 16)


class ViT(nn.Module):
    """x f32[batch, 3, 16, 16]: patches of 4, a class token, learned positions, two pre-norm GELU encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.positions = nn.Parameter(torch.zeros(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 5]."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        sequence = torch.cat((self.token.expand(x.shape[0], -1, -1), patches), dim=1) + self.positions
        logits: Tensor = self.head(self.body(sequence)[:, 0])
        return logits

    def make_input(self, seed: int, batch: int) -> Tensor:
        """Normal numbers."""
        return _normal(seed, batch, 3, 16, 16)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "encoder": Encoder,
    "gpt": Gpt,
    "gptplain": lambda: Gpt(written=True),
    "unet": UNet,
    "vit": ViT,
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A seeded model of `MODELS` in inference mode, no two of whose parameters are equal but by chance."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MODELS[name]()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * NOISE)
            for buffer_name, buffer in module.named_buffers():
                if buffer_name.endswith(("running_mean", "running_var")):
                    buffer.add_(torch.rand_like(buffer) / math.sqrt(buffer.numel()))
    return module.eval()
