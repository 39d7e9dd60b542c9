"""The attributes of modules before and after their Python code ran for a trace, which must leave them as they were.

torch.export puts back copies of lists and dicts: whoever shares one with a module, a configuration say, would change
the other one from then on.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

PLAIN = (int, float, complex, str, bytes, type(None))
"""What modules count and remember beside tensors."""
STANDARD = frozenset(vars(torch.nn.Module()))
"""Attributes of all modules: their tensors, submodules, hooks and modes."""
FLAT = "_flat_weight"
"""What the lists are called that LSTM, GRU and RNN keep their parameters in, besides."""
Assigned = tuple[dict[str, Any], str, Any]


class Attributes:
    """What modules have, by name, and what the lists, dicts, sets and deques among it hold."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._parts: dict[int, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        self._contents: dict[int, tuple[Any, Any]] = {}
        for path, module in modules.items():
            self.take(module, path)

    def take(self, module: torch.nn.Module, path: str) -> None:
        """Remember a module, unless it is known."""
        if id(module) not in self._parts:
            now = vars(module)
            self._parts[id(module)] = path, now, now.copy()
            self._take(value for name, value in now.items() if not _is_pytorchs(name))

    def _take(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, (list, dict, set, deque)) and id(value) not in self._contents:
                self._contents[id(value)] = value, copy.copy(value)
                self._take(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, tuple):
                self._take(value)

    @property
    def assigned(self) -> list[Assigned]:
        """Attributes that are plain values now, and were others: whose, which and what."""
        return [(owner, name, value) for _, owner, name, value in self._differing() if _is_plain(value)]

    @property
    def unkept(self) -> list[str]:
        """The names of other attributes that are not what they were, or do not hold what they held."""
        replaced = {f"{path}.{name}": name for path, _, name, value in self._differing() if not _is_plain(value)}
        filled = [
            f"{path}.{name}"
            for path, _, before in self._parts.values()
            for name, value in before.items()
            if not _is_pytorchs(name) and self._is_changed(value)
        ]
        return [*dict.fromkeys([*replaced, *filled])]

    def _differing(self) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
        for path, now, before in self._parts.values():
            for name, value in now.items():
                if not _is_pytorchs(name) and (name not in before or value is not before[name]):
                    yield path, now, name, value

    def _is_changed(self, value: Any) -> bool:
        container, before = self._contents.get(id(value), (None, None))
        if container is None:
            return isinstance(value, tuple) and any(map(self._is_changed, value))
        elements = _elements(container)
        return [*map(id, elements)] != [*map(id, _elements(before))] or any(map(self._is_changed, elements))

    def restore(self) -> None:
        """Make them what they were, the same objects with the same contents."""
        for _, now, before in self._parts.values():
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update({name: value for name, value in before.items() if name not in STANDARD})
        for container, before in self._contents.values():
            if [*map(id, _elements(container))] != [*map(id, _elements(before))]:
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(before)


def _is_pytorchs(name: str) -> bool:
    """Whether an attribute is PyTorch's own: what layers make of their parameters anew, as a trace replaces these."""
    return name in STANDARD or name.startswith(FLAT)


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _elements(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else [*container]
