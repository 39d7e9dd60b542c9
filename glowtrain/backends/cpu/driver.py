"""Run a native step several times in one call: what ``driver.ll`` beside this module does, for arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from math import ceil

import numpy as np

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cpu.routines import loaded
from glowtrain.backends.state import ALIGNMENT, address_of, zeros
from glowtrain.types import Array, TensorType

STEP, TABLE, WANTED, MADE, WATCHED, MASK, MOVING, FIRST = range(8)
"""The fields of what ``driver.ll`` is given, up to the first of three for each buffer that moves on."""
SLOT, ADDRESS, STRIDE = range(3)


class StackedOutput:
    """Memory for an output of several runs, in each aligned and with zeros behind it."""

    def __init__(self, type_: TensorType, runs: int) -> None:
        stride = ceil(max(type_.nbytes, 8) / ALIGNMENT) * ALIGNMENT
        memory = zeros(runs * stride, np.uint8)
        one = np.ndarray(type_.shape, type_.dtype.numpy)
        self.rows: Array = np.ndarray((runs, *one.shape), one.dtype, memory, strides=(stride, *one.strides))
        """The output in all runs."""
        self.place = address_of(memory), stride


class Driver:
    """The step at an address over the table at another, driven from run to run by :func:`driving`.

    ``inputs`` are their slots in the table, ``outputs`` the types of all, ``slots`` those of the outputs that the step
    writes. It must not be called from two threads at once.
    """

    def __init__(
        self,
        drive: Callable[..., None],
        step: int,
        table: int,
        inputs: Sequence[int],
        outputs: Mapping[str, TensorType],
        slots: Mapping[str, int],
    ) -> None:
        self.outputs, self.slots = outputs, slots
        moving = [*inputs, *slots.values()]
        self._fields = (ctypes.c_int64 * (FIRST + 3 * len(moving)))()
        self._fields[STEP], self._fields[TABLE], self._fields[MOVING] = step, table, len(moving)
        for at, slot in enumerate(moving):
            self._fields[FIRST + 3 * at + SLOT] = slot
        self._behind_inputs = FIRST + 3 * len(inputs)
        self._call, self._address = drive, ctypes.addressof(self._fields)
        self._stacked: dict[str, StackedOutput] = {}
        self._room = 0
        self._watched = ""

    def run(self, count: int, inputs: Sequence[tuple[int, int]], watched: str) -> dict[str, Array]:
        """The outputs of so many runs, one behind the other; of fewer if ``watched``, a scalar output of floats, was
        NaN or infinite in the last. ``inputs``: the address of each in the first run, the bytes from run to run."""
        if count > self._room:
            self._make_room(count)
        if watched != self._watched:
            self._watch(watched)
        fields = self._fields
        fields[WANTED] = count
        for at, (address, stride) in zip(range(FIRST, self._behind_inputs, 3), inputs, strict=True):
            fields[at + ADDRESS], fields[at + STRIDE] = address, stride
        self._call(self._address)
        made = fields[MADE]
        return {name: output.rows[:made].copy() for name, output in self._stacked.items()}

    def _make_room(self, runs: int) -> None:
        self._stacked = {name: StackedOutput(type_, runs) for name, type_ in self.outputs.items()}
        for number, name in enumerate(self.slots):
            at = self._behind_inputs + 3 * number
            self._fields[at + ADDRESS], self._fields[at + STRIDE] = self._stacked[name].place
        self._room = runs

    def _watch(self, name: str) -> None:
        self._fields[WATCHED], self._fields[MASK] = self.slots[name], self.outputs[name].dtype.exponent
        self._watched = name


_functions: list[Callable[..., None]] = []


def driving(cache: Cache | None) -> Callable[..., None]:
    """``drive`` of ``driver.ll``, loaded once; the cache may have its code."""
    if not _functions:
        text = resources.files(__package__).joinpath("driver.ll").read_text(encoding="utf-8")
        _functions.append(loaded("driver", text, ("drive",), cache).function("drive", 1))
    return _functions[0]
