"""What a model must satisfy before its operators are looked at: nesting, its functions' calls, and ONNX's schemas.

Sources: https://onnx.ai/onnx/repo-docs/IR.html (attributes, functions), https://onnx.ai/onnx/operators (schemas),
https://protobuf.dev/programming-guides/encoding (the wire format).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, defs

from glowtrain.errors import ModelError

DEEPEST = 32
"""Graphs in graphs: protobuf reads messages up to 100 deep, three for each."""
DEEPEST_CALLS = 100
"""Functions that call functions: what the inliner of the onnx package takes."""
MOST_INLINED = 1 << 18
"""Nodes of a model with all its functions inlined."""

FIELDS: dict[int, str] = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
    11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos",
}  # fmt: skip
"""The field that holds an attribute's value, by its type."""

_STRICT = 7
"""The operator set from which on a node's attributes are in its schema, or the newest: older files mix forms."""

_LARGEST_AXIS = 1024
_MOST_PARTS = 1 << 16

Key = tuple[str, str, str]
"""A function: domain, name and overload."""


def is_standard(domain: str) -> bool:
    """Whether a domain is that of the standard operators."""
    return domain in ("", "ai.onnx")


def describe(node: NodeProto) -> str:
    """A node as named in messages."""
    kind = node.op_type if is_standard(node.domain) else f"{node.domain}.{node.op_type}"
    label = node.name or (f"giving {node.output[0]}" if node.output and node.output[0] else "without a name")
    return f"node {label!r} ({kind})"


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def check_nesting(proto: ModelProto, title: str) -> None:
    """Raise :class:`ModelError` naming the outermost node where graphs lie in graphs deeper than :data:`DEEPEST`."""
    tops = [proto.graph.node, *(function.node for function in proto.functions)]
    for top in (node for nodes in tops for node in nodes):
        inside = list(subgraphs(top))
        for _ in range(DEEPEST if inside else 0):
            inside = [body for graph in inside for node in graph.node for body in subgraphs(node)]
        if inside:
            raise too_deep(title, describe(top))


def too_deep(title: str, what: str) -> ModelError:
    """The error for a model with graphs in graphs in graphs."""
    return ModelError(f"{title}: {what}: graphs are nested too deeply, more than {DEEPEST} of them in each other")


def deep_node(data: bytes) -> str | None:
    """The first node of bytes that protobuf refuses in which graphs are nested deeper than :data:`DEEPEST`, if any.

    The path is that of ModelProto.graph (7), then GraphProto.node (1), NodeProto.attribute (5), AttributeProto.g (6).
    """
    for graph in _parts(data, (0, len(data)), 7):
        for node in _parts(data, graph, 1):
            spans = [node]
            for field in (5, 6, *(1, 5, 6) * DEEPEST):
                spans = [inner for span in spans for inner in _parts(data, span, field)]
            if spans:
                texts = [data[slice(*span)].decode("utf-8", "replace") for span in _parts(data, node, 3)]
                return f"node {texts[-1]!r}" if texts else "a node without a name"
    return None


def _parts(data: bytes, span: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    """Where the parts of a message with one field number lie; what comes after something unreadable is left out."""
    position, stop = span
    while position < stop:
        tag, position = _varint(data, position, stop)
        size = {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 in (0, 2):
            number, position = _varint(data, position, stop)
            size = number if tag & 7 == 2 else 0
        elif not size:
            return
        if position + size > stop:
            return
        if tag == wanted << 3 | 2:
            yield position, position + size
        position += size


def _varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    number = 0
    for at, byte in enumerate(data[position : min(stop, position + 10)]):
        number |= (byte & 127) << 7 * at
        if byte < 128:
            return number, position + at + 1
    return 0, stop


def check_functions(proto: ModelProto, title: str) -> None:
    """Raise :class:`ModelError` for functions that are defined twice, call themselves, or are too many when inlined."""
    functions: dict[Key, FunctionProto] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise ModelError(f"{title}: function {_name(key)} is defined twice")
        functions[key] = function
    sizes = _inlined_sizes(functions, title)
    total = sum(sizes.get(_key(node), (1, 0))[0] for node in all_nodes(proto.graph.node)) if functions else 0
    if total > MOST_INLINED:
        called = [_name(_key(node)) for node in proto.graph.node if _key(node) in sizes]
        raise ModelError(
            f"{title}: with its functions inlined ({', '.join(called[:3])} ...) it has {total} nodes, "
            f"more than {MOST_INLINED}"
        )


def _inlined_sizes(functions: Mapping[Key, FunctionProto], title: str) -> dict[Key, tuple[int, int]]:
    """For each function its nodes when inlined, and how deep its calls go."""
    sizes: dict[Key, tuple[int, int]] = {}
    for root in functions:
        path, stack = [root], [_calls(functions[root], functions)]
        while stack and root not in sizes:
            callee = next((key for key in stack[-1] if key not in sizes), None)
            if callee is None:
                key = path.pop()
                stack.pop()
                inner = [sizes.get(_key(node), (1, 0)) for node in all_nodes(functions[key].node)]
                sizes[key] = sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0)
                continue
            if callee in path:
                circle = " -> ".join(_name(key) for key in [*path[path.index(callee) :][:5], callee])
                raise ModelError(f"{title}: function {_name(callee)} calls itself: {circle}")
            path.append(callee)
            stack.append(_calls(functions[callee], functions))
    for key, (_, depth) in sizes.items():
        if depth > DEEPEST_CALLS:
            raise ModelError(
                f"{title}: function {_name(key)}: its calls are nested too deeply, {depth} functions; "
                f"at most {DEEPEST_CALLS}"
            )
    return sizes


def _calls(function: FunctionProto, functions: Mapping[Key, FunctionProto]) -> list[Key]:
    return list(dict.fromkeys(key for key in map(_key, all_nodes(function.node)) if key in functions))


def _key(node: NodeProto) -> Key:
    return (node.domain, node.op_type, node.overload)


def _name(key: Key) -> str:
    return ".".join(part for part in key if part)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, each before those of the graphs in it."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body.node)


def check_nodes(proto: ModelProto, title: str) -> None:
    """Check every node against ONNX's schemas, in functions too; state the types of attributes that do not state them.

    Raises :class:`ModelError` naming the node for attributes that are missing, given twice or of a wrong type, and for
    a number of inputs or outputs that the operator does not have.
    """
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    defined = {(function.domain, function.name) for function in proto.functions}
    scopes: list[tuple[Iterable[NodeProto], Mapping[str, int], str]] = [(proto.graph.node, versions, "")]
    for function in proto.functions:
        own = {entry.domain: entry.version for entry in function.opset_import}
        scopes.append((function.node, {**versions, **own}, f"function {function.name}: "))
    for nodes, imported, prefix in scopes:
        for node in all_nodes(nodes):
            what = f"{title}: {prefix}{describe(node)}"
            for attribute in node.attribute:
                _check_value(attribute, what, in_function=bool(prefix))
            version = version_of(node, imported)
            own_function = (node.domain, node.op_type) in defined
            schema = None if own_function else schema_at(node.op_type, version, node.domain)
            if schema is not None:
                _check_attributes(node, schema, version, what)
                _check_counts(node, schema, what)
                _check_parts(node, what)


def version_of(node: NodeProto, versions: Mapping[str, int]) -> int:
    """The version of a node's domain that the model imports; 0 if it imports none."""
    names = ("", "ai.onnx") if is_standard(node.domain) else (node.domain,)
    return next((versions[name] for name in names if name in versions), 0)


@functools.cache
def schema_at(op_type: str, version: int, domain: str) -> defs.OpSchema | None:
    """An operator's definition in a version of its domain, if it has one."""
    domain = "" if is_standard(domain) else domain
    if not 0 < version < 1 << 31 or not defs.has(op_type, domain):
        return None
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def _check_value(attribute: AttributeProto, what: str, *, in_function: bool) -> None:
    present = {descriptor.name for descriptor, _ in attribute.ListFields()} & set(FIELDS.values())
    if not attribute.type:  # files before IR version 2 do not say
        code = next((code for code, name in FIELDS.items() if name in present), int(AttributeProto.INTS))
        attribute.type = AttributeProto.AttributeType.Value(AttributeProto.AttributeType.Name(code))
    if attribute.ref_attr_name and not in_function:
        raise ModelError(
            f"{what}: attribute {attribute.name} refers to {attribute.ref_attr_name!r} of a function, but is in none"
        )
    axes = [attribute.i] if attribute.name == "axis" else attribute.ints if attribute.name == "axes" else ()
    if any(abs(axis) > _LARGEST_AXIS for axis in axes):  # the onnx package computes with 32 bits
        raise ModelError(f"{what}: attribute {attribute.name}: no tensor has axis {max(axes, key=abs)}")
    wrong = present - {FIELDS[attribute.type]}
    if wrong:
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise ModelError(f"{what}: attribute {attribute.name} is {kind} but holds {', '.join(sorted(wrong))}")


def _check_attributes(node: NodeProto, schema: defs.OpSchema, version: int, what: str) -> None:
    names = [attribute.name for attribute in node.attribute]
    for attribute in node.attribute:
        expected = schema.attributes.get(attribute.name)
        if expected is None and version >= _STRICT and is_standard(schema.domain):
            newest = schema_at(node.op_type, defs.onnx_opset_version(), "")
            if newest is None or attribute.name not in newest.attributes:
                raise ModelError(f"{what}: attribute {attribute.name} of {schema.name} is not supported")
        if names.count(attribute.name) > 1:
            raise ModelError(f"{what}: attribute {attribute.name} is given twice")
        if expected is not None and kind_of(expected) != attribute.type:
            found = AttributeProto.AttributeType.Name(attribute.type)
            wanted = AttributeProto.AttributeType.Name(kind_of(expected))
            raise ModelError(f"{what}: attribute {attribute.name} must be {wanted}, not {found}")
    missing = [name for name in _required(schema) if name not in names and is_standard(schema.domain)]
    if missing:
        raise ModelError(f"{what}: attribute {' and '.join(missing)} is missing")


_REQUIRED: dict[tuple[str, str, int], tuple[str, ...]] = {}


def _required(schema: defs.OpSchema) -> tuple[str, ...]:
    key = schema.domain, schema.name, schema.since_version
    if key not in _REQUIRED:
        _REQUIRED[key] = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    return _REQUIRED[key]


@functools.cache
def kind_of(expected: defs.OpSchema.Attribute) -> int:
    """The type that an operator's definition gives an attribute, as a code of AttributeProto."""
    return int(AttributeProto.AttributeType.Value(str(expected.type).rpartition(".")[2]))


def _check_counts(node: NodeProto, schema: defs.OpSchema, what: str) -> None:
    for kind, names, least, most in (
        ("inputs", list(node.input), schema.min_input, schema.max_input),
        ("outputs", list(node.output), schema.min_output, schema.max_output),
    ):
        while names and not names[-1]:
            names.pop()
        if not least <= len(names) <= most:
            wanted = str(least) if least == most else f"{least} to {most}" if most < 1 << 30 else f"at least {least}"
            raise ModelError(f"{what} has {len(names)} {kind}, not {wanted}")


def _check_parts(node: NodeProto, what: str) -> None:
    """Split into fewer or far more parts than it has outputs; the onnx package believes the attribute."""
    parts = next((attribute.i for attribute in node.attribute if attribute.name == "num_outputs"), None)
    if parts is not None and not len(node.output) <= parts <= _MOST_PARTS:
        raise ModelError(f"{what}: num_outputs={parts}, but it has {len(node.output)} outputs")


def check_operands(graph: GraphProto, title: str) -> None:
    """Raise :class:`ModelError` for a node of the newest operator set without an operand that it needs.

    Older schemas call operands required that files leave out (the ``roi`` of Resize).
    """
    required = defs.OpSchema.FormalParameterOption.Single
    for node in all_nodes(graph.node):
        if "" not in node.input:
            continue
        schema = schema_at(node.op_type, defs.onnx_opset_version(), "") if is_standard(node.domain) else None
        for position, (name, expected) in enumerate(zip(node.input, schema.inputs if schema else (), strict=False)):
            if not name and expected.option == required:
                raise ModelError(f"{title}: {describe(node)}: input {position} ({expected.name}) is absent")
