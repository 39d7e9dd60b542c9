"""A step of PyTorch's modules goes through the compile service, as a trainer's does."""

from __future__ import annotations

import torch
from torch import nn

import glowtrain as gt
import glowtrain.torch as gtt
from glowtrain.compiler import service
from tests.route import check, route_of


def test_a_compiled_step() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def train() -> None:
        step = gtt.compile_step(module, nn.functional.mse_loss, optimizer, backend=gt.Cpu(cache=None, threads=1))
        step(torch.ones(4, 6), torch.zeros(4, 3))

    check(route_of(train), service.build, 1)
