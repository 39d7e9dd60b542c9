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
from functools import cache, reduce
from operator import or_

import numpy as np
import torch

WORD = 8
BEHIND_TENSOR, BEHIND_STORAGE, AUTOGRAD, BEHIND_VERSION = 22, 6, 20, 3
"""Words that C++'s objects have at least, of a tensor, of a storage, what a tensor has for autograd, and the count of
its changes."""
ALL_BITS = (1 << 64) - 1
MADE, TIMES = 16, 4
"""Tensors that are made in memory of a byte, and how often: an allocator does not always give out what it got last."""
MOST_AXES = 5
"""Axes whose extents and strides lie in the object itself."""

Words = tuple[int, int]
"""An address and a number of words from there on."""


@dataclass(frozen=True)
class OwnWords:
    """Single words: the type in a Python object; in C++'s object what leads to the storage, how many axes, the first of
    extents and strides, the offset; which word leads to the count of changes, and the one there that has it; and which
    bits of each word are used: between fields there are others, which are what was in memory before."""

    type: int
    storage: int
    axes: int
    extents: int
    strides: int
    offset: int
    version: tuple[int, int]
    used: tuple[int, ...]


@dataclass(frozen=True)
class TensorLayout:
    """Words that change when a tensor does: in the Python object (what it stands for, hooks), in C++'s object (storage,
    extents, strides, offset, element type), each a first one and a number; in the storage's the one that holds the
    address; and which word of C++'s object leads to autograd's, and the one there that has ``requires_grad``. ``own``:
    the single words of what a tensor is."""

    python: tuple[int, int]
    behind: tuple[int, int]
    storage: int
    autograd: tuple[int, int]
    own: OwnWords

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

    def type_of(self, tensor: torch.Tensor) -> list[tuple[int, int, int]]:
        """What says of which extents, strides and element type a tensor is: numbers of words of C++'s object, which of
        their bits all tensors have that are so, and these."""
        own, count, (first, length) = self.own, tensor.dim(), self.behind
        numbers = [own.axes, *range(own.extents, own.extents + count), *range(own.strides, own.strides + count)]
        words = read(tensor._cdata, first + length)
        numbers += range(own.offset + 1, first + length)
        return [(number, own.used[number], words[number] & own.used[number]) for number in numbers]

    def version_of(self, tensor: torch.Tensor) -> int | None:
        """Where the count of a tensor's changes is; None if it has none."""
        link, word = self.own.version
        (counter,) = read(tensor._cdata + WORD * link, 1)
        return counter + WORD * word if counter else None

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
    kind, own = _position(python, [id(torch.Tensor)]), _position(python, [tensor._cdata])
    data = _position(read(storage._cdata, BEHIND_STORAGE), [storage.data_ptr()])
    autograd, axes, version = _autograd(), _axes(), _version()
    if kind is None or own is None or data is None or autograd is None or axes is None or version is None:
        return
    places = [place for place in found if place is not None]
    if len(places) == len(found) and max(places) == places[-1]:
        single = OwnWords(kind, places[0], axes, places[1], places[2], places[3], version, _used())
        for last in range(max(places) + 1, BEHIND_TENSOR + 1):
            yield TensorLayout((own, len(python) - own), (min(places), last - min(places)), data, autograd, single)


def _axes() -> int | None:
    """Which word says how many axes there are."""
    shapes = [range(2, 2 + count) for count in range(MOST_AXES + 1)]
    several = [read(torch.zeros(tuple(shape))._cdata, BEHIND_TENSOR) for shape in shapes]
    return _only([words == tuple(map(len, shapes)) for words in zip(*several, strict=True)])


def _version() -> tuple[int, int] | None:
    """Which word leads to the count of changes, which ``detach()`` shares and ``data`` does not, and where it is
    there."""
    tensor = torch.zeros(3)
    shared, apart = tensor.detach(), tensor.data
    rows = [read(each._cdata, BEHIND_TENSOR) for each in (tensor, shared, apart)]
    link = _only([own == same and own != other for own, same, other in zip(*rows, strict=True)])
    if link is None:
        return None
    counter = rows[0][link]
    before = read(counter, BEHIND_VERSION)
    tensor.add_(1)
    risen = [now == then + 1 for then, now in zip(before, read(counter, BEHIND_VERSION), strict=True)]
    word = _only(risen)
    return None if word is None else (link, word)


def _used() -> tuple[int, ...]:
    """Which bits are the same in C++'s objects of many tensors of one type, whatever was in their memory before.

    What is missed here only makes tensors of one type seem to be of different ones.
    """
    tensors = [tensor for byte in (0x00, 0xFF) * TIMES for tensor in made_where_there_was(byte)]
    words = zip(*[read(tensor._cdata, BEHIND_TENSOR) for tensor in tensors], strict=True)
    return tuple(~reduce(or_, [row[0] ^ word for word in row]) & ALL_BITS for row in words)


def made_where_there_was(byte: int) -> list[torch.Tensor]:
    """Tensors in memory that was all of one byte, as far as the allocator gives out what it got last."""
    allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
    free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))
    sizes = [size for size in range(WORD * BEHIND_TENSOR, 2 * WORD * BEHIND_TENSOR, WORD) for _ in range(MADE)]
    blocks = [(allocate(size), size) for size in sizes]
    for block, size in blocks:
        ctypes.memset(block, byte, size)
    for block, _ in blocks:
        free(block)
    return [torch.zeros(1) for _ in range(MADE)]


def _only(told: Sequence[bool]) -> int | None:
    """The number of the one that is true; None unless there is just one."""
    return told.index(True) if sum(told) == 1 else None


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
