"""Updates that leave a part of a variable as it is write the rest alone, and read what was there before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.state import State
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.tensor.move import Concat
from glowtrain.types import Array, f32

START = np.arange(24, dtype=np.float32).reshape(6, 4)
ROWS, COLUMNS = Concat(axis=0), Concat(axis=1)

UPDATES: dict[str, tuple[Callable[[Value, Value], Value], Callable[[Array, Array], Array]]] = {
    "rows": (
        lambda w, x: ROWS(w[:2], x[2:4] + w[2:4], w[4:]),
        lambda w, x: np.concatenate([w[:2], x[2:4] + w[2:4], w[4:]]),
    ),
    "the first rows": (lambda w, x: ROWS(x[:2], w[2:]), lambda w, x: np.concatenate([x[:2], w[2:]])),
    "a box": (
        lambda w, x: ROWS(w[:1], COLUMNS(w[1:3, :2], x[1:3, 2:3] * 2.0, w[1:3, 3:]), w[3:]),
        lambda w, x: np.concatenate([w[:1], np.concatenate([w[1:3, :2], x[1:3, 2:3] * 2, w[1:3, 3:]], 1), w[3:]]),
    ),
    "rows that move up": (lambda w, x: ROWS(w[1:], x[:1]), lambda w, x: np.concatenate([w[1:], x[:1]])),
    "rows that change places": (lambda w, x: ROWS(w[3:], w[:3]), lambda w, x: np.concatenate([w[3:], w[:3]])),
    "what was just overwritten": (
        lambda w, x: ROWS(x[:2], w[2:4], w[:2] * 3.0),
        lambda w, x: np.concatenate([x[:2], w[2:4], w[:2] * 3]),
    ),
    "every other row": (
        lambda w, x: ROWS(w[0:3:2], x[:1], w[3:]),
        lambda w, x: np.concatenate([w[0:3:2], x[:1], w[3:]]),
    ),
    "nothing new": (lambda w, x: ROWS(w[:4], w[4:]), lambda w, x: w),
}


def step(case: str) -> tuple[Graph, Variable]:
    w, x = Variable("w", START), Input(f32[6, 4], "x")
    return Graph((x,), {"before": w[:, :1] + 0.0}, {w: UPDATES[case][0](w, x)}, "step"), w


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("case", UPDATES)
def test_an_update_of_a_part(case: str, backend: str) -> None:
    graph, _ = step(case)
    state = State({"w": START})
    function, wanted = gt.compile(graph, backend, state), START
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
        before = function({"x": x})["before"]
        np.testing.assert_array_equal(before, wanted[:, :1])
        wanted = UPDATES[case][1](wanted, x)
        np.testing.assert_array_equal(state.read("w"), wanted)


@pytest.mark.parametrize("case", ["rows", "the first rows", "a box"])
def test_only_the_part_is_written(case: str) -> None:
    graph, _ = step(case)
    plan = arrive(graph)
    (kernel,) = [kernel for kernel in plan.program.kernels if any(b.name == "w" for b in kernel.writes)]
    (store,) = [store for store, _ in kernel.stores() if store.buffer.name == "w"]
    points = [index.extent for _, around in kernel.stores() for index in around]
    assert np.prod(points) <= 8
    assert store.buffer.shape == (6, 4)
    assert plan.arena == 0
