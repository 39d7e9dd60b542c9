"""Whether many Python objects and tensors are still what they were, in one call: what ``guard.ll`` does, for objects.

Looked at one by one from Python, forty parameters take as long as a small step; and a call's objects lie in memory that
the step before has mostly pushed out of the caches, where a loop in native code waits for many of them at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.torch.watching.tensor_layout import MOST_AXES, read, tensor_layout

PYTHON = ("PyDict_Next", "PyDict_GetItem", "PyList_Size", "PyList_GetItem")
"""The functions that ``guard.ll`` calls, in its order."""
END, MEMORY, DICT, LIST, ITEM = range(5)
"""What an entry looks at."""


class Guard:
    """Objects as they are when they are added. It keeps them, and what they had, alive."""

    def __init__(self) -> None:
        self._layout = tensor_layout()
        self._complete = self._layout is not None
        self._entries: list[int] = []
        self._kept: list[Any] = []

    def add_dicts(self, dicts: Sequence[dict[Any, Any]]) -> None:
        """Their values, by identity and in their order."""
        for each in dicts:
            self._add(DICT, each, None, list(each.values()))

    def add_list(self, elements: list[Any]) -> None:
        """Its elements, by identity."""
        self._add(LIST, elements, None, list(elements))

    def add_item(self, mapping: dict[Any, Any], key: str) -> None:
        """What a dict has under a key, by identity."""
        self._add(ITEM, mapping, key, [mapping[key]])

    def add_tensor(self, tensor: torch.Tensor) -> None:
        """Where a tensor's elements lie and how, its element type, whether it requires a gradient, and hooks on it."""
        if self._layout is None or tensor.dim() > MOST_AXES:
            self._complete = False
            return
        self._kept += [tensor, tensor.untyped_storage()]
        for address, count in self._layout.words_of(tensor):
            self._entries += [MEMORY, count, address, 0, *read(address, count)]
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            if hooks is not None:
                self._add(DICT, hooks, None, [])

    def _add(self, kind: int, looked_at: Any, key: Any, expected: Sequence[Any]) -> None:
        self._kept += [looked_at, key, *expected]
        self._entries += [kind, len(expected), id(looked_at), id(key), *map(id, expected)]

    def seal(self) -> None:
        """Nothing more is added."""
        # an entry ends where the next begins, and the last one's words may be looked at behind its end
        words = [*_python(), *self._entries, END, 0, 0, 0, 0]
        self._words = (ctypes.c_uint64 * len(words))(*words)
        self._address = ctypes.addressof(self._words)
        self._call = _changed() if self._complete else None

    @property
    def holds(self) -> bool:
        """Whether nothing has changed; False, too, where that cannot be said so quickly."""
        return self._call is not None and self._call(self._address) < 0


@cache
def _python() -> tuple[int, ...]:
    return tuple(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in PYTHON)


def within(tensor: torch.Tensor, low: int, high: int, ignored: int) -> bool:
    """Whether all of a row-major tensor's numbers, of 64 bits, are from ``low`` to ``high`` or ``ignored``. In caches
    that a step has emptied, NumPy takes ten times as long."""
    return _largest()(tensor.data_ptr(), tensor.numel(), low, ignored) <= high - low


@cache
def _library() -> toolchain.Library:
    text = resources.files(__package__).joinpath("guard.ll").read_text(encoding="utf-8")
    return toolchain.build(text, Target.host(), ["changed", "largest"])


@cache
def _changed() -> Callable[[int], int]:
    """``changed`` of ``guard.ll``, which keeps Python's global lock."""
    call: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(_library().address("changed"))
    return call


@cache
def _largest() -> Callable[[int, int, int, int], int]:
    """``largest`` of ``guard.ll``, which lets other threads run."""
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    call: Callable[[int, int, int, int], int] = kind(_library().address("largest"))
    return call
