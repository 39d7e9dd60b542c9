"""A module in pieces, which LLVM turns into objects at the same time, and while the rest is still being written.

llvmlite lets one thread at a time into LLVM. Its contexts need no such lock, as long as each is used by one thread
at a time: the call that takes nearly all of the time, from a parsed module to its object, goes past it. It is the only
one at which a thread that makes objects lets go of the interpreter, as it has to wait for the thread that writes to do
the same before it comes back: 5 ms by Python's default.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

LEAST, MOST, PART = 60_000, 100_000, 8
"""Characters of a piece, but for the last one: the eighth part of what has been written, within these limits. LLVM
takes some 40 ms for 100,000, a millisecond for any piece; a small module has pieces, too, and in the end no thread
waits long for another one."""
_HEAD = re.compile(r"define (?:internal |hidden )?(?P<result>\S+) @(?P<name>[\w.$]+)\((?P<parameters>.*)\) #[01]")


def compile_pieces(text: str, target: Target, threads: int) -> tuple[bytes, ...]:
    """The objects of the functions in ``text``, made by so many threads; all of them together are the module.

    Raises :class:`CodegenError` as :func:`~glowtrain.backends.llvm.toolchain.compile_text` does.
    """
    with ObjectPieces(target, threads, LEAST) as pieces:
        pieces.add(text)
        return pieces.finish()


class ObjectPieces:
    """The objects of a module whose functions are added while they are written, each after those that it calls.

    Of ``threads``, all but one begin as soon as there is text for a piece, of ``least`` characters or more; the one
    that adds joins them in the end. Which functions a piece has depends on their texts alone: the objects are the same
    for any number of threads. What is internal to a module of several pieces is visible to all of them, but not outside
    of what they are linked into.
    """

    def __init__(self, target: Target, threads: int, least: float) -> None:
        self.target, self.least = target, least
        self._helpers = threads - 1
        self._threads: list[Thread] = []
        self._heads: dict[str, str] = {}
        self._functions: list[str] = []
        self._size = self._written = 0
        self._pieces: list[_Piece] = []
        self._waiting: SimpleQueue[_Piece | None] = SimpleQueue()

    def __enter__(self) -> ObjectPieces:
        return self

    def __exit__(self, *raised: object) -> None:
        """Pieces that nobody has begun are left."""
        while self._taken() is not None:
            pass
        self._join()

    def add(self, text: str) -> None:
        """Further functions of the module."""
        for function in functions_in(text):
            if self._size >= max(self.least, min(MOST, self._written // PART)):
                self._close()
            self._functions.append(function)
            self._size += len(function)
            self._written += len(function)

    def finish(self) -> tuple[bytes, ...]:
        """All objects. Raises :class:`CodegenError` as :func:`compile_pieces` does."""
        if not self._pieces:
            return (toolchain.compile_text("".join(self._functions), self.target),)
        self._close()
        machine = toolchain.machine(self.target)
        while (piece := self._taken()) is not None:
            piece.make(machine)
        self._join()
        return tuple(piece.object() for piece in self._pieces)

    def _close(self) -> None:
        """The functions that have been added since the last piece are the next one."""
        text = _module(self._functions, self._heads)
        piece = _Piece(toolchain.parsed(text, self.target), self.target)
        self._functions, self._size = [], 0
        self._pieces.append(piece)
        self._waiting.put(piece)
        if len(self._threads) < self._helpers:
            self._begin_thread()

    def _begin_thread(self) -> None:
        thread = Thread(target=self._work, args=(toolchain.machine(self.target),), name="glowtrain objects")
        try:
            thread.start()
        except RuntimeError:  # no more threads: the interpreter is about to end, or the system has none
            self._helpers = 0
            return
        self._threads.append(thread)

    def _work(self, machine: llvm.TargetMachine) -> None:
        while (piece := self._waiting.get()) is not None:
            piece.make(machine)

    def _join(self) -> None:
        """Threads end when no piece is waiting."""
        for _ in self._threads:
            self._waiting.put(None)
        while self._threads:
            self._threads.pop().join()

    def _taken(self) -> _Piece | None:
        """A piece that nobody has begun, if there is one."""
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None


class _Piece:
    """A module of some functions, and its object when that has been made."""

    def __init__(self, module: llvm.ModuleRef, target: Target) -> None:
        self.module, self.target = module, target
        self._made: bytes | BaseException = b""

    def make(self, machine: llvm.TargetMachine) -> None:
        try:
            self._made = object_of(self.module, machine, self.target)
        except BaseException as error:  # noqa: BLE001 - raised again for who asks for the object
            self._made = error

    def object(self) -> bytes:
        """The object. Raises what making it has raised."""
        if isinstance(self._made, BaseException):
            raise self._made
        return self._made


def functions_in(text: str) -> list[str]:
    """The texts of the functions that are defined in a text."""
    first, *rest = text.split("\ndefine ")
    *parts, last = first, *(f"define {part}" for part in rest)
    return [part for part in (*(f"{part}\n" for part in parts), last) if part.strip()]


def _module(functions: Sequence[str], heads: dict[str, str]) -> str:
    """Functions, and declarations of those that they call in earlier pieces, which ``heads`` has; theirs are added."""
    text = "".join(functions).replace("define internal ", "define hidden ")
    called = dict.fromkeys(name for name in re.findall(r"@([\w.$]+)", text) if name in heads)
    declarations = "".join(f"{heads[name]}\n" for name in called)
    heads.update(map(_declaration, functions))
    return text + declarations


def _declaration(function: str) -> tuple[str, str]:
    """The name of a function, and what another module says of it.

    It is not ``hidden`` there, although it is where it is defined: addresses of hidden functions are computed from the
    code's own, which reaches 2 GiB on x86-64, and the objects of a module may be loaded further apart. Those of others
    are read from a table beside the code (the GOT); calls go through the PLT where the function is too far.
    """
    head = _HEAD.match(function)
    assert head is not None, function.splitlines()[0]
    types = ", ".join(parameter.rsplit(" %", 1)[0] for parameter in head["parameters"].split(", "))
    return head["name"], f"declare {head['result']} @{head['name']}({types})"


def object_of(module: llvm.ModuleRef, machine: llvm.TargetMachine, target: Target) -> bytes:
    """The object of a module that no other thread uses, by a machine that none uses. Raises :class:`CodegenError`."""
    emit, short = _library()
    message = ctypes.c_char_p()
    buffer = emit(machine, module, 1, ctypes.byref(message))
    if not buffer:
        raise CodegenError(f"no machine code for {target.name}: {(message.value or b'').decode()}")
    try:
        return ctypes.string_at(short.LLVMPY_GetBufferStart(buffer), short.LLVMPY_GetBufferSize(buffer))
    finally:
        short.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def _library() -> tuple[ctypes._NamedFuncPointer, ctypes.PyDLL]:
    """LLVM's own function from a module to its object, which other threads may be in as well; and its functions that
    take no time, which are called without letting go of the interpreter."""
    emit = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    emit.restype = ffi.LLVMMemoryBufferRef
    short = ctypes.PyDLL(ffi.lib._name)
    short.LLVMPY_GetBufferStart.restype, short.LLVMPY_GetBufferSize.restype = ctypes.c_void_p, ctypes.c_size_t
    return emit, short
