"""Stages go to the devices that they were cut for."""

from __future__ import annotations

import json

import numpy as np

import glowtrain as gt
from glowtrain.graph import Graph
from glowtrain.runtime import HostDevice, HostManager, Part, Partition


def _chain(stages: int) -> tuple[Partition, Graph]:
    x = value = gt.Input(gt.f32[2, 3], "x")
    parts = []
    for stage in range(stages):
        taken = value if stage == 0 else gt.Input(gt.f32[2, 3], f"v{stage - 1}")
        parts.append(Part(f"part{stage}", Graph((taken,), {f"v{stage}": gt.ops.Neg()(taken)}), stage))
        value = gt.ops.Neg()(value)
    last = f"v{stages - 1}"
    return Partition("chain", tuple(parts), {"x": x.type}, {last: last}), Graph((x,), {last: value})


def test_stage_k_goes_to_device_k() -> None:
    partition, graph = _chain(3)
    with HostManager([HostDevice(name, threads=1) for name in "abc"]) as host:
        for order in (["a", "b", "c"], ["c", "a", "b"]):
            network = host.add_network("chain", graph, partition=partition, devices=order)
            (executor,) = network.replicas[0].placement.executors.values()
            assert [placed.manager.name for placed in executor.parts] == order
            host.remove_network("chain")


def test_each_stage_is_on_its_device_s_track_of_the_trace() -> None:
    partition, graph = _chain(3)
    with HostManager([HostDevice(name, threads=1) for name in "abc"], trace=True) as host:
        host.add_network("chain", graph, partition=partition)
        host.run_sync("chain", {"x": np.ones((2, 3), np.float32)})
        assert host.trace is not None
        events = json.loads(host.trace.text())["traceEvents"]
    tracks = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    ran = [(tracks[each["tid"]], each["name"]) for each in events if each["ph"] == "X"]
    assert ran == [("a", "chain: part0"), ("b", "chain: part1"), ("c", "chain: part2")]


def test_networks_of_one_stage_are_spread_by_memory() -> None:
    partition, graph = _chain(1)
    with HostManager([HostDevice(name, memory="1MB", threads=1) for name in "ab"]) as host:
        used = []
        for name in ("first", "second"):
            network = host.add_network(name, graph, partition=partition)
            used.append(network.replicas[0].first.name)
        assert used == ["a", "b"]
