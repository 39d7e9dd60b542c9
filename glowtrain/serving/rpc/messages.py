"""Requests for inference as messages of gRPC, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.errors import InputError, RequestSizeError
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.messages import plural
from glowtrain.serving.requests import (
    MEANT,
    InferAnswer,
    InferRequest,
    RequestedOutput,
    check_names,
    check_parameters,
    priority_of,
    timeout_of,
)
from glowtrain.serving.rpc.schema import Message, ModelInferRequest, ModelInferResponse
from glowtrain.serving.tensors import (
    BINARY_ONLY,
    check_datatype,
    check_shape,
    datatype_of,
    from_bytes,
    from_elements,
    to_bytes,
)
from glowtrain.types import Array

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""Where a tensor's elements are, by its type."""
BESIDE, FIELD = 1 << 20, 16
"""Bytes of a message that are no raw tensors', at most, each field's counted as so many at least: others wait while
they are parsed, and two of them may become an object of a hundred bytes."""
_RAW = ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2


def check_beside(data: bytes) -> None:
    """Raise :class:`RequestSizeError` for a message with more than :data:`BESIDE` bytes beside ``raw_input_contents``.

    Source: Protocol Buffers, Encoding: a field is a key, whose last bits are 2 where a length follows, and a value.
    """
    position = beside = 0
    while BESIDE // FIELD < len(data) > position:
        key, begin = _varint(data, position)
        size, begin = _varint(data, begin)
        end = begin + size if key & 7 == 2 else len(data)
        beside += max(FIELD, (begin if key == _RAW else end) - position)
        if beside > BESIDE:
            limit = byte_text(BESIDE)
            raise RequestSizeError(f"the message has more than {limit} beside raw_input_contents: send tensors there")
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and where it ends; what is none is for the parser to refuse."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position] if position < len(data) else 0
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return number, position


def decode(message: Message, remaining: float | None) -> InferRequest:
    """The request of a message. ``remaining``: the seconds that its caller waits. Raises :class:`InputError`."""
    parameters = parameters_of(message.parameters, "the request")
    named = check_names((tensor.name for tensor in message.inputs), "input")
    outputs = check_names((output.name for output in message.outputs), "output")
    for output in message.outputs:
        parameters_of(output.parameters, f"output {output.name!r}")
    return InferRequest(
        message.model_name, message.model_version or None, dict(zip(named, _arrays(message), strict=True)), message.id,
        tuple(map(RequestedOutput, outputs)), True, priority_of(parameters),
        min((limit for limit in (timeout_of(parameters), remaining) if limit is not None), default=None),
    )  # fmt: skip


def parameters_of(entries: Mapping[str, Message], where: str) -> dict[str, Any]:
    """Those parameters that mean something, as Python's values. Raises :class:`InputError` for those that are not
    supported."""
    found = {name: _value(entries[name]) for name in MEANT if name in entries}
    check_parameters(found, where)
    return found


def _value(entry: Message) -> Any:
    chosen = entry.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(entry, chosen)


def _arrays(message: Message) -> list[Array]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        inputs = plural(len(message.inputs), "input")
        raise InputError(f"raw_input_contents has {plural(len(raw), 'tensor')}, and the request has {inputs}")
    return [_array(tensor, raw[number] if raw else None) for number, tensor in enumerate(message.inputs)]


def _array(tensor: Message, raw: bytes | None) -> Array:
    where = f"input {tensor.name!r}"
    check_datatype(tensor.datatype, where)
    shape = check_shape(list(tensor.shape), where)
    parameters_of(tensor.parameters, where)
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if raw is not None:
        if filled:
            raise InputError(f"{where} has contents beside its bytes in raw_input_contents")
        return from_bytes(raw, tensor.datatype, shape, where)
    return from_elements(_elements(tensor, filled, where), tensor.datatype, shape, where)


def _elements(tensor: Message, filled: Sequence[str], where: str) -> Sequence[Any]:
    if tensor.datatype in BINARY_ONLY:
        raise InputError(f"{where}: {tensor.datatype} has no field of contents; send its bytes, in raw_input_contents")
    wanted = _CONTENTS[tensor.datatype]
    if set(filled) - {wanted}:
        raise InputError(f"{where}: elements of {tensor.datatype} are in {wanted}, not in {', '.join(filled)}")
    return list(getattr(tensor.contents, wanted))  # NumPy would wrap numbers of protobuf's own sequences around


def encode(answer: InferAnswer) -> Message:
    """The message of an answer, with the outputs' bytes."""
    message = ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    for name, array in answer.outputs.items():
        message.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_output_contents.append(to_bytes(np.ascontiguousarray(array)))
    return message
