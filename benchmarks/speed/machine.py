"""The machine that numbers depend on: which cores a process runs on, what it is made of, how much memory was used."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

VECTORS = ("sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
"""Instruction sets that are worth naming, as Linux calls them."""


def bind(cores: int) -> None:
    """Bind this process to the last of its cores: before any engine starts threads, as XLA counts cores only then.

    Raises ValueError where there are fewer.
    """
    usable = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(usable):
        raise ValueError(f"cannot run on {cores} cores: this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[-cores:])


def describe(packages: Iterable[str]) -> dict[str, str]:
    """The processor, the system, and the versions of ``packages``."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(facts.get("flags", "").split())
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "family and model": f"{facts.get('cpu family', '?')}, {facts.get('model', '?')}",
        "vectors": ", ".join(name for name in VECTORS if name in flags) or "?",
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        **{name: version(name) for name in packages},
    }


def version(package: str) -> str:
    """The version that is installed, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def peak_memory() -> int:
    """Bytes of the largest resident set of this program.

    ``getrusage`` would count what its parent had in memory when it started it, too.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
