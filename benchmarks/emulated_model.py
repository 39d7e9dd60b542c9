"""A model compiled for a processor that is not at hand, as a job for the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from emulated_pc import Job

import glowtrain as gt
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.step import ENTRY
from glowtrain.backends.state import aligned
from glowtrain.backends.table import Slot
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Template
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import DEFAULT

Change = Callable[[bytes], bytes]


def unchanged(data: bytes) -> bytes:
    """The bytes themselves."""
    return data


@dataclass(frozen=True)
class Model:
    """A model compiled for a target and for inputs."""

    plan: Plan
    artifact: NativeArtifact
    variables: Mapping[str, np.ndarray]
    feed: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, model: Graph | Template, target: Target, feed: Mapping[str, np.ndarray]) -> Model:
        graph = gt.compile(model, "interpreter").specialised(feed).graph
        backend = Cpu(target)
        plan = arrive(graph)
        artifact = backend.compile(plan, DEFAULT)
        layouts = {slot.name: slot.layout for slot in artifact.slots if slot.kind == "variable"}
        variables = {
            v.name: aligned(np.transpose(v.initial, layouts[v.name])) for v in graph.variables if v.name in layouts
        }
        return cls(plan, artifact, variables, feed)

    def job(
        self, folder: Path, code: Change = unchanged, weight: Change = unchanged, log: np.ndarray | None = None
    ) -> Job:
        """The step called once, with something changed in its code or its constants of bytes.

        Gives the model's results; or, for code that was generated with ``profile``, the memory of its ``log``.
        """
        artifact = self.artifact
        job = Job(code(artifact.code), ENTRY, folder)
        arrays = {n: np.zeros(type_.shape, type_.dtype.numpy) for n, type_ in artifact.outputs.items()}
        outputs = {name: job.result(array) for name, array in arrays.items()}
        memory = [job.put(np.zeros(size, np.uint8)) for size in (artifact.arena, artifact.workspace)]
        slots = [
            outputs[slot.name].at if slot.kind == "output" else self._put(job, slot, weight) for slot in artifact.slots
        ]
        counted = [] if log is None else [job.result(log)]
        table = np.array([*memory, *slots, *(place.at for place in counted)], np.uint64)
        job.call([job.put(table)], counted or list(outputs.values()))
        return job

    def _put(self, job: Job, slot: Slot, weight: Change) -> int:
        """The address of what a slot holds."""
        match slot.kind:
            case "input":
                return job.put(self.feed[slot.name])
            case "variable":
                return job.put(self.variables[slot.name])
            case "constant":
                array = self.artifact.constants[slot.name]
                data = weight(array.tobytes()) if array.itemsize == 1 else array.tobytes()
                return job.put(np.frombuffer(data, np.uint8))
        return 0  # unused
