"""Models that are cut, and whether their parts compute the bits of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.graph import Graph, Value
from glowtrain.runtime.partition.assembling import assembled
from glowtrain.runtime.partition.grouping import Stages
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.partition.partitioner import GRAPH_STAGES
from glowtrain.runtime.partition.positions import positions
from glowtrain.runtime.partition.running import PartitionFunction
from glowtrain.runtime.partition.storage import storage
from glowtrain.stages import Options
from glowtrain.types import Array

WIDTH = 8
"""Channels of the first layers."""


def _block(x: Value, channels: int, stride: int, name: str) -> Value:
    """A bottleneck with its shortcut."""
    h = _normed(x, channels, 1, 1, f"{name}.conv1")
    h = _normed(gt.nn.relu(h), channels, 3, stride, f"{name}.conv2")
    h = _normed(gt.nn.relu(h), 4 * channels, 1, 1, f"{name}.conv3")
    shortcut = x if x.shape == h.shape else _normed(x, 4 * channels, 1, stride, f"{name}.shortcut")
    return gt.nn.relu(h + shortcut)


def _normed(x: Value, channels: int, kernel: int, stride: int, name: str) -> Value:
    h = gt.nn.conv(x, channels, kernel, stride=stride, padding=kernel // 2, bias=False, name=name)
    return gt.nn.batch_norm(h, name=f"{name}.norm")


def resnet(depths: Sequence[int] = (3, 4, 6, 3), size: int = 32) -> gt.Template:
    """ResNet-50, unless told other ``depths``, with few channels."""

    @gt.model(x=gt.f32["batch", 3, size, size])
    def net(x: Value) -> Value:
        h = gt.nn.max_pool(gt.nn.relu(_normed(x, WIDTH, 7, 2, "stem")), 3, stride=2, padding=1)
        for stage, depth in enumerate(depths):
            for k in range(depth):
                h = _block(h, WIDTH << stage, 2 if stage and not k else 1, f"stage{stage}.block{k}")
        return gt.nn.linear(gt.nn.mean(h, axes=(2, 3)), 10, name="head")

    return net


def gpt(depth: int = 3, width: int = 32, tied: bool = False) -> gt.Template:
    """A transformer that says the next token; ``tied``: its head is the embedding."""

    @gt.model(x=gt.i64["batch", 12])
    def net(x: Value) -> Value:
        h = tokens = gt.nn.embedding(x, 17, width, name="tokens")
        for k in range(depth):
            h = h + gt.nn.attention(gt.nn.layer_norm(h, name=f"b{k}.n1"), 2, causal=True, name=f"b{k}.attention")
            up = gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(h, name=f"b{k}.n2"), 2 * width, name=f"b{k}.up"))
            h = h + gt.nn.linear(up, width, name=f"b{k}.down")
        h = gt.nn.layer_norm(h, name="norm")
        if not tied:
            return gt.nn.linear(h, 17, name="head")
        assert tokens.node is not None
        (weight,) = (
            value for value in tokens.node.inputs if value is not None and value.rank == 2 and value.shape[0] == 17
        )
        return h @ gt.nn.transpose(weight)

    return net


def cut_at(graph: Graph, bounds: Sequence[int], backend: str) -> Partition:
    """A graph cut where a test says: stages begin at these positions of its forward nodes."""
    made = backend_of(backend)
    stages, options = made.stages(WALK), Options(facts=made.facts)
    prepared: Graph = arrive(graph, options, [stage for stage in stages if stage.name in GRAPH_STAGES])
    found = positions(prepared)
    places = {item: sum(at >= bound for bound in bounds) for item, at in found.of_node.items()}
    homes = {item: sum(at >= bound for bound in bounds) for item, at in found.of_variable.items()}
    return assembled(prepared, Stages(places, homes), storage(prepared, stages, options), lambda nodes, stage: 0.0)


def differing(
    graph: Graph, partition: Partition, inputs: Mapping[str, Any], backend: str | Backend, steps: int = 1
) -> list[str]:
    """The outputs, of any step, and the variables after all of them that have other bits in parts than in the whole."""
    whole, parts = gt.compile(graph, backend), PartitionFunction(partition, backend)
    found = []
    for step in range(steps):
        expected, given = whole(inputs), parts(inputs)
        assert expected.keys() == given.keys()
        found += [f"{name} of step {step}" for name in expected if not _same(expected[name], given[name])]
    variables = parts.variables()
    found += [v.name for v in graph.variables if not _same(whole.state.read(v.name), variables[v.name])]
    return found


def _same(a: Array, b: Array) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
