"""Arrays over the memory of tensors."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from glowtrain.errors import InputError
from glowtrain.torch.dtypes import THEIRS
from glowtrain.types import Array, TensorType, bf16

Span = tuple[int, int]
address = torch.Tensor.data_ptr
new: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = torch._C._dynamo.guards._empty_strided_cpu
"""A tensor of a shape, strides and an element type, as Inductor's code makes them: in half the time of
``torch.empty_strided``."""


def array_of(tensor: torch.Tensor) -> Array:
    """An array over a tensor's own memory: writing to one writes to the other. It keeps the memory alive, and PyTorch
    refuses to resize it from then on.

    Raises :class:`InputError` for tensors that do not lie row-major in the memory of the processor.
    """
    return _array(tensor, torch.Tensor.numpy)


def view_of(tensor: torch.Tensor) -> Array:
    """The same, for the time of a call: afterwards PyTorch may resize the memory."""
    return _array(tensor, np.from_dlpack)


def _array(tensor: torch.Tensor, convert: Callable[[Any], Array]) -> Array:
    check_memory(tensor)
    flat = tensor.detach() if tensor.requires_grad else tensor
    is_bf16 = tensor.dtype is torch.bfloat16  # NumPy has no such type of its own
    return convert(flat.view(torch.int16)).view(bf16.numpy) if is_bf16 else convert(flat)


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over an array's memory."""
    if array.dtype == bf16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as they lie in memory, one behind the other: a copy where they do not."""
    if tensor.is_neg():
        return tensor.resolve_neg().contiguous()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


class Allocation:
    """New tensors of some types, for each call."""

    def __init__(self, types: Sequence[TensorType]) -> None:
        self.arguments = [(type_.shape, _strides(type_.shape), THEIRS[type_.dtype]) for type_ in types]
        """What :data:`new` is called with."""

    def __call__(self) -> list[torch.Tensor]:
        return [new(shape, strides, dtype) for shape, strides, dtype in self.arguments]

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [dtype for _, _, dtype in self.arguments]

    @property
    def nbytes(self) -> int:
        """Of all together."""
        return sum(math.prod(shape) * dtype.itemsize for shape, _, dtype in self.arguments)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of row-major memory, as PyTorch counts them: an empty axis counts as one of extent 1."""
    return tuple(accumulate([1, *(max(extent, 1) for extent in reversed(shape[1:]))], int.__mul__))[::-1][: len(shape)]


def check_memory(tensor: torch.Tensor, name: str = "a tensor") -> None:
    """Raise :class:`InputError` for tensors whose memory cannot be taken as it is."""
    check_device(tensor, name)
    if tensor.is_neg():
        raise InputError(f"{name} is the negative of what lies in its memory: make a tensor of it with .resolve_neg()")
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} {tuple(tensor.shape)} has strides {tensor.stride()}: make it contiguous with .contiguous()"
        )
    check_allocated(tensor, name)


def check_allocated(tensor: torch.Tensor, name: str) -> None:
    """Raise :class:`InputError` for tensors whose memory was given back (``tensor.untyped_storage().resize_(0)``)."""
    storage, (first, end) = tensor.untyped_storage(), span(tensor)
    if first < end and end > storage.data_ptr() + storage.nbytes():
        raise InputError(
            f"{name} {tuple(tensor.shape)} has no memory: its storage was resized to {storage.nbytes()} bytes"
        )


def check_device(tensor: torch.Tensor, name: str) -> None:
    """Raise :class:`InputError` for tensors that are not in the memory of the processor, or not dense."""
    if not tensor.is_cpu:
        raise InputError(f"{name} is on {tensor.device}: Glowtrain computes on the CPU; move it there with .cpu()")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name} is {tensor.layout}: make it dense with .to_dense()")
    if not is_plain(tensor):
        raise InputError(
            f"{name} is a {type(tensor).__name__}, which computes in ways of its own: make it a plain torch.Tensor"
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor computes as PyTorch's do: its class may be a subclass, but have no operators of its own."""
    kind: Any = type(tensor)
    return _is_plain(kind)


@cache
def _is_plain(kind: Any) -> bool:
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    usual = torch._C._disabled_torch_function_impl, vars(torch.Tensor)["__torch_function__"].__func__
    return function in usual and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may have elements in common."""
    return _meet(span(one), span(other))


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor may be the same memory: unless each axis steps over those of less stride."""
    length = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1 and stride < length:
            return True
        length += (extent - 1) * stride
    return False


def first_overlap(tensors: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
    """The names of two different tensors that may have elements in common, if there are any."""
    last: tuple[str, torch.Tensor, Span] | None = None
    for name, tensor in sorted(tensors.items(), key=lambda each: span(each[1])):
        own = span(tensor)
        if last is not None and tensor is not last[1] and _meet(own, last[2]):
            return last[0], name
        last = (name, tensor, own) if last is None or own[1] > last[2][1] else last
    return None


class Spans:
    """The memory of tensors, in which others may lie."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        spans = sorted(map(span, tensors))
        self.merged = _merged(spans)
        """From first to behind last, ascending and apart."""
        self._firsts = [first for first, _ in spans]
        self._ends = list(accumulate((end for _, end in spans), max))

    def meet(self, other: Span) -> bool:
        """Whether the memory of another tensor may have elements in common with that of one of them."""
        first, end = other
        before = bisect(self._firsts, first)
        if before and self._ends[before - 1] > first:
            return first < end
        return before < len(self._firsts) and self._firsts[before] < end


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Ascending spans, those that touch as one."""
    found: list[Span] = []
    for first, end in spans:
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def _meet(one: Span, other: Span) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def span(tensor: torch.Tensor) -> Span:
    """The addresses of the first byte, and behind the last; the same for no elements."""
    first = tensor.data_ptr()
    if tensor.is_contiguous() or not tensor.numel():
        return first, first + tensor.nbytes
    steps = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (steps + 1) * tensor.element_size()
