"""Sequences and optionals: resolved while loading, since their structure is known when a model is compiled."""

from __future__ import annotations

from onnx import NodeProto

from glowtrain.errors import ModelError
from glowtrain.graph import Value, constant
from glowtrain.onnx_io.read.build import Bound, Builder, attributes_of
from glowtrain.onnx_io.read.rules.control import branch
from glowtrain.ops.tensor.move import Concat, Squeeze, Unsqueeze
from glowtrain.ops.tensor.split import Split

MOST_PIECES = 1 << 16
"""Pieces into which a tensor is split: more come of damaged extents only."""


def construct_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceConstruct: the operands."""
    return (tuple(builder.tensor(name, builder.what(node)) for name in node.input),)


def empty_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceEmpty: no tensor."""
    return ((),)


def length_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceLength: a constant."""
    return (constant(len(_first(builder, node))),)


def at_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceAt: the tensor at a position."""
    sequence = _first(builder, node)
    return (sequence[_place(builder, node, 1, len(sequence), len(sequence) - 1)],)


def insert_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceInsert: one more tensor, at the end where no position is given."""
    sequence = _first(builder, node)
    position = _place(builder, node, 2, len(sequence), len(sequence))
    return ((*sequence[:position], builder.tensor(node.input[1], builder.what(node)), *sequence[position:]),)


def erase_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """SequenceErase: all but one tensor, the last where no position is given."""
    sequence = _first(builder, node)
    position = _place(builder, node, 1, len(sequence), len(sequence) - 1)
    return ((*sequence[:position], *sequence[position + 1 :]),)


def _first(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    return builder.sequence(node.input[0], builder.what(node))


def _place(builder: Builder, node: NodeProto, operand: int, length: int, last: int) -> int:
    """A position in a sequence, counted from the end where negative; the last one where it is not given."""
    given = builder.constant(node, operand, "position")
    if given is None:
        return last
    position = int(given.reshape(()).item())
    if not -length <= position <= last:
        raise ModelError(f"{builder.what(node)}: position {position} is outside a sequence of {length}")
    return position + length if position < 0 else position


def concat_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """ConcatFromSequence: Concat, with a new axis if that is asked for."""
    attributes = attributes_of(builder, node)
    axis, parts = attributes["axis"], [part for part in _first(builder, node) if isinstance(part, Value)]
    if not parts:
        raise ModelError(f"{builder.what(node)}: the sequence is empty")
    if attributes.get("new_axis", 0):
        parts = [builder.build(Unsqueeze(axes=(axis,)), [part], node)[0] for part in parts]
    return builder.build(Concat(axis=axis), list(parts), node)


def split_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Pieces of the sizes given, of one size (the last may be smaller), or of extent 1."""
    x = builder.tensor(node.input[0], builder.what(node))
    attributes = attributes_of(builder, node)
    axis = attributes.get("axis", 0)
    extent, split = x.shape[axis], builder.constant(node, 1, "split")
    if split is not None and split.ndim == 1:
        sizes = tuple(int(size) for size in split)
    else:
        chunk = 1 if split is None else int(split)
        if extent > chunk * MOST_PIECES:
            pieces_of = f"{extent} elements in pieces of {chunk}"
            raise ModelError(f"{builder.what(node)}: {pieces_of}; there can be {MOST_PIECES} of them")
        sizes = tuple(min(chunk, extent - start) for start in range(0, extent, chunk))
    pieces = builder.build(Split(split=sizes, axis=axis), [x], node)
    if split is None and not attributes.get("keepdims", 1):
        pieces = tuple(builder.build(Squeeze(axes=(axis,)), [piece], node)[0] for piece in pieces)
    return (pieces,)


def map_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """The body, built for each element; further operands that are no sequences are the same for all."""
    body = attributes_of(builder, node)["body"]
    length = len(_first(builder, node))
    operands = [builder.read(name) for name in node.input]
    if len(operands) != len(body.input):
        raise ModelError(f"{builder.what(node)}: its body takes {len(body.input)} inputs, not {len(operands)}")
    lists = [value if isinstance(value, tuple) else (value,) * length for value in operands]
    if any(len(items) != length for items in lists):
        raise ModelError(f"{builder.what(node)}: the sequences have different lengths")
    results = [branch(builder, body, items) for items in zip(*lists, strict=True)]
    return tuple(tuple(result[position] for result in results) for position in range(len(body.output)))


def optional_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """Optional: the operand, or nothing."""
    return (builder.read(node.input[0]) if node.input and node.input[0] else None,)


def get_element_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """OptionalGetElement: the value; nothing is an error."""
    value = builder.read(node.input[0])
    if value is None:
        raise ModelError(f"{builder.what(node)} reads {node.input[0]!r}, which is absent")
    return (value,)


def has_element_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """OptionalHasElement: a constant."""
    present = bool(node.input) and bool(node.input[0]) and builder.read(node.input[0]) is not None
    return (constant(present),)
