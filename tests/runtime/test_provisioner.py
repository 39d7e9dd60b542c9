"""The provisioner: all of a network is placed, or nothing of it is left anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glowtrain.compiler.service import build
from glowtrain.errors import DeviceError, DeviceLostError, GlowtrainError, ProvisionError
from glowtrain.graph import Graph
from glowtrain.runtime import HostManager
from glowtrain.runtime.partition import needs
from tests.runtime.devices import (
    Failing,
    ScriptedDevice,
    ScriptedMemory,
    diamond,
    diamonds,
    in_four,
    rows,
)

Made = Callable[[str], ScriptedDevice | ScriptedMemory]


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is the same in all tests here."""
    monkeypatch.setattr(needs, "build", _compiled)


_executables: dict[tuple[str, object], Any] = {}


def _compiled(graph: Graph, *others: Any) -> Any:
    key = graph.name, graph.inputs[0].type
    if key not in _executables:
        _executables[key] = build(graph, *others)
    return _executables[key]


def add(host: HostManager) -> Any:
    return host.add_network("net", diamond, batch_sizes=[1, 2], partition=in_four)


def check_clean(host: HostManager, devices: list[Any]) -> None:
    """As if the network had never been asked for; what a lost device had is lost with it."""
    assert host.networks() == []
    for device, status in zip(devices, host.status(), strict=True):
        assert status.used == 0
        assert status.lost is not None or device.live == 0
        assert status.lost is not None or getattr(device, "used", 0) == 0
        assert host.managers[device.name].sources == ()


def check_works(host: HostManager) -> None:
    add(host)
    np.testing.assert_array_equal(host.run_sync("net", {"x": rows(1, 5)})["y"], diamonds(rows(1, 5)))


def calls() -> list[tuple[str, int, int]]:
    """Every call of each of three devices while the network is placed and warmed up: the device, the kind, the
    number."""
    counted: list[tuple[int, str]] = []
    devices = [
        ScriptedDevice(f"d{number}", lambda call, given, number=number: counted.append((number, call)))
        for number in range(3)
    ]
    with HostManager(devices) as host:
        add(host)
        return [
            (device, call, counted[:index].count((device, call)) + 1) for index, (device, call) in enumerate(counted)
        ]


@pytest.mark.spread(2)
@pytest.mark.parametrize("made", [ScriptedDevice, ScriptedMemory])
@pytest.mark.parametrize("error", [DeviceError("injected"), ValueError("injected"), DeviceLostError("injected")])
def test_a_failure_at_any_call(made: Made, error: Exception) -> None:
    """Of any device, while it is placed, loaded or runs for the first time, and where it cannot upload or download."""
    own = (
        [(device, call, 1) for device in range(3) for call in ("upload", "download")] if made is ScriptedMemory else []
    )
    faults = [each for each in calls() if each[1] not in ("begin", "free")] + own
    assert {call for _, call, _ in faults} >= {"place", "load", "run"}
    for number, call, count in faults:
        devices = [made(f"d{each}") for each in range(3)]
        devices[number].before = fault = Failing(call, error, count)
        with HostManager(devices) as host:
            with pytest.raises(DeviceError, match="injected"):
                add(host)
            assert fault.injected == 1
            check_clean(host, devices)
            lost = isinstance(error, DeviceLostError)
            assert [status.lost is not None for status in host.status()] == [lost and n == number for n in range(3)]
            check_works(host)
        assert [device.live for n, device in enumerate(devices) if not (lost and n == number)] == [0] * (3 - lost)
    print(f"{len(faults)} faults injected")


@pytest.mark.parametrize("count", range(1, 9))
def test_a_failure_while_it_is_compiled(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, devices = [], [ScriptedDevice(f"d{number}") for number in range(3)]

    def failing(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == count:
            raise GlowtrainError("not to be compiled")
        return _compiled(*arguments)

    monkeypatch.setattr(needs, "build", failing)
    with HostManager(devices) as host:
        with pytest.raises(GlowtrainError, match="not to be compiled"):
            add(host)
        check_clean(host, devices)
        check_works(host)


@pytest.mark.parametrize("small", range(3))
def test_where_one_stage_fits_nowhere(small: int) -> None:
    """For want of one byte; what had been set aside for the others is free again."""
    devices = [ScriptedDevice(f"d{number}") for number in range(3)]
    with HostManager(devices) as host:
        add(host)
        needed = [status.used for status in host.status()]
    limits = [bytes_ - (number == small) for number, bytes_ in enumerate(needed)]
    devices = [ScriptedDevice(f"d{number}", memory=limit) for number, limit in enumerate(limits)]
    with HostManager(devices) as host:
        with pytest.raises(ProvisionError, match="fits on no device: device d"):
            add(host)
        check_clean(host, devices)


def test_released_in_any_state_of_its_devices() -> None:
    """A network that has lost a device leaves the others' memory."""
    devices = [ScriptedMemory(f"d{number}") for number in range(3)]
    with HostManager(devices) as host:
        add(host)
        host.managers["d1"].lose(DeviceLostError("gone"))
        host.remove_network("net")
        check_clean(host, devices)
