"""Devices in this process: backends as devices, virtual ones among them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from glowtrain.backends.base import Backend, Executable, Instance
from glowtrain.backends.device import Device, DeviceFacts, Resident, ResidentVariables, Tensor
from glowtrain.backends.discovery import backend_names, backend_of
from glowtrain.backends.state import State, address_of
from glowtrain.errors import BackendError, DeviceError, InputError
from glowtrain.graph import Graph
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.presentation.messages import kind_of
from glowtrain.runtime.checks import text
from glowtrain.types import Array

PINNING = hasattr(os, "sched_setaffinity")
"""Whether threads can be held to cores, as on Linux."""


class HostVariables(ResidentVariables):
    """Variables in this process's memory."""

    def __init__(self, initial: Mapping[str, Array]) -> None:
        self.state = State(initial)
        self.nbytes = sum(self.state.sizes.values())

    @property
    def names(self) -> tuple[str, ...]:
        return self.state.names

    def read(self, name: str) -> Array:
        return self.state.read(name)

    def write(self, name: str, array: Array) -> None:
        self.state.write(name, array)


class HostResident(Resident):
    """An instance of an executable, over variables that others may share."""

    def __init__(self, instance: Instance, nbytes: int) -> None:
        self.instance = instance
        self.nbytes = nbytes

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if (outputs := self.instance.run_fitting(inputs)) is not None:
            return outputs
        return self.instance.run({name: np.asarray(array, order="C") for name, array in inputs.items()})

    def run_into(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Array]) -> bool:
        if not all(array.flags.c_contiguous for array in inputs.values()):
            return False
        addresses = {name: address_of(array) for name, array in inputs.items()}
        places = {name: address_of(array) for name, array in outputs.items()}
        return self.instance.run_at(addresses, places) is not None


class HostDevice(Device):
    """A backend of this process as a device.

    ``memory``: bytes that it may hold, a number or text such as ``"64MB"``; ``cores``: those that its thread is held
    to, where the system can; ``threads``: those of each function, by default one for each of ``cores``, else the
    backend's. Raises :class:`InputError` for what is none of these, and for cores that this process may not use.
    """

    def __init__(
        self,
        name: str,
        backend: str | Backend = "cpu",
        *,
        memory: int | str | None = None,
        cores: Collection[int] | None = None,
        threads: int | None = None,
    ) -> None:
        if not name:
            raise InputError("a device needs a name")
        self.name = name
        self.cores = None if cores is None else _allowed(name, cores)
        self.backend = backend_of(backend, _threads(backend, threads, self.cores))
        self.facts = DeviceFacts(memory=None if memory is None else parse_bytes(memory))
        self.any_thread = self.cores is None

    def begin(self) -> None:
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)

    def needs(self, graph: Graph, executable: Executable) -> int:
        """What the plan says; where there is none, every value of the graph once."""
        try:
            own = executable.memory
        except BackendError:
            values = (value for node in graph.nodes for value in node.outputs)
            return sum(value.type.nbytes for value in (*graph.constants, *values))
        return own.arena + own.workspace + own.outputs + own.constants

    def place(self, initial: Mapping[str, Array]) -> HostVariables:
        return HostVariables(initial)

    def load(self, executable: Executable, variables: ResidentVariables) -> HostResident:
        if not isinstance(variables, HostVariables):
            raise DeviceError(f"device {self.name} was given variables of another device: {kind_of(variables)}")
        return HostResident(executable.bind(variables.state), 0)


def cpu_devices(
    count: int, *, memory: int | str | None = None, pinned: bool = False, threads: int | None = None
) -> tuple[HostDevice, ...]:
    """So many virtual devices ``cpu:0``, ``cpu:1``, ... over this process's cores.

    Each may hold ``memory`` bytes. The cores are divided among them as far as they go: a function runs on as many
    ``threads`` as a device has cores unless that is said, and with ``pinned`` on none but these. Raises
    :class:`InputError` for fewer than one device, and for pinned ones on a system that cannot hold threads to cores.
    """
    if type(count) is not int or count < 1:
        raise InputError(f"a number of devices is a whole number of at least 1, not {count!r}")
    shares = _shares(sorted(_own_cores()), count)
    return tuple(
        HostDevice(
            f"cpu:{number}", memory=memory, cores=share if pinned else None,
            threads=len(share) if threads is None else threads,
        )
        for number, share in enumerate(shares)
    )  # fmt: skip


def as_devices(devices: Sequence[str | Device] | None) -> tuple[Device, ...]:
    """Devices by themselves or by the names of backends (``"cpu"``, ``"interpreter"``); one of all cores by default.

    Raises :class:`InputError` for anything else, for none, and for two of one name.
    """
    if devices is None:
        return (HostDevice("cpu"),)
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise InputError(f"devices are a list of devices or names of backends, not {kind_of(devices)}")
    made = tuple(_device(device) for device in devices)
    names = [device.name for device in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not made:
        raise InputError(f"several devices are called {', '.join(twice)}" if twice else "there must be a device")
    return made


def _device(device: str | Device) -> Device:
    if isinstance(device, Device):
        _check(device)
        return device
    if not isinstance(device, str):
        raise InputError(f"a device is a Device or the name of a backend, not {kind_of(device)}")
    if device not in backend_names():
        raise InputError(f"there is no device {device!r}; choose from {', '.join(backend_names())}, or give a Device")
    return HostDevice(device, device)


def _check(device: Device) -> None:
    """Raise :class:`InputError` for a device that does not say what it is, whoever wrote it."""
    text(f"the name of a device ({type(device).__name__})", getattr(device, "name", None))
    backend, facts = getattr(device, "backend", None), device.facts
    if not isinstance(backend, Backend):
        raise InputError(f"device {device.name}: its backend is {kind_of(backend)}, which is no Backend")
    if not isinstance(facts, DeviceFacts):
        raise InputError(f"device {device.name}: its facts are {kind_of(facts)}, which is no DeviceFacts")


def _own_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if PINNING else range(os.cpu_count() or 1)


def _allowed(name: str, cores: Collection[int]) -> frozenset[int]:
    if not PINNING:
        raise InputError(f"device {name}: this system cannot hold threads to cores")
    wanted, own = frozenset(cores), frozenset(_own_cores())
    if not wanted or not wanted <= own:
        raise InputError(f"device {name}: cores {sorted(wanted)} are not among those of this process, {sorted(own)}")
    return wanted


def _threads(backend: str | Backend, threads: int | None, cores: Collection[int] | None) -> int | None:
    """How many threads were asked for, if they were."""
    if threads is not None or cores is None or not backend_of(backend).threaded:
        return threads
    return len(cores)


def _shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """The cores dealt out; where there are fewer than devices, several devices have the same one."""
    if count >= len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    return [list(cores[number::count]) for number in range(count)]
