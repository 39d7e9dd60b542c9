"""Models of training rows that are built with Glowtrain's own operators, with the parameters of the PyTorch modules."""

from __future__ import annotations

from functools import reduce
from operator import add

import glowtrain as gt
from glowtrain import Graph, Input, Template, Value
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.reduce.scans import CumProd
from glowtrain.types import f32

STATES, STEPS = 60, 614


def _body() -> Graph:
    """One step of the recurrence: scalar states, the input, then the two factors of each state, captured."""
    groups = {name: [Input(f32[()], f"{name}{i}") for i in range(STATES)] for name in ("state", "neighbour", "own")}
    states, drive = groups["state"], Input(f32[()], "drive")
    factors = zip(states, (*states[1:], states[0]), groups["neighbour"], groups["own"], strict=True)
    following = [s + 0.1 * (gt.nn.tanh(a * other + b * s + drive) - s) for s, other, a, b in factors]
    outputs = {f"next{i}": value for i, value in enumerate(following)}
    outputs["mean"] = reduce(add, following) * (1 / STATES)
    return Graph((*states, drive, *groups["neighbour"], *groups["own"]), outputs, name="states")


@gt.model(x=gt.f32[STEPS])
def scan(x: Value) -> dict[str, Value]:
    """60 states that each follow their neighbour and a common input: their mean at each step."""
    neighbour, own, start = (gt.nn.parameter(name, (STATES,)) for name in ("neighbour", "own", "start"))
    starts, *captured = ([vector[i] for i in range(STATES)] for vector in (start, neighbour, own))
    results = Scan(_body(), 1, num_captured=2 * STATES)(*starts, x, *captured[0], *captured[1])
    return {"logits": results[-1]}


@gt.model(x=gt.f32["batch", 1024])
def cumprod(x: Value) -> dict[str, Value]:
    """The mean of cumulative products along rows."""
    scale = gt.nn.parameter("scale", (256, 1024))
    return {"logits": gt.nn.mean(CumProd(1)(scale * x))}


BUILT: dict[str, Template] = {"scan": scan, "cumprod": cumprod}
"""By the rows' names."""
