"""A module in pieces, which LLVM turns into objects at the same time.

llvmlite lets one thread at a time into LLVM. Its contexts need no such lock, as long as each is used by one thread
only: the call that takes nearly all of the time, from a parsed module to its object, goes past it.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llvmlite.binding import ffi

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.errors import CodegenError

SIZE = 60_000
"""Characters of a piece at least: LLVM takes some 30 ms for them, a thread begins in 0.1 ms."""
_HEAD = re.compile(r"define (?:internal |hidden )?(?P<result>\S+) @(?P<name>[\w.$]+)\((?P<parameters>.*)\) #[01]")


def compile_pieces(text: str, target: Target, most: int) -> tuple[bytes, ...]:
    """The objects of the functions in ``text``, at most so many; all of them together are the module.

    Raises :class:`CodegenError` as :func:`~glowtrain.backends.llvm.toolchain.compile_text` does.
    """
    count = min(most, len(text) // SIZE)
    if count <= 1:
        return (toolchain.compile_text(text, target),)
    pieces = cut(text, count)
    try:
        with ThreadPoolExecutor(count) as threads:
            return tuple(threads.map(lambda piece: _object(piece, target), pieces))
    except RuntimeError:  # no more threads: the interpreter is about to end, or the system has none
        return tuple(_object(piece, target) for piece in pieces)


def cut(text: str, count: int) -> list[str]:
    """The functions of a module, shared out into modules of about one length. What was internal to the module is
    visible to the other pieces, but not outside of what they are linked into."""
    functions = [part for part in re.split(r"^(?=define )", text, flags=re.MULTILINE) if part.strip()]
    heads = {_name(function): _declaration(function) for function in functions}
    pieces: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for function in sorted(functions, key=len, reverse=True):
        smallest = sizes.index(min(sizes))
        pieces[smallest].append(function)
        sizes[smallest] += len(function)
    return [_module(piece, heads) for piece in pieces if piece]


def _module(functions: Sequence[str], heads: dict[str, str]) -> str:
    """Functions, and declarations of those that they call in other pieces."""
    text = "".join(functions).replace("define internal ", "define hidden ")
    own = {_name(function) for function in functions}
    called = dict.fromkeys(name for name in re.findall(r"@([\w.$]+)", text) if name in heads and name not in own)
    return text + "".join(f"{heads[name]}\n" for name in called)


def _head(function: str) -> re.Match[str]:
    found = _HEAD.match(function)
    assert found is not None, function.splitlines()[0]
    return found


def _name(function: str) -> str:
    return _head(function)["name"]


def _declaration(function: str) -> str:
    head = _head(function)
    types = ", ".join(parameter.rsplit(" %", 1)[0] for parameter in head["parameters"].split(", "))
    return f"declare hidden {head['result']} @{head['name']}({types})"


def _object(text: str, target: Target) -> bytes:
    module, machine = toolchain.parsed(text, target), toolchain.machine(target)
    with ffi.OutputString() as error:
        buffer = _emitter()(machine, module, 1, error)
        if not buffer:
            raise CodegenError(f"no machine code for {target.name}: {error}")
    start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
    try:
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def _emitter() -> ctypes._NamedFuncPointer:
    """LLVM's own function, which other threads may be in as well."""
    emit = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    emit.restype = ffi.LLVMMemoryBufferRef
    return emit
