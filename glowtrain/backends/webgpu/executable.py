"""WGSL in this process: pipelines of an adapter, bound to memory, run as one submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glowtrain.backends.base import Executable, ExecutableMemory, Instance
from glowtrain.backends.state import State
from glowtrain.backends.webgpu.artifact import WgslArtifact
from glowtrain.backends.webgpu.gpu import Gpu
from glowtrain.backends.webgpu.memory import WORD
from glowtrain.backends.webgpu.step import Dispatch, Region
from glowtrain.backends.webgpu.variables import DeviceVariables
from glowtrain.types import Array

ROW = 256
"""Bytes at multiples of which a dispatch's arguments may begin."""


class WgslExecutable(Executable):
    """An artifact whose pipelines an adapter has compiled; constants are in its memory once."""

    def __init__(self, artifact: WgslArtifact, gpu: Gpu) -> None:
        self.code = artifact.code
        self.gpu = gpu
        with gpu.lock:
            self.constants = gpu.buffer(self.code.contents.nbytes, "constants", self.code.contents)
            self.pipelines = [gpu.pipeline(module.entry, module.text) for module in self.code.modules]

    @property
    def memory(self) -> ExecutableMemory:
        outputs = sum(region.type.nbytes for region in self.code.outputs)
        return ExecutableMemory(self.code.arena, 0, outputs, self.code.contents.nbytes)

    def bind(self, state: State) -> WgslInstance:
        return WgslInstance(self, state)


class WgslInstance(Instance):
    """Activations, inputs and outputs of its own on the device; variables are the state's, and stay there.

    A run copies inputs to the device, submits all dispatches at once, and copies outputs back.
    """

    def __init__(self, executable: WgslExecutable, state: State) -> None:
        self.executable = executable
        self.state = state
        self.gpu = executable.gpu
        self.work: Any = self.gpu.buffer(executable.code.work, "activations, inputs and outputs")
        self._row = max((_row_bytes(each) for each in executable.code.dispatches), default=ROW)
        self._variables: Any = None
        """The buffer that the groups below refer to."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        code, gpu = self.executable.code, self.gpu
        with gpu.lock:
            self._bind()
            with gpu.errors("a step"):
                for region in code.inputs:
                    gpu.write(self.work, region.offset, inputs[region.name])
                gpu.device.queue.submit([self._commands()])
            return self._results(code.outputs)

    def _results(self, regions: tuple[Region, ...]) -> dict[str, Array]:
        """Outputs in one copy: they lie one behind the other."""
        if not regions:
            return {}
        begin, last = regions[0].offset, regions[-1]
        data = self.gpu.read(self.work, begin, last.offset + last.type.nbytes - begin)
        return {region.name: _tensor(data, region, begin) for region in regions}

    def _bind(self) -> None:
        """Have the variables on the device, and refer to them."""
        variables = DeviceVariables.of(self.state, self.gpu, self.executable.code.variables)
        if self._variables is not variables.buffer:
            buffers = [self.work, variables.buffer, self.executable.constants]
            self._memories = self.gpu.bind(self.gpu.memories, buffers)
            table = self.gpu.buffer(0, "arguments", self._table(variables.offsets), uniform=True)
            self._arguments = self.gpu.bind(self.gpu.arguments, [table], self._row)
            self._variables = variables.buffer

    def _table(self, offsets: Mapping[str, int]) -> Array:
        """The arguments of all dispatches."""
        dispatches = self.executable.code.dispatches
        table = np.zeros((max(len(dispatches), 1), self._row // WORD), np.uint32)
        for row, dispatch in zip(table, dispatches, strict=False):
            numbers = [offsets[each] // WORD if isinstance(each, str) else each for each in dispatch.arguments]
            row[: len(numbers)] = numbers
        return table

    def _commands(self) -> Any:
        encoder = self.gpu.device.create_command_encoder()
        commands = encoder.begin_compute_pass()
        commands.set_bind_group(0, self._memories)
        for at, dispatch in enumerate(self.executable.code.dispatches):
            commands.set_pipeline(self.executable.pipelines[dispatch.module])
            commands.set_bind_group(1, self._arguments, [at * self._row])
            commands.dispatch_workgroups(*dispatch.grid)
        commands.end()
        return encoder.finish()


def _row_bytes(dispatch: Dispatch) -> int:
    return -(-max(len(dispatch.arguments), 1) * WORD // ROW) * ROW


def _tensor(data: Array, region: Region, begin: int) -> Array:
    start = region.offset - begin
    array: Array = data[start : start + region.type.nbytes].view(region.type.dtype.numpy).reshape(region.type.shape)
    return array.copy()
