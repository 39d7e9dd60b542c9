"""The state of a loader (``state_dict``) as plain JSON, to be kept in a checkpoint.

    null, booleans, numbers, texts     themselves
    list                               a list
    {"dict": [[key, value], ...]}      a dict; also {"tuple": [...]}, {"set": [...]}
    {"bytes": text}                    bytes, in base 64
    {"array": [dtype, shape, text]}    an array, its memory in base 64; also {"number": ...}, a scalar of NumPy, and
                                       {"tensor": ...}, a PyTorch tensor

Nothing else is taken: reading a checkpoint must not run code, as unpickling would.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glowtrain.errors import CheckpointError, DataError, InputError
from glowtrain.trainer.sources.tensors import array_of, is_array
from glowtrain.types import Array

Plain = Any


def has_state(source: Any) -> bool:
    """Whether a source can say where it is, and begin there."""
    return callable(getattr(source, "state_dict", None)) and callable(getattr(source, "load_state_dict", None))


def encode(value: Any, where: str = "state_dict()") -> Plain:
    """A state as plain JSON. Raises :class:`DataError`, naming what and where, for what a checkpoint cannot hold."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        items = value.items()
        return {"dict": [[encode(key, f"a key of {where}"), encode(each, f"{where}[{key!r}]")] for key, each in items]}
    if isinstance(value, (list, tuple, set)):
        parts = [encode(each, f"{where}[{number}]") for number, each in enumerate(value)]
        return parts if isinstance(value, list) else {"set" if isinstance(value, set) else "tuple": parts}
    if isinstance(value, np.generic):
        return {"number": _packed(np.asarray(value), where)}
    if is_array(value):
        kind = "array" if isinstance(value, np.ndarray) else "tensor"
        return {kind: _packed(_array(value, where), where)}
    raise DataError(
        f"{where} of the data source is a {type(value).__name__}, which a checkpoint cannot hold: only numbers, texts, "
        "bytes, lists, dicts and arrays"
    )


def _array(value: Any, where: str) -> Array:
    try:
        return array_of(where, value)
    except InputError as error:
        raise DataError(str(error)) from error


def _packed(array: Array, where: str) -> list[Any]:
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise DataError(
            f"{where} of the data source has elements of type {array.dtype}, which a checkpoint cannot hold"
        )
    return [array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]


def decode(plain: Plain) -> Any:
    """The state that :func:`encode` was given. Raises :class:`CheckpointError` for what it never gives."""
    try:
        return _decoded(plain)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's state of the data source is damaged: {error}") from error


def _decoded(plain: Plain) -> Any:
    if isinstance(plain, list):
        return [_decoded(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    return _DECODERS[kind](content)


def _unpacked(packed: list[Any]) -> Array:
    dtype, shape, text = packed
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


def _tensor(packed: list[Any]) -> Any:
    """A PyTorch tensor, where PyTorch is: whoever gives such a state has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise CheckpointError("the checkpoint's state of the data source holds PyTorch tensors: import torch first")
    return torch.from_numpy(_unpacked(packed))


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "dict": lambda items: {_decoded(key): _decoded(value) for key, value in items},
    "tuple": lambda parts: tuple(map(_decoded, parts)),
    "set": lambda parts: set(map(_decoded, parts)),
    "bytes": base64.b64decode,
    "number": lambda packed: _unpacked(packed)[()],
    "array": _unpacked,
    "tensor": _tensor,
}
