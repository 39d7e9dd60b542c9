"""Message classes for ``open_inference.proto``.

They are made when the server starts, from the file's descriptor, in a pool of descriptors of their own: code that
protoc generates is bound to a range of protobuf's versions, and its names would collide with those of a client of the
protocol in the same process. ``pytest tests/serving/test_schema.py --update-golden`` writes the descriptor anew.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import json_format, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FileDescriptorProto  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]

PROTO, DESCRIPTOR = "open_inference.proto", "open_inference.descriptor.json"
Message = Any
"""A message of protobuf: its fields are attributes."""


def _read() -> FileDescriptorProto:
    text = (resources.files(__package__) / DESCRIPTOR).read_text(encoding="utf-8")
    return json_format.Parse(text, FileDescriptorProto())


_pool = DescriptorPool()
_pool.Add(_read())
SERVICE = _pool.FindServiceByName("inference.GRPCInferenceService")
"""The calls, with the types of their requests and replies."""


def message(name: str) -> Any:
    """The class of the messages called ``name``."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))


ModelInferRequest = message("ModelInferRequest")
ModelInferResponse = message("ModelInferResponse")
ModelStreamInferResponse = message("ModelStreamInferResponse")
