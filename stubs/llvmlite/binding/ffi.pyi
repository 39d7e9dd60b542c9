"""The part of llvmlite.binding.ffi that Glowtrain uses."""

import ctypes
from types import TracebackType
from typing import Any

class LLVMMemoryBufferRef(ctypes.c_void_p): ...

class OutputString:
    def __enter__(self) -> OutputString: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class _Library:
    _name: str
    def __getattr__(self, name: str) -> Any: ...

lib: _Library
