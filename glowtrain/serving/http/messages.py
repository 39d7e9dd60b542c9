"""Requests for inference as JSON with tensors in it or behind it, and their answers.

    body ::= JSON | JSON (Inference-Header-Content-Length bytes) tensor's bytes*

The bytes are in the order of the inputs (of the answer's outputs) that have the parameter ``binary_data_size``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glowtrain.errors import InputError
from glowtrain.presentation.messages import plural
from glowtrain.serving.http.bodies import Body, parse_json
from glowtrain.serving.requests import (
    InferAnswer,
    InferRequest,
    RequestedOutput,
    check_names,
    check_parameters,
    flag_of,
    priority_of,
    size_of,
    timeout_of,
)
from glowtrain.serving.tensors import (
    BINARY_ONLY,
    check_datatype,
    check_shape,
    datatype_of,
    from_bytes,
    from_list,
    to_bytes,
    to_list,
)
from glowtrain.types import Array

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header that says how many of a body's bytes are JSON."""
LONGEST_LENGTH = 20
"""Digits of a number of bytes."""


def decode(model: str, version: str | None, body: Body, header_length: str | None) -> InferRequest:
    """The request of a body. Raises :class:`InputError` for what is none."""
    split = json_length(header_length, len(body))
    said = _object(parse_json(body[:split]), "the request")
    parameters = _parameters(said, "the request")
    tensors = _Tensors(memoryview(body)[split:])
    named = [_named(tensor, "inputs", number) for number, tensor in enumerate(_list(said, "inputs", "the request"))]
    check_names((name for name, _ in named), "input")
    inputs = {name: tensors.take(name, tensor) for name, tensor in named}
    tensors.check_end()
    return InferRequest(
        model, version, inputs, _id(said), _outputs(said), flag_of(parameters, "binary_data_output") or False,
        priority_of(parameters), timeout_of(parameters),
    )  # fmt: skip


def json_length(header: str | None, size: int) -> int:
    """How many of a body's ``size`` bytes are JSON, by the header of :data:`HEADER_LENGTH`: all where there is none.
    Raises :class:`InputError` for what is no number of bytes, and for more than there are."""
    if header is None:
        return size
    if not (header.isascii() and header.isdigit() and len(header) < LONGEST_LENGTH) or int(header) > size:
        raise InputError(f"{HEADER_LENGTH} is {header!r:.40}: say how many of the body's {size:,} bytes are JSON")
    return int(header)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no object of JSON")
    return value


def _list(said: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = said.get(key)
    if not isinstance(found, list):
        raise InputError(f"{where} has no list {key!r}")
    return found


def _parameters(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = said.get("parameters")
    found = {} if parameters is None else _object(parameters, f"{where}: 'parameters'")
    check_parameters(found, where)
    return found


def _id(said: Mapping[str, Any]) -> str:
    found = said.get("id", "")
    if not isinstance(found, str):
        raise InputError("the request's 'id' is no string")
    return found


def _named(value: object, key: str, number: int) -> tuple[str, dict[str, Any]]:
    found = _object(value, f"{key}[{number}]")
    if not isinstance(found.get("name"), str):
        raise InputError(f"{key}[{number}] has no 'name'")
    return found["name"], found


def _outputs(said: Mapping[str, Any]) -> tuple[RequestedOutput, ...]:
    if said.get("outputs") is None:
        return ()
    named = [_named(output, "outputs", number) for number, output in enumerate(_list(said, "outputs", "the request"))]
    check_names((name for name, _ in named), "output")
    return tuple(
        RequestedOutput(name, flag_of(_parameters(output, f"output {name!r}"), "binary_data")) for name, output in named
    )


@dataclass
class _Tensors:
    """The bytes behind the JSON, taken tensor by tensor."""

    rest: memoryview

    def take(self, name: str, tensor: Mapping[str, Any]) -> Array:
        where = f"input {name!r}"
        kind, shape = tensor.get("datatype"), tensor.get("shape")
        if not isinstance(kind, str) or not isinstance(shape, list):
            raise InputError(f"{where} needs a 'datatype' and a 'shape'")
        check_datatype(kind, where)
        extents = check_shape(shape, where)
        size = size_of(_parameters(tensor, where), "binary_data_size", where)
        if (size is None) != ("data" in tensor):
            raise InputError(f"{where} has either 'data' or the parameter 'binary_data_size'")
        if size is None:
            return from_list(tensor["data"], kind, extents, where)
        return from_bytes(self._bytes(size, where), kind, extents, where)

    def _bytes(self, size: int, where: str) -> memoryview:
        if size > len(self.rest):
            raise InputError(f"{where}: binary_data_size is {size:,}, and {plural(len(self.rest), 'byte')} are left")
        found, self.rest = self.rest[:size], self.rest[size:]
        return found

    def check_end(self) -> None:
        if self.rest:
            raise InputError(f"{plural(len(self.rest), 'byte')} behind the JSON belong to no input")


def check_encodings(request: InferRequest, datatypes: Mapping[str, str]) -> None:
    """Raise :class:`InputError` if an output is asked for in JSON that has no encoding there; before anything runs."""
    for output in request.outputs or map(RequestedOutput, datatypes):
        if datatypes.get(output.name) in BINARY_ONLY and not _binary(request, output):
            raise InputError(
                f"output {output.name!r} is {datatypes[output.name]}, which JSON cannot say: ask for its bytes, "
                "with the parameter binary_data"
            )


def _binary(request: InferRequest, output: RequestedOutput) -> bool:
    return request.binary_output if output.binary is None else output.binary


def is_binary(request: InferRequest, name: str) -> bool:
    """Whether an output goes as bytes."""
    return next((_binary(request, output) for output in request.outputs if output.name == name), request.binary_output)


def encode(request: InferRequest, answer: InferAnswer) -> tuple[bytes, int | None]:
    """The body of an answer, and how many of its bytes are JSON if not all are.

    Raises :class:`InputError` for outputs that JSON cannot say.
    """
    outputs, tensors = [], []
    for name, array in answer.outputs.items():
        said: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if is_binary(request, name):
            tensors.append(to_bytes(array))
            said["parameters"] = {"binary_data_size": len(tensors[-1])}
        else:
            said["data"] = to_list(array, f"output {name!r}")
        outputs.append(said)
    header = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    text = json.dumps({**header, "id": answer.id} if answer.id else header, allow_nan=False).encode()
    return b"".join([text, *tensors]), len(text) if tensors else None
