"""The executor: runs a placed partition, many requests at once.

Each part runs as soon as the values that it takes are there, on the device that its stage is on. A value that parts on
other devices take, or that is an output of the network, comes to the host when it has been made; devices that work in
the host's memory pass arrays on as they are, and write values between parts to memory that later runs use again. A
value is released when everything that takes it has run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from glowtrain.backends.device import Device, Resident, Tensor
from glowtrain.errors import DeviceError, DeviceLostError
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.runtime.device.device_manager import DeviceManager, Task, failure
from glowtrain.runtime.partition.partition import Part
from glowtrain.runtime.placement.buffer_pool import BufferPool
from glowtrain.types import Array, TensorType

Done = Callable[["dict[str, Array] | None", "Exception | None"], None]
"""Called once with a run's outputs, or its error."""
Tell = Callable[[str, str, float, float], None]
"""Called with the device and the name of each part that has run, and when it began and ended."""


@dataclass(frozen=True)
class PlacedPart:
    """A part, resident on a device."""

    part: Part
    manager: DeviceManager
    resident: Resident

    @property
    def device(self) -> Device:
        return self.manager.device

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its outputs. Raises :class:`DeviceError` for others than the part gives, and whatever the device does."""
        outputs: Any = self.resident.run(inputs)
        self._check_names(outputs)
        if self.device.shares_memory:
            for name, array in outputs.items():
                self._check(name, array)
        return dict(outputs)

    def download(self, name: str, tensor: Tensor) -> Array:
        """An output as an array. Raises :class:`DeviceError` for one of another type than the part gives."""
        array = self.device.download(tensor)
        self._check(name, array)
        return array

    def run_with_copies(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Its outputs, on a device with memory of its own; nothing is left in it."""
        device, tensors = self.device, list[Tensor]()
        try:
            given = {}
            for name, array in inputs.items():
                given[name] = device.upload(array)
                tensors.append(given[name])
            made = self.run(given)
            tensors += made.values()
            return {name: self.download(name, tensor) for name, tensor in made.items()}
        except DeviceLostError:
            tensors.clear()  # they are lost with it
            raise
        finally:
            _release(device, tensors)

    def failed(self, error: Exception) -> DeviceError:
        """An error of its run, of whatever kind, as one of the device."""
        return failure(self.device, f"part {self.part.name}", error)

    def _check_names(self, outputs: object) -> None:
        gives = self.part.graph.outputs
        if not isinstance(outputs, Mapping) or outputs.keys() != gives.keys():
            found = listed(outputs) if isinstance(outputs, Mapping) else kind_of(outputs)
            raise self._wrong(f"it gave {found}, not {listed(gives)}")

    def _check(self, name: str, array: object) -> None:
        wanted = self.part.graph.outputs[name].type
        if not isinstance(array, np.ndarray) or not wanted.accepts(array):
            found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else kind_of(array)
            raise self._wrong(f"it gave {name!r} as {found}, not {wanted}")

    def _wrong(self, what: str) -> DeviceError:
        return DeviceError(f"part {self.part.name} failed on device {self.device.name}: {what}")


class Executor:
    """Runs of one placed partition. ``outputs`` says which value each of the network's outputs is."""

    def __init__(self, name: str, parts: Sequence[PlacedPart], outputs: Mapping[str, str]) -> None:
        self.name = name
        self.parts = tuple(parts)
        self.outputs = dict(outputs)
        self.takers: dict[str, list[int]] = {}
        for index, placed in enumerate(self.parts):
            for value in placed.part.takes:
                self.takers.setdefault(value, []).append(index)
        made = {value: placed for placed in self.parts for value in placed.part.gives}
        self.awaited = tuple(sum(value in made for value in placed.part.takes) for placed in self.parts)
        """For each part, how many of the values that it takes other parts make."""
        self.uses = Counter({value: len(takers) for value, takers in self.takers.items()})
        """How often each value is taken, and whether it is an output."""
        self.uses.update(set(self.outputs.values()))
        self.to_host = {value for value, maker in made.items() if self._leaves(value, maker)}
        self.uses_on = Counter((value, placed.manager.name) for placed in self.parts for value in placed.part.takes)
        self.pool = BufferPool()
        self.between = {value: type_ for value, type_ in self._made() if value not in self.outputs.values()}
        """The types of the values that only parts read."""
        own = {value: name for name, value in self.outputs.items() if value in made}
        self.shared = self.outputs.keys() - own.values()
        """Outputs that are inputs of the network, or a value that is another output, too."""

    def _made(self) -> Iterator[tuple[str, TensorType]]:
        """The values that parts make, with their types."""
        for placed in self.parts:
            yield from ((name, value.type) for name, value in placed.part.graph.outputs.items())

    def fresh(self, value: str, type_: TensorType) -> Array:
        """Memory for a value that a part makes: of the pool where only parts read it."""
        return self.pool.take(type_) if value in self.between else np.empty(type_.shape, type_.dtype.numpy)

    def _leaves(self, value: str, maker: PlacedPart) -> bool:
        """Whether a value is wanted outside of the device that makes it."""
        takers = (self.parts[index].manager for index in self.takers.get(value, ()))
        return value in self.outputs.values() or any(manager is not maker.manager for manager in takers)

    @property
    def first(self) -> DeviceManager:
        """The device that a run begins on."""
        return self.parts[0].manager

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """A run of a partition of one part, by the thread that may use its device now. Raises :class:`DeviceError` for
        what goes wrong on it, :class:`DeviceLostError` where it goes out of service."""
        only = self.parts[0]
        try:
            outputs = only.run(inputs) if only.device.shares_memory else only.run_with_copies(inputs)
        except DeviceError:
            raise
        except Exception as error:
            raise only.failed(error) from error
        return self.answer({**inputs, **outputs} if self.shared else outputs)

    def answer(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The network's outputs, each in memory of its own."""
        return {
            name: values[value].copy() if name in self.shared else values[value] for name, value in self.outputs.items()
        }

    def start(self, inputs: Mapping[str, Array], priority: int, done: Done, tell: Tell | None = None) -> None:
        """Begin a run, whose parts become tasks of their devices."""
        Execution(self, inputs, priority, done, tell).start()


class Execution:
    """One run: the values that are there, and the parts that wait for more of them."""

    def __init__(
        self, executor: Executor, inputs: Mapping[str, Array], priority: int, done: Done, tell: Tell | None = None
    ) -> None:
        self.executor = executor
        self.priority = priority
        self._done = done
        self._tell = tell
        self._lock = Lock()
        self._values: dict[str, Array] = dict(inputs)
        """Those on the host."""
        self._tensors: dict[str, dict[str, Tensor]] = {placed.manager.name: {} for placed in executor.parts}
        """Those in the memory of devices that have their own. Each device's are touched by its thread alone."""
        self._uses, self._uses_on = Counter(executor.uses), Counter(executor.uses_on)
        self._awaited = list(executor.awaited)
        self._left = len(executor.parts)
        self._pooled: set[str] = set()
        """Values whose memory goes back to the pool."""
        self._ended = False

    def start(self) -> None:
        """Have all parts done that wait for no other."""
        for index, awaited in enumerate(self.executor.awaited):
            if not awaited:
                self._submit(index)

    def _submit(self, index: int) -> None:
        placed = self.executor.parts[index]
        what = f"part {placed.part.name} of network {self.executor.name}"
        placed.manager.submit(Task(partial(self._run, index), self._end, self.priority, what))

    def _run(self, index: int) -> None:
        """One part, on its device's thread."""
        if self._ended:
            return
        placed, began = self.executor.parts[index], time.monotonic()
        try:
            if placed.device.shares_memory:
                self._run_on_host(placed)
            else:
                self._run_on_device(placed)
            if self._tell is not None:
                self._tell(placed.manager.name, placed.part.name, began, time.monotonic())
            self._go_on(placed)
        except DeviceLostError:
            raise
        except DeviceError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - it is this run's, whatever it is
            self._end(placed.failed(error))

    def _run_on_host(self, placed: PlacedPart) -> None:
        inputs = {value: self._values[value] for value in placed.part.takes}
        executor = self.executor
        outputs = {value: executor.fresh(value, made.type) for value, made in placed.part.graph.outputs.items()}
        into = placed.resident.run_into(inputs, outputs)
        if not into:
            outputs = placed.run(inputs)
        with self._lock:
            self._values.update(outputs)
            self._pooled.update(executor.between.keys() & outputs.keys() if into else ())

    def _run_on_device(self, placed: PlacedPart) -> None:
        """Copies in, the part, copies out of what is wanted elsewhere."""
        device, name = placed.device, placed.manager.name
        tensors = self._tensors[name]
        for value in placed.part.takes:
            if value not in tensors:
                tensors[value] = device.upload(self._values[value])
        outputs = placed.run({value: tensors[value] for value in placed.part.takes})
        tensors.update(outputs)
        copies = {value: placed.download(value, outputs[value]) for value in outputs if value in self.executor.to_host}
        with self._lock:
            self._values.update(copies)
        unused = [value for value in outputs if not self._uses_on[value, name]]
        _release(device, [tensors.pop(value) for value in unused])

    def _go_on(self, placed: PlacedPart) -> None:
        """A part has run: release what it was the last to take, begin what it was the last to wait for."""
        tensors = self._tensors[placed.manager.name]
        with self._lock:
            ready = [index for value in placed.part.gives for index in self._served(value)]
            unused = [value for value in placed.part.takes if self._taken(value, placed) and value in tensors]
            self._left -= 1
            last = not self._left
        _release(placed.device, [tensors.pop(value) for value in unused])
        for index in ready:
            self._submit(index)
        if last:
            self._end(None)

    def _served(self, value: str) -> list[int]:
        """The parts that have all they take, now that a value is there."""
        takers = self.executor.takers.get(value, [])
        for index in takers:
            self._awaited[index] -= 1
        return [index for index in takers if not self._awaited[index]]

    def _taken(self, value: str, placed: PlacedPart) -> bool:
        """A value has been taken once more. Whether nothing takes it again on this device."""
        self._uses[value] -= 1
        if not self._uses[value] and (array := self._values.pop(value, None)) is not None and value in self._pooled:
            self.executor.pool.give(self.executor.between[value], array)
        held = value, placed.manager.name
        self._uses_on[held] -= 1
        return not self._uses_on[held]

    def _end(self, error: Exception | None) -> None:
        """Say what became of it, once; what is left on devices is released there, after what runs there now."""
        outputs = None if error is not None else self.executor.answer(self._values)
        with self._lock:
            if self._ended:
                return
            self._ended = True
        managers = {placed.manager.name: placed.manager for placed in self.executor.parts}
        for name, tensors in self._tensors.items():
            manager = managers[name]
            if not manager.device.shares_memory and (error is not None or tensors):
                release = partial(_release_all, manager.device, tensors)
                manager.submit(Task(release, lambda lost: None, what="releasing tensors"))
        self._done(outputs, error)


def _release_all(device: Device, tensors: dict[str, Tensor]) -> None:
    while tensors:
        device.release(tensors.popitem()[1])


def _release(device: Device, tensors: list[Tensor]) -> None:
    """Release them all, each once, whatever is said about one of them."""
    while tensors:
        device.release(tensors.pop())
