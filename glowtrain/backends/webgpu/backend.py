"""The webgpu backend: a planned program as WGSL, run by the adapter of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock

from glowtrain.backends.base import Artifact, Backend, Executable
from glowtrain.backends.webgpu.arithmetic import fuses
from glowtrain.backends.webgpu.artifact import WgslArtifact
from glowtrain.backends.webgpu.executable import WgslExecutable
from glowtrain.backends.webgpu.faults import GpuFaults
from glowtrain.backends.webgpu.gpu import Gpu
from glowtrain.backends.webgpu.step import generate
from glowtrain.errors import ArtifactError
from glowtrain.program.program import Plan
from glowtrain.stages import Facts, Options, Stage, View


class Webgpu(Backend):
    """Kernels in WGSL for any GPU, through the package ``wgpu`` (extra ``webgpu``).

    Compiling needs no adapter. Variables live in the device's memory from the first step on, until something else wants
    them. f64 and functions of this process are refused.
    """

    name = "webgpu"
    facts = Facts(preferred_layouts=False, panel_row=0)

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        views = (View("wgsl", lambda artifact: artifact.code.text),)
        return (
            *walk,
            Stage("compiled", "modules in WGSL and their dispatches", lambda options: GenerateWgsl(), views=views,
                  numbers=attrgetter("in_numbers")),
        )  # fmt: skip

    def compile(self, subject: Plan, options: Options) -> WgslArtifact:
        return GenerateWgsl().run(subject)

    def read(self, data: bytes) -> WgslArtifact:
        return WgslArtifact.from_bytes(data)

    def device(self) -> str:
        gpu = shared_gpu()
        rounded = "once (as by default on the CPU)" if fuses(gpu) else "twice (as by gt.Cpu(fused=False))"
        return f"{gpu.name}; {gpu.largest >> 20:,} MiB a buffer; multiply-adds are rounded {rounded}"

    @property
    def faults(self) -> GpuFaults:
        return GpuFaults(shared_gpu())

    def load(self, artifact: Artifact) -> Executable:
        if not isinstance(artifact, WgslArtifact):
            raise ArtifactError(f"backend webgpu loads what it compiled, not {type(artifact).__name__}")
        return WgslExecutable(artifact, shared_gpu())


@dataclass(frozen=True)
class GenerateWgsl:
    """The pass from a plan to WGSL."""

    def run(self, plan: Plan) -> WgslArtifact:
        """The artifact. Raises :class:`CodegenError` naming the kernel that WGSL cannot express."""
        return WgslArtifact(generate(plan))


_SHARED: list[Gpu] = []
_SHARING = Lock()


def shared_gpu() -> Gpu:
    """The adapter of this process; another device of it after one was lost. Raises what :class:`Gpu` raises."""
    with _SHARING:
        if not _SHARED or _SHARED[-1].lost:
            _SHARED[:] = [Gpu()]
        return _SHARED[-1]
