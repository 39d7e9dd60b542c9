"""Random graphs, cut at random places, compute the bits of the whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.backends.device import DeviceFacts
from glowtrain.errors import PartitionError
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.strategies import cases
from glowtrain.graph import Graph
from glowtrain.graph.retype import retyped
from glowtrain.runtime.partition.partitioner import partitioned
from glowtrain.runtime.partition.positions import positions
from glowtrain.runtime.partition.verify import verify
from glowtrain.types import Array, f32, f64
from tests.runtime.partition.cutting_models import cut_at, differing
from tests.runtime.partition.devices import PlainDevice


def narrow(graph: Graph, case: Case) -> tuple[Graph, dict[str, Array]]:
    """A case's graph in f32, and its inputs."""
    arrays: Mapping[str, Array] = {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}
    other = retyped(graph, (f64,), f32).graph
    return other, {v.name: arrays[v.name].astype(v.dtype.numpy) for v in other.inputs}


def devices(random: np.random.Generator, count: int, backend: str) -> list[PlainDevice]:
    """Devices whose rates differ, so that stages begin at other places each time."""
    rates = 2.0 ** random.uniform(-6, 3, (count, 2))
    return [
        PlainDevice(f"device {k}", backend, threads=1, facts=DeviceFacts(None, operations, bandwidth, None, 1.0))
        for k, (operations, bandwidth) in enumerate(rates.tolist())
    ]


@given(case=cases(), data=st.data())
def test_parts_on_the_interpreter(case: Case, data: st.DataObject) -> None:
    """Anywhere, steps with several losses, states and counters as well."""
    for graph in (case.graph, case.step):
        count = positions(graph).count if graph.nodes else 0
        if count < 2:
            continue
        bounds = data.draw(st.sets(st.integers(1, count - 1), min_size=1, max_size=3))
        partition = cut_at(graph, sorted(bounds), "interpreter")
        verify(partition)
        named = {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}
        inputs = {value.name: named[value.name] for value in graph.inputs}
        assert not differing(graph, partition, inputs, "interpreter", steps=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(0, 32, 8))
def test_parts_as_native_code(start: int, random: np.random.Generator) -> None:
    """Where the partitioner cuts, for devices of random rates."""
    cuts = 0
    for example in range(start, start + 8):
        case = drawn_case(19, example)
        for graph in (case.graph, case.step):
            other, inputs = narrow(graph, case)
            count = int(random.integers(2, 5))
            try:
                partition = partitioned(other, devices(random, count, "cpu"), count=count)
            except PartitionError:  # it has fewer nodes than that
                continue
            cuts += 1
            assert not differing(other, partition, inputs, "cpu", steps=2), f"program {example}\n{partition}\n{other}"
    assert cuts > 4
