"""Where a bundle's variables lie in the memory that its caller gives them, and what they are at the start."""

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
class Place:
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
    ``places`` are in the order of files."""

    places: tuple[Place, ...]
    image: bytes
    zeros: int
    unknown: int
    alignment: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.image) + self.zeros + self.unknown

    @property
    def types(self) -> dict[str, TensorType]:
        """In the order of files."""
        return {place.name: place.type for place in self.places}

    @property
    def by_name(self) -> dict[str, Place]:
        return {place.name: place for place in self.places}


def placed(
    variables: Sequence[Variable],
    roles: Mapping[str, Role],
    layouts: Mapping[str, tuple[int, ...]],
    alignment: int,
    *,
    known: bool,
) -> VariableMemory:
    """Places for variables, each at a multiple of ``alignment``. Without ``known`` parameters and statistics are
    unknown at the start."""
    unknown = [v for v in variables if not known and roles[v.name] != "state"]
    rest = [v for v in variables if v not in unknown]
    zeros = [v for v in rest if not np.asarray(v.initial).view(np.ndarray).tobytes().strip(b"\0")]
    image = [v for v in rest if v not in zeros]
    places: list[Place] = []
    ends = [_place(group, roles, layouts, alignment, places) for group in (image, zeros, unknown)]
    first, ordered = places[: len(image)], in_file_order({place.name: place.type for place in places})
    sizes = [after - before for before, after in zip((0, *ends), ends, strict=False)]
    by_name = {place.name: place for place in places}
    return VariableMemory(
        tuple(by_name[name] for name in ordered), _image(first, ends[0]), sizes[1], sizes[2], alignment
    )


def _place(
    variables: Iterable[Variable],
    roles: Mapping[str, Role],
    layouts: Mapping[str, tuple[int, ...]],
    alignment: int,
    places: list[Place],
) -> int:
    """Append places for variables; the byte behind all of them."""
    offset = _end(places, alignment)
    for variable in variables:
        layout = layouts.get(variable.name, tuple(range(variable.rank)))
        initial = np.ascontiguousarray(variable.initial).reshape(variable.shape)
        places.append(Place(variable.name, variable.type, layout, roles[variable.name], offset, initial))
        offset = _end(places, alignment)
    return offset


def _end(places: Sequence[Place], alignment: int) -> int:
    if not places:
        return 0
    return math.ceil((places[-1].offset + places[-1].type.nbytes) / alignment) * alignment


def _image(places: Sequence[Place], size: int) -> bytes:
    image = bytearray(size)
    for place in places:
        image[place.offset : place.offset + place.type.nbytes] = place.stored
    return bytes(image)
