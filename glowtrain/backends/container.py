"""Artifacts as files: arrays and facts in a safetensors file, with a checksum over both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from glowtrain.errors import ArtifactError
from glowtrain.types import Array, parse_type, type_of
from glowtrain.version import __version__

FORMAT = "glowtrain.artifact.1"


def pack(kind: str, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> bytes:
    """The file of an artifact of a ``kind``: arrays of any of Glowtrain's types, and facts that JSON can hold."""
    plain = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in arrays.items()}
    header = {
        "format": FORMAT,
        "version": __version__,
        "kind": kind,
        "types": {name: str(type_of(array)) for name, array in arrays.items()},
        "facts": facts,
    }
    text = json.dumps(header)
    metadata = {"artifact": json.dumps({"header": text, "sha256": _checksum(plain, text)})}
    data: bytes = safetensors.numpy.save(plain, metadata=metadata)
    return data


def unpack(kind: str, data: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the facts of :func:`pack`.

    Raises :class:`ArtifactError` for what is truncated or changed, of another kind, or from another version.
    """
    arrays, text, stated = _parsed(data)
    if _checksum(arrays, text) != stated:
        raise ArtifactError("compiled code is damaged: its checksum does not fit its contents")
    header = json.loads(text)
    if header["format"] != FORMAT or header["version"] != __version__:
        raise ArtifactError(f"compiled by Glowtrain {header['version']}, not {__version__}: compile it again")
    if header["kind"] != kind:
        raise ArtifactError(f"compiled by backend {header['kind']}, not {kind}")
    types = {name: parse_type(type_) for name, type_ in header["types"].items()}
    typed = {name: arrays[name].view(type_.dtype.numpy).reshape(type_.shape) for name, type_ in types.items()}
    return typed, header["facts"]


def _parsed(data: bytes) -> tuple[dict[str, Array], str, str]:
    """Arrays as bytes, the header's text and the checksum that it is stored with."""
    try:
        arrays = safetensors.numpy.load(data)
        length = int.from_bytes(data[:8], "little")
        stored = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["artifact"])
        return arrays, str(stored["header"]), str(stored["sha256"])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"not compiled code, or only a part of it: {error!r}") from None


def _checksum(arrays: Mapping[str, Array], header: str) -> str:
    content = hashlib.sha256(header.encode())
    for name in sorted(arrays):
        content.update(f"\0{name}\0{arrays[name].nbytes}\0".encode())
        content.update(arrays[name].data)
    return content.hexdigest()
