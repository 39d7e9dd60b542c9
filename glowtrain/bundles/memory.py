"""Lay out a bundle's variables in the memory that its caller provides, with their initial values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.bundles.contents import Role
from glowtrain.bundles.weights import in_file_order
from glowtrain.graph import Variable
from glowtrain.types import Array, TensorType


@dataclass(frozen=True)
class VariableSlot:
    """A variable: its type, the order of its axes in memory, its role, and the byte at which it begins."""

    name: str
    type: TensorType
    layout: tuple[int, ...]
    role: Role
    offset: int
    initial: Array
    """Row-major."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one place of an axis to the next, for each axis."""
        found = [0] * self.type.rank
        step = 1
        for axis in reversed(self.layout):
            found[axis] = step
            step *= self.type.shape[axis]
        return tuple(found)

    @property
    def stored(self) -> bytes:
        """What it is at the start, as it lies in memory."""
        return np.ascontiguousarray(np.transpose(self.initial, self.layout)).tobytes()


@dataclass(frozen=True)
class VariableMemory:
    """The memory of all variables: first those that begin with what ``image`` says, then those that begin with zeros,
    then those that nobody knows before they are set or loaded: their bytes are all ones, which is NaN in floats.
    ``slots`` are in the order of files."""

    slots: tuple[VariableSlot, ...]
    image: bytes
    zeros: int
    unknown: int
    alignment: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.image) + self.zeros + self.unknown

    @property
    def unknown_floats(self) -> list[int]:
        """The numbers of variables that begin as a NaN which no arithmetic makes; of floats of 8 bits some does."""
        first = len(self.image) + self.zeros
        return [
            number
            for number, slot in enumerate(self.slots)
            if slot.offset >= first and slot.type.dtype.is_float and slot.type.dtype.size > 1 and slot.type.size
        ]

    @property
    def types(self) -> dict[str, TensorType]:
        """In the order of files."""
        return {slot.name: slot.type for slot in self.slots}

    @property
    def by_name(self) -> dict[str, VariableSlot]:
        return {slot.name: slot for slot in self.slots}


def lay_out(
    variables: Sequence[Variable],
    roles: Mapping[str, Role],
    layouts: Mapping[str, tuple[int, ...]],
    alignment: int,
    *,
    initialised: bool,
) -> VariableMemory:
    """Places for variables, each at a multiple of ``alignment``. Without ``initialised`` parameters and statistics are
    unknown at the start."""
    unknown = [v for v in variables if not initialised and roles[v.name] != "state"]
    rest = [v for v in variables if v not in unknown]
    zeros = [v for v in rest if not np.asarray(v.initial).view(np.ndarray).tobytes().strip(b"\0")]
    image = [v for v in rest if v not in zeros]
    slots: list[VariableSlot] = []
    ends = [_append(group, roles, layouts, alignment, slots) for group in (image, zeros, unknown)]
    first, ordered = slots[: len(image)], in_file_order({slot.name: slot.type for slot in slots})
    sizes = [after - before for before, after in zip((0, *ends), ends, strict=False)]
    by_name = {slot.name: slot for slot in slots}
    return VariableMemory(
        tuple(by_name[name] for name in ordered), _image(first, ends[0]), sizes[1], sizes[2], alignment
    )


def _append(
    variables: Iterable[Variable],
    roles: Mapping[str, Role],
    layouts: Mapping[str, tuple[int, ...]],
    alignment: int,
    slots: list[VariableSlot],
) -> int:
    """Append places for variables; the byte behind all of them."""
    offset = _end(slots, alignment)
    for variable in variables:
        layout = layouts.get(variable.name, tuple(range(variable.rank)))
        initial = np.ascontiguousarray(variable.initial).reshape(variable.shape)
        slots.append(VariableSlot(variable.name, variable.type, layout, roles[variable.name], offset, initial))
        offset = _end(slots, alignment)
    return offset


def _end(slots: Sequence[VariableSlot], alignment: int) -> int:
    if not slots:
        return 0
    return math.ceil((slots[-1].offset + slots[-1].type.nbytes) / alignment) * alignment


def _image(slots: Sequence[VariableSlot], size: int) -> bytes:
    image = bytearray(size)
    for slot in slots:
        image[slot.offset : slot.offset + slot.type.nbytes] = slot.stored
    return bytes(image)
