"""Which names a piece of Python code mentions, and what tells that it may ask for attributes by others."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

UNPACKING = frozenset({"vars", "__dict__", "asdict", "astuple", "fields"})
"""By which code gets all attributes of an object, whatever their names are."""
LOADS, STORES = ("LOAD_GLOBAL", "LOAD_NAME"), ("STORE_GLOBAL", "DELETE_GLOBAL")


@dataclass(frozen=True)
class CodeNames:
    """Names that code mentions; its own variables (parameters, as in ``f(**vars(x))``); texts that are names; those of
    attributes that it may do without, as it looks for them (``hasattr``) or catches errors; those of globals that it
    loads, and of those that it stores; and what tells that it may ask for attributes by other names."""

    mentioned: frozenset[str]
    own: frozenset[str]
    texts: frozenset[str]
    optional: frozenset[str]
    loaded: frozenset[str]
    stored: frozenset[str]
    opens: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> CodeNames:
    """The names in a piece of code."""
    texts = parts_of(_texts(code.co_consts))
    instructions = list(dis.get_instructions(code))
    loaded, stored = (
        frozenset(each.argval for each in instructions if each.opname in opcodes) for opcodes in (LOADS, STORES)
    )
    operations = {each.opname for each in instructions}
    opens = (UNPACKING | ({"getattr"} if "BUILD_STRING" in operations else set())).intersection(code.co_names)
    opens |= {"MATCH_CLASS"} & operations
    if "globals" in code.co_names:
        loaded, stored = loaded | texts, stored | texts
    mentioned = frozenset(code.co_names)
    optional = texts | mentioned if code.co_exceptiontable else texts
    return CodeNames(mentioned, frozenset(code.co_varnames), texts, optional, loaded, stored, opens)


def parts_of(texts: Iterable[str]) -> frozenset[str]:
    """The names among texts, dotted ones in parts."""
    return frozenset(each for text in texts for each in text.split(".") if each.isidentifier())


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)
