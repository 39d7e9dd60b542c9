"""From LLVM's object file for WebAssembly to a module that browsers, Node and other runtimes load.

The object is nearly a module. It imports what a linker decides: memory, a stack pointer, a table of functions; and its
data begin at address 0. For a single object that calls nothing outside of it, linking is to define these three, to move
the data behind the stack, and to export the symbols that others see. Indices of functions and types stay as they are.

The stack lies below the data: one that overflows leaves the memory, and traps.

Sources: https://webassembly.github.io/spec/core/binary/ for modules,
https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md for objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from glowtrain.errors import BundleError

STACK = 1 << 16
"""Bytes of the stack, from address 0."""
PAGE = 1 << 16
"""The unit of a memory's size, in bytes."""
ALIGNMENT = 16
"""Of the address behind all data."""
MEMORY, HEAP, TABLE = "memory", "__heap_base", "__indirect_function_table"
"""What a module exports besides its symbols: its memory, the address behind all data, and the table of functions."""

MAGIC = b"\0asm\1\0\0\0"
I32, FUNCREF, I32_CONST, END = b"\x7f", b"\x70", b"\x41", b"\x0b"
"""Types and opcodes of the binary format."""


class Section(IntEnum):
    """Sections of a module by their numbers."""

    CUSTOM, TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA, DATA_COUNT = range(13)


ORDER = (
    Section.TYPE, Section.FUNCTION, Section.TABLE, Section.MEMORY, Section.GLOBAL, Section.EXPORT, Section.ELEMENT,
    Section.DATA_COUNT, Section.CODE, Section.DATA,
)  # fmt: skip
"""How sections follow one another in a module."""


class ExternalKind(IntEnum):
    """What an import or an export is."""

    FUNCTION, TABLE, MEMORY, GLOBAL = range(4)


class SymbolKind(IntEnum):
    """What a symbol of an object is."""

    FUNCTION, DATA, GLOBAL, SECTION, TAG, TABLE = range(6)


SYMBOL_TABLE = 8
"""The part of the section ``linking`` that holds symbols."""
LOCAL, UNDEFINED, EXPLICIT_NAME = 0x2, 0x10, 0x40
"""Flags of symbols."""
INDICES = frozenset({0, 1, 2, 6, 7, 20})
"""Relocations of indices: of functions, of elements and types, of globals and tables. They stay as they are."""
ADDRESSES: Mapping[int, str] = {3: "leb", 4: "leb", 5: "word"}
"""Relocations of addresses in memory: unsigned and signed in five bytes of seven bits each, and in four bytes."""


class Reader:
    """Reads bytes from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._at = 0

    @property
    def rest(self) -> bytes:
        """What has not been read."""
        return self.data[self._at :]

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self._at += count
        return self.data[self._at - count : self._at]

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """An unsigned LEB128."""
        byte, value, shift = 0x80, 0, 0
        while byte & 0x80:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        return value

    def sized(self) -> bytes:
        """As many bytes as the number before them says."""
        return self.take(self.number())

    def name(self) -> str:
        """A text."""
        return self.sized().decode()


@dataclass(frozen=True)
class ExportedSymbols:
    """What others see: indices of functions and, in the object, addresses of data, by name."""

    functions: dict[str, int] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)


def linked(code: bytes) -> bytes:
    """The module of an object file: memory, functions and addresses of data are exported by their names.

    Raises :class:`BundleError` for other files, and for an object that calls what it does not define.
    """
    sections, custom = _sections(code)
    entries = _table_entries(sections.get(Section.IMPORT, b"\0"))
    for section, name in ((Section.CODE, "reloc.CODE"), (Section.DATA, "reloc.DATA")):
        if name in custom:
            sections[section] = _moved(sections[section], custom[name])
    segments = list(_segments(sections.get(Section.DATA, b"\0")))
    symbols = _symbols(custom["linking"], [offset for offset, _ in segments])
    behind = max((offset + len(content) for offset, content in segments), default=0)
    heap = -(-(STACK + behind) // ALIGNMENT) * ALIGNMENT
    addresses = {HEAP: heap} | {name: STACK + offset for name, offset in symbols.data.items()}
    sections[Section.TABLE] = _vector([FUNCREF + b"\0" + _unsigned(entries)])
    sections[Section.MEMORY] = _vector([b"\0" + _unsigned(-(-heap // PAGE))])
    sections[Section.GLOBAL] = _vector([_global(STACK, b"\1"), *(_global(each, b"\0") for each in addresses.values())])
    sections[Section.EXPORT] = _vector(_exports(symbols.functions, addresses))
    sections[Section.DATA] = _vector(
        b"\0" + _constant(STACK + offset) + _unsigned(len(content)) + content for offset, content in segments
    )
    return MAGIC + b"".join(bytes([n]) + _with_size(sections[n]) for n in ORDER if n in sections)


# --- what an object holds ---------------------------------------------------------------------------------------------


def _sections(code: bytes) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """The sections by number, and those that have a name by name."""
    numbered: dict[int, bytes] = {}
    custom: dict[str, bytes] = {}
    reader = Reader(code)
    if reader.take(len(MAGIC)) != MAGIC:
        raise BundleError("only an object file for WebAssembly can be made a module")
    while reader.rest:
        number, content = reader.byte(), reader.sized()
        if number == Section.CUSTOM:
            own = Reader(content)
            name = own.name()
            custom[name] = own.rest
        else:
            numbered[number] = content
    if "linking" not in custom:
        raise BundleError("a module for WebAssembly that is linked already cannot be linked")
    return numbered, custom


def _table_entries(imports: bytes) -> int:
    """How many entries the table of functions needs: the first stays empty, so that no function has a null pointer."""
    reader, entries, missing = Reader(imports), 1, []
    for _ in range(reader.number()):
        reader.name()
        name, kind = reader.name(), reader.byte()
        if kind == ExternalKind.FUNCTION:
            reader.number()
            missing.append(name)
        elif kind == ExternalKind.GLOBAL:
            reader.take(2)
        else:
            if kind == ExternalKind.TABLE:
                reader.byte()
            limits = _limits(reader)
            entries += limits if kind == ExternalKind.TABLE else 0
    if missing:
        raise BundleError(f"the object file for WebAssembly calls what it does not define: {', '.join(missing)}")
    return entries


def _limits(reader: Reader) -> int:
    """The least size of a table or a memory."""
    bounded, least = reader.byte() & 1, reader.number()
    if bounded:
        reader.number()
    return least


def _symbols(linking: bytes, segments: list[int]) -> ExportedSymbols:
    """The symbols that others see; ``segments`` are the addresses at which data begin."""
    reader, found = Reader(linking), ExportedSymbols()
    reader.number()
    while reader.rest:
        part, content = reader.byte(), reader.sized()
        if part == SYMBOL_TABLE:
            _read_symbols(Reader(content), segments, found)
    return found


def _read_symbols(reader: Reader, segments: list[int], found: ExportedSymbols) -> None:
    for _ in range(reader.number()):
        kind, flags = reader.byte(), reader.number()
        seen = not flags & (LOCAL | UNDEFINED)
        if kind == SymbolKind.DATA:
            name = reader.name()
            if not flags & UNDEFINED:
                address = segments[reader.number()] + reader.number()
                reader.number()
                if seen:
                    found.data[name] = address
        elif kind == SymbolKind.SECTION:
            reader.number()
        else:
            index = reader.number()
            name = reader.name() if not flags & UNDEFINED or flags & EXPLICIT_NAME else ""
            if seen and kind == SymbolKind.FUNCTION:
                found.functions[name] = index


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Address and content of each segment of data in the object."""
    reader = Reader(data)
    for _ in range(reader.number()):
        reader.take(2)  # always present, and i32.const
        offset = reader.number()
        reader.take(1)  # end
        yield offset, reader.sized()


# --- what becomes of it -----------------------------------------------------------------------------------------------


def _moved(content: bytes, relocations: bytes) -> bytes:
    """A section whose addresses are of data behind the stack."""
    moved, reader = bytearray(content), Reader(relocations)
    reader.number()
    for _ in range(reader.number()):
        kind, at = reader.byte(), reader.number()
        reader.number()
        if kind in ADDRESSES:
            reader.number()  # what is added to a symbol; the address holds it already
            _move(moved, at, ADDRESSES[kind])
        elif kind not in INDICES:
            raise BundleError(f"the object file for WebAssembly has a relocation of an unknown kind, {kind}")
    return bytes(moved)


def _move(content: bytearray, at: int, form: str) -> None:
    """Add the size of the stack to the address at an offset."""
    if form == "word":
        content[at : at + 4] = (int.from_bytes(content[at : at + 4], "little") + STACK).to_bytes(4, "little")
        return
    address = sum((content[at + n] & 0x7F) << 7 * n for n in range(5)) + STACK
    content[at : at + 5] = bytes((address >> 7 * n & 0x7F) | (0x80 if n < 4 else 0) for n in range(5))


def _exports(functions: Mapping[str, int], addresses: Iterable[str]) -> Iterator[bytes]:
    """Memory, table, functions, and globals that hold addresses: these follow the stack pointer."""
    yield _export(MEMORY, ExternalKind.MEMORY, 0)
    yield _export(TABLE, ExternalKind.TABLE, 0)
    for name, index in functions.items():
        yield _export(name, ExternalKind.FUNCTION, index)
    for index, name in enumerate(addresses, 1):
        yield _export(name, ExternalKind.GLOBAL, index)


def _export(name: str, kind: ExternalKind, index: int) -> bytes:
    return _with_size(name.encode()) + bytes([kind]) + _unsigned(index)


def _global(value: int, mutable: bytes) -> bytes:
    return I32 + mutable + _constant(value)


def _constant(value: int) -> bytes:
    """An expression of one constant."""
    return I32_CONST + _signed(value) + END


def _vector(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return _unsigned(len(parts)) + b"".join(parts)


def _with_size(content: bytes) -> bytes:
    return _unsigned(len(content)) + content


def _unsigned(value: int) -> bytes:
    """An unsigned LEB128."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _signed(value: int) -> bytes:
    """A signed LEB128 of what is not negative: where the last byte looks negative, an empty one follows."""
    parts = bytearray(_unsigned(value))
    if parts[-1] & 0x40:
        parts[-1] |= 0x80
        parts.append(0)
    return bytes(parts)
