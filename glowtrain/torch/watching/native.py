"""The native code of this folder: loaded once, with the functions of Python that it calls."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib import resources

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target

FILES = "guard.ll", "arguments.ll", "call.ll"
EXPORTS = "fetch", "holds", "largest", "step"


@cache
def library() -> toolchain.Library:
    """What all files define, in one."""
    folder = resources.files(__package__)
    text = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in FILES)
    target = Target.host()
    return toolchain.load([toolchain.compile_text(text, target)], EXPORTS, _python(text))


def _python(text: str) -> dict[str, int]:
    """The addresses of Python's functions that a text declares."""
    names = re.findall(r"^declare [^@]*@(Py\w+)\(", text, re.MULTILINE)
    return {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names}
