"""Partitions on the runtime's devices: the bits of the whole, many requests at once."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.device import Device
from glowtrain.modes.training_and_inference import inference
from glowtrain.runtime import HostManager, cpu_devices, partitioned
from glowtrain.runtime.conformance.poisoned_device import PoisonedDevice
from tests.compiler.networks import cnn, gpt, step_of
from tests.runtime.partition.cutting_models import resnet


def two_cpus() -> list[Device]:
    return list(cpu_devices(2, threads=1))


def with_memory_of_its_own() -> list[Device]:
    return [PoisonedDevice("poisoned"), *cpu_devices(1, threads=1)]


@pytest.fixture(params=[two_cpus, with_memory_of_its_own], ids=["cpus", "poisoned"])
def devices(request: pytest.FixtureRequest) -> list[Device]:
    found: list[Device] = request.param()
    return found


@pytest.mark.spread(1)
def test_requests_through_a_partition(devices: list[Device], random: np.random.Generator) -> None:
    graph = inference(resnet((1, 1)).bind({"batch": 2}))
    whole = gt.compile(graph, backend=devices[0].backend)
    partition = partitioned(graph, devices, count=2)
    requests = [random.normal(size=(2, 3, 32, 32)).astype(np.float32) for _ in range(12)]
    with closing(HostManager(devices)) as host:
        host.add_network("net", graph, partition=partition)
        futures = [host.run("net", {"x": x}) for x in requests]
        for x, future in zip(requests, futures, strict=True):
            for name, array in whole({"x": x}).items():
                assert future.result(60)[name].tobytes() == array.tobytes()


@pytest.mark.exhaustive
def test_training_steps_through_a_partition(devices: list[Device], random: np.random.Generator) -> None:
    images = random.normal(size=(4, 1, 12, 12)).astype(np.float32)
    tokens, labels = random.integers(0, 11, (4, 9)), random.integers(0, 10, 4)
    for model, x in ((cnn, images), (gpt, tokens)):
        graph, inputs = step_of(model, gt.optim.AdamW(1e-2, clip_norm=1.0), x=x, labels=labels)
        whole = gt.compile(graph, backend=devices[0].backend)
        losses = [whole(inputs)["loss"].tobytes() for _ in range(4)]
        with closing(HostManager(devices)) as host:
            host.add_network("step", graph, partition=partitioned(graph, devices, count=2))
            futures = [host.run("step", inputs) for _ in losses]
            assert [future.result(60)["loss"].tobytes() for future in futures] == losses
