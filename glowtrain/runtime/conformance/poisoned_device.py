"""A device with memory of its own, poisoned: for tests of everything that uses devices.

It computes with a backend of this process, but its tensors are handles: what is not uploaded is not there, memory that
was given back is overwritten and an error to use, fresh memory is full of NaN or nonsense, and there is just as much of
it as was said. Its queue is slow: each call takes ``delay`` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from glowtrain.backends.base import Backend, Executable
from glowtrain.backends.device import Device, DeviceFacts, Resident, ResidentVariables, Tensor
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.state import State
from glowtrain.errors import DeviceError
from glowtrain.graph import Graph, Operator
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array

POISON = 0xA5
"""What memory is filled with that holds nothing: a number with a sign and a large exponent as floats, huge as
integers."""


class Handle:
    """A tensor in the device's memory."""

    def __init__(self, device: PoisonedDevice, array: Array) -> None:
        self.device = device
        self.memory: Array | None = array

    def read(self, device: PoisonedDevice) -> Array:
        """The memory. Raises :class:`DeviceError` for that of another device, and for what was given back."""
        if self.device is not device:
            raise DeviceError(f"device {device.name} was given a tensor of device {self.device.name}")
        if self.memory is None:
            raise DeviceError(f"device {device.name} was given a tensor that had been released")
        return self.memory


class PoisonedDevice(Device):
    """See the module's docstring. ``lacks``: whether an operator is one that it does not support."""

    def __init__(
        self,
        name: str = "poisoned",
        backend: str | Backend = "cpu",
        *,
        memory: int = 1 << 30,
        delay: float = 0.0,
        lacks: Callable[[Operator], bool] | None = None,
    ) -> None:
        self.name = name
        self.backend = backend_of(backend)
        self.facts = DeviceFacts(memory=memory, link=8.0)
        self.delay = delay
        self.lacks = lacks
        self.used = 0
        """Bytes of tensors, variables and functions that are there."""

    def supports(self, operator: Operator) -> bool:
        return self.lacks is None or not self.lacks(operator)

    def needs(self, graph: Graph, executable: Executable) -> int:
        """A function has its inputs and outputs here beside what it needs itself."""
        values = (*graph.inputs, *graph.constants, *(value for node in graph.nodes for value in node.outputs))
        return sum(value.type.nbytes for value in values)

    def place(self, initial: Mapping[str, Array]) -> PoisonedVariables:
        time.sleep(self.delay)
        return PoisonedVariables(self, initial)

    def load(self, executable: Executable, variables: ResidentVariables) -> PoisonedResident:
        time.sleep(self.delay)
        if not isinstance(variables, PoisonedVariables) or variables.device is not self:
            raise DeviceError(f"device {self.name} was given variables of another device: {kind_of(variables)}")
        return PoisonedResident(self, executable, variables.state)

    def upload(self, array: Array) -> Handle:
        time.sleep(self.delay)
        handle = self.allocated(array)
        handle.read(self)[...] = array
        return handle

    def download(self, tensor: Tensor) -> Array:
        time.sleep(self.delay)
        return self._handle(tensor).read(self).copy()

    def release(self, tensor: Tensor) -> None:
        handle = self._handle(tensor)
        memory = handle.read(self)
        poison(memory)
        handle.memory = None
        self.used -= memory.nbytes

    def allocated(self, like: Array) -> Handle:
        """Fresh memory for a tensor. Raises :class:`DeviceError` where there is none left."""
        self.take(like.nbytes)
        memory = np.empty(like.shape, like.dtype)
        poison(memory)
        return Handle(self, memory)

    def take(self, nbytes: int) -> None:
        """Account for bytes. Raises :class:`DeviceError` where they are more than are left."""
        limit = self.facts.memory or 0
        if self.used + nbytes > limit:
            raise DeviceError(f"device {self.name} has no memory left: {self.used:,} of {limit:,} bytes are taken")
        self.used += nbytes

    def _handle(self, tensor: Tensor) -> Handle:
        if not isinstance(tensor, Handle):
            raise DeviceError(f"device {self.name} was given {kind_of(tensor)} in place of one of its tensors")
        return tensor


class PoisonedVariables(ResidentVariables):
    """Variables in the device's memory."""

    def __init__(self, device: PoisonedDevice, initial: Mapping[str, Array]) -> None:
        self.device = device
        self.nbytes = sum(array.nbytes for array in initial.values())
        device.take(self.nbytes)
        self.state = State(initial)

    @property
    def names(self) -> tuple[str, ...]:
        return self.state.names

    def read(self, name: str) -> Array:
        return self.state.read(name)

    def write(self, name: str, array: Array) -> None:
        self.state.write(name, array)

    def free(self) -> None:
        for name in self.names:
            nonsense = self.state.read(name)
            poison(nonsense)
            self.state.write(name, nonsense)
        self.device.used -= self.nbytes


class PoisonedResident(Resident):
    """A function: its inputs have to be there, and its outputs are tensors there."""

    nbytes = 0

    def __init__(self, device: PoisonedDevice, executable: Executable, state: State) -> None:
        self.device = device
        self.instance = executable.bind(state)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = self.device
        time.sleep(device.delay)
        arrays = {name: device.download(tensor) for name, tensor in inputs.items()}
        results = {}
        for name, array in self.instance.run(arrays).items():
            results[name] = device.allocated(array)
            results[name].read(device)[...] = array
        return results


def poison(array: Array) -> None:
    """Overwrite an array with nonsense."""
    if array.size:
        array.reshape(-1).view(np.uint8)[...] = POISON
