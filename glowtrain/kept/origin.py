"""What models and graphs are made from, as keys: graphs of the same origin are the same."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import sources, tools
from glowtrain.graph.registry import has_foreign
from glowtrain.types import Array, LazyArray, elements_of


class Way:
    """How a model is found again: a record for caches, and whether they have it."""

    def __init__(self, key: str, record: Callable[[], bytes | None] | None) -> None:
        """``record``: None where it came from a cache."""
        self.key = key
        self.record = record

    def keep(self, cache: Cache) -> None:
        """Keep it, unless it is."""
        record, self.record = self.record, None
        data = None if record is None else record()
        if data is not None:
            cache.put(self.key, data)


@dataclass(frozen=True)
class GraphOrigin:
    """What a model, or a graph that is made of one, is made from.

    ``arrays`` are the initial values that lie in the model's files, by name.
    """

    key: str
    way: Way
    arrays: Mapping[str, Array | LazyArray]

    def of(self, *parts: object) -> GraphOrigin:
        """The origin of what is made of this and of ``parts``, whose representations say all of them."""
        return replace(self, key=hashed(self.key, *map(repr, parts)))

    def holds(self, name: str, array: Array | LazyArray) -> bool:
        """Whether the model's files have this initial value of a variable."""
        own = self.arrays.get(name)
        if own is None or own is array:
            return own is not None
        same_type = (own.dtype, own.shape) == (array.dtype, array.shape)
        return same_type and elements_of(own).tobytes() == elements_of(array).tobytes()


def hashed(*parts: str | bytes) -> str:
    """The hash of some texts and bytes."""
    content = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        content.update(f"{len(data)} ".encode())
        content.update(data)
    return content.hexdigest()


def ground() -> str | None:
    """What all origins have in common: all that reads models and makes graphs of them.

    None where this process has operators that are not Glowtrain's: they might take the place of one, and what they do
    can depend on more than their sources.
    """
    return None if has_foreign() else _ground()


@functools.cache
def _ground() -> str | None:
    found = importlib.util.find_spec("onnx")
    if found is None or found.origin is None:
        return None
    version = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    return hashed(tools(), sys.byteorder, version, sources())


def named(value: Any) -> str | None:
    """All of a setting as a text: of numbers, texts, Glowtrain's own objects and functions, and tuples of them. None
    for others, such as functions of somebody else's."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return _joined(type(value).__name__, [named(item) for item in value])
    if not _own(value):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        parts = [named(getattr(value, item.name)) for item in fields(value)]
        return _joined(f"{type(value).__module__}.{type(value).__qualname__}", parts)
    if callable(value) and getattr(value, "__closure__", True) is None and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _joined(name: str, parts: list[str | None]) -> str | None:
    found = [part for part in parts if part is not None]
    return f"{name}({', '.join(found)})" if len(found) == len(parts) else None


def _own(value: Any) -> bool:
    """Whether it is Glowtrain's, or an object of a class that is."""
    module = getattr(value, "__module__", None) or ""
    return str(module).partition(".")[0] == "glowtrain"
