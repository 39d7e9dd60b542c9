"""What an object file of ELF says of its sections and symbols, for 32 and 64 bits, little-endian."""

from __future__ import annotations

import struct
from dataclasses import dataclass

WRITE, ALLOCATE = 1, 2
"""Flags of sections."""
SYMBOLS = 2
"""The type of the section of symbols."""


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    flags: int
    data: bytes
    size: int

    @property
    def variable(self) -> bool:
        """Whether a program could write to it after it was linked."""
        return bool(self.flags & WRITE) and self.size > 0 and not self.name.startswith(".data.rel.ro")


@dataclass(frozen=True)
class Symbol:
    name: str
    defined: bool
    exported: bool


def sections(file: bytes) -> list[Section]:
    wide = file[4] == 2
    begin = struct.unpack_from("<Q" if wide else "<I", file, 0x28 if wide else 0x20)[0]
    size, count, names = struct.unpack_from("<HHH", file, 0x3A if wide else 0x2E)
    layout = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
    rows = [struct.unpack_from(layout, file, begin + number * size) for number in range(count)]
    texts = file[rows[names][4] :]
    return [
        Section(_text(texts, name), type_, flags, file[offset : offset + length] if type_ != 8 else b"", length)
        for name, type_, flags, _, offset, length, *_ in rows
    ]


def symbols(file: bytes) -> list[Symbol]:
    """All symbols that have a name."""
    wide, found = file[4] == 2, list[Symbol]()
    every = sections(file)
    texts = next(section.data for section in every if section.name == ".strtab")
    (table,) = (section for section in every if section.type == SYMBOLS)
    for row in struct.iter_unpack("<IBBHQQ" if wide else "<IIIBBH", table.data):
        name, info, section = (row[0], row[1], row[3]) if wide else (row[0], row[3], row[5])
        if name:
            found.append(Symbol(_text(texts, name), section != 0, info >> 4 != 0))
    return found


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(0, at)].decode()
