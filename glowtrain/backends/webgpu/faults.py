"""Failures of the adapter that tests inject."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from glowtrain.backends.faults import Faults
from glowtrain.backends.webgpu.gpu import Gpu


class GpuFaults(Faults):
    """Those of one device: a limit on buffers, no memory at all, and its loss. Kernels have no time limit, so none is
    made to hang."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    @contextmanager
    def memory_limit(self, nbytes: int) -> Iterator[None]:
        before, self.gpu.largest = self.gpu.largest, nbytes
        try:
            yield
        finally:
            self.gpu.largest = before

    @contextmanager
    def failed_allocation(self) -> Iterator[None]:
        device, error = self.gpu.device, self.gpu.wgpu.GPUOutOfMemoryError

        def fail(**options: Any) -> NoReturn:
            raise error("injected: out of memory")

        device.create_buffer = fail
        try:
            yield
        finally:
            del device.create_buffer

    @contextmanager
    def lost_device(self) -> Iterator[None]:
        self.gpu.device.destroy()
        yield
