"""A small GPT that learns to write Python from the sources of PyTorch's optimizers, in PyTorch; two lines give its
training step to Glowtrain.

    python examples/torch/small_gpt.py
    python examples/torch/small_gpt.py --eager     without the two lines

``--quick`` makes it a short run, for tests.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

STEPS = 60 if "--quick" in sys.argv else 600
TIME, WIDTH, HEADS, LAYERS, BATCH = 64, 96, 4, 3, 12
torch.manual_seed(0)


class Block(nn.Module):
    """A layer of a pre-norm transformer (Radford et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Scores [batch, time, characters] of the next character; the embedding's weights are the head's, too."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.positions = nn.Parameter(torch.randn(TIME, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


text = "".join(path.read_text() for path in sorted(Path(torch.optim.__file__).parent.glob("*.py")))
alphabet = sorted(set(text))
tokens = torch.tensor([alphabet.index(c) for c in text])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text, and the same pieces one character further on."""
    starts = torch.randint(len(tokens) - TIME - 1, (BATCH,))
    pieces = torch.stack([tokens[start : start + TIME + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The cross entropy of all characters."""
    return cross_entropy(scores.flatten(0, 1), following.flatten())


model = GPT(len(alphabet))
matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.99))
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=50)


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step, as PyTorch does it."""
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


if "--eager" not in sys.argv:
    import glowtrain.torch

    step = glowtrain.torch.compile_step(model, loss_of, optimizer)

seconds = 0.0
for number in range(1, STEPS + 1):
    x, y = batch()
    began = time.perf_counter()
    loss = step(x, y)
    seconds += time.perf_counter() - began
    scheduler.step()
    if number % 10 == 0:
        print(f"step {number:4}  loss {loss:.4f}  {seconds:.2f} s in all")
