"""What a training puts onto its devices: functions that compute the gradients of parts of a batch, and the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from glowtrain.backends.inputs import check_inputs
from glowtrain.errors import DeviceLostError, InputError
from glowtrain.grad.training import LOSS
from glowtrain.graph import Graph
from glowtrain.modes.variables import with_values
from glowtrain.presentation.messages import kind_of
from glowtrain.runtime.device.device_manager import DeviceManager, Task
from glowtrain.runtime.partition.partition import Part, Partition, whole
from glowtrain.runtime.placement.executor import Executor
from glowtrain.runtime.placement.provisioner import Provisioner
from glowtrain.runtime.placement.replica import NetworkPlacement
from glowtrain.trainer import Trainer
from glowtrain.trainer.micro_batches.split import AUTO
from glowtrain.types import Array

UPDATE = "update"
"""The name of the part that updates."""


class StepRunner:
    """The functions of one device: those of its parts of the batch, by their numbers, and the update."""

    def __init__(self, placement: NetworkPlacement, numbers: Sequence[int]) -> None:
        (executor,) = placement.executors.values()
        *parts, update = (Executor(each.part.name, [each], {n: n for n in each.part.gives}) for each in executor.parts)
        self.parts = dict(zip(numbers, parts, strict=True))
        self.update = update
        self.manager = update.first

    def submit(self, call: Callable[[], None], fail: Callable[[DeviceLostError], None]) -> None:
        """Have the device do something."""
        self.manager.submit(Task(call, fail, what="a training step"))


def run_part(function: Executor, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A function on what it takes of the inputs, on its device's thread."""
    return function.run({name: np.asarray(inputs[name], order="C") for name in function.parts[0].part.takes})


def check_part(function: Executor, inputs: Mapping[str, Array]) -> None:
    """Raise :class:`InputError` for inputs that a function could not compute with."""
    part = function.parts[0].part
    check_inputs(part.graph, {name: inputs[name] for name in part.takes})


def place_training(
    name: str, trainer: Trainer, batch_size: int, parts: int, managers: Sequence[DeviceManager], undo: ExitStack
) -> list[NetworkPlacement]:
    """A trainer's functions on devices: part k of the batch on device k modulo their number.

    The budget of the trainer is that of the step, or of each part's gradients. Raises :class:`InputError` for a batch
    that cannot be cut so, :class:`MemoryBudgetError` for a budget that cannot be kept, :class:`ProvisionError` where it
    does not fit.
    """
    if not isinstance(trainer, Trainer):
        raise InputError(f"training {name}: it is a Trainer that is trained, not {kind_of(trainer)}")
    count = trainer.spec.micro_batches
    if count == AUTO or (count > 1 and parts > 1):
        raise InputError(
            f"training {name}: micro_batches={count!r} of its trainer: "
            + ("say a number, or parts= here" if count == AUTO else "the batch is cut into parts= already")
        )
    if batch_size % parts:
        raise InputError(f"training {name}: a batch of {batch_size} cannot be cut into {parts} equal parts")
    found = []
    for number, partition in enumerate(_partitions(name, trainer, batch_size, parts, len(managers))):
        placement = Provisioner(managers[number : number + 1]).place(name, {None: partition})
        undo.callback(placement.release)
        found.append(placement)
    return found


def _partitions(name: str, trainer: Trainer, batch_size: int, parts: int, devices: int) -> list[Partition]:
    """What each device has to do."""
    values, model = trainer.variables(), _bound(trainer, batch_size // parts)
    budget = trainer.spec.budget
    if parts == 1:
        return [whole(with_values(trainer.graphs.step_of(model), values), budget)]
    split = trainer.graphs.split_step(model, parts)
    graphs = [with_values(graph, values) for graph in split.parts]
    update = Part(UPDATE, with_values(split.update, values))
    found = []
    for device in range(devices):
        numbers = range(device, parts, devices)
        own = [Part(f"gradients.{number}", graphs[number], memory=budget) for number in numbers]
        types = {value.name: value.type for part in (*own, update) for value in part.graph.inputs}
        found.append(Partition(name, (*own, update), types, {LOSS: LOSS}))
    return found


def _bound(trainer: Trainer, size: int) -> Graph:
    """The model for batches of a size. Raises :class:`InputError` for a size that it does not take."""
    template = trainer.graphs.template
    arrays = trainer.signature.of_size(size)
    if template is None:
        return trainer.graphs.example
    return template.bind(template.dims_for({name: arrays[name].shape for name in template.inputs}))
