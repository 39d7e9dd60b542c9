"""Devices whose calls a test can hold, count and let fail, and small networks with answers that are known exactly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Event
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.backends.base import Executable
from glowtrain.backends.device import Device, Resident, ResidentVariables, Tensor
from glowtrain.errors import DeviceError
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.runtime import HostDevice, HostManager
from glowtrain.runtime.conformance import PoisonedDevice
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.types import Array

Hook = Callable[[str, Any], None]
"""Called before a device's call, with its name (``begin``, ``place``, ``load``, ``run``, ``free``, ``upload``,
``download``) and what it is given."""


class _Scripted(Device):
    """Calls ``before`` ahead of each call, and counts what has been placed and loaded and not yet freed."""

    before: Hook = staticmethod(lambda call, given: None)
    live = 0

    def begin(self) -> None:
        self.before("begin", None)
        super().begin()

    def place(self, initial: Mapping[str, Array]) -> ResidentVariables:
        self.before("place", initial)
        made = super().place(initial)  # type: ignore[safe-super]
        self._count(made)
        return made

    def load(self, executable: Executable, variables: ResidentVariables) -> Resident:
        self.before("load", executable)
        made = super().load(executable, variables)  # type: ignore[safe-super]
        self._count(made)
        run = made.run

        def scripted(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            self.before("run", inputs)
            return run(inputs)

        into = made.run_into

        def scripted_into(inputs: Mapping[str, Tensor], outputs: Mapping[str, Array]) -> bool:
            self.before("run", inputs)
            return into(inputs, outputs)

        made.run, made.run_into = scripted, scripted_into  # type: ignore[method-assign]
        return made

    def upload(self, array: Array) -> Tensor:
        self.before("upload", array)
        return super().upload(array)

    def download(self, tensor: Tensor) -> Array:
        self.before("download", tensor)
        return super().download(tensor)

    def _count(self, made: ResidentVariables | Resident) -> None:
        self.live += 1
        free = made.free

        def counted() -> None:
            self.before("free", made)
            self.live -= 1
            free()

        made.free = counted  # type: ignore[method-assign]


class ScriptedDevice(_Scripted, HostDevice):
    """One of this process."""

    def __init__(self, name: str = "cpu", before: Hook | None = None, *, any_thread: bool = True, **options: Any):
        self.before = before or self.before
        super().__init__(name, threads=1, **options)
        self.any_thread = any_thread


class ScriptedMemory(_Scripted, PoisonedDevice):
    """One with memory of its own."""

    def __init__(self, name: str = "poisoned", before: Hook | None = None, **options: Any):
        self.before = before or self.before
        super().__init__(name, **options)


class Gate:
    """A hook that holds one kind of call until it is opened; ``reached`` is set when one has come."""

    def __init__(self, call: str = "run") -> None:
        self.call = call
        self.reached, self.opened = Event(), Event()
        self.closed = False

    def __call__(self, call: str, given: Any) -> None:
        if self.closed and call == self.call:
            self.reached.set()
            assert self.opened.wait(60), "nobody opened the gate"

    def close(self) -> None:
        """From now on calls are held."""
        self.reached.clear(), self.opened.clear()
        self.closed = True

    def open(self) -> None:
        """Let all go on."""
        self.closed = False
        self.opened.set()


class Failing:
    """A hook that raises at the number-th call of its kind (from 1), or at all from it on with ``ever``."""

    def __init__(self, call: str, error: BaseException | None = None, number: int = 1, *, ever: bool = False) -> None:
        self.call, self.error, self.number, self.ever = call, error or DeviceError("injected"), number, ever
        self.count = self.injected = 0

    def __call__(self, call: str, given: Any) -> None:
        self.count += call == self.call
        if call == self.call and (self.count == self.number or (self.ever and self.count > self.number)):
            self.injected += 1
            raise self.error


def joined(*names: str) -> None:
    """Wait for the threads whose names begin so."""
    for thread in threading.enumerate():
        if thread.name.startswith(names):
            while thread.ident is None:  # it is about to be started
                Event().wait(0.001)
            thread.join(60)
            assert not thread.is_alive(), thread.name


BAD = 999.0
"""A number that :func:`refuses_bad` does not let a device compute with."""


def refuses_bad(call: str, given: Any) -> None:
    """A hook: a run fails whose inputs have :data:`BAD` among them."""
    if call == "run" and any((array == BAD).any() for array in given.values()):
        raise ArithmeticError("a bad number")


@gt.model(x=gt.f32["batch", 3])
def triple(x: Value) -> dict[str, Value]:
    """Exact for small whole numbers."""
    return {"y": x * 3.0 + 1.0, "z": x * -2.0}


def tripled(x: Array) -> Array:
    """The output ``y`` of :func:`triple`."""
    return x * np.float32(3) + np.float32(1)


def with_factor(factor: float) -> Any:
    """A template like :func:`triple` with a factor of its own, to tell versions apart."""

    @gt.model(x=gt.f32["batch", 3])
    def scaled(x: Value) -> dict[str, Value]:
        return {"y": x * factor}

    return scaled


def rows(first: int, count: int) -> Array:
    """So many rows whose numbers nobody else has, if ``first`` is nobody else's."""
    return (np.arange(3 * count, dtype=np.float32) + 3 * first).reshape(count, 3)


def counting() -> Graph:
    """A network with a variable that each run updates: ``total`` is the sum of all inputs so far."""
    total = Variable("total", np.zeros(1, np.float32))
    x = Input(gt.types.TensorType(gt.f32, (1,)), "x")
    following = x + total
    return Graph((x,), {"total": following}, {total: following}, "counting")


@gt.model(x=gt.f32["batch", 3])
def diamond(x: Value) -> dict[str, Value]:
    """What :func:`in_four` is the parts of."""
    h = x * 3.0
    return {"y": (h + 1.0) - h * -2.0, "z": h * -2.0}


def diamonds(x: Array) -> Array:
    """The output ``y`` of :func:`diamond`."""
    return x * np.float32(9) + np.float32(1)


def in_four(graph: Graph) -> Partition:
    """A part that two take, on devices of their own, whose values a fourth takes on the device of the first."""
    type_ = graph.inputs[0].type
    x, h, p, q, r = (Input(type_, name) for name in ("x", "h", "p", "q", "h"))
    parts = (
        Part("first", Graph((x,), {"h": x * 3.0}, name="first"), 0),
        Part("left", Graph((h,), {"p": h + 1.0}, name="left"), 1),
        Part("right", Graph((r,), {"q": r * -2.0}, name="right"), 2),
        Part("last", Graph((p, q), {"d": p - q}, name="last"), 0),
    )
    return Partition("diamond", parts, {"x": type_}, {"y": "d", "z": "q"})


def ask(host: HostManager, first: int, count: int = 1, **options: Any) -> Future[Any]:
    """The answer of the network ``net`` for so many of :func:`rows`."""
    return host.run("net", {"x": rows(first, count)}, **options)
