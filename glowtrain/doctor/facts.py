"""Versions of what compiles and runs, and the machine, in words."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from glowtrain.backends import thread_count
from glowtrain.backends.base import Backend
from glowtrain.backends.caches import caches
from glowtrain.backends.discovery import BUILT_IN, backend_for, backend_of
from glowtrain.backends.target import Target
from glowtrain.errors import GlowtrainError
from glowtrain.presentation.messages import plural
from glowtrain.version import __version__

PACKAGES = "numpy", "ml_dtypes", "onnx", "protobuf", "safetensors"
CPUINFO = Path("/proc/cpuinfo")


def facts() -> dict[str, str]:
    """What is known of this installation and machine, by what it is called."""
    target = Target.host()
    return {
        "glowtrain": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "compiler": backend_for(target).tools,
        "system": platform.platform(),
        "processor": f"{processor()}, for LLVM {target.cpu}",
        "instructions": instructions(target),
        "cores": cores(),
        "caches": _caches(),
        "blocked for": f"L1 {target.l1 >> 10} KiB, L2 {target.l2 >> 10} KiB (of the processor's class)",
        "compiled code": _folder(),
        **_devices(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is missing"


def processor() -> str:
    """The processor's own name, where the system tells."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def instructions(target: Target) -> str:
    """What compiled code uses of the processor."""
    vectors = f"vectors of {target.vector_bits} bits" if target.vector_bits else "no vectors"
    parts = [vectors, ", ".join(sorted(target.families)), "" if target.has_fma else "no fused multiply-add"]
    return "; ".join(filter(None, parts))


def cores() -> str:
    """The cores that there are, that this process may use, and the threads of a step."""
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    threads = plural(thread_count.default(), "thread")
    return f"{plural(there, 'core')}, {allowed} allowed, {thread_count.cores()} within quotas; steps run on {threads}"


def _caches() -> str:
    found = [
        f"L{cache.level} {cache.size >> 10:,} KiB" + (f" for {plural(cache.cores, 'core')}" if cache.cores > 1 else "")
        for cache in caches()
    ]
    return ", ".join(found) or "not told by the system"


def _devices() -> dict[str, str]:
    """What backends for other devices run on here, or why they do not."""
    found = {f"backend {name}": _device(backend_of(name)) for name in BUILT_IN}
    return {name: words for name, words in found.items() if words}


def _device(backend: Backend) -> str:
    try:
        return backend.device()
    except GlowtrainError as error:
        return f"does not run here: {error}"


def _folder() -> str:
    """Where compiled code is kept."""
    cache = backend_for(Target.host(), cache=True).cache
    return "not kept" if cache is None else f"kept in {cache.folder}"
