"""ResNet-50 and a GPT, inference and training step, cut for two and three devices by a memory limit that one of them
does not keep: the bits of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import Graph
from glowtrain.modes.training_and_inference import inference
from glowtrain.runtime.partition.needs import stage_needs
from glowtrain.runtime.partition.partition import whole
from glowtrain.runtime.partition.partitioner import partitioned
from tests.compiler.networks import step_of
from tests.runtime.partition.cutting_models import cut_at, differing, gpt, resnet
from tests.runtime.partition.devices import PlainDevice

Feeds = dict[str, Any]


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> gt.Cpu:
    """What a part is compiled to is needed twice: to know its memory, and to run."""
    return gt.Cpu(cache=tmp_path_factory.mktemp("compiled"), threads=1)


def resnet_inputs(random: np.random.Generator) -> Feeds:
    return {"x": random.normal(size=(2, 3, 32, 32)).astype(np.float32), "labels": random.integers(0, 10, 2)}


def gpt_inputs(random: np.random.Generator) -> Feeds:
    return {"x": random.integers(0, 17, (2, 12)), "labels": random.integers(0, 17, (2, 12))}


def check(graph: Graph, inputs: Feeds, cpu: gt.Cpu, count: int, share: float, steps: int) -> None:
    """``share``: the part of the whole's memory that each device has."""
    roomy = PlainDevice("roomy", cpu, threads=1)
    total = stage_needs(whole(graph), 0, roomy)
    devices = [PlainDevice(f"cpu:{k}", cpu, threads=1, memory=int(share * total)) for k in range(count)]
    partition = partitioned(graph, devices)
    assert len(partition.stages) == count
    for stage in partition.stages:
        assert stage_needs(partition, stage, devices[stage]) <= share * total
    assert not differing(graph, partition, inputs, cpu, steps)


@pytest.mark.spread(1)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("model", "inputs"), [(resnet(), resnet_inputs), (gpt(), gpt_inputs)], ids=["resnet-50", "gpt"]
)
def test_inference(model: gt.Template, inputs: Any, count: int, cpu: gt.Cpu, random: np.random.Generator) -> None:
    feeds = {"x": inputs(random)["x"]}
    check(inference(model.bind({"batch": 2})), feeds, cpu, count, 0.9 if count == 2 else 0.7, steps=1)


@pytest.mark.parametrize("count", [2, 3])
def test_training_steps_of_resnet_50(count: int, cpu: gt.Cpu, random: np.random.Generator) -> None:
    """Batch normalization's running statistics among the variables."""
    graph, feeds = step_of(resnet(), gt.optim.SGD(1e-2, momentum=0.9), **resnet_inputs(random))
    check(graph, feeds, cpu, count, 0.9 if count == 2 else 0.8, steps=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 3])
def test_training_steps_of_a_gpt(count: int, cpu: gt.Cpu, random: np.random.Generator) -> None:
    graph, feeds = step_of(gpt(), gt.optim.AdamW(1e-2), **gpt_inputs(random))
    check(graph, feeds, cpu, count, 0.9 if count == 2 else 0.8, steps=3)


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_a_quantized_network(backend: str, random: np.random.Generator) -> None:
    """Its products are computed in integers before it is cut: a cut between a QuantizeLinear and its reader changes
    nothing."""

    @gt.model(x=gt.f32[4, 1, 12, 12])
    def net(x: gt.Value) -> gt.Value:
        h = gt.nn.relu(gt.nn.conv(x, 8, 3, padding=1, name="first"))
        h = gt.nn.max_pool(gt.nn.relu(gt.nn.conv(h, 8, 3, padding=1, name="second")), 2)
        return gt.nn.linear(gt.nn.flatten(h), 10, name="head")

    x = random.normal(size=(64, 1, 12, 12)).astype(np.float32)
    quantized = gt.quantize(net, {"x": x}).model
    graph = quantized.bind({}) if isinstance(quantized, gt.Template) else quantized
    for bounds in ([1], [2], [3], [4], [2, 4]):
        assert not differing(graph, cut_at(graph, bounds, backend), {"x": x[:4]}, backend)
