"""The messages of gRPC: the descriptor that is shipped is that of our .proto, whose numbers are the protocol's."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from tritonclient.grpc import service_pb2

from glowtrain.serving.rpc import schema

FOLDER = Path(schema.__file__).parent


def compiled(folder: Path) -> FileDescriptorProto:
    """What protoc makes of our file."""
    include = resources.files(grpc_tools) / "_proto"
    arguments = ["protoc", f"-I{FOLDER}", f"-I{include}", f"--descriptor_set_out={folder}/set", schema.PROTO]
    assert protoc.main(arguments) == 0
    found = FileDescriptorSet.FromString((folder / "set").read_bytes()).file[0]
    for message in every_message(found.message_type):
        for field in message.field:
            field.ClearField("json_name")
    return found


def every_message(messages: Any) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from every_message(message.nested_type)


def test_the_descriptor_is_that_of_the_file(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    expected = compiled(tmp_path)
    path = FOLDER / schema.DESCRIPTOR
    if request.config.getoption("--update-golden"):
        path.write_text(json_format.MessageToJson(expected, indent=1) + "\n", encoding="utf-8")
    assert json_format.Parse(path.read_text(encoding="utf-8"), FileDescriptorProto()) == expected


def fields(descriptor: Any) -> dict[str, tuple[int, int, bool, str, str]]:
    """Number, type, whether repeated, the message and the oneof of each field."""
    return {
        field.name: (
            field.number, field.type, field.is_repeated,
            field.message_type.full_name if field.message_type else "",
            field.containing_oneof.name if field.containing_oneof else "",
        )
        for field in descriptor.fields
    }  # fmt: skip


def described(descriptor: Any) -> Iterator[tuple[str, Any]]:
    yield descriptor.full_name, fields(descriptor)
    for nested in descriptor.nested_types:
        yield from described(nested)


def test_names_numbers_and_types_are_those_that_tritonclient_has() -> None:
    ours = schema.SERVICE.file.message_types_by_name
    theirs = service_pb2.DESCRIPTOR.message_types_by_name
    assert len(ours) > 20
    for name, message in ours.items():
        assert dict(described(message)) == dict(described(theirs[name]))


def test_calls_are_those_that_tritonclient_makes() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name[schema.SERVICE.name].methods_by_name
    for call in schema.SERVICE.methods:
        other = theirs[call.name]
        assert (call.input_type.full_name, call.output_type.full_name) == (
            other.input_type.full_name, other.output_type.full_name,
        )  # fmt: skip
        assert (call.client_streaming, call.server_streaming) == (other.client_streaming, other.server_streaming)
