"""Where the memory of a tensor object holds what a compiled step relies on, found out by experiments.

PyTorch says the address of what stands behind a tensor (``_cdata``) and behind its storage, but not how they are laid
out. So tensors are made of which the values are known, these are looked for, and changes are tried: unless each of
them is seen, there is no layout, and who wants one looks at tensors by Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

WORD = 8
BEHIND_TENSOR, BEHIND_STORAGE, AUTOGRAD = 22, 6, 20
"""Words that C++'s objects have at least, of a tensor, of a storage and what a tensor has for autograd."""
MOST_AXES = 5
"""Axes whose extents and strides lie in the object itself."""

Words = tuple[int, int]
"""An address and a number of words from there on."""


@dataclass(frozen=True)
class TensorLayout:
    """Words that change when a tensor does: in the Python object (what it stands for, hooks), in C++'s object (storage,
    extents, strides, offset, element type), each a first one and a number; in the storage's the one that holds the
    address; and which word of C++'s object leads to autograd's, and the one there that has ``requires_grad``."""

    python: tuple[int, int]
    behind: tuple[int, int]
    storage: int
    autograd: tuple[int, int]

    def words_of(self, tensor: torch.Tensor) -> list[Words]:
        """The words of a tensor, those first that lead to others."""
        (own, own_count), (first, count), (link, flag) = self.python, self.behind, self.autograd
        found = [
            (id(tensor) + WORD * own, own_count),
            (tensor._cdata + WORD * first, count),
            (tensor.untyped_storage()._cdata + WORD * self.storage, 1),
        ]
        (autograd,) = read(tensor._cdata + WORD * link, 1)
        return [*found, (autograd + WORD * flag, 1)] if autograd else found

    def read(self, tensor: torch.Tensor) -> list[list[int]]:
        """What they are now."""
        return [read(*words) for words in self.words_of(tensor)]


def read(address: int, count: int) -> list[int]:
    """Words of memory."""
    return list((ctypes.c_uint64 * count).from_address(address))


@cache
def tensor_layout() -> TensorLayout | None:
    """The layout in this process; None where it is not found."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    return next((layout for layout in _searched() if all(is_seen(layout, change) for change in CHANGES)), None)


def _searched() -> Iterator[TensorLayout]:
    """Where a tensor's known values lie, and the longer and longer rest, as the element type is behind them."""
    extents, strides, offset = (3, 5, 7), (1009, 211, 31), 13
    tensor = torch.from_numpy(np.empty(5000, np.float32)).as_strided(extents, strides, offset)
    storage = tensor.untyped_storage()
    python = read(id(tensor), torch._C.TensorBase.__basicsize__ // WORD)
    behind = read(tensor._cdata, BEHIND_TENSOR)
    found = [_position(behind, each) for each in ([storage._cdata], extents, strides, [offset])]
    own = _position(python, [tensor._cdata])
    data = _position(read(storage._cdata, BEHIND_STORAGE), [storage.data_ptr()])
    autograd = _autograd()
    places = [place for place in found if place is not None]
    if own is not None and data is not None and autograd is not None and len(places) == len(found):
        for last in range(max(places) + 1, BEHIND_TENSOR + 1):
            yield TensorLayout((own, len(python) - own), (min(places), last - min(places)), data, autograd)


def _autograd() -> tuple[int, int] | None:
    """Which word leads to what a tensor has for autograd, and the word there that ``requires_grad`` changes."""
    tensor = torch.zeros(3)
    before = read(tensor._cdata, BEHIND_TENSOR)
    tensor.requires_grad_()
    now = read(tensor._cdata, BEHIND_TENSOR)
    link = _first_change(before, now)
    if link is None or before[link]:
        return None
    wanted = read(now[link], AUTOGRAD)
    tensor.requires_grad_(requires_grad=False)
    flag = _first_change(wanted, read(now[link], AUTOGRAD))
    return None if flag is None else (link, flag)


def _first_change(before: Sequence[int], now: Sequence[int]) -> int | None:
    return next((at for at, (then, word) in enumerate(zip(before, now, strict=True)) if word != then), None)


def _position(words: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Where words lie among others; None unless it is one place."""
    count = len(wanted)
    found = [at for at in range(len(words) - count + 1) if list(words[at : at + count]) == list(wanted)]
    return found[0] if len(found) == 1 else None


def _exchange(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def _transpose(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.t()


def _shift(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.as_strided((4, 4), (4, 1), 1)


def _retype(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(torch.float16)


def _negate(tensor: torch.Tensor) -> None:
    tensor.data = torch._neg_view(tensor.data)


def _shrink(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data[:2]


def _move(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(1 << 22)


def _freeze(tensor: torch.Tensor) -> None:
    tensor.requires_grad_(requires_grad=False)


def _swap(tensor: torch.Tensor) -> None:
    torch.utils.swap_tensors(tensor, torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16)))


def _hook(tensor: torch.Tensor) -> None:
    tensor.register_hook(lambda gradient: gradient)


def _hook_behind(tensor: torch.Tensor) -> None:
    tensor.register_post_accumulate_grad_hook(lambda parameter: None)


CHANGES: Sequence[Callable[[torch.Tensor], None]] = (
    _exchange, _transpose, _shift, _retype, _negate, _shrink, _move, _freeze, _swap, _hook, _hook_behind,
)  # fmt: skip
"""What must be seen, done to a parameter of 4 by 4 elements in memory that has room for one more."""


def is_seen(layout: TensorLayout, change: Callable[[torch.Tensor], None]) -> bool:
    """Whether a change is seen, and use alone is not."""
    tensor = torch.nn.Parameter(torch.zeros(17, dtype=torch.bfloat16)[:16].view(4, 4))
    tensor.sum().backward()
    before = layout.read(tensor)
    with torch.no_grad():
        tensor.add_(1)
    tensor.sum().backward()
    kept = layout.read(tensor) == before
    words = layout.words_of(tensor)
    keeps_memory = tensor.untyped_storage(), tensor.data
    change(tensor)
    now = [read(*each) for each in words]
    del keeps_memory
    return kept and now != before
