"""What LLVM says of the processor that this process runs on."""

from __future__ import annotations

import llvmlite.binding as llvm


def triple() -> str:
    """The triple of this process."""
    return llvm.get_process_triple()


def cpu() -> str:
    """LLVM's name of the processor."""
    return llvm.get_host_cpu_name()


def features() -> dict[str, bool]:
    """Whether the processor has each feature that LLVM knows of its architecture."""
    return dict(llvm.get_host_cpu_features())
