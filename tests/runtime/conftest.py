"""A host with one network on a device that a gate can hold up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glowtrain.runtime import HostManager
from tests.runtime.devices import Gate, ScriptedDevice, triple


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def device(gate: Gate) -> ScriptedDevice:
    return ScriptedDevice(before=gate)


@pytest.fixture
def host(device: ScriptedDevice, gate: Gate) -> Iterator[HostManager]:
    """With the network ``net``, :func:`triple` in batches of 1 and 4."""
    with HostManager([device], time_limit=None) as made:
        made.add_network("net", triple, batch_sizes=[1, 4], queue=5)
        yield made
        gate.open()
