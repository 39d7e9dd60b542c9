"""The functions of a stage, compiled over the same variables, and what they take in a device's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glowtrain.backends.base import Backend, Executable
from glowtrain.backends.device import Device
from glowtrain.compiler.service import build
from glowtrain.graph import Value
from glowtrain.memory.budget import UNSAID
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.stages import Options


def compiled(parts: Iterable[Part], backend: Backend, *, limited: bool) -> Iterator[tuple[Part, Executable]]:
    """The parts of a stage, each with what the backend makes of it for variables as those before it have them in
    memory: so nothing is rearranged between runs. Where memory is not ``limited`` and no part updates a variable, they
    may read copies of them."""
    parts = list(parts)
    copies = not limited and not any(part.graph.updates for part in parts)
    layouts: dict[str, tuple[int, ...]] = {}
    for part in parts:
        own = {variable.name for variable in part.graph.variables}
        kept = tuple(sorted((name, layout) for name, layout in layouts.items() if name in own))
        options = Options(
            facts=backend.facts, variable_layouts=kept, memory=part.memory,
            pack_variables=copies and part.memory == UNSAID,
        )  # fmt: skip
        executable = build(part.graph, backend, options)
        layouts.update(executable.layouts)
        yield part, executable


def stage_needs(partition: Partition, stage: int, device: Device) -> int:
    """The bytes that a stage takes on a device, for which it is compiled.

    What its parts take from others is that of those others where the device works in the host's memory.
    """
    parts = partition.of_stage(stage)
    variables = {variable.name: variable for part in parts for variable in part.graph.variables}
    taken = 0 if device.shares_memory else max(_size(part.graph.inputs) for part in parts)
    executables = compiled(parts, device.backend, limited=device.facts.memory is not None)
    own = sum(device.needs(part.graph, executable) for part, executable in executables)
    return _size(variables.values()) + own + taken


def _size(values: Iterable[Value]) -> int:
    return sum(value.type.nbytes for value in values)
