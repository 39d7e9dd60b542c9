"""torch.compile beside threads and processes: PyTorch's number of threads, workers of loaders, distributed training."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn
from torch._dynamo.convert_frame import compile_lock
from torch.fx import traceback

from glowtrain.torch import compile_step
from glowtrain.torch.dynamo.backend import CapturedFunction

pytestmark = pytest.mark.usefixtures("nothing_falls_back")


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_pytorchs(threads: int, captured: list[CapturedFunction]) -> None:
    torch.set_num_threads(threads)
    compiled(net())(ramp(4, 6)).sum().backward()
    (function,) = captured
    (special,) = function._kept.values()
    training: Any = special._function
    assert training._forward._executable.threads <= threads
    assert (training._forward._executable.pool is None) == (training._forward._executable.threads == 1)


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows, by a function if there is one."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> torch.Tensor:
        row = torch.full((6,), float(number))
        if self.function is None:
            return row
        with torch.no_grad():
            return self.function(row[None])[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_beside_workers_of_a_loader(method: str) -> None:
    torch.set_num_threads(2)
    eager, ours, other = pair(net())
    ours(ramp(8, 6)).sum().backward()
    eager(ramp(8, 6)).sum().backward()
    loader = torch.utils.data.DataLoader(Rows(), 8, num_workers=2, multiprocessing_context=method, timeout=60)
    for batch in loader:
        for module in (eager, ours):
            module(batch).square().sum().backward()
    same_gradients(other, eager)


def test_in_workers_after_fork() -> None:
    torch.set_num_threads(2)
    eager, ours, _ = pair(net())
    with torch.no_grad():
        ours(ramp(1, 6))
        loader = torch.utils.data.DataLoader(Rows(ours), 8, num_workers=2, multiprocessing_context="fork", timeout=60)
        found = torch.cat(list(loader))
        close(found, eager(torch.arange(32.0)[:, None].expand(32, 6)))


def test_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        eager, _, other = pair(net())
        ours = compiled(nn.parallel.DistributedDataParallel(other))
        for module in (eager, ours):
            module(ramp(4, 6)).square().sum().backward()
        same_gradients(other, eager)
    finally:
        torch.distributed.destroy_process_group()


class Cube(torch.autograd.Function):
    """A gradient of its own, which no trace would follow."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def backward(context: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return 7 * cotangents[0]


def own_gradient() -> torch.Tensor:
    x = ramp(3).requires_grad_()
    Cube.apply(x).sum().backward()
    return x.grad if x.grad is not None else torch.zeros(3)


class Beside(nn.Module):
    """Where it is traced, another thread computes something."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape == (4, 6)
        thread = Thread(target=compute_beside)
        thread.start()
        thread.join()
        return self.layer(x)


FOUND: list[Any] = []


def compute_beside() -> None:
    FOUND.append(own_gradient())
    FOUND.append(nn.BatchNorm1d(6, momentum=None)(ramp(4, 6)))
    with traceback.annotate({"mine": 1}):
        FOUND.append("mine" in traceback.current_meta.get("custom", {}))
    FOUND.append(compile_lock.acquire(blocking=False))


def test_a_trace_leaves_other_threads_alone() -> None:
    """Dynamo waits for it in them."""
    module, annotate = Beside(), traceback.annotate
    optimizer = torch.optim.SGD(module.layer.parameters(), 0.1)
    compile_step(module, nn.functional.mse_loss, optimizer)(ramp(4, 6), ramp(4, 3))
    gradient, normalized, annotated, locked = FOUND
    torch.testing.assert_close(gradient, torch.full((3,), 7.0))
    close(normalized, nn.BatchNorm1d(6)(ramp(4, 6)))
    assert not annotated
    assert not locked
    assert traceback.annotate is annotate
