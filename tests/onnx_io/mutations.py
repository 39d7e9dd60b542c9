"""Random damage to ONNX models: to their bytes, to any field of their protobuf messages, and to their structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from onnx import AttributeProto, ModelProto, NodeProto, defs, helper

EDGES = (0, 1, -1, 2, 3, 5, 7, 127, 128, 255, -128, 1 << 15, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40)
EDGES += (1 << 62, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e38, math.inf, -math.inf, math.nan)
TEXTS = ("", "x", "y", "SAME_UPPER", "bilinear", "reverse", "add", "Tanh", "ij,jk->ik", "\0", "ü" * 40, "../a", "-1")

_INT32 = (FieldDescriptor.CPPTYPE_INT32,)
_INTEGERS = (*_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_UINT32)
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}

OPERATORS = sorted({(schema.domain, schema.name) for schema in defs.get_all_schemas()})


def mutate(data: bytes, random: Random) -> bytes:
    """A model's bytes, damaged in one to three places; every fifth time as bytes only."""
    if random.random() < 0.2:
        return damaged_bytes(data, random)
    model = ModelProto.FromString(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_KINDS)(model, random)
    try:
        return model.SerializeToString(deterministic=True)
    except (DecodeError, ValueError):
        return data


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Bytes flipped, inserted, deleted, repeated or cut off."""
    damaged = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        place, length = random.randrange(len(damaged) or 1), random.choice((1, 1, 2, 8, 50))
        match random.randrange(5):
            case 0:
                damaged[place : place + 1] = bytes([random.randrange(256)])
            case 1:
                damaged[place:place] = random.randbytes(length)
            case 2:
                del damaged[place : place + length]
            case 3:
                damaged[place:place] = damaged[place : place + length]
            case 4:
                del damaged[random.choice((place, max(0, len(damaged) - length))) :]
    return bytes(damaged)


def messages(message: Message) -> Iterator[Message]:
    """A message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for item in [value] if isinstance(value, Message) else value:
                yield from messages(item)


def any_field(model: ModelProto, random: Random) -> None:
    """Change one field of one message, whatever it is; one time in six a field that is absent."""
    everything = list(messages(model))
    message = random.choice(everything)
    present = [field for field, _ in message.ListFields()]
    field = random.choice(present if present and random.random() < 0.85 else list(message.DESCRIPTOR.fields))
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED:
        _change_repeated(message, field, everything, random)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        _change_message(getattr(message, field.name), message, field, everything, random)
    elif random.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), everything, random))


def _change_message(
    value: Message, parent: Message, field: FieldDescriptor, everything: list[Message], random: Random
) -> None:
    if random.random() < 0.4:
        parent.ClearField(field.name)
    else:
        fresh = type(value)()
        fresh.CopyFrom(_another(field, everything, random))
        value.CopyFrom(fresh)


def _another(field: FieldDescriptor, everything: list[Message], random: Random) -> Message:
    """Some message of the type of a field, else an empty one."""
    kin = [message for message in everything if message.DESCRIPTOR is field.message_type]
    return random.choice(kin) if kin else GetMessageClass(field.message_type)()


def _change_repeated(message: Message, field: FieldDescriptor, everything: list[Message], random: Random) -> None:
    values: Any = getattr(message, field.name)
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    place = random.randrange(len(values)) if len(values) else 0
    match random.randrange(5) if len(values) else 4:
        case 0:
            del values[place]
        case 1:
            other = random.randrange(len(values))
            if is_message:
                first, second = type(values[0])(), type(values[0])()
                first.CopyFrom(values[place])
                second.CopyFrom(values[other])
                values[place].CopyFrom(second)
                values[other].CopyFrom(first)
            else:
                values[place], values[other] = values[other], values[place]
        case 2:
            values.append(values[place])
        case 3 if not is_message:
            values[place] = _scalar(field, values[place], everything, random)
        case _:
            _append(values, field, everything, random)


def _append(values: Any, field: FieldDescriptor, everything: list[Message], random: Random) -> None:
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        values.append(_scalar(field, values[0] if len(values) else None, everything, random))
        return
    values.append(_another(field, everything, random))


def _scalar(field: FieldDescriptor, value: Any, everything: list[Message], random: Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice([entry.number for entry in field.enum_type.values])
    if kind in _INTEGERS:
        low, high = _LIMITS[kind]
        number = value or 0
        options = (*EDGES, *range(30), number + 1, number - 1, -number, 2 * number)
        return min(high, max(low, int(random.choice(options))))
    if kind in _FLOATS:
        return random.choice((*FLOATS, (value or 0.0) * 2))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return damaged_bytes(value or b"", random)
    return random.choice((*TEXTS, *_texts(everything)))


def _texts(everything: list[Message]) -> list[str]:
    """Names that the model already uses: the likeliest to make another valid or nearly valid one."""
    found: list[str] = []
    for message in everything:
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                found += [value] if isinstance(value, str) else list(value)
    return found


def nodes_of(model: ModelProto) -> list[NodeProto]:
    """All nodes, of subgraphs and functions too."""
    return [message for message in messages(model) if isinstance(message, NodeProto)]


def other_operator(model: ModelProto, random: Random) -> None:
    """A node gets another operator."""
    nodes = nodes_of(model)
    if nodes:
        node = random.choice(nodes)
        node.domain, node.op_type = random.choice(OPERATORS)


def cycle(model: ModelProto, random: Random) -> None:
    """A node reads what a later one gives, or its own result."""
    nodes = [node for node in model.graph.node if node.input and node.output]
    if nodes:
        first = random.randrange(len(nodes))
        later = nodes[random.randrange(first, len(nodes))]
        nodes[first].input[random.randrange(len(nodes[first].input))] = random.choice(later.output)


def other_input(model: ModelProto, random: Random) -> None:
    """A node reads another value, or none, or has one input more or less."""
    nodes = [node for node in nodes_of(model) if node.input]
    if not nodes:
        return
    node, place = random.choice(nodes), 0
    place = random.randrange(len(node.input))
    names = [name for other in nodes_of(model) for name in (*other.input, *other.output)]
    match random.randrange(5):
        case 0:
            node.input[place] = ""
        case 1:
            del node.input[place]
        case 2:
            node.input.append(random.choice(names))
        case 3:
            node.input[place] = "ghost"
        case _:
            node.input[place] = random.choice(names)


def other_opset(model: ModelProto, random: Random) -> None:
    """The model claims another operator set."""
    if model.opset_import:
        random.choice(model.opset_import).version = random.choice((*range(28), 999, -1, (1 << 63) - 1))


def other_attribute(model: ModelProto, random: Random) -> None:
    """A node gets an attribute that its operator has, or an existing one another value, of any type."""
    nodes = nodes_of(model)
    if not nodes:
        return
    node = random.choice(nodes)
    names = [attribute.name for attribute in node.attribute]
    if defs.has(node.op_type, node.domain):
        names += list(defs.get_schema(node.op_type, node.domain).attributes)
    name = random.choice([*names, "axis"])
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    value = helper.make_attribute(name, _attribute(random))
    copies = [AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend([*copies, value])


def _attribute(random: Random) -> Any:
    small = (-3, -2, -1, 0, 1, 2, 3, 4, 10, 16)
    match random.randrange(6):
        case 0:
            return random.choice(EDGES)
        case 1:
            return random.choice(small)
        case 2:
            return random.choice(FLOATS)
        case 3:
            return random.choice(TEXTS)
        case 4:
            return [random.choice(small) for _ in range(random.randrange(1, 6))]
        case _:
            return [random.choice(EDGES) for _ in range(random.randrange(1, 5))]


def other_extent(model: ModelProto, random: Random) -> None:
    """An initializer or a declared value gets another extent, rank or element type."""
    tensors = [message for message in messages(model) if message.DESCRIPTOR.name in ("TensorProto", "TensorShapeProto")]
    if not tensors:
        return
    tensor: Any = random.choice(tensors)
    if tensor.DESCRIPTOR.name == "TensorShapeProto":
        if not tensor.dim or random.random() < 0.2:
            tensor.dim.add().dim_value = random.choice(EDGES)
        else:
            random.choice(tensor.dim).dim_value = random.choice(EDGES)
    elif random.random() < 0.3:
        tensor.data_type = random.randrange(30)
    elif tensor.dims and random.random() < 0.7:
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice(EDGES)
    else:
        tensor.dims.append(random.choice((1, 1, 0, 2, -1)))


Kind = Callable[[ModelProto, Random], None]
_KINDS: tuple[Kind, ...] = (
    *(any_field,) * 6, other_operator, cycle, *(other_input,) * 2, other_opset, *(other_attribute,) * 3, other_extent,
)  # fmt: skip
