"""A compiled step that Python calls without running any of its own code: what ``call.ll`` does, for objects.

A step's kernels push all else out of the processor's caches, and Python code that then looks at a step takes a hundred
times as long as when it was just used. Native code asks for all memory that it will look at before it waits for any.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch

from glowtrain.backends.base import DirectCall
from glowtrain.backends.state import address_of, zeros
from glowtrain.torch.memory import Allocation, Spans
from glowtrain.torch.watching.guard import Guard, addresses, lines_of
from glowtrain.torch.watching.native import library
from glowtrain.torch.watching.stock import Stock
from glowtrain.torch.watching.tensor_layout import MOST_AXES, WORD, TensorLayout, tensor_layout
from glowtrain.torch.watching.turn import Turn
from glowtrain.types import Array

(
    COUNT, FETCHED, GUARD, SETTINGS, ARGUMENTS, NUMBERS, VERSIONS, WRITTEN, RESULTS, FILL, STEP, TABLE, HEED,
    LOSS_BYTES, EXPONENT, CLOCK, BEGAN, ENDED, FALSE, REQUIRES_GRAD, NOT_IMPLEMENTED, FLOAT, TYPE, BEHIND, STORAGE,
    OFFSET, AUTOGRAD, DATA, INSTEAD, MAKER, TURN, PLACES, WORDS,
) = range(33)  # fmt: skip
"""The words of a call, as ``call.ll`` numbers them."""
FASTCALL, KEYWORDS = 0x80, 0x02
"""CPython's flags of functions that are given arguments as an array, and their number; and names of the last ones."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
BYTES = 1, 2, 4, 8
"""Sizes of elements that are copied."""

Bounds = tuple[int, int, int]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class _Address(int):
    """The address of a call's words, with what keeps them."""

    owner: NativeCall


@dataclass(frozen=True)
class CallArgument:
    """One of a step's arguments, as it was: a tensor with the name of its input and the bounds of its elements, if
    these are indices; or anything else, which has to be the same object again."""

    value: Any
    name: str = ""
    bounds: Bounds | None = None


@dataclass(frozen=True)
class FollowedNumber:
    """A float that a dict has under a key, and the number that the step reads in its place."""

    owner: dict[str, Any]
    key: str
    place: Array


@dataclass(frozen=True)
class NativeWork:
    """What is called. ``written``: the tensors that the step changes; ``noticed``: those of them whose versions rise;
    ``names``: those of the results, the loss first; ``results`` makes their tensors; ``owner`` keeps the code and
    what it reads; ``maker`` makes of a list of results what is returned, if that is not the loss alone; ``heed`` is
    called with results whose loss is not finite, the list or the loss alone; ``instead`` with the arguments where the
    call declines."""

    direct: DirectCall
    written: Spans
    noticed: Sequence[torch.Tensor]
    names: Sequence[str]
    results: Allocation
    owner: object
    maker: Callable[[list[torch.Tensor]], Any] | None
    heed: Callable[[Any], None]
    instead: Callable[..., Any]
    turn: Turn


def can_call(guard: Guard, arguments: Sequence[CallArgument]) -> bool:
    """Whether native code can look at all of this."""
    return guard.complete and all(_plain(each.value) for each in arguments if isinstance(each.value, torch.Tensor))


def _plain(tensor: torch.Tensor) -> bool:
    """Whether native code can read a tensor where it lies."""
    few = tensor.dim() <= MOST_AXES and tensor.element_size() in BYTES
    return type(tensor) is torch.Tensor and few and not tensor.is_neg()


class NativeCall:
    """A step for arguments like these, as long as a guard and settings hold."""

    def __init__(
        self,
        guard: Guard,
        settings: Guard,
        arguments: Sequence[CallArgument],
        numbers: Sequence[FollowedNumber],
        work: NativeWork,
    ) -> None:
        layout = tensor_layout()
        assert layout is not None  # can_call has said so
        self.guard = guard
        self._work = work
        self._copies: list[Any] = []
        self._arguments, self._numbers = arguments, numbers
        self._stock = Stock(work.results, [work.direct.cells[name] for name in work.names])
        self._fetched = addresses(guard.lines | settings.lines | self._lines(layout))
        sections = {
            ARGUMENTS: [word for each in arguments for word in self._argument(layout, each)],
            NUMBERS: [len(numbers), *[word for each in numbers for word in _number(each)]],
            VERSIONS: self._versions(layout),
            WRITTEN: [len(work.written.merged), *[word for span in work.written.merged for word in span]],
        }
        self._words = _laid_out(sections)
        self._set(layout)
        self.follow(settings)

    def function(self) -> Callable[..., Any]:
        """Gives for arguments what the step returns, or ``instead`` where something is not as it was, or it is another
        thread's turn. It keeps all that it looks at: code of Python's that runs within a call may drop the step."""
        address = _Address(ctypes.addressof(self._words))
        address.owner = self
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        make = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
        made: Callable[..., Any] = make(ctypes.addressof(_method()), address, None)
        return made

    def follow(self, settings: Guard) -> None:
        """Look at these settings from now on."""
        self.settings = settings
        self._words[SETTINGS] = settings.address

    def timed(self, call: Callable[..., Any], batch: Sequence[Any]) -> tuple[float, float] | None:
        """The seconds of ``call(*batch)``, which comes to this one, and of the step itself; None where it declined."""
        self._words[CLOCK], self._words[INSTEAD] = id(time.perf_counter), 0
        try:
            start = time.perf_counter()
            result = call(*batch)
            whole = time.perf_counter() - start
        finally:
            self._words[CLOCK], self._words[INSTEAD] = 0, id(self._work.instead)
        began, ended = (ctypes.c_double.from_buffer(self._words, WORD * at).value for at in (BEGAN, ENDED))
        return None if result is NotImplemented else (whole, ended - began)

    def _set(self, layout: TensorLayout) -> None:
        """The words that are no sections."""
        work, loss = self._work, self._work.results.dtypes[0]
        objects = {
            RESULTS: self._stock.made, FILL: self._stock, HEED: work.heed, FALSE: False, REQUIRES_GRAD: "requires_grad",
            NOT_IMPLEMENTED: NotImplemented, FLOAT: float, INSTEAD: work.instead, MAKER: work.maker,
        }  # fmt: skip
        self._kept = list(objects.values())
        numbers = {
            COUNT: len(self._arguments), FETCHED: ctypes.addressof(self._fetched), GUARD: self.guard.address,
            STEP: work.direct.function, TABLE: work.direct.table, LOSS_BYTES: loss.itemsize,
            EXPONENT: int(torch.tensor(math.inf, dtype=loss).view(INTEGERS[loss.itemsize])), TYPE: layout.own.type,
            BEHIND: layout.python[0], STORAGE: layout.own.storage, OFFSET: layout.own.offset,
            AUTOGRAD: layout.autograd[0], DATA: layout.storage, TURN: work.turn.address,
            PLACES: ctypes.addressof(self._stock.words),
        }  # fmt: skip
        for at, each in objects.items():
            self._words[at] = 0 if each is None else id(each)
        for at, number in numbers.items():
            self._words[at] = number

    def _lines(self, layout: TensorLayout) -> set[int]:
        """The memory that a call touches beside what guards look at."""
        work, numbers = self._work, [address_of(number.place) for number in self._numbers]
        places = [*work.direct.cells.values(), *self._versions(layout)[1:], *numbers]
        places += [work.turn.address, library().address("step")]
        return {line for place in places for line in lines_of(place, 1)}

    def _argument(self, layout: TensorLayout, argument: CallArgument) -> list[int]:
        value = argument.value
        if not isinstance(value, torch.Tensor):
            self._copies.append(value)
            return [3, id(value), 0]
        copy = 0
        if not value.is_contiguous():
            self._copies.append(zeros(value.shape, f"V{value.element_size()}"))
            copy = self._copies[-1].ctypes.data
        own = layout.type_of(value)
        words = [
            id(torch.Tensor), 1, self._work.direct.cells[argument.name], value.element_size(), value.nbytes, copy,
            value.dim(), *_bounds(argument.bounds), len(own), *chain(*own), *value.shape,
            *value.stride(),
        ]  # fmt: skip
        return [len(words) + 1, *words]

    def _versions(self, layout: TensorLayout) -> list[int]:
        found = [address for tensor in self._work.noticed if (address := layout.version_of(tensor)) is not None]
        return [len(found), *found]


def _bounds(bounds: Bounds | None) -> tuple[int, int, int, int]:
    """As words: whether there are any, the least, how much more at most, and what is ignored."""
    return (0, 0, 0, 0) if bounds is None else (1, bounds[0], bounds[1] - bounds[0], bounds[2])


def _number(number: FollowedNumber) -> list[int]:
    return [id(number.owner), id(number.key), address_of(number.place), number.place.itemsize]


def _laid_out(sections: dict[int, list[int]]) -> ctypes.Array[ctypes.c_uint64]:
    """A call's words and its sections behind them, to which it points."""
    starts = list(accumulate(map(len, sections.values()), initial=WORDS))
    words = (ctypes.c_uint64 * starts[-1])(*[0] * WORDS, *chain(*sections.values()))
    for number, start in zip(sections, starts, strict=False):
        words[number] = ctypes.addressof(words) + WORD * start
    return words


_methods: list[_Method] = []


def _method() -> _Method:
    """How CPython calls ``step``; it stays, as functions point to it."""
    if not _methods:
        _methods.append(_Method(b"step", library().address("step"), FASTCALL | KEYWORDS, None))
    return _methods[0]
