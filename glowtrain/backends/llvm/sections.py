"""How many bytes of an object file are code, and how many constants.

Tables for debuggers and for unwinding, which need not be in a program's memory, count as neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import llvmlite.binding as llvm

_CONSTANTS = (".rodata", ".rdata", ".data", "__const", "__cstring", "__literal")
"""What the names of sections of constants begin with: in ELF, COFF and Mach-O."""
_WASM = b"\0asm"
_CODE, _DATA = 10, 11
"""Sections of WebAssembly's binary format (core specification, 5.5 "Modules")."""


@dataclass(frozen=True)
class Sections:
    """Bytes of an object file's code and constants."""

    code: int
    constants: int


def sections_of(data: bytes) -> Sections:
    """The sizes of an object file's sections."""
    if data.startswith(_WASM):
        sizes = dict(_wasm(data))
        return Sections(sizes.get(_CODE, 0), sizes.get(_DATA, 0))
    code = constants = 0
    for section in llvm.ObjectFileRef.from_data(data).sections():
        if section.is_text():
            code += section.size()
        elif (section.name() or b"").decode().startswith(_CONSTANTS):
            constants += section.size()
    return Sections(code, constants)


def _wasm(data: bytes) -> Iterator[tuple[int, int]]:
    """Number and size of each section."""
    at = 8
    while at < len(data):
        number, at = data[at], at + 1
        size, at = _leb128(data, at)
        yield number, size
        at += size


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
