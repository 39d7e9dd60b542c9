"""An LSTM that tags each character of arithmetic with how deep it stands in brackets, in PyTorch; two lines give its
training step to Glowtrain.

    python examples/torch/lstm_tagger.py
    python examples/torch/lstm_tagger.py --eager     without the two lines

``--quick`` makes it a short run, for tests.
"""

import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 60 if "--quick" in sys.argv else 400
ALPHABET, DEPTHS, LENGTH, BATCH = "()0123456789+-*/", 8, 40, 32
torch.manual_seed(0)


class Tagger(nn.Module):
    """Scores [batch, time, depths] of the depth of each character [batch, time]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)
        self.head = nn.Linear(128, DEPTHS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(characters))
        return self.head(hidden)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Random characters, many of them brackets, and the depth after each of them, from 0 to 7."""
    characters = torch.where(torch.rand(BATCH, LENGTH) < 0.5, torch.randint(0, 2, (BATCH, LENGTH)),
                             torch.randint(2, len(ALPHABET), (BATCH, LENGTH)))  # fmt: skip
    change = (characters == 0).long() - (characters == 1).long()
    depth, depths = torch.zeros(BATCH, dtype=torch.long), []
    for column in change.T:
        depth = (depth + column).clamp(0, DEPTHS - 1)
        depths.append(depth)
    return characters, torch.stack(depths, 1)


def loss_of(scores: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
    """The cross entropy of all characters."""
    return cross_entropy(scores.flatten(0, 1), depths.flatten())


model = Tagger()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step, as PyTorch does it."""
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


if "--eager" not in sys.argv:
    import glowtrain.torch

    step = glowtrain.torch.compile_step(model, loss_of, optimizer, clip_norm=1.0)

seconds = 0.0
for number in range(1, STEPS + 1):
    characters, depths = batch()
    began = time.perf_counter()
    loss = step(characters, depths)
    seconds += time.perf_counter() - began
    if number % 20 == 0:
        with torch.no_grad():
            characters, depths = batch()
            accuracy = (model(characters).argmax(2) == depths).float().mean()
        print(f"step {number:4}  loss {loss:.4f}  accuracy {accuracy:.1%}  {seconds:.2f} s in all")
