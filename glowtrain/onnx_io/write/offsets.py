"""Where the elements of initializers lie in a serialized ONNX model, for programs that replace them in place.

Source of the encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, TensorProto

_VARINT, _WORD_64, _SIZED, _WORD_32 = 0, 1, 2, 5
"""Types of fields on the wire."""

Span = tuple[int, int]
"""The first byte of a field's content, and the one behind it."""


def initializer_offsets(data: bytes) -> dict[str, Span]:
    """For each initializer of a serialized model whose elements are raw bytes: where these lie."""
    found: dict[str, Span] = {}
    for graph in _fields(data, (0, len(data)), ModelProto.GRAPH_FIELD_NUMBER):
        for tensor in _fields(data, graph, GraphProto.INITIALIZER_FIELD_NUMBER):
            for begin, end in _fields(data, tensor, TensorProto.NAME_FIELD_NUMBER):
                for raw in _fields(data, tensor, TensorProto.RAW_DATA_FIELD_NUMBER):
                    found[data[begin:end].decode()] = raw
    return found


def _fields(data: bytes, within: Span, number: int) -> Iterator[Span]:
    """The fields of a message that have a number and a size."""
    at, end = within
    while at < end:
        key, at = _varint(data, at)
        size = {_WORD_64: 8, _WORD_32: 4}.get(key & 7, 0)
        if key & 7 == _SIZED:
            size, at = _varint(data, at)
            if key >> 3 == number:
                yield at, at + size
        elif key & 7 == _VARINT:
            _, at = _varint(data, at)
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and the byte behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
