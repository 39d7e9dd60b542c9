"""The C interface of a bundle as LLVM text: memory, variables, saving and loading, and its functions.

Functions allocate nothing, keep nothing outside of what they are given and call nobody else's code but the callbacks
that they are handed. Each begins by checking its handle, and returns an :class:`ErrorCode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from glowtrain.backends.cpu.step import Code
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, POINTER, LlvmType, LlvmValue, integer, pointer, vector
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.memory import Place, VariableMemory
from glowtrain.bundles.signature import BundleFunction
from glowtrain.loops import Buffer

VERSION = 1
"""Of the interface; a handle and the header's memory struct carry it, mixed with a number for the bundle."""
CHUNK = 256
"""Bytes on the stack through which variables are saved and loaded."""
I8 = vector("i8")
NULL = pointer("null")


@dataclass(frozen=True)
class Struct:
    """A C struct of pointers, ``size_t`` and 32-bit integers: where its fields lie."""

    fields: tuple[tuple[str, LlvmType], ...]
    word: int
    """Bytes of a pointer."""

    def __getitem__(self, name: str) -> tuple[int, LlvmType]:
        """The byte at which a field begins, and its type."""
        offset = 0
        for field, type_ in self.fields:
            size = self._size(type_)
            offset = -(-offset // size) * size
            if field == name:
                return offset, type_
            offset += size
        raise KeyError(name)

    def _size(self, type_: LlvmType) -> int:
        return self.word if type_ is POINTER else type_.size


class Exported(LlvmFunction):
    """A function under construction that returns an error code."""

    def __init__(self, name: str, *parameters: tuple[LlvmType, str], linkage: str = "") -> None:
        super().__init__(name, [(type_.text, name) for type_, name in parameters], linkage=linkage, result="i32")

    def require(self, condition: LlvmValue, code: ErrorCode) -> None:
        """Go on if the condition holds, else return the code."""
        self._go_on(condition, integer(code, I32))

    def passed(self, code: LlvmValue) -> None:
        """Go on if an error code is none, else return it."""
        self._go_on(self.compare("eq", code, ErrorCode.OK), code)

    def present(self, *pointers: LlvmValue) -> None:
        """Go on if no pointer is null."""
        for each in pointers:
            self.require(self.compare("ne", self.cast("ptrtoint", each, vector("i64")), 0), ErrorCode.NULL_POINTER)

    def get(self, struct: Struct, base: LlvmValue, field: str) -> LlvmValue:
        """A field of a struct."""
        offset, type_ = struct[field]
        return self.load(type_, self.address(base, offset, 1))

    def put(self, struct: Struct, base: LlvmValue, field: str, value: LlvmValue) -> None:
        """Set a field of a struct."""
        self.store(value, self.address(base, struct[field][0], 1))

    def code(self) -> str:
        """The text, ended by returning success."""
        return self.finish(integer(ErrorCode.OK, I32))

    def _go_on(self, condition: LlvmValue, otherwise: LlvmValue) -> None:
        good, bad = self.label("good"), self.label("bad")
        self.branch_if(condition, good, bad)
        self.start(bad)
        self.line(f"ret {otherwise.typed}")
        self.start(good)


@dataclass(frozen=True)
class Interface:
    """What is written around the code of a bundle's functions."""

    name: str
    target: Target
    functions: Sequence[BundleFunction]
    memory: VariableMemory
    version: int
    hyper: Sequence[float]
    """The defaults of the hyperparameters."""
    threads: int = 1

    @property
    def arena(self) -> int:
        """Bytes of the arena: the largest of a function, and the workspaces of all threads behind it."""
        return self._planned + self.threads * max(function.code.workspace for function in self.functions)

    @property
    def _planned(self) -> int:
        return max(function.code.plan.arena for function in self.functions)

    @property
    def trained(self) -> bool:
        """Whether there are variables."""
        return bool(self.memory.places)

    # -- types

    @property
    def word(self) -> int:
        """Bytes of a pointer."""
        return self.target.pointer_bits // 8

    @property
    def usize(self) -> LlvmType:
        return vector(f"i{self.target.pointer_bits}")

    def struct(self, **fields: LlvmType) -> Struct:
        return Struct(tuple(fields.items()), self.word)
