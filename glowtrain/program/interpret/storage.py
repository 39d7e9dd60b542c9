"""Where the evaluator keeps buffers: every activation in an array of its own, or all of them in one planned arena.

Activations and outputs are poisoned (NaN, or bytes 0xAA where there is no NaN) before their first and after their
last use, so that a read of what was never written, or of what a wrong memory plan overwrote, shows in the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.loops import Buffer
from glowtrain.program.program import Plan, Program
from glowtrain.types import SMALL_INTEGERS, Array, dtype_of, elements_of


class Memory:
    """The contents of a program's buffers, as arrays with logical axes over storage in layout order."""

    def __init__(
        self, program: Program, inputs: Mapping[str, Array], state: Mapping[str, Array], plan: Plan | None
    ) -> None:
        self._plan = plan
        self._arena = np.full(plan.arena if plan else 0, 0xFF, np.uint8)
        self._arrays: dict[Buffer, Array] = {}
        for name, buffer in program.inputs.items():
            self._arrays[buffer] = _checked(name, buffer, inputs.get(name), "input")
        for name, buffer in program.variables.items():
            value = state.get(name, buffer.initial)
            self._arrays[buffer] = _placed(buffer, _checked(name, buffer, value, "variable"))
        for buffer in program.constants:
            self._arrays[buffer] = _placed(buffer, _checked(buffer.name, buffer, buffer.initial, "constant"))
            self._arrays[buffer].flags.writeable = False

    def __getitem__(self, buffer: Buffer) -> Array:
        """The buffer's memory, made and poisoned at its first use."""
        array = self._arrays.get(buffer)
        if array is None:
            array = self._allocate(buffer)
            self._arrays[buffer] = array
            poison(array)
        return array

    def read(self, buffer: Buffer) -> Array:
        """A row-major copy."""
        return np.array(self[buffer], order="C")

    def poison(self, buffer: Buffer) -> None:
        poison(self[buffer])

    def _allocate(self, buffer: Buffer) -> Array:
        physical = tuple(buffer.shape[axis] for axis in buffer.layout)
        if self._plan is None or buffer.kind != "activation":
            storage = np.empty(physical, buffer.dtype.numpy)
        else:
            offset = self._plan.offsets[buffer]
            storage = self._arena[offset : offset + buffer.type.nbytes].view(buffer.dtype.numpy).reshape(physical)
        return storage.transpose(np.argsort(buffer.layout))


def poison(array: Array) -> None:
    """Fill with NaN, or with bytes 0xAA, or with the greatest of few integers."""
    dtype = dtype_of(array.dtype)
    if dtype in SMALL_INTEGERS:
        array[...] = SMALL_INTEGERS[dtype][1]
    elif array.dtype.kind not in "iub":
        array[...] = np.nan
    else:
        array[...] = np.frombuffer(b"\xaa" * array.dtype.itemsize, array.dtype)[0]


def _placed(buffer: Buffer, array: Array) -> Array:
    """A copy in the buffer's layout."""
    result: Array = np.array(array.transpose(buffer.layout), order="C").transpose(np.argsort(buffer.layout))
    return result


def _checked(name: str, buffer: Buffer, value: Any, kind: str) -> Array:
    if value is None:
        raise InputError(f"{kind} {name!r} ({buffer.type}) has no value")
    array = np.asarray(elements_of(value))
    if not buffer.type.accepts(array):
        raise InputError(f"{kind} {name!r} must be {buffer.type}, not {array.dtype}{list(array.shape)}")
    view = array.view()
    view.flags.writeable = False
    return view
