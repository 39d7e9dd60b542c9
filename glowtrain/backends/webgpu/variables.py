"""The variables of a state in device memory, which stay there from step to step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from glowtrain.backends.state import State
from glowtrain.backends.webgpu.gpu import Gpu
from glowtrain.backends.webgpu.step import ALIGNMENT
from glowtrain.types import Array, TensorType


class DeviceVariables:
    """Variables of a state, row-major, each at an offset of its own that never changes; more of them may come."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.offsets: dict[str, int] = {}
        self.types: dict[str, TensorType] = {}
        self.buffer: Any = gpu.buffer(0, "variables")
        self._end = 0

    @classmethod
    def of(cls, state: State, gpu: Gpu, types: Mapping[str, TensorType]) -> DeviceVariables:
        """Those of a state, in which these variables are; they live here from now on."""
        remote = state.remote
        resident = remote if isinstance(remote, DeviceVariables) and remote.gpu is gpu else cls(gpu)
        missing = {name: type_ for name, type_ in types.items() if name not in resident.offsets}
        if missing:
            resident._add(missing, {name: state.read(name) for name in missing})
        state.lend(resident)
        return resident

    @property
    def names(self) -> Collection[str]:
        """The variables that are here."""
        return self.offsets

    def read(self, name: str) -> Array:
        """A row-major copy on the host."""
        type_ = self.types[name]
        with self.gpu.lock:
            data = self.gpu.read(self.buffer, self.offsets[name], type_.nbytes)
        return data.view(type_.dtype.numpy).reshape(type_.shape)

    def write(self, name: str, array: Array) -> None:
        """Set one variable, of its type."""
        with self.gpu.lock, self.gpu.errors(f"writing variable {name}"):
            self.gpu.write(self.buffer, self.offsets[name], array)

    def _add(self, types: Mapping[str, TensorType], values: Mapping[str, Array]) -> None:
        for name, type_ in types.items():
            self.offsets[name], self.types[name] = self._end, type_
            self._end += -(-max(type_.nbytes, 4) // ALIGNMENT) * ALIGNMENT
        before = self.buffer
        with self.gpu.errors("placing variables"):
            self.buffer = self.gpu.buffer(self._end, "variables")
            self.gpu.copy(before, self.buffer)
            for name, array in values.items():
                self.gpu.write(self.buffer, self.offsets[name], np.asarray(array))
