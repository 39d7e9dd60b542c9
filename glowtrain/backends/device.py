"""Devices: where compiled functions are resident and run, for the runtime.

A backend compiles; a device holds what was compiled, with its variables, and runs it. The runtime makes every call to a
device from one thread at a time, so a device needs no locks. What another package has to write for hardware of its own
is here: a :class:`Device` with its :class:`Resident` functions and :class:`ResidentVariables`, beside a
:class:`~glowtrain.backends.base.Backend`. ``glowtrain.runtime.conformance`` tests them.

    device.place(initial values) -> ResidentVariables
    device.load(executable, variables) -> Resident
    device.upload(array) -> tensor --resident.run--> tensors --device.download--> array
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from glowtrain.backends.base import Backend, Executable
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Operator
from glowtrain.types import Array

Tensor = Any
"""A tensor in a device's memory; an array where that is the host's memory."""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device can do, by which networks are cut into parts and placed. Times are rough: they balance parts.

    ``memory``: bytes that it can hold, ``None`` for no limit. ``operations``: arithmetic operations it does in a
    nanosecond at best; ``bandwidth``: bytes it reads or writes in a nanosecond; ``link``: bytes in a nanosecond to and
    from the host, ``None`` where it works in the host's memory; ``launch``: nanoseconds that starting a function takes.
    """

    memory: int | None = None
    operations: float = 64.0
    bandwidth: float = 12.0
    link: float | None = None
    launch: float = 5_000.0

    def __post_init__(self) -> None:
        memory: object = self.memory
        if memory is not None and not (isinstance(memory, Integral) and int(memory) >= 0):
            raise InputError(f"a device's memory is a number of bytes or None, not {memory!r}")
        for name in ("operations", "bandwidth", "link"):
            rate: Any = getattr(self, name)
            if not (name == "link" and rate is None) and not (isinstance(rate, Real) and float(rate) > 0):
                raise InputError(f"a device's {name} is a number above 0, not {rate!r}")
        launch: Any = self.launch
        if not (isinstance(launch, Real) and 0 <= float(launch) < float("inf")):
            raise InputError(f"a device's launch is a number of nanoseconds from 0, not {launch!r}")


class ResidentVariables(ABC):
    """The variables of one stage of a network, resident on a device, shared by all functions that were loaded with
    them."""

    nbytes: int
    """What they take in the device's memory."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """A row-major copy of one variable on the host."""

    @abstractmethod
    def write(self, name: str, array: Array) -> None:
        """Set one variable. Raises :class:`InputError` for an unknown name, another shape or dtype."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The variables there are."""

    def read_all(self) -> dict[str, Array]:
        """Copies of all variables, by name."""
        return {name: self.read(name) for name in self.names}

    def free(self) -> None:  # noqa: B027  (memory that is collected needs nothing)
        """Give the memory back."""


class Resident(ABC):
    """A function that is loaded on a device."""

    nbytes: int
    """What it takes in the device's memory beside variables."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs for inputs that have the graph's types exactly; variables are updated. Whoever called owns the
        outputs: no later run writes to them.

        An exception is this run's error, and the device goes on; :class:`DeviceLostError` says that it cannot.
        """

    def run_into(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Array]) -> bool:
        """:meth:`run`, on a device whose tensors are arrays, with its outputs in arrays that are given for all of them,
        contiguous and of their types. False, before anything has run, where that cannot be, as by default."""
        return False

    def free(self) -> None:  # noqa: B027  (memory that is collected needs nothing)
        """Unload it."""


class Device(ABC):
    """A place to run compiled functions; see the module's docstring."""

    name: str
    """By which it is asked for; unique among the devices of one host."""
    backend: Backend
    """What compiles for it."""
    facts: DeviceFacts = DeviceFacts()
    any_thread: bool = False
    """Whether different threads may call it, one after the other. Where that is so, a call of an idle device can be
    made by the thread that asks, a server's event loop among them: only for devices whose calls cannot hang."""

    @property
    def shares_memory(self) -> bool:
        """Whether its tensors are arrays of this process."""
        return self.facts.link is None

    def supports(self, operator: Operator) -> bool:
        """Whether it can run an operator: by default all."""
        return True

    @abstractmethod
    def needs(self, graph: Graph, executable: Executable) -> int:
        """The bytes that a function of ``graph`` will take when it is loaded, beside its variables."""

    @abstractmethod
    def place(self, initial: Mapping[str, Array]) -> ResidentVariables:
        """Variables with these values, by name. Raises :class:`DeviceError` where the memory does not suffice."""

    @abstractmethod
    def load(self, executable: Executable, variables: ResidentVariables) -> Resident:
        """What its backend has loaded into this process, resident on the device, over variables that :meth:`place`
        made. Raises :class:`DeviceError` where the memory does not suffice."""

    def begin(self) -> None:  # noqa: B027  (nothing is to be done by default)
        """Called once, by the thread that will make the calls, before any other."""

    def upload(self, array: Array) -> Tensor:
        """A contiguous array as a tensor of the device."""
        return array

    def download(self, tensor: Tensor) -> Array:
        """A tensor of the device as an array."""
        array: Array = tensor
        return array

    def release(self, tensor: Tensor) -> None:  # noqa: B027  (arrays are collected)
        """Give a tensor's memory back."""

    def probe(self) -> None:  # noqa: B027  (a device in this process is as alive as the process)
        """Ask whether it still works. Raises :class:`DeviceLostError` if not."""

    def close(self) -> None:  # noqa: B027  (nothing is open by default)
        """Called once, after everything has been freed."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
