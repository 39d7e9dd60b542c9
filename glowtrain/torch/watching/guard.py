"""Whether many Python objects and tensors are still what they were, in one call: what ``guard.ll`` does, for objects.

Looked at one by one from Python, forty parameters take as long as a small step; and a call's objects lie in memory that
the step before has mostly pushed out of the caches, where a loop in native code waits for many of them at once.
"""

from __future__ import annotations

import ctypes
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from glowtrain.torch.memory import span
from glowtrain.torch.watching.dict_versions import version_word
from glowtrain.torch.watching.native import library
from glowtrain.torch.watching.tensor_layout import MOST_AXES, WORD, read, tensor_layout

END, MEMORY, DICT, LIST, ITEM, ANSWER, BYTES = range(7)
"""What an entry looks at."""
LINE = 64
"""Bytes of a cache's line."""
DICT_ENTRIES, LIST_ELEMENTS = 4, 3
"""The words of CPython's dicts and lists that lead to what they hold. A wrong one would cost time only."""
MOST_LINES = 16
"""Lines of one object that are fetched at most: of larger ones, few are looked at."""


class Guard:
    """Objects as they are when they are added. It keeps them, and what they had, alive."""

    def __init__(self) -> None:
        self._layout = tensor_layout()
        self.complete = self._layout is not None
        """Whether native code can look at all that was added."""
        self.lines: set[int] = set()
        """The lines of memory that it looks at, by number."""
        self._entries: list[int] = []
        self._always: list[int] = []
        """Those entries that no quick look stands for."""
        self._versions: list[int] = []
        """Addresses of dicts' versions."""
        self._tensors: list[torch.Tensor] = []
        self._kept: list[Any] = []

    def add_dicts(self, dicts: Sequence[dict[Any, Any]], passed_over: Sequence[Any] = ()) -> None:
        """Their values, by identity and in their order, whatever some keys have."""
        for each in dicts:
            seen = [0 if key in passed_over else id(value) for key, value in each.items()]
            word = None if 0 in seen else version_word()
            self._kept += each.values()
            self._add(DICT, each, None, seen, None if word is None else id(each) + WORD * word)

    def add_list(self, elements: list[Any]) -> None:
        """Its elements, by identity."""
        self._kept += elements
        self._add(LIST, elements, None, list(map(id, elements)))

    def add_item(self, mapping: dict[Any, Any], key: str) -> None:
        """What a dict has under a key, by identity."""
        self._kept.append(mapping[key])
        self._add(ITEM, mapping, key, [id(mapping[key])])

    def add_answer(self, function: Callable[[], Any], expected: Any) -> None:
        """What a function returns, by identity."""
        self._kept.append(expected)
        self._add(ANSWER, function, None, [id(expected)])

    def add_tensor(self, tensor: torch.Tensor) -> None:
        """Where a tensor's elements lie and how, its element type, whether it requires a gradient, and hooks on it."""
        if self._layout is None or tensor.dim() > MOST_AXES:
            self.complete = False
            return
        self._kept += [tensor, tensor.untyped_storage()]
        self._tensors.append(tensor)
        for address, count in self._layout.words_of(tensor):
            self._entries += [MEMORY, count, address, 0, *read(address, count)]
            self.lines.update(lines_of(address, WORD * count))
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            if hooks is not None:
                self.add_dicts([hooks])

    def add_contents(self, tensor: torch.Tensor) -> None:
        """What is in the memory of a tensor, which :meth:`add_tensor` looks at besides: whoever writes there, and by
        whatever way."""
        first, end = span(tensor)
        contents = contents_of(tensor)
        words = np.frombuffer(contents.ljust(-(-len(contents) // WORD) * WORD, b"\0"), np.uint64)
        self._kept.append(tensor)
        self._enter([BYTES, len(words), first, len(contents), *words.tolist()])
        self.lines.update(lines_of(first, end - first))

    def _add(self, kind: int, looked_at: Any, key: Any, expected: Sequence[int], version: int | None = None) -> None:
        self._kept += [looked_at, key]
        self._enter([kind, len(expected), id(looked_at), id(key), *expected], version)
        self.lines.update(lines_of_object(looked_at) if version is None else lines_of(version, WORD))
        if kind == ITEM:
            self.lines.update(lines_of(id(key), 1))

    def _enter(self, entry: Sequence[int], version: int | None = None) -> None:
        """An entry, and the address of a word that is another one after each change of what it looks at."""
        self._entries += entry
        if version is None:
            self._always += entry
        else:
            self._versions.append(version)

    def seal(self) -> None:
        """Nothing more is added."""
        # an entry ends where the next begins, and the last one's words may be looked at behind its end
        end = [END, 0, 0, 0, 0]
        self._rows = [_words(self._quick()), _words([*self._always, *end]), _words([*self._entries, *end])]
        self._row = _words(list(map(ctypes.addressof, self._rows)))
        self.address = ctypes.addressof(self._row)
        for row in (self._row, *self._rows[:2]):
            self.lines.update(lines_of(ctypes.addressof(row), ctypes.sizeof(row)))
        self._fetched = addresses(self.lines)
        self._calls = (_fetch(), _holds()) if self.complete else None

    def _quick(self) -> list[int]:
        """What native code looks at quickly. It writes versions and sums itself, after a first look at all entries: a
        change between these being added and now would be in versions that were read here."""
        layout, factors = self._layout, _factors()
        if layout is None:
            return []
        self._kept.append(factors)
        self.lines.update(lines_of(ctypes.addressof(factors), ctypes.sizeof(factors)))
        words = [*layout.python, *layout.behind, layout.own.storage, layout.storage, *layout.autograd]
        pairs = [word for looked_at in (*self._versions, *map(id, self._tensors)) for word in (looked_at, 0)]
        return [len(self._versions), len(self._tensors), *words, ctypes.addressof(factors), *pairs]

    @property
    def holds(self) -> bool:
        """Whether nothing has changed; False, too, where that cannot be said so quickly."""
        if self._calls is None:
            return False
        fetch, holds = self._calls
        fetch(self._fetched)
        return holds(self.address)


def contents_of(tensor: torch.Tensor) -> bytes:
    """What is in memory from a tensor's first element to its last; nothing where it has no memory any more."""
    first, end = span(tensor)
    return ctypes.string_at(first, end - first) if first else b""


def addresses(lines: set[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Lines as ``fetch`` of ``guard.ll`` takes them: their number, and their addresses."""
    return (ctypes.c_uint64 * (1 + len(lines)))(len(lines), *[LINE * line for line in sorted(lines)])


def lines_of(address: int, size: int) -> range:
    """The lines that so many bytes lie in."""
    return range(address // LINE, (address + size - 1) // LINE + 1)


def lines_of_object(looked_at: Any) -> Iterator[int]:
    """The lines of an object, and of what it holds where that is a dict or a list."""
    size = type(looked_at).__basicsize__
    yield from lines_of(id(looked_at), size)
    if looked_at and isinstance(looked_at, (dict, list)):
        (held,) = read(id(looked_at) + WORD * (DICT_ENTRIES if isinstance(looked_at, dict) else LIST_ELEMENTS), 1)
        yield from lines_of(held, min(max(sys.getsizeof(looked_at) - size, 1), MOST_LINES * LINE))


def within(tensor: torch.Tensor, low: int, high: int, ignored: int) -> bool:
    """Whether all of a row-major tensor's numbers, of 64 bits, are from ``low`` to ``high`` or ``ignored``. In caches
    that a step has emptied, NumPy takes ten times as long."""
    return _largest()(tensor.data_ptr(), tensor.numel(), low, ignored) <= high - low


@cache
def _holds() -> Callable[[int], bool]:
    """``holds`` of ``guard.ll``, which keeps Python's global lock."""
    call: Callable[[int], bool] = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(library().address("holds"))
    return call


@cache
def _factors() -> ctypes.Array[ctypes.c_uint64]:
    """What native code multiplies the words of a tensor by: odd, so that each word counts to its last bit."""
    layout = tensor_layout()
    count = 0 if layout is None else layout.python[1] + layout.behind[1] + 2
    return _words([secrets.randbits(64) | 1 for _ in range(count)])


def _words(words: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(words))(*words)


@cache
def _fetch() -> Callable[[Any], None]:
    call: Callable[[Any], None] = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(library().address("fetch"))
    return call


@cache
def _largest() -> Callable[[int, int, int, int], int]:
    """``largest`` of ``guard.ll``, which lets other threads run."""
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    call: Callable[[int, int, int, int], int] = kind(library().address("largest"))
    return call
