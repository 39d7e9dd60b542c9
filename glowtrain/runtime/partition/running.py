"""The reference executor: the parts of a partition, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glowtrain.backends.base import Backend, Instance
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import State
from glowtrain.runtime.partition.needs import compiled
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.types import Array


class PartitionFunction:
    """A partition, compiled: ``f({"x": x})["y"]``. Each stage has a state of its own, ``states[stage]``."""

    def __init__(self, partition: Partition, backend: str | Backend = "cpu") -> None:
        self.partition = partition
        self.states = {stage: State({}) for stage in partition.stages}
        self._instances: dict[str, Instance] = {}
        for stage, state in self.states.items():
            for part, executable in compiled(partition.of_stage(stage), backend_of(backend), limited=False):
                state.add(part.graph.initial_values)
                self._instances[part.name] = executable.bind(state)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name; variables are updated. Raises :class:`InputError` for inputs that do not fit."""
        values: dict[str, Any] = dict(inputs)
        for part in self.partition.parts:
            values.update(self._run(part, {name: values[name] for name in part.takes if name in values}))
        return {name: values[value] for name, value in self.partition.outputs.items()}

    def _run(self, part: Part, inputs: Mapping[str, Any]) -> dict[str, Array]:
        return self._instances[part.name].run(check_inputs(part.graph, inputs))

    def variables(self) -> dict[str, Array]:
        """The variables of all stages, by name."""
        return {name: state.read(name) for state in self.states.values() for name in state.names}


def run_parts(partition: Partition, inputs: Mapping[str, Any], backend: str | Backend = "cpu") -> dict[str, Array]:
    """The outputs of a partition for one call, its variables as they are at the start."""
    return PartitionFunction(partition, backend)(inputs)
