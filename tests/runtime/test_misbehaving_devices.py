"""Devices of other packages that do what the seam does not allow: their errors are errors of the device by name, nobody
gets what they gave, and nothing hangs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import Executable
from glowtrain.backends.device import Device, DeviceFacts, Resident, ResidentVariables, Tensor
from glowtrain.errors import DeviceError, InputError
from glowtrain.graph import Value
from glowtrain.runtime import HostDevice, HostManager, cpu_devices, partitioned
from glowtrain.runtime.conformance import PoisonedDevice
from tests.runtime.devices import rows, triple, tripled

Given = dict[str, Any]


class Changed(HostDevice):
    """What its functions give is changed, once ``change`` is there."""

    change: Callable[[Given], Any] | None = None

    def load(self, executable: Executable, variables: ResidentVariables) -> Resident:  # type: ignore[override]
        made = super().load(executable, variables)
        run = made.run

        def changed(inputs: Mapping[str, Tensor]) -> Any:
            outputs = run(inputs)
            return outputs if self.change is None else self.change(outputs)

        made.run, made.run_into = changed, lambda inputs, outputs: False  # type: ignore[method-assign, assignment]
        return made


class ChangedCopies(PoisonedDevice):
    """The same of what is copied from it."""

    change: Callable[[Any], Any] | None = None
    unreleased: Exception | None = None

    def download(self, tensor: Tensor) -> Any:
        array = super().download(tensor)
        return array if self.change is None else self.change(array)

    def release(self, tensor: Tensor) -> None:
        super().release(tensor)
        if self.unreleased is not None:
            raise self.unreleased


@gt.model(x=gt.f32[4, 3])
def layers(x: Value) -> dict[str, Value]:
    for number in range(4):
        x = gt.nn.linear(x, 3, name=f"layer{number}")
    return {"y": x}


def errors_of(device: Device, begin: Callable[[], None], *, cut: bool) -> list[str]:
    """What two requests end in that are made once the device has begun to misbehave."""
    devices = [device, *cpu_devices(1, threads=1)]
    x, graph = {"x": rows(1, 4)}, layers.bind({})
    with HostManager(devices, time_limit=30.0) as host:
        if cut:
            host.add_network("net", graph, partition=partitioned(graph, devices, count=2))
        else:
            host.add_network("net", graph, devices=[device.name])
        begin()
        found = []
        for ask in (lambda: host.run_sync("net", x), lambda: host.run("net", x).result(60)):
            with pytest.raises(DeviceError) as caught:
                ask()
            found.append(str(caught.value))
        assert [status.lost for status in host.status()] == [None, None]
    return found


FEWER = r"float32\[1, 3\], not f32\[4,3\]"
CHANGES: dict[str, tuple[Callable[[Given], Any], str]] = {
    "nothing": (lambda given: None, "it gave NoneType"),
    "a list": (lambda given: list(given.values()), "it gave list"),
    "one missing": (lambda given: {}, "it gave none"),
    "one more": (lambda given: {**given, "more": 1}, "'more', not"),
    "fewer rows": (lambda given: {name: array[:1] for name, array in given.items()}, FEWER),
    "wider": (lambda given: {name: array.astype(float) for name, array in given.items()}, r"float64\[4, 3\], not f32"),
    "no arrays": (lambda given: {name: array.tolist() for name, array in given.items()}, "as list, not"),
}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("change", CHANGES)
def test_outputs_that_are_not_those_of_the_function(change: str, cut: bool) -> None:
    device = Changed("odd", threads=1)
    changed, told = CHANGES[change]
    for message in errors_of(device, lambda: setattr(device, "change", changed), cut=cut):
        assert re.search(f"failed on device odd: it gave.*{told.removeprefix('it gave')}", message)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("change", [lambda array: array[:1], lambda array: array.astype(float)])
def test_copies_that_are_not_what_was_computed(change: Callable[[Any], Any], cut: bool) -> None:
    """``change`` is of outputs alone: the device computes with what it was given."""
    device = ChangedCopies("odd")
    for message in errors_of(device, lambda: setattr(device, "change", change), cut=cut):
        assert "device odd: it gave" in message


def test_memory_that_is_not_given_back() -> None:
    device = ChangedCopies("odd")
    begin = partial(setattr, device, "unreleased", ValueError("no"))
    assert errors_of(device, begin, cut=False) == ["part layers failed on device odd: ValueError: no"] * 2


class Silent(HostDevice):
    """Gives what it was told to, in place of what a method should."""

    def __init__(self, method: str, given: object) -> None:
        super().__init__("odd", threads=1)
        setattr(self, method, self._raised if isinstance(given, Exception) else lambda *arguments: given)
        self.given = given

    def _raised(self, *arguments: object) -> None:
        assert isinstance(self.given, Exception)
        raise self.given


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("place", None, "it gave NoneType, which is no ResidentVariables"),
        ("load", None, "it gave NoneType, which is no Resident"),
        ("needs", None, "device odd says that part triple needs None bytes"),
        ("needs", -5, "needs -5 bytes"),
        ("needs", float("nan"), "needs nan bytes"),
        ("needs", ValueError("no"), "needs failed on device odd: ValueError: no"),
        ("supports", ValueError("no"), "supports failed on device odd: ValueError: no"),
    ],
)
def test_nothing_is_placed_on_what_does_not_answer(method: str, given: object, told: str) -> None:
    with HostManager([Silent(method, given)]) as host:
        with pytest.raises(DeviceError, match=told):
            host.add_network("net", triple)
        assert (host.networks(), host.status()[0].used) == ([], 0)


def test_bytes_may_be_numbers_of_numpy() -> None:
    with HostManager([Silent("needs", np.int64(100))]) as host:
        host.add_network("net", triple)
        np.testing.assert_array_equal(host.run_sync("net", {"x": rows(1, 2)})["y"], tripled(rows(1, 2)))
        assert host.status()[0].used == 400


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("name", None, "the name of a device .Silent. is a text, not None"),
        ("name", ["a"], "is a text, not"),
        ("backend", "cpu", "its backend is 'cpu' .str., which is no Backend"),
        ("facts", None, "its facts are NoneType"),
    ],
)
def test_devices_that_do_not_say_what_they_are(attribute: str, value: object, told: str) -> None:
    device = Silent("probe", None)
    setattr(device, attribute, value)
    with pytest.raises(InputError, match=told):
        HostManager([device])


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"memory": -1}, "a device's memory is a number of bytes or None, not -1"),
        ({"memory": "64MB"}, "memory is a number of bytes or None, not '64MB'"),
        ({"memory": float("nan")}, "memory is a number of bytes or None, not nan"),
        ({"operations": 0}, "a device's operations is a number above 0, not 0"),
        ({"bandwidth": float("nan")}, "bandwidth is a number above 0, not nan"),
        ({"link": -1.0}, "link is a number above 0, not -1.0"),
        ({"launch": -1.0}, "launch is a number of nanoseconds from 0, not -1.0"),
    ],
)
def test_facts_that_cannot_be(facts: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        DeviceFacts(**facts)
