"""Partitions that somebody wrote by hand: those that cannot be meant are refused before anything runs, and what they
give belongs to who asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError, PartitionError
from glowtrain.graph import Graph, Input, Variable
from glowtrain.runtime import HostManager, Part, Partition, cpu_devices, partitioned
from glowtrain.types import TensorType
from tests.runtime.devices import rows, triple, tripled

TYPE = TensorType(gt.f32, (4, 3))


def whole() -> Graph:
    x = Input(TYPE, "x")
    return Graph((x,), {"y": x * 3.0 + 1.0}, name="net")


def two_parts() -> Partition:
    """Of :func:`whole`."""
    x, h = Input(TYPE, "x"), Input(TYPE, "h")
    first, second = Graph((x,), {"h": x * 3.0}, name="first"), Graph((h,), {"y": h + 1.0}, name="second")
    return Partition("net", (Part("first", first, 0), Part("second", second, 1)), {"x": TYPE}, {"y": "y"})


def with_part(number: int, part: Part) -> Partition:
    parts = list(two_parts().parts)
    parts[number] = part
    return replace(two_parts(), parts=tuple(parts))


def in_a_circle() -> Partition:
    x, back = Input(TYPE, "x"), Input(TYPE, "back")
    first = Part("first", Graph((x, back), {"h": x * back}, name="first"))
    h = Input(TYPE, "h")
    second = Part("second", Graph((h,), {"back": h + 1.0, "y": h + 2.0}, name="second"), 1)
    return replace(two_parts(), parts=(first, second))


def of_fewer_rows() -> Partition:
    x = Input(TensorType(gt.f32, (2, 3)), "x")
    part = Part("all", Graph((x,), {"y": x * 3.0}, name="all"))
    return Partition("net", (part,), {"x": x.type}, {"y": "y"})


def that_updates() -> Partition:
    h, count = Input(TYPE, "h"), Variable("count", np.zeros((4, 3), np.float32))
    graph = Graph((h,), {"y": h + 1.0}, {count: count + h}, name="second")
    return with_part(1, Part("second", graph, 1))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a circle": (in_a_circle, "takes 'back', which part second gives after it"),
    "no parts": (lambda: replace(two_parts(), parts=()), "it has no parts"),
    "a part missing": (lambda: replace(two_parts(), parts=two_parts().parts[1:]), "takes 'h', which nothing gives"),
    "an output missing": (lambda: replace(two_parts(), parts=two_parts().parts[:1]), "'y', which nothing gives"),
    "a part twice": (lambda: with_part(1, two_parts().parts[0]), "2 parts are called 'first'"),
    "no stage": (lambda: with_part(1, replace(two_parts().parts[1], stage="last")), "is of stage 'last'"),  # type: ignore[arg-type]
    "another type": (of_fewer_rows, r"takes 'x' as f32\[2,3\], and the graph as f32\[4,3\]"),
    "an output more": (lambda: replace(two_parts(), outputs={"y": "y", "h": "h"}), r"gives 'h' as f32\[4,3\], and the"),
    "an update": (that_updates, "it updates 'count', which the graph does not"),
    "no partition": (lambda: None, "is a Partition of Part objects, not NoneType"),
    "no part": (lambda: replace(two_parts(), parts=(5,)), "is a Partition of Part objects"),  # type: ignore[arg-type]
}


@pytest.fixture
def host() -> Iterator[HostManager]:
    with HostManager(cpu_devices(2, threads=1)) as made:
        yield made


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_meant(host: HostManager, wrong: str) -> None:
    made, told = WRONG[wrong]
    with pytest.raises(PartitionError, match=told):
        host.add_network("net", whole(), partition=lambda graph: made())  # type: ignore[arg-type, return-value]
    assert [status.lost or status.used for status in host.status()] == [0, 0]


def test_what_can_be_meant(host: HostManager) -> None:
    host.add_network("net", whole(), partition=two_parts())
    np.testing.assert_array_equal(host.run_sync("net", {"x": rows(1, 4)})["y"], tripled(rows(1, 4)))


def test_a_partition_is_of_one_size(host: HostManager) -> None:
    with pytest.raises(InputError, match="for several give a function that cuts each"):
        host.add_network("net", triple, batch_sizes=[1, 4], partition=two_parts())


def test_sizes_with_other_stages(host: HostManager) -> None:
    devices = [manager.device for manager in host.managers.values()]
    with pytest.raises(PartitionError, match="cut them like the largest"):
        host.add_network(
            "net", triple, batch_sizes=[1, 4],
            partition=lambda graph: partitioned(graph, devices, count=graph.inputs[0].shape[0] // 4 + 1),
        )  # fmt: skip


def passing_on() -> Graph:
    x = Input(TYPE, "x")
    y = x * 3.0 + 1.0
    return Graph((x,), {"y": y, "again": y, "same": x}, name="net")


@pytest.mark.parametrize("parts", [1, 2])
def test_answers_share_no_memory_with_what_was_given_or_with_each_other(host: HostManager, parts: int) -> None:
    partition, (x,) = two_parts(), passing_on().inputs
    if parts == 1:
        one = Part("one", Graph((x,), {"y": x * 3.0 + 1.0}, name="one"))
        partition = replace(partition, parts=(one,))
    host.add_network("net", passing_on(), partition=replace(partition, outputs={"y": "y", "again": "y", "same": "x"}))
    mine = rows(1, 4)
    answer = host.run_sync("net", {"x": mine})
    np.testing.assert_array_equal(answer["again"], tripled(mine))
    np.testing.assert_array_equal(answer["same"], mine)
    arrays = [mine, *answer.values()]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])
