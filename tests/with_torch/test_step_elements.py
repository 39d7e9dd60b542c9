"""Tensors outside of the module whose elements Python code asks for: each step counts with what they hold then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import data, eager_step
from steps import compiled
from torch import nn
from torch.nn import functional as F

NUMBER, WHOLE, ROW = torch.zeros(()), torch.zeros((), dtype=torch.int64), torch.zeros(3)
TENSORS = NUMBER, WHOLE, ROW

ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda _: NUMBER.item(),
    "float": lambda _: float(NUMBER),
    "int": lambda _: int(NUMBER),
    "list": lambda _: ROW.tolist()[1],
    "range": lambda _: len(range(WHOLE)),
    "index": lambda _: [1.0, 2.0, 3.0][WHOLE],
    "compared": lambda _: 3.0 if torch.equal(NUMBER, torch.tensor(2.0)) else 1.0,
    "slice": lambda x: x[:, :WHOLE].sum(),
    "size": lambda x: x.mean().expand(WHOLE).sum(),
    "factor": lambda x: torch.add(x, x, alpha=NUMBER).sum(),
    "number of a function": lambda x: F.leaky_relu(x, NUMBER).sum(),
    "element": lambda _: ROW[1].item(),
    "largest": lambda _: ROW.max().item(),
    "copy": lambda _: NUMBER.clone().item(),
    "both": lambda x: (x * NUMBER).sum() + NUMBER.item(),
}


def losses(ask: Callable[[torch.Tensor], Any], *, compiles: bool) -> tuple[list[float], int]:
    """What four steps lose, the tensors being filled before each of the first three, and how many were compiled."""
    torch.manual_seed(0)
    module = nn.Linear(6, 3)

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores, labels) * (1 + ask(scores))

    step = compiled(module, loss) if compiles else None
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    found = []
    for value, batch in zip((1, 2, 1, 1), data(4), strict=True):
        for tensor in TENSORS:
            tensor.fill_(value)
        found.append(float(step(*batch) if step else eager_step(module, loss, optimizer, batch)))
    return found, len(step._compiled) if step else 0


@pytest.mark.parametrize("name", ASKED)
def test_elements_that_code_asks_for(name: str) -> None:
    found, count = losses(ASKED[name], compiles=True)
    assert found == pytest.approx(losses(ASKED[name], compiles=False)[0], rel=1e-5)
    assert count == 2  # the third step is the first one's


def test_tensors_that_a_step_reads_itself_are_compiled_once() -> None:
    found, count = losses(lambda x: (x * NUMBER).sum(), compiles=True)
    assert found == pytest.approx(losses(lambda x: (x * NUMBER).sum(), compiles=False)[0], rel=1e-5)
    assert count == 1
