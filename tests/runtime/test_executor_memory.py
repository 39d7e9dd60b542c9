"""Values between parts: in memory that is used again, and never in somebody else's."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Graph
from glowtrain.runtime import Device, HostDevice, HostManager, Part, Partition
from glowtrain.runtime.conformance import PoisonedDevice


def _diamond() -> tuple[Partition, Graph]:
    """x goes to a and b, both are taken by c; a is an output, too, and one value is taken by nobody."""
    x = gt.Input(gt.f32[4, 3], "x")
    a, b = gt.ops.Relu()(x), gt.ops.Neg()(x)
    parts = [
        Part("first", Graph((x,), {"a": a, "unused": x + 1.0}), 0),
        Part("second", Graph((x,), {"b": b}), 1),
    ]
    given = {name: gt.Input(gt.f32[4, 3], name) for name in ("a", "b")}
    parts.append(Part("third", Graph(tuple(given.values()), {"c": given["a"] * 2.0 + given["b"]}), 0))
    partition = Partition("diamond", tuple(parts), {"x": x.type}, {"relu": "a", "y": "c"})
    return partition, Graph((x,), {"relu": a, "y": a * 2.0 + b})


def _devices(kind: str) -> list[Device]:
    if kind == "poisoned":
        return [PoisonedDevice("p0"), PoisonedDevice("p1")]
    return [HostDevice(f"{kind}{number}", kind) for number in range(2)]


@pytest.mark.parametrize("kind", ["cpu", "interpreter", "poisoned"])
def test_answers_stay_what_they_are_while_memory_is_used_again(kind: str) -> None:
    partition, whole = _diamond()
    generator = np.random.default_rng(3)
    inputs = [generator.normal(size=(4, 3)).astype(np.float32) for _ in range(60)]
    with HostManager(_devices(kind)) as host:
        host.add_network("diamond", whole, partition=partition)
        answers = [future.result() for future in [host.run("diamond", {"x": x}) for x in inputs]]
    for x, answer in zip(inputs, answers, strict=True):
        relu = np.maximum(x, 0)
        assert np.array_equal(answer["relu"], relu)
        assert np.array_equal(answer["y"], relu * 2 - x)


def test_values_between_parts_take_memory_of_runs_before() -> None:
    partition, whole = _diamond()
    with HostManager([HostDevice("a", threads=1), HostDevice("b", threads=1)]) as host:
        network = host.add_network("diamond", whole, partition=partition)
        (executor,) = network.replicas[0].placement.executors.values()
        for _ in range(50):
            host.run_sync("diamond", {"x": np.ones((4, 3), np.float32)})
        kept = executor.pool._free
        assert sum(map(len, kept.values())) == 1, "b alone is between parts, taken, and no output"
