"""The adapter that this process uses, through ``wgpu``: its device, buffers, pipelines, and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np

from glowtrain.backends.webgpu.memory import MEMORIES
from glowtrain.errors import BackendError, CodegenError, DeviceError, DeviceLostError, check_extra
from glowtrain.types import Array

NO_ADAPTER = (
    "backend webgpu finds no adapter: install the driver of a GPU, or one in software (Debian's packages "
    "mesa-vulkan-drivers and libvulkan1), or use backend cpu"
)
RAISED = "max-storage-buffer-binding-size", "max-buffer-size"
"""Limits that are asked for as far as the adapter goes; all others are WebGPU's own."""
LEAST = 16
"""Bytes of a buffer at least: none may be empty."""


class Gpu:
    """A device of an adapter. Calls are made under :attr:`lock`, one after the other.

    Raises :class:`MissingExtraError` without wgpu, :class:`BackendError` where there is no adapter.
    """

    def __init__(self) -> None:
        self.wgpu = import_wgpu()
        self.lock = RLock()
        self.lost = False
        self.adapter = _adapter(self.wgpu)
        limits = {name: self.adapter.limits[name] for name in RAISED}
        self.device: Any = self.adapter.request_device_sync(required_limits=limits)
        self.largest = min(limits.values())
        self.arguments = self._group_layout([{"type": "uniform", "has_dynamic_offset": True}])
        kinds = ["read-only-storage" if name == "constants" else "storage" for name in MEMORIES]
        self.memories = self._group_layout([{"type": kind} for kind in kinds])
        self._layout = self.device.create_pipeline_layout(bind_group_layouts=[self.memories, self.arguments])

    @property
    def name(self) -> str:
        """The adapter in words."""
        return str(self.adapter.summary)

    def _group_layout(self, buffers: Sequence[dict[str, Any]]) -> Any:
        visible = self.wgpu.ShaderStage.COMPUTE
        entries = [{"binding": at, "visibility": visible, "buffer": each} for at, each in enumerate(buffers)]
        return self.device.create_bind_group_layout(entries=entries)

    # ---- pipelines

    def pipeline(self, entry: str, text: str) -> Any:
        """A module's compute pipeline. Raises :class:`CodegenError` with the module's text for one that is refused."""
        try:
            module = self.device.create_shader_module(label=entry, code=text)
            compute = {"module": module, "entry_point": entry}
            return self.device.create_compute_pipeline(label=entry, layout=self._layout, compute=compute)
        except self.wgpu.GPUError as error:
            if "lost" in str(error).lower():
                raise self._lost(f"compiling kernel {entry}", error) from error
            raise CodegenError(
                f"{self.name} refuses the module of kernel {entry}: {error}\n{_numbered(text)}"
            ) from error

    def bind(self, layout: Any, buffers: Sequence[Any], size: int | None = None) -> Any:
        """A group of whole buffers; of ``size`` bytes each where a dispatch says from where on."""
        entries = [
            {"binding": at, "resource": {"buffer": each, "offset": 0, "size": size or each.size}}
            for at, each in enumerate(buffers)
        ]
        return self.device.create_bind_group(layout=layout, entries=entries)

    # ---- memory

    def buffer(self, nbytes: int, what: str, contents: Array | None = None, *, uniform: bool = False) -> Any:
        """Memory of at least so many bytes, zeros unless there are ``contents``. Raises :class:`DeviceError` where the
        adapter has not so much."""
        nbytes = nbytes if contents is None else contents.nbytes
        size = max(-(-nbytes // 4) * 4, LEAST)
        if size > self.largest:
            raise DeviceError(
                f"{what} take {nbytes:,} bytes; {self.name} allows {self.largest:,} in a buffer: a smaller batch may do"
            )
        usage = self.wgpu.BufferUsage
        kind = usage.UNIFORM if uniform else usage.STORAGE
        with self.errors(f"memory for {what}, {nbytes:,} bytes"):
            made = self.device.create_buffer(size=size, usage=kind | usage.COPY_DST | usage.COPY_SRC)
            if contents is not None:
                self.write(made, 0, contents)
        return made

    def write(self, buffer: Any, offset: int, array: Array) -> None:
        """Copy an array to a buffer, from a byte on; in words, the last one filled up with zeros."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if data.size % 4:
            data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
        if data.size:
            self.device.queue.write_buffer(buffer, offset, data)

    def read(self, buffer: Any, offset: int, nbytes: int) -> Array:
        """A copy of bytes of a buffer, once all that was submitted has run."""
        size = -(-nbytes // 4) * 4
        with self.errors("reading results"):
            data = self.device.queue.read_buffer(buffer, offset, size) if size else b""
        return np.frombuffer(data, np.uint8)[:nbytes].copy()

    def copy(self, source: Any, target: Any) -> None:
        """Copy all of a buffer to the beginning of another one."""
        encoder = self.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, source.size)
        self.device.queue.submit([encoder.finish()])

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raise what WebGPU refuses as errors of a device, which name it and ``what`` it did."""
        try:
            yield
        except (self.wgpu.GPUError, RuntimeError) as error:
            if "lost" in str(error).lower():
                raise self._lost(what, error) from error
            raise DeviceError(f"{self.name}: {what} failed: {error}") from error

    def _lost(self, what: str, error: Exception) -> DeviceLostError:
        self.lost = True
        return DeviceLostError(
            f"{self.name} was lost at {what}, with the values of variables that it had; "
            f"go on from a checkpoint, here or on backend cpu: {error}"
        )


def import_wgpu() -> Any:
    """The package. Raises :class:`MissingExtraError` without it."""
    check_extra("backend webgpu", "wgpu", "wgpu", "webgpu")
    import wgpu  # noqa: PLC0415  (an extra: asked for when a graph is compiled or run)

    return wgpu


def _adapter(wgpu: Any) -> Any:
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        raise BackendError(f"{NO_ADAPTER} ({error})") from error
    if adapter is None:
        raise BackendError(NO_ADAPTER)
    return adapter


def _numbered(text: str) -> str:
    return "\n".join(f"{number:>4}  {line}" for number, line in enumerate(text.splitlines(), 1))
