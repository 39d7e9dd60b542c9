"""The values of variables, shared by everything that is compiled over them, and the lock that orders access."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike

from glowtrain.errors import BackendError, InputError
from glowtrain.forks import renew_in_children
from glowtrain.types import Array, LazyArray, Shape, elements_of, type_of


class ReadWriteLock:
    """Many readers or one writer. A thread that holds the lock may take it again in the same way, a writer also for
    reading; a reader must not take it for writing: it would wait for itself.

    Who waits to write goes before readers that come later, so that readers in turns cannot keep a writer out.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers: dict[int, int] = {}
        self._waiting = 0
        self._writer: int | None = None
        self._depth = 0
        renew_in_children(self)

    def renew(self) -> None:
        """Keep what the thread that forked holds itself."""
        own = get_ident()
        self._changed, self._waiting = Condition(), 0
        self._readers = {own: self._readers[own]} if own in self._readers else {}
        if self._writer != own:
            self._writer, self._depth = None, 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
        self.begin_reading()
        try:
            yield
        finally:
            self.end_reading()

    def begin_reading(self) -> None:
        """Take the lock beside other readers; :meth:`end_reading` gives it back."""
        own = get_ident()
        with self._changed:
            if self._writer == own:
                self._depth += 1
                return
            while own not in self._readers and (self._writer is not None or self._waiting):
                self._changed.wait()
            self._readers[own] = self._readers.get(own, 0) + 1

    def end_reading(self) -> None:
        """Give back what the same thread took by :meth:`begin_reading`."""
        own = get_ident()
        with self._changed:
            if self._writer == own:
                self._depth -= 1
                return
            self._readers[own] -= 1
            if not self._readers[own]:
                del self._readers[own]
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock alone."""
        self.begin_writing()
        try:
            yield
        finally:
            self.end_writing()

    def begin_writing(self) -> None:
        """Take the lock alone; :meth:`end_writing` gives it back."""
        own = get_ident()
        with self._changed:
            if self._writer != own:
                self._wait_for_all()
                self._writer = own
            self._depth += 1

    def _wait_for_all(self) -> None:
        self._waiting += 1
        try:
            while self._writer is not None or self._readers:
                self._changed.wait()
        finally:
            self._waiting -= 1

    def end_writing(self) -> None:
        """Give back what the same thread took by :meth:`begin_writing`."""
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._writer = None
                self._changed.notify_all()


class VariableEncoding(Protocol):
    """An encoding of a variable beside the order of its axes: what code reads instead of the variable itself."""

    def apply(self, flat: Array) -> Array:
        """The bytes, from the elements in the order of memory."""

    def __hash__(self) -> int: ...


class RemoteVariables(Protocol):
    """Another memory in which the newest values of variables live, such as a device's."""

    @property
    def names(self) -> Collection[str]:
        """The variables that it holds."""

    def read(self, name: str) -> Array:
        """A row-major copy of one of them."""

    def write(self, name: str, array: Array) -> None:
        """Set one of them, of its type."""


class State:
    """The values of variables, by name. Reads and writes copy; the storage itself is shared by instances.

    ``layouts`` holds, for each variable, the order of its logical axes in memory (an executable may ask for another).
    ``lock`` is held by whoever runs over the state, for reading or writing: native code runs without Python's global
    lock.
    """

    def __init__(self, variables: Mapping[str, Array | LazyArray]) -> None:
        self.lock = ReadWriteLock()
        self.moves = 0
        """How often storage has moved: what points to it holds as long as this number does."""
        self._storage = aligned_together(variables)
        self._layouts = {name: tuple(range(array.ndim)) for name, array in self._storage.items()}
        self._borrowed: set[str] = set()
        self._packed: WeakValueDictionary[tuple[str, tuple[int, ...], VariableEncoding], Array] = WeakValueDictionary()
        """Copies of variables in another encoding, as long as somebody has them."""
        self._stale: set[tuple[str, tuple[int, ...], VariableEncoding]] = set()
        """Those of them that are of values before."""
        self._packing = ReadWriteLock()
        self.remote: RemoteVariables | None = None
        """Where the newest values are, if not here."""

    def __reduce__(self) -> tuple[type[State], tuple[dict[str, Array]]]:
        """The values; memory and layouts are made anew."""
        with self.lock.reading():
            return State, ({name: self.read(name) for name in self.names},)

    def __contains__(self, name: str) -> bool:
        return name in self._storage

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._storage)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each variable, by name."""
        return {name: array.nbytes for name, array in self._storage.items()}

    def read(self, name: str) -> Array:
        """A row-major copy of a variable."""
        with self.lock.reading():
            remote = self.remote
            if remote is not None and name in remote.names:
                return remote.read(name)
            return np.array(_logical(self._storage[name], self._layouts[name]), order="C")

    def write(self, name: str, array: Array) -> None:
        """Set a variable, in place. Raises :class:`InputError` for an unknown name or another shape or dtype."""
        if name not in self._storage:
            raise InputError(f"there is no variable {name!r}; the state holds {', '.join(self._storage)}")
        with self.lock.writing():
            view = _logical(self._storage[name], self._layouts[name])
            if view.shape != array.shape or view.dtype != array.dtype:
                types = f"{view.dtype}{list(view.shape)}, not {array.dtype}{list(array.shape)}"
                raise InputError(f"variable {name} is {types}")
            if self.remote is not None and name in self.remote.names:
                self.remote.write(name, array)
                return
            view[...] = array
            self.changed((name,))

    def lend(self, remote: RemoteVariables) -> None:
        """Have another memory hold the newest values of its variables, which has those of now, until something wants
        the memory here. Who calls holds the lock, as for a run over the state. Raises :class:`BackendError` for
        borrowed memory, which nobody else would see change."""
        if borrowed := self._borrowed.intersection(remote.names):
            raise BackendError(
                f"variable {min(borrowed)} lies in memory that belongs to somebody else, which a device does not "
                "read or write; use backend cpu"
            )
        if self.remote is not remote:
            self._reclaim()
            self.remote = remote
        self.moves += 1

    def _reclaim(self) -> None:
        """Take the newest values back: all of them, or none where one cannot be read."""
        with self._packing.writing():
            remote = self.remote
            if remote is None:
                return
            values = {name: remote.read(name) for name in remote.names}
            for name, array in values.items():
                _logical(self._storage[name], self._layouts[name])[...] = array
            self.remote = None
            self.changed(values)

    def changed(self, names: Collection[str]) -> None:
        """Say that variables get other values; who says it holds the lock for writing until they have them."""
        if self._packed and (stale := {key for key in self._packed if key[0] in names}):
            self._stale |= stale
            self.moves += 1

    def packed(self, name: str, layout: tuple[int, ...], encoding: VariableEncoding) -> Array:
        """A copy of a variable, its axes in the order of ``layout``, in another encoding: the same for all who ask,
        while one of them has it. It holds the values of the last time that :attr:`moves` changed."""
        key = name, layout, encoding
        self._reclaim()
        with self._packing.writing():
            copy = self._packed.get(key)
            if copy is None or key in self._stale:
                logical = _logical(self._storage[name], self._layouts[name])
                made = encoding.apply(np.ascontiguousarray(np.transpose(logical, layout)).reshape(-1))
                copy = zeros(made.shape, made.dtype) if copy is None else copy
                copy[...] = made
                self._packed[key] = copy
                self._stale.discard(key)
            return copy

    def add(self, variables: Mapping[str, Array | LazyArray]) -> None:
        """Take in variables, but for those that are there already. Raises :class:`InputError` if one of these has
        another shape or dtype."""
        if not variables.keys() <= self._storage.keys():
            with self.lock.writing():
                new = {name: initial for name, initial in variables.items() if name not in self._storage}
                self._layouts |= {name: tuple(range(len(initial.shape))) for name, initial in new.items()}
                self._storage |= aligned_together(new)
        with self.lock.reading():
            for name, initial in variables.items():
                self._check_alike(name, initial)

    def _check_alike(self, name: str, initial: Array | LazyArray) -> None:
        layout, found = self._layouts[name], self._storage[name]
        shape = found.shape if layout == tuple(range(found.ndim)) else _logical(found, layout).shape
        dtype = found.dtype
        if (dtype, shape) != (initial.dtype, initial.shape):
            types = f"{initial.dtype}{list(initial.shape)} here, and {dtype}{list(shape)} in the state"
            raise InputError(f"variable {name} is {types}: compile it over another one")

    def borrow(self, name: str, array: Array) -> None:
        """Take somebody else's memory for a variable: a contiguous array, which steps read and write from then on.

        It stays row-major: what is compiled over the state must be so with ``Options(row_major_variables=True)``.
        """
        with self.lock.writing():
            self._reclaim()
            self._storage[name] = array
            self._layouts[name] = tuple(range(array.ndim))
            self._borrowed.add(name)
            self.moves += 1
            self.changed((name,))

    def fits(self, layouts: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether variables lie in memory as ``layouts`` says (by name)."""
        return all(self._layouts[name] == layout for name, layout in layouts.items())

    def storage(self, name: str, layout: tuple[int, ...]) -> Array:
        """The variable's memory with its axes in the order of ``layout``.

        Where it lies otherwise it is rearranged first: the caller holds the lock for writing, unless the layout
        :meth:`fits`.
        """
        self._reclaim()
        if self._layouts[name] != layout:
            if name in self._borrowed:
                raise BackendError(f"variable {name} lies in borrowed memory: compile with row_major_variables")
            wanted = np.transpose(_logical(self._storage[name], self._layouts[name]), layout)
            memory = self._storage[name].reshape(-1)
            memory[...] = wanted.flatten()
            self._storage[name] = memory.reshape(wanted.shape)
            self.moves += 1
            self._layouts[name] = layout
        return self._storage[name]


def _logical(stored: Array, layout: tuple[int, ...]) -> Array:
    """A view of a variable's memory, its axes in their order."""
    return np.transpose(stored, np.argsort(layout))


ALIGNMENT = 64
"""Bytes at a multiple of which arrays begin that native code works on."""

LARGE_PAGE = 1 << 21
"""Bytes of memory that an operating system may give at once, where it gives 4096 bytes otherwise. NumPy asks for that
in what it allocates from twice as many bytes on."""


def aligned(array: Array) -> Array:
    """A contiguous, aligned copy."""
    result = _placed(np.empty(array.nbytes + ALIGNMENT, np.uint8), array.shape, array.dtype)
    result[...] = array
    return result


def aligned_together(arrays: Mapping[str, Array | LazyArray]) -> dict[str, Array]:
    """Contiguous, aligned copies of arrays, by name, in one piece of memory: where these are many and small, as in a
    deep network, first writing to them costs a fault for each large page and not for each small one.

    Those of nothing but zeros that are in memory once, as slots of optimizers begin, take no memory before they are
    written to.
    """
    sizes = {name: type_of(array).nbytes for name, array in arrays.items()}
    total = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())
    memory = _beginning_at(total, LARGE_PAGE if total >= LARGE_PAGE else ALIGNMENT)
    copies, start = dict[str, Array](), 0
    for name, array in arrays.items():
        copies[name] = memory[start : start + sizes[name]].view(array.dtype).reshape(array.shape)
        _fill(copies[name], elements_of(array))
        start += -(-sizes[name] // ALIGNMENT) * ALIGNMENT
    return copies


def _beginning_at(nbytes: int, multiple: int) -> Array:
    """Zeros in memory that begins at a multiple of some bytes."""
    memory = np.zeros(nbytes + multiple, np.uint8)
    start = -memory.ctypes.data % multiple
    return memory[start : start + nbytes]


def _fill(zeros: Array, array: Array) -> None:
    """Write elements where nothing but zeros are, unless they are one and the same zero in memory."""
    if array.size <= 1 or any(array.strides) or any(array.reshape(-1)[:1].tobytes()):
        zeros[...] = array


def zeros(shape: int | Shape, dtype: DTypeLike) -> Array:
    """Aligned zeros, which take no memory before they are written to."""
    extents = (shape,) if isinstance(shape, int) else shape
    size = math.prod(extents) * np.dtype(dtype).itemsize
    return _placed(np.zeros(size + ALIGNMENT, np.uint8), extents, np.dtype(dtype))


def _placed(memory: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """An array in memory that has room for it, and for moving its beginning."""
    start = -memory.ctypes.data % ALIGNMENT
    placed: Array = memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return placed


def address_of(array: Array) -> int:
    """Where an array's elements begin; by the buffer protocol where it can be had, four times as fast as NumPy's own
    way."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # NumPy's stubs leave the protocol out
    except (TypeError, ValueError):  # read-only, empty, or of an element type that buffers do not know
        return int(array.ctypes.data)
