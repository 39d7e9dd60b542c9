"""Files of a bundle's variables: safetensors, row-major, all variables in the order of the C interface.

A bundle knows the one header that a file of its variables has, and writes and takes no other: so a device needs no
parser. Source of the format: https://github.com/huggingface/safetensors (format section).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import save

from glowtrain.bundles.memory import Place
from glowtrain.types import Array

FORMAT = {"format": "glowtrain.bundle"}


def file_of(arrays: Mapping[str, Array]) -> bytes:
    """The file with these values of all variables."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, FORMAT)


def header_of(places: Sequence[Place]) -> bytes:
    """What a file of these variables begins with, up to the first tensor."""
    data = file_of({place.name: np.zeros(place.type.shape, place.type.dtype.numpy) for place in places})
    return data[: 8 + int.from_bytes(data[:8], "little")]


def in_file_order(places: Sequence[Place]) -> list[Place]:
    """Variables in the order in which they follow one another in a file."""
    entries = json.loads(header_of(places)[8:])
    return sorted(places, key=lambda place: (entries[place.name]["data_offsets"], place.name))
