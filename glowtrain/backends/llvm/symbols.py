"""The symbols of an object file: what it defines for others, and what it needs from them.

Source of the record of a symbol: the System V ABI's ELF specification, "Symbol Table".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from glowtrain.errors import ArtifactError

_WIDE = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("rest", "<u8", 2)])
_NARROW = np.dtype([("name", "<u4"), ("rest", "<u4", 2), ("info", "u1"), ("other", "u1"), ("section", "<u2")])
_RECORDS: Mapping[bytes, np.dtype[np.void]] = {b"\x7fELF\x02\x01": _WIDE, b"\x7fELF\x01\x01": _NARROW}
"""The record of a symbol by the first bytes of a file: those of 64 and of 32 bits, both little-endian."""


@dataclass(frozen=True)
class ObjectSymbols:
    """Names that an object has for a linker, in the order of its table."""

    defined: tuple[str, ...]
    needed: tuple[str, ...]


def symbols_of(code: bytes) -> ObjectSymbols:
    """The global symbols of an ELF object. Raises :class:`ArtifactError` for another kind of file."""
    record = _RECORDS.get(code[:6])
    if record is None:
        raise ArtifactError("the symbols of ELF objects alone can be read; this is another kind of file")
    file = llvm.ObjectFileRef.from_data(code)
    sections = {section.name(): section.data() for section in file.sections() if section.name() in _TABLES}
    names = sections[b".strtab"]
    table = [entry for entry in np.frombuffer(sections[b".symtab"], record) if entry["info"] >> 4]
    named = [(names[entry["name"] : names.index(b"\0", entry["name"])].decode(), entry["section"]) for entry in table]
    defined = tuple(name for name, section in named if section)
    return ObjectSymbols(defined, tuple(name for name, section in named if not section))


_TABLES = (b".symtab", b".strtab")
