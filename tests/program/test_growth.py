"""The passes' work grows about as fast as the program: counted in function calls, which no neighbour disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from glowtrain import losses, optim
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Sum
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.tensor.move import Concat
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec
from glowtrain.types import f32
from tests.stages import fuse, lower


def calls_in(work: Callable[[], Any]) -> int:
    """How many Python functions ``work`` calls."""
    count = 0

    def event(frame: FrameType, kind: str, argument: Any) -> None:
        nonlocal count
        count += kind == "call"

    before = sys.getprofile()
    sys.setprofile(event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def chain(x: Value, n: int) -> Value:
    for _ in range(n):
        x = Relu()(Tanh()(x) * 1.5)
    return x


def skips(x: Value, n: int) -> Value:
    for _ in range(n):
        x = Tanh()(x) + x
    return x


def total(x: Value, n: int) -> Value:
    result: Value = Sum()(*(x * float(k + 2) for k in range(n)))
    return result


def concat(x: Value, n: int) -> Value:
    result: Value = Concat(axis=0)(*(x * float(k + 2) for k in range(n)))
    return result


GRAPHS: dict[str, Callable[[Value, int], Value]] = {"chain": chain, "skips": skips, "sum": total, "concat": concat}


def training_step(depth: int) -> Graph:
    """A residual network: backward kernels read what forward ones wrote, the further apart the deeper it is."""
    x = Input(f32[8, 16, 6, 6], "x")
    value: Value = x
    for layer in range(depth):
        weight = Variable(f"w{layer}", np.full((16, 16, 3, 3), 0.01, np.float32))
        value = value + Relu()(Conv(pads=(1, 1, 1, 1))(value, weight))
    model = Graph((x,), {"y": value})
    graphs = TrainerGraphs(TrainingSpec(model, losses.mse("target"), optim.SGD(0.1, momentum=0.9)))
    return graphs.step_of(model)


def fused(build: Callable[[Value, int], Value], n: int) -> Callable[[], object]:
    x = Input(f32[16], "x")
    program = assign_layouts(lower(Graph((x,), {"y": build(x, n)}, {}, "growth")))
    return lambda: fuse(program)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_fusion_grows_about_linearly(name: str) -> None:
    small, large = (calls_in(fused(GRAPHS[name], n)) for n in (60, 240))
    assert large < 6 * small


@pytest.mark.exhaustive
def test_compiling_grows_linearly_with_depth() -> None:
    """All stages: several times as many layers take as many times the calls, and little more."""
    small, large = (calls_in(partial(arrive, training_step(depth))) for depth in (10, 60))
    assert large < 6.6 * small


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_large_graphs_do_not_recurse_deeply(name: str) -> None:
    """A thousand operators in a row, or a thousand operands, need no deep stack."""
    fused(GRAPHS[name], 1000)()
