"""The provisioner: puts partitions onto devices, all of a network or nothing.

Functions are compiled at the same time, each stage's on a thread of its own. Within a stage the parts are compiled in
order, for the largest batch first, and each takes variables as those before it have them in memory, so that nothing is
rearranged between runs, and products, which come before updates, choose as they do in the whole. A stage goes to the
device, of those that support its operators, that has the fewest stages of this placement; of several, to the one in its
own place in the list of devices, for which it was cut, or the one with the most memory left. Where it does not fit
there, it goes to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from numbers import Integral
from typing import Any, TypeVar

from glowtrain.backends.base import Backend, Executable
from glowtrain.backends.device import Device, Resident, ResidentVariables
from glowtrain.errors import DeviceError, DeviceLostError, ProvisionError
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.runtime.device.device_manager import DeviceManager, failure
from glowtrain.runtime.partition.needs import compiled
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.runtime.placement.executor import Executor, PlacedPart
from glowtrain.runtime.placement.replica import NetworkPlacement
from glowtrain.types import Array

Partitions = Mapping["int | None", Partition]
"""A network's partitions by the size of the batch, all with the same stages."""
Compiled = dict["tuple[int | None, str]", Executable]
"""Executables by the size of the batch and the name of the part."""
Value = TypeVar("Value")


class Provisioner:
    """Placing networks on the devices of ``managers``."""

    def __init__(self, managers: Sequence[DeviceManager]) -> None:
        self.managers = tuple(managers)

    def place(
        self, name: str, partitions: Partitions, managers: Sequence[DeviceManager] | None = None
    ) -> NetworkPlacement:
        """A placement of a network on some of the devices, by default on any. Each part has run nowhere yet.

        Raises :class:`ProvisionError` where a stage fits on no device, with what each of them says,
        and :class:`DeviceError` where a device fails; nothing is left on any of them then.
        """
        placing = Placing(name, partitions, self._in_service(name, managers or self.managers))
        with ExitStack() as undo:
            placing.everything(undo)
            return placing.placement(undo.pop_all().close)

    def _in_service(self, name: str, managers: Sequence[DeviceManager]) -> list[DeviceManager]:
        found = [manager for manager in managers if manager.lost is None]
        if not found:
            raise ProvisionError(
                f"network {name}: no device is in service: " + "; ".join(str(m.lost) for m in managers)
            )
        return found


class Placing:
    """One network on its way onto devices."""

    def __init__(self, name: str, partitions: Partitions, managers: Sequence[DeviceManager]) -> None:
        self.name = name
        self.partitions = partitions
        self.managers = managers
        self.largest = next(iter(sorted(partitions.values(), key=_rows, reverse=True)))
        self.chosen: dict[int, DeviceManager] = {}
        self.used: dict[DeviceManager, int] = {}
        self.variables: dict[int, ResidentVariables] = {}
        self.residents: dict[tuple[int | None, str], Resident] = {}
        self.compiled: dict[tuple[int, Backend, bool], Compiled] = {}
        """By the stage, what compiled it, and whether for a device whose memory is limited."""

    def everything(self, undo: ExitStack) -> None:
        """Compile, choose, load; ``undo`` learns how each step is taken back."""
        self._compile_likely()
        for stage in self.largest.stages:
            self.chosen[stage] = self._choose(stage, undo)
        for stage, manager in self.chosen.items():
            self._load(stage, manager, undo)

    def placement(self, release: Callable[[], None]) -> NetworkPlacement:
        """What has been made."""
        executors = {size: self._executor(size) for size in self.partitions}
        variables = {stage: (self.chosen[stage], held) for stage, held in self.variables.items()}
        return NetworkPlacement(executors, variables, self.used, release)

    def _executor(self, size: int | None) -> Executor:
        partition = self.partitions[size]
        parts = [PlacedPart(part, self.chosen[part.stage], self.residents[size, part.name]) for part in partition.parts]
        return Executor(self.name, parts, partition.outputs)

    # --- compiling ----------------------------------------------------------------------------------------------------

    def _compile_likely(self) -> None:
        """Compile every stage for the device it is most likely to go to, all at the same time."""
        wanted = []
        for number, stage in enumerate(self.largest.stages):
            able = [manager for manager in self.managers if not self._lacking(stage, manager.device)]
            if able:
                wanted.append((stage, able[number % len(able)].device))
        with ThreadPoolExecutor(max_workers=len(wanted) or 1, thread_name_prefix="compile") as pool:
            for done in [pool.submit(self._executables, stage, device) for stage, device in wanted]:
                done.result()

    def _executables(self, stage: int, device: Device) -> Compiled:
        """What a device's backend makes of a stage's parts, for all sizes."""
        backend, limited = device.backend, device.facts.memory is not None
        if found := self.compiled.get((stage, backend, limited)):
            return found
        sizes = sorted(self.partitions, key=lambda size: size or 0, reverse=True)
        parts = [(size, part) for size in sizes for part in self.partitions[size].of_stage(stage)]
        functions = compiled((part for _, part in parts), backend, limited=limited)
        made = {(size, part.name): function for (size, _), (part, function) in zip(parts, functions, strict=True)}
        self.compiled[stage, backend, limited] = made
        return made

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _choose(self, stage: int, undo: ExitStack) -> DeviceManager:
        """The device of a stage, with memory set aside."""
        refusals = []
        for manager in sorted(self.managers, key=partial(self._preference, stage)):
            if lacking := self._lacking(stage, manager.device):
                refusals.append(f"device {manager.name} does not support {lacking}")
                continue
            needed = self._bytes(stage, manager.device)
            try:
                manager.reserve(needed, f"network {self.name}")
            except ProvisionError as error:
                refusals.append(str(error))
                continue
            undo.callback(manager.give_back, needed)
            self.used[manager] = self.used.get(manager, 0) + needed
            return manager
        which = f", stage {stage}," if len(self.largest.stages) > 1 else ""
        raise ProvisionError(f"network {self.name}{which} fits on no device: " + "; ".join(refusals))

    def _preference(self, stage: int, manager: DeviceManager) -> tuple[int, bool, float, int]:
        """What is small for the device that a stage had best go to."""
        limit, stages = manager.device.facts.memory, self.largest.stages
        left = float("inf") if limit is None else limit - manager.used
        elsewhere = len(stages) > 1 and self.managers.index(manager) != stages.index(stage)
        return sum(chosen is manager for chosen in self.chosen.values()), elsewhere, -left, manager.used

    def _lacking(self, stage: int, device: Device) -> str:
        """The operators of a stage that a device does not support, in words."""
        nodes = (node for part in self.largest.of_stage(stage) for node in part.graph.nodes)
        operators = [node.operator for node in nodes if not _said(device, "supports", device.supports, node.operator)]
        return listed(sorted({type(operator).__name__ for operator in operators})) if operators else ""

    def _bytes(self, stage: int, device: Device) -> int:
        made = self._executables(stage, device)
        parts = {(size, part.name): part for size, cut in self.partitions.items() for part in cut.of_stage(stage)}
        variables = sum(array.nbytes for array in self._initial(stage).values())
        return variables + sum(_needs(device, part, made[key]) for key, part in parts.items())

    def _initial(self, stage: int) -> dict[str, Array]:
        graphs = (part.graph for part in self.largest.of_stage(stage))
        return {variable.name: variable.initial for graph in graphs for variable in graph.variables}

    # --- loading ------------------------------------------------------------------------------------------------------

    def _load(self, stage: int, manager: DeviceManager, undo: ExitStack) -> None:
        device, what = manager.device, f"loading network {self.name}"
        initial = self._initial(stage)
        variables = self._on(manager, partial(device.place, initial), what, ResidentVariables)
        undo.callback(_give_back, manager, variables.free)
        self.variables[stage] = variables
        made = self._executables(stage, device)
        for key, executable in made.items():
            resident = self._on(manager, partial(device.load, executable, variables), what, Resident)
            undo.callback(_give_back, manager, resident.free)
            self.residents[key] = resident

    def _on(self, manager: DeviceManager, function: Callable[[], Value], what: str, kind: type[Any]) -> Value:
        """A call on a device's thread, whose errors say where they come from."""
        try:
            made = manager.call(function, what)
        except DeviceError:
            raise
        except Exception as error:
            raise failure(manager.device, what, error) from error
        if not isinstance(made, kind):
            raise DeviceError(f"{what} on device {manager.name}: it gave {kind_of(made)}, which is no {kind.__name__}")
        return made


def _needs(device: Device, part: Part, executable: Executable) -> int:
    """The bytes that a device says a function will take."""
    nbytes: object = _said(device, "needs", device.needs, part.graph, executable)
    if not isinstance(nbytes, Integral) or nbytes < 0:
        raise DeviceError(f"device {device.name} says that part {part.name} needs {nbytes!r} bytes")
    return int(nbytes)


def _said(device: Device, what: str, method: Callable[..., Value], *arguments: object) -> Value:
    """What a device says about itself, whose errors say where they come from."""
    try:
        return method(*arguments)
    except DeviceError:
        raise
    except Exception as error:
        raise failure(device, what, error) from error


def _give_back(manager: DeviceManager, free: Callable[[], None]) -> None:
    """Free something on its device; one that is lost has lost it. Raises :class:`DeviceError` where it does not."""
    try:
        manager.call(free, "unloading")
    except DeviceLostError:
        return
    except Exception as error:
        raise failure(manager.device, "unloading", error) from error


def _rows(partition: Partition) -> int:
    """By which partitions of several batch sizes are compared: the elements of all inputs."""
    return sum(type_.size for type_ in partition.inputs.values())
