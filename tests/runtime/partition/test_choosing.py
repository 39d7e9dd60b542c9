"""Where stages begin: by time, bytes, memory, operators, and what a person says; and what is refused."""

from __future__ import annotations

from contextlib import closing
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.device import DeviceFacts
from glowtrain.errors import PartitionError
from glowtrain.graph import Graph, Input, Operator, Value, Variable, constant
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.logic import Where
from glowtrain.runtime import HostManager
from glowtrain.runtime.partition.blocks import NodeBlocks, in_blocks
from glowtrain.runtime.partition.cutting import NEARLY, balanced, least_largest, least_sum
from glowtrain.runtime.partition.needs import stage_needs
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.partition.partitioner import partitioned
from glowtrain.runtime.partition.positions import positions
from glowtrain.runtime.partition.storage import Storage
from glowtrain.runtime.partition.work import NodeWork, WorkModel
from glowtrain.types import f32
from tests.runtime.partition.cutting_models import cut_at, differing
from tests.runtime.partition.devices import PlainDevice, plain_devices


def chain(*widths: int, rows: int = 8) -> Graph:
    """Linear layers with Tanh between them: ``layer0`` ..."""

    @gt.model(x=gt.f32[rows, widths[0]])
    def net(x: Value) -> Value:
        for k, width in enumerate(widths[1:]):
            x = gt.nn.tanh(gt.nn.linear(x, width, name=f"layer{k}"))
        return x

    return net.bind({}) if isinstance(net, gt.Template) else net


def layers(partition: Partition) -> list[list[str]]:
    """The layers of each part."""
    return [list(dict.fromkeys(node.layer for node in part.graph.nodes if node.layer)) for part in partition.parts]


def blocks_of(graph: Graph) -> NodeBlocks:
    return in_blocks(graph, positions(graph), Storage())


# --- dynamic programming ---------------------------------------------------------------------------------------------


def brute_force(costs: list[Any], join: Any, every: bool) -> float:
    """The least cost over all ways."""
    count, stages = len(costs[0]) - 1, len(costs)
    least = np.inf
    for ends in combinations(range(count + stages - 1), stages - 1):
        bounds = [0, *(end - k for k, end in enumerate(ends)), count]
        if every and any(a == b for a, b in pairwise(bounds)):
            continue
        used = [cost[at] for cost, at in zip(costs, pairwise(bounds), strict=True) if at[0] < at[1]]
        least = min(least, join(used))
    return float(least)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_other_way_is_better(stages: int, every: bool, random: np.random.Generator) -> None:
    for _ in range(20):
        costs = [random.uniform(0, 1, (7, 7)) for _ in range(stages)]
        for cost in costs:
            cost[random.uniform(size=cost.shape) < 0.15] = np.inf
        for found, join in ((least_largest(costs, every=every), max), (least_sum(costs, every=every), sum)):
            least = brute_force(costs, join, every)
            assert (np.inf if found is None else found.largest) == pytest.approx(least)
            if found is not None:
                used = [cost[at] for cost, at in zip(costs, found.ranges, strict=True) if at[0] < at[1]]
                assert join(used) == pytest.approx(least)


def test_of_ways_that_are_nearly_as_fast_the_one_with_fewest_bytes_is_taken(random: np.random.Generator) -> None:
    for _ in range(20):
        times = [random.uniform(1, 1.2, (7, 7)) for _ in range(3)]
        taken = random.uniform(0, 1, (7, 7))
        found, fastest = balanced(times, taken, every=True), least_largest(times, every=True)
        assert found is not None
        assert fastest is not None
        assert found.largest <= NEARLY * fastest.largest
        fitting = [np.where(time <= NEARLY * fastest.largest, taken, np.inf) for time in times]
        assert sum(taken[at] for at in found.ranges) == pytest.approx(brute_force(fitting, sum, True))


# --- what ranges take ------------------------------------------------------------------------------------------------


def test_operations_and_bytes_of_a_layer() -> None:
    graph = chain(16, 32)
    gemm, tanh = (WorkModel(Storage()).of(node) for node in graph.nodes)
    assert gemm == NodeWork(2 * 8 * 16 * 32 + 8 * 32, 4 * (8 * 16 + 16 * 32 + 32 + 8 * 32))
    assert tanh.bytes == 4 * 2 * 8 * 32
    assert NodeWork(100, 10).nanoseconds(DeviceFacts(operations=50.0, bandwidth=1.0)) == 10.0
    assert NodeWork(1000, 10).nanoseconds(DeviceFacts(operations=50.0, bandwidth=1.0)) == 20.0


def test_bytes_between_ranges_are_those_that_pass_between_parts(random: np.random.Generator) -> None:
    """Skip connections, which cross several stages, once for each stage that takes them."""

    @gt.model(x=gt.f32[4, 8])
    def net(x: Value) -> Value:
        values = [gt.nn.linear(x, 8, name="first")]
        for k in range(7):
            left, right = (values[int(i)] for i in random.integers(0, len(values), 2))
            values.append(gt.nn.tanh(left) * gt.nn.linear(right, 8, name=f"layer{k}"))
        return values[-1] + values[0]

    graph: Graph = net.bind({}) if isinstance(net, gt.Template) else net
    blocks = blocks_of(graph)
    assert blocks.starts == tuple(range(blocks.count))
    for bounds in combinations(range(1, blocks.count), 2):
        partition = cut_at(graph, bounds, "interpreter")
        ranges = zip((0, *bounds), (*bounds, blocks.count), strict=True)
        given = [{name: part.graph.outputs[name].type.nbytes for name in part.gives} for part in partition.parts]
        for number, at in enumerate(ranges):
            part = partition.parts[number]
            passed = [type_.nbytes for name, type_ in part.graph.input_types.items() if name != "x"]
            away = {name for other in partition.parts if other is not part for name in other.takes}
            assert blocks.bytes_in[at] == sum(passed)
            assert blocks.bytes_out[at] == sum(size for name, size in given[number].items() if name in away)


def test_a_weight_that_two_stages_read_counts_where_it_passes() -> None:
    weight, x = Variable("weight", np.ones((8, 8), np.float32)), Input(f32[4, 8], "x")
    graph = Graph((x,), {"y": Relu()(x @ weight) @ weight}, name="tied")
    blocks = blocks_of(graph)
    assert blocks.starts == (0, 1, 2)
    assert blocks.bytes_in[2, 3] == 4 * (4 * 8 + 8 * 8)
    last = cut_at(graph, [2], "interpreter").parts[1]
    assert sum(type_.nbytes for type_ in last.graph.input_types.values()) == blocks.bytes_in[2, 3]


def test_balance_follows_the_devices_rates() -> None:
    """Eight equal layers on a device that is three times as fast as the other."""
    graph = chain(*[64] * 9, rows=64)
    slow = DeviceFacts(operations=1.0, bandwidth=1e3, launch=0.0)
    fast = DeviceFacts(operations=3.0, bandwidth=1e3, launch=0.0)
    for first, second, expected in ((slow, slow, (4, 4)), (slow, fast, (2, 6)), (fast, slow, (6, 2))):
        devices = [PlainDevice(f"device {k}", facts=facts) for k, facts in enumerate((first, second))]
        assert tuple(map(len, layers(partitioned(graph, devices)))) == expected


def test_a_slow_link_is_crossed_where_little_crosses_it() -> None:
    graph = chain(64, 64, 64, 4, 64, 64, 64, rows=64)
    facts = DeviceFacts(operations=1e3, bandwidth=1e3, link=1e-3)
    devices = [PlainDevice(f"device {k}", facts=facts) for k in range(2)]
    partition = partitioned(graph, devices, count=2)
    (passed,) = partition.parts[1].takes
    assert partition.parts[1].graph.input(passed).shape == (64, 4)


def test_not_more_stages_than_make_it_faster() -> None:
    facts = DeviceFacts(operations=1e3, bandwidth=1e3, link=1e-6)
    assert partitioned(chain(8, 8, 8), [PlainDevice(f"device {k}", facts=facts) for k in range(3)]).stages == (0,)
    assert partitioned(chain(8, 8, 8), plain_devices(1)).stages == (0,)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_each_stage_fits_into_its_device(backend: str, random: np.random.Generator) -> None:
    graph = chain(64, 128, 128, 128, 128, 16)
    roomy = plain_devices(3, backend)
    total = stage_needs(partitioned(graph, roomy[:1]), 0, roomy[0])
    devices = plain_devices(3, backend, memory=int(0.5 * total))
    partition = partitioned(graph, devices)
    assert len(partition.stages) > 1
    assert all(stage_needs(partition, stage, devices[stage]) <= 0.5 * total for stage in partition.stages)
    x = random.normal(size=(8, 64)).astype(np.float32)
    assert not differing(graph, partition, {"x": x}, backend)


def test_a_small_device_gets_the_small_layers() -> None:
    graph = chain(8, 8, 8, 8, 256, 256)
    total = 4 * 256 * 256
    small, large = PlainDevice("small", memory=total // 8), PlainDevice("large", memory=4 * total)
    first, second = layers(partitioned(graph, [small, large], count=2))
    assert "layer4" in second
    assert "layer3" in second
    assert "layer0" in first
    assert layers(partitioned(graph, [large, small])) == [[f"layer{k}" for k in range(5)]]


def test_a_limit_that_nothing_fits_into_says_the_least() -> None:
    graph = chain(64, 128, 128, 128)
    devices = plain_devices(2, memory=20_000)
    with pytest.raises(PartitionError, match="does not fit into the memory of its devices") as caught:
        partitioned(graph, devices)
    text = str(caught.value)
    assert "stage 0 takes" in text
    assert "interpreter:1 has 19.5 KiB" in text
    needed = [int(line.partition("(")[2].partition(" bytes")[0].replace(",", "")) for line in text.splitlines()[1:]]
    assert partitioned(graph, plain_devices(2, memory=max(needed))).stages == (0, 1)
    with pytest.raises(PartitionError):
        partitioned(graph, plain_devices(2, memory=max(needed) - 1))


# --- operators -------------------------------------------------------------------------------------------------------


def supporting(*kinds: str) -> Any:
    return lambda operator: operator.key() in kinds


def test_stages_go_where_their_operators_are_supported(random: np.random.Generator) -> None:
    graph = chain(8, 8, 8)
    first = PlainDevice("first", supports=lambda operator: not isinstance(operator, Relu))
    second = PlainDevice("second", supports=supporting("Tanh"))
    partition = partitioned(graph, [first, second])
    assert {node.operator.key() for part in partition.parts if part.stage == 1 for node in part.graph.nodes} <= {"Tanh"}
    x = random.normal(size=(8, 8)).astype(np.float32)
    assert not differing(graph, partition, {"x": x}, "interpreter")


def test_an_operator_that_no_device_supports() -> None:
    devices = [PlainDevice("left", supports=supporting("Gemm")), PlainDevice("right", supports=supporting("Relu"))]
    with pytest.raises(PartitionError) as caught:
        partitioned(chain(8, 8, 8), devices)
    text = str(caught.value)
    assert "no device supports Tanh; its operators are supported by" in text
    assert "left: Gemm" in text
    assert "right: none" in text


def test_devices_in_an_order_that_does_not_go() -> None:
    devices = [PlainDevice("left", supports=supporting("Tanh")), PlainDevice("right", supports=supporting("Gemm"))]
    with pytest.raises(PartitionError, match="cannot be cut into stages on left, right, in this order"):
        partitioned(chain(8, 8, 8), devices)


def test_devices_that_have_no_operator_for_memory_orders(random: np.random.Generator) -> None:
    """Values pass row-major then, and all is computed all the same."""
    from_torch = supporting("glowtrain.MemoryOrder")

    def supports(operator: Operator) -> bool:
        return not from_torch(operator)

    @gt.model(x=gt.f32[1, 3, 8, 8])
    def net(x: Value) -> Value:
        h = gt.nn.relu(gt.nn.conv(x, 4, 3, padding=1, name="first"))
        return gt.nn.relu(gt.nn.conv(h, 4, 3, padding=1, name="second"))

    graph: Graph = net.bind({}) if isinstance(net, gt.Template) else net
    kinds = {}
    for able, devices in (
        (True, plain_devices(2, "cpu")),
        (False, [PlainDevice(f"cpu:{k}", "cpu", supports=supports) for k in range(2)]),
    ):
        partition = partitioned(graph, devices, cuts=["second"])
        kinds[able] = {node.operator.key() for part in partition.parts for node in part.graph.nodes}
        (value,) = partition.parts[1].takes
        assert partition.parts[1].graph.input(value).shape == ((1, 8, 8, 4) if able else (1, 4, 8, 8))
    assert kinds[True] - kinds[False] == {"glowtrain.MemoryOrder"}


# --- annotations -----------------------------------------------------------------------------------------------------


def test_cuts_are_where_stages_begin() -> None:
    graph = chain(8, 8, 8, 8, 8)
    assert layers(partitioned(graph, plain_devices(3), cuts=["layer1", "layer3"])) == [
        ["layer0"], ["layer1", "layer2"], ["layer3"],
    ]  # fmt: skip
    assert layers(partitioned(graph, plain_devices(3), cuts=["layer3"])) == [["layer0", "layer1", "layer2"], ["layer3"]]
    three = layers(partitioned(graph, plain_devices(3), cuts=["layer3"], count=3))
    assert len(three) == 3
    assert ["layer3"] in (three[1], three[2])


def test_stages_of_layers() -> None:
    graph = chain(8, 8, 8, 8, 8)
    found = partitioned(graph, plain_devices(3), stages={"layer[01]": 0, "layer2": 1, "layer3": 2})
    assert layers(found) == [["layer0", "layer1"], ["layer2"], ["layer3"]]
    assert layers(partitioned(graph, plain_devices(2), stages={"layer2": 0}))[0][:3] == ["layer0", "layer1", "layer2"]


def test_other_batch_sizes_have_variables_in_the_same_stages(random: np.random.Generator) -> None:
    """Where a large batch is balanced otherwise than a small one: weights count less."""
    facts = DeviceFacts(operations=1e3, bandwidth=1.0)
    devices = [PlainDevice(f"device {k}", facts=facts) for k in range(2)]
    small, large = chain(256, 256, 16, 256, 16, 256, rows=1), chain(256, 256, 16, 256, 16, 256, rows=4096)

    def homes(partition: Partition) -> dict[str, int]:
        return {v.name: part.stage for part in partition.parts for v in part.graph.variables}

    first, apart = partitioned(small, devices), partitioned(large, devices)
    assert homes(apart) != homes(first)
    alike = partitioned(large, devices, like=first)
    assert homes(alike) == homes(first)
    x = random.normal(size=(4096, 256)).astype(np.float32)
    assert not differing(large, alike, {"x": x}, "interpreter")


def test_variables_that_nothing_needs_are_there() -> None:
    """Simplifying a graph does not take state away from its owner."""
    x, spare = Input(f32[2], "x"), Variable("spare", np.ones(2, np.float32))
    chosen = Where()(constant(True), Relu()(Relu()(x)), spare)
    graph = Graph((x,), {"y": chosen}, name="spared")
    partition = partitioned(graph, plain_devices(2, "cpu"), count=2)
    assert [v.name for part in partition.parts for v in part.graph.variables] == ["spare"]
    assert not differing(graph, partition, {"x": np.array([-1, 1], np.float32)}, "cpu", steps=2)


def test_devices_with_different_backends(random: np.random.Generator) -> None:
    graph = chain(8, 8, 8, 8)
    devices = [PlainDevice("compiled", "cpu", threads=1), PlainDevice("interpreted")]
    partition = partitioned(graph, devices, cuts=["layer1"])
    x = {"x": random.normal(size=(8, 8)).astype(np.float32)}
    (name,) = partition.outputs
    for backend in ("cpu", "interpreter"):
        assert not differing(graph, partition, x, backend)
    with closing(HostManager(devices)) as host:
        host.add_network("net", graph, partition=partition)
        np.testing.assert_allclose(host.run_sync("net", x)[name], gt.compile(graph)(x)[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cuts": ["conv7"]}, "cuts: nothing is called 'conv7'; the layers are 'layer0', 'layer1'"),
        ({"cuts": ["layer0"]}, "'layer0' is where the network begins"),
        ({"cuts": ["layer1", "layer1*"]}, "'layer1', 'layer1\\*' begin at the same place"),
        ({"cuts": "layer1"}, r"cuts are a list of names, not 'layer1': write \['layer1'\]"),
        ({"cuts": ["layer1"], "count": 1}, "1 cut make 2 stages, and there are 1"),
        ({"count": 4}, "4 stages do not go on 3 devices"),
        ({"count": 0}, "0 stages do not go on 3 devices"),
        ({"stages": {"layer9": 0}}, "stages: nothing is called 'layer9'"),
        ({"stages": {"layer1": -1}}, "'layer1' is given stage -1"),
        ({"stages": {"layer1": 3}}, "there is no stage 3 on 3 devices"),
        ({"stages": {"layer0": 1, "layer1": 0}}, "layer1 is of stage 0, but comes after layer0 of stage 1"),
        ({"stages": {"layer*": 1, "layer1": 0}}, "layer1 is of stage 1 and of stage 0"),
    ],
)
def test_annotations_that_mean_nothing(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        partitioned(chain(8, 8, 8), plain_devices(3), **asked)


def test_fewer_nodes_than_stages() -> None:
    with pytest.raises(PartitionError, match="net can be cut into 2 stages at most, not into 3"):
        partitioned(chain(8, 8), plain_devices(3), count=3)


def test_what_is_no_graph_or_no_device() -> None:
    graph: Any = chain(8, 8)
    with pytest.raises(PartitionError, match="partitioned takes a graph"):
        partitioned("model.onnx", plain_devices(1))  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match=r"partitioned takes a list of devices, not 'cpu' \(str\)"):
        partitioned(graph, ["cpu"])  # type: ignore[list-item]
    with pytest.raises(PartitionError, match="one device or more, not none"):
        partitioned(graph, [])


def test_a_graph_without_nodes_is_one_part() -> None:
    x = Input(f32[2], "x")
    assert partitioned(Graph((x,), {"y": x}), plain_devices(2)).stages == (0,)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"devices": 5}, "takes a list of devices, not 5"),
        ({"devices": plain_devices(1)[0]}, "takes a list of devices, not PlainDevice"),
        ({"count": "2"}, "count is a whole number of stages, not '2'"),
        ({"count": 1.5}, "count is a whole number of stages, not 1.5"),
        ({"count": True}, "count is a whole number of stages, not True"),
        ({"cuts": 5}, "cuts are a list of names, not 5"),
        ({"cuts": [5]}, "cuts are a list of names, not list"),
        ({"stages": ["layer0"]}, "stages are a dict from names of layers to stages, not list"),
        ({"stages": {"layer0": 0.5}}, "stages: 'layer0' is given 0.5, which is no stage"),
        ({"like": 5}, "like is a Partition, not 5"),
    ],
)
def test_arguments_that_cannot_be_meant(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        partitioned(chain(4, 4, 4), **{"devices": plain_devices(2), **asked})


@pytest.mark.filterwarnings("error")
def test_a_device_without_memory_is_left_out_or_named() -> None:
    none, some = plain_devices(2)
    none.facts, some.facts = DeviceFacts(memory=0), DeviceFacts(memory=1 << 20)
    assert partitioned(chain(4, 4, 4), [none, some]).stages == (1,)
    with pytest.raises(PartitionError, match=f"{none.name} has 0 bytes"):
        partitioned(chain(4, 4, 4), [none])
