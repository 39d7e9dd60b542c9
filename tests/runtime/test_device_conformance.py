"""The conformance kit on the devices that come along; and it finds what a bad device does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import Executable
from glowtrain.backends.device import Device, ResidentVariables, Tensor
from glowtrain.errors import DeviceError
from glowtrain.graph import Template
from glowtrain.runtime import HostDevice, HostManager
from glowtrain.runtime.conformance import DeviceConformance, PoisonedDevice
from glowtrain.runtime.conformance.poisoned_device import PoisonedResident, PoisonedVariables
from glowtrain.types import Array


class TestCpu(DeviceConformance):
    def device(self) -> Device:
        return HostDevice("cpu", threads=1)


class TestInterpreter(DeviceConformance):
    def device(self) -> Device:
        return HostDevice("interpreter", "interpreter")


class TestPoisoned(DeviceConformance):
    def device(self) -> Device:
        return PoisonedDevice(delay=0.0005)


class Leaking(PoisonedDevice):
    """Gives no memory back, and has little of it."""

    def __init__(self) -> None:
        super().__init__(memory=10_000)

    def release(self, tensor: Tensor) -> None:
        return


class Aliasing(PoisonedDevice):
    """Keeps the host's array as its tensor's memory."""

    def upload(self, array: Array) -> Tensor:
        handle = super().upload(array)
        handle.memory = array
        return handle


class Forgetful(PoisonedDevice):
    """Gives every function variables of its own."""

    def load(self, executable: Executable, variables: ResidentVariables) -> PoisonedResident:
        assert isinstance(variables, PoisonedVariables)
        own = PoisonedVariables(self, {name: variables.read(name) for name in variables.names})
        return super().load(executable, own)


class Reusing(PoisonedDevice):
    """Writes the outputs of every run to the same memory."""

    def load(self, executable: Executable, variables: ResidentVariables) -> PoisonedResident:
        resident = super().load(executable, variables)
        resident.run = _into_the_same(resident)  # type: ignore[method-assign]
        return resident


def _into_the_same(resident: PoisonedResident):
    run, first = resident.run, {}

    def again(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = run(inputs)
        for name, tensor in outputs.items():
            kept = first.setdefault(name, tensor)
            if kept.memory is not None:
                kept.memory[...] = tensor.memory
        return dict(first)

    return again


class Inexact(PoisonedDevice):
    """Its results are a little off."""

    def download(self, tensor: Tensor) -> Array:
        array = super().download(tensor)
        return array + np.float32(0.01) if array.dtype == np.float32 and array.ndim == 2 else array


@pytest.mark.parametrize(
    ("device", "test"),
    [
        (Leaking, "test_memory_comes_back"),
        (Aliasing, "test_tensors_are_copies"),
        (Forgetful, "test_updates_are_seen_by_all_functions"),
        (Reusing, "test_outputs_stay_as_they_are"),
        (Inexact, "test_tensors_come_back_as_they_went"),
        (Inexact, "test_functions_compute_what_the_references_do"),
    ],
)
def test_finds_bad_devices(device: type[Device], test: str) -> None:
    class Bad(DeviceConformance):
        def device(self) -> Device:
            return device()  # type: ignore[call-arg]

    with pytest.raises((AssertionError, DeviceError)):
        getattr(Bad(), test)()


def test_nothing_is_left_on_a_device() -> None:
    """Tensors are released when requests are answered, all of the rest when networks are removed."""
    device = PoisonedDevice()
    with HostManager([device]) as host:
        network = host.add_network("net", _model(), max_batch=4)
        resident = device.used
        for rows in (1, 3, 9):
            host.run_sync("net", {"x": np.ones((rows, 5), np.float32)})
        assert device.used == resident == sum(array.nbytes for array in network.variables().values())
        host.remove_network("net")
        assert device.used == 0
        assert host.status()[0].used == 0


def _model() -> Template:
    @gt.model(x=gt.f32["batch", 5])
    def net(x: gt.Value) -> dict[str, gt.Value]:
        return {"y": gt.nn.linear(x, 3, name="o")}

    return net
