"""Files of a bundle's variables: safetensors, row-major, all variables in the order of the C interface.

A bundle knows the one header that a file of its variables has, and writes and takes no other: so a device needs no
parser. Source of the format: https://github.com/huggingface/safetensors (format section).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import numpy as np
from safetensors.numpy import save

from glowtrain.types import Array, TensorType

Weights = Literal["object", "file", "none"]
"""Where the weights go: into the object, into a file beside it, or nowhere."""
FORMAT = {"format": "glowtrain.bundle"}


def file_of(arrays: Mapping[str, Array]) -> bytes:
    """The file with these values of all variables."""
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()}, FORMAT)


def header_of(types: Mapping[str, TensorType]) -> bytes:
    """What a file of variables of these types begins with, up to the first tensor."""
    data = file_of({name: np.zeros(type_.shape, type_.dtype.numpy) for name, type_ in types.items()})
    return data[: 8 + int.from_bytes(data[:8], "little")]


def file_size(types: Mapping[str, TensorType]) -> int:
    """How many bytes a file of variables of these types has."""
    return len(header_of(types)) + sum(type_.nbytes for type_ in types.values())


def in_file_order(types: Mapping[str, TensorType]) -> list[str]:
    """The names of variables in the order in which they follow one another in a file."""
    entries = json.loads(header_of(types)[8:])
    return sorted(types, key=lambda name: (entries[name]["data_offsets"], name))
