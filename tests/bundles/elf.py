"""What an object file of ELF says of its sections, for 32 and 64 bits, little-endian."""

from __future__ import annotations

import struct
from dataclasses import dataclass

WRITE = 1
"""A flag of sections."""


@dataclass(frozen=True)
class Section:
    name: str
    flags: int
    size: int

    @property
    def variable(self) -> bool:
        """Whether a program could write to it after it was linked."""
        return bool(self.flags & WRITE) and self.size > 0 and not self.name.startswith(".data.rel.ro")


def sections(file: bytes) -> list[Section]:
    wide = file[4] == 2
    begin = struct.unpack_from("<Q" if wide else "<I", file, 0x28 if wide else 0x20)[0]
    size, count, names = struct.unpack_from("<HHH", file, 0x3A if wide else 0x2E)
    layout = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
    rows = [struct.unpack_from(layout, file, begin + number * size) for number in range(count)]
    texts = file[rows[names][4] :]
    return [Section(_text(texts, name), flags, length) for name, _, flags, _, _, length, *_ in rows]


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(0, at)].decode()
