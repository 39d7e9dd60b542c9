"""A CNN on handwritten digits, in PyTorch; two lines give its training step to Glowtrain.

    python examples/torch/digits_cnn.py
    python examples/torch/digits_cnn.py --eager     without the two lines

``--quick`` makes it a short run, for tests.
"""

import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain as gt

EPOCHS = 3 if "--quick" in sys.argv else 12
torch.manual_seed(0)

digits = gt.data.load("digits")
x, y = torch.from_numpy(digits.x), torch.from_numpy(digits.y)
xv, yv = torch.from_numpy(digits.x_valid), torch.from_numpy(digits.y_valid)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step, as PyTorch does it."""
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


if "--eager" not in sys.argv:
    import glowtrain.torch

    step = glowtrain.torch.compile_step(model, cross_entropy, optimizer)

for epoch in range(EPOCHS):
    model.train()
    began = time.perf_counter()
    losses = [step(x[rows], y[rows]) for rows in torch.randperm(len(x)).split(64)]
    seconds = time.perf_counter() - began
    scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(xv).argmax(1) == yv).float().mean()
    print(f"epoch {epoch + 1:2}  loss {torch.stack(losses).mean():.4f}  accuracy {accuracy:.1%}  {seconds:.2f} s")
