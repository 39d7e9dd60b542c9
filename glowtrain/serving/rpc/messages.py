"""Requests for inference as messages of gRPC, and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.presentation.words import plural
from glowtrain.serving.requests import (
    InferAnswer,
    InferRequest,
    RequestedOutput,
    check_names,
    check_parameters,
    priority_of,
    timeout_of,
)
from glowtrain.serving.rpc.schema import Message, ModelInferResponse
from glowtrain.serving.tensors import (
    BINARY_ONLY,
    BYTES,
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
    BYTES: "bytes_contents",
}  # fmt: skip
"""Where a tensor's elements are, by its type."""


def decode(message: Message, remaining: float | None) -> InferRequest:
    """The request of a message. ``remaining``: the seconds that its caller waits. Raises :class:`InputError`."""
    parameters = parameters_of(message.parameters, "the request")
    named = [tensor.name for tensor in message.inputs]
    check_names(named, "input")
    outputs = [output.name for output in message.outputs]
    check_names(outputs, "output")
    for output in message.outputs:
        parameters_of(output.parameters, f"output {output.name!r}")
    return InferRequest(
        message.model_name, message.model_version or None, dict(zip(named, _arrays(message), strict=True)), message.id,
        tuple(map(RequestedOutput, outputs)), True, priority_of(parameters),
        min((limit for limit in (timeout_of(parameters), remaining) if limit is not None), default=None),
    )  # fmt: skip


def parameters_of(entries: Mapping[str, Message], where: str) -> dict[str, Any]:
    """Parameters by name, as Python's values. Raises :class:`InputError` for those that are not supported."""
    found = {name: _value(entry) for name, entry in entries.items()}
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
