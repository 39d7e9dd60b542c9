"""Ask the system for permission to use registers that hold matrices (AMX), once for the process."""

from __future__ import annotations

import ctypes
import functools
import sys

_ARCH_PRCTL = 158
_REQUEST_COMPONENT, _TILES = 0x1023, 18
"""``ARCH_REQ_XCOMP_PERM`` and the component ``XFEATURE_XTILE_DATA``."""


@functools.cache
def permitted_matrices() -> bool:
    """Whether the threads of this process may use registers that hold matrices (AMX): asked for once, for threads that
    run already as well, and inherited by children of fork. Linux says no where the processor has none, to processes
    that seccomp keeps from asking, and where some thread's stack for signals is too small for what is saved then; it is
    older than 5.16 where it does not know the question (Linux, Documentation/arch/x86/xstate.rst). Other systems are
    not asked.
    """
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return False
    arguments = (ctypes.c_long(number) for number in (_ARCH_PRCTL, _REQUEST_COMPONENT, _TILES))
    return bool(ctypes.CDLL(None).syscall(*arguments) == 0)
