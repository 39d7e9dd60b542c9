"""Static archives of one object file, in the formats of GNU and BSD.

They are written here because an archiver indexes the objects of its own platform only. Sources of the formats:
https://sourceware.org/binutils/docs/binutils/ (ar), FreeBSD's ar(5), and PE Format, "Archive (Library) File Format".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from glowtrain.backends.target import Target

MAGIC = b"!<arch>\n"
HEADER_BYTES = 60


def archive(code: bytes, name: str, symbols: Sequence[str], target: Target) -> bytes:
    """An archive of one object with an index of its symbols, as linkers for ``target`` read it."""
    if target.system == "macos":
        return _bsd(code, name.encode(), [f"_{symbol}" for symbol in symbols])
    return _gnu(code, name.encode(), symbols)


def exported(text: str) -> list[str]:
    """The names that others see, of the functions and constants in LLVM text."""
    return re.findall(r"^(?:define (?!internal|private)[^@]*@|@)([\w$]+)(?:\(| = constant)", text, re.MULTILINE)


def _gnu(code: bytes, name: bytes, symbols: Sequence[str]) -> bytes:
    """Names of more than 15 bytes stand in a member of their own."""
    strings = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    names = _member(b"//", name + b"/\n", 2) if len(name) > 15 else b""
    index_bytes = 4 + 4 * len(symbols) + len(strings)
    first = len(MAGIC) + HEADER_BYTES + index_bytes + index_bytes % 2 + len(names)
    index = struct.pack(f">{1 + len(symbols)}I", len(symbols), *[first] * len(symbols)) + strings
    return MAGIC + _member(b"/", index, 2) + names + _member(b"/0" if names else name + b"/", code, 2)


def _bsd(code: bytes, name: bytes, symbols: Sequence[str]) -> bytes:
    """Names stand before the content, filled up so that both objects and members begin at multiples of 8."""
    strings = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    strings += bytes(-len(strings) % 8)
    entries, places = b"", 0
    index_bytes = 8 + 8 * len(symbols) + len(strings)
    first = len(MAGIC) + len(_long(b"__.SYMDEF", bytes(index_bytes)))
    for symbol in symbols:
        entries += struct.pack("<2I", places, first)
        places += len(symbol) + 1
    index = struct.pack("<I", len(entries)) + entries + struct.pack("<I", len(strings)) + strings
    return MAGIC + _long(b"__.SYMDEF", index) + _long(name, code)


def _long(name: bytes, content: bytes) -> bytes:
    filled = name + bytes((4 - len(name)) % 8)
    return _member(b"#1/%d" % len(filled), filled + content, 8)


def _member(name: bytes, content: bytes, alignment: int) -> bytes:
    """A member without date and owner, so that equal objects make equal archives."""
    header = b"%-16b%-12d%-6d%-6d%-8o%-10d`\n" % (name, 0, 0, 0, 0o644, len(content))
    return header + content + b"\n" * (-(HEADER_BYTES + len(content)) % alignment)
