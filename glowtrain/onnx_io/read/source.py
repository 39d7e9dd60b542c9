"""Read a path, bytes or a ModelProto, and check that the model's structure is sound."""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from glowtrain.errors import InputError, ModelError
from glowtrain.onnx_io.read.check import (
    check_functions,
    check_nesting,
    check_nodes,
    deep_node,
    describe,
    is_standard,
    kind_of,
    subgraphs,
    too_deep,
)
from glowtrain.presentation.messages import kind_of as kind_of_value
from glowtrain.presentation.messages import page

__all__ = [
    "OLDEST_OPSET", "Model", "Source", "captures", "describe", "is_standard", "kind_of", "name_of", "opset_of", "read",
    "reads", "subgraphs",
]  # fmt: skip

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | ModelProto

OLDEST_OPSET = 1
_ARCHIVE = b"PK\x03\x04"
"""What zip files begin with: those of torch.save and numpy.savez."""
NO_NAMES = ("", "main_graph", "main", "graph", "torch_jit", "torch-jit-export", "tf2onnx", "onnx_graph")
"""What exporters call every graph."""
_RANDOM_NAME = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Model:
    """A parsed model: the proto, where it came from, and the folder its external data is relative to."""

    proto: ModelProto
    title: str
    folder: Path | None


def read(source: Source) -> Model:
    """Parse a model and check its structure.

    Raises :class:`ModelError` for files that cannot be read, are truncated or not ONNX, declare no standard operators
    or too old ones, use names that nothing defines, define a name twice, have cycles, nest graphs too deeply, or break
    what :mod:`glowtrain.onnx_io.read.check` checks; and :class:`InputError` for what is no source.
    """
    model = _parse(source)
    check_nesting(model.proto, model.title)
    _check_header(model)
    check_functions(model.proto, model.title)
    check_nodes(model.proto, model.title)
    _sort(model.proto.graph, model, set())
    return model


def name_of(model: Model) -> str:
    """The name of a model's graph; its file's name where exporters put the same, or a random one, into every file."""
    own = model.proto.graph.name
    if model.folder is not None and (own in NO_NAMES or _RANDOM_NAME.fullmatch(own)):
        return Path(model.title).stem
    return own or "model"


def bytes_on_disk(path: Path) -> int:
    """The bytes of a model's file and of the files beside it that hold its initializers."""
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: Path) -> set[Path]:
    """A model's file and the files beside it that hold its initializers. Raises :class:`ModelError`."""
    initializers = _decode(_contents(path), str(path)).graph.initializer
    entries = (entry for tensor in initializers for entry in tensor.external_data if entry.key == "location")
    return {path, *(path.parent / entry.value for entry in entries)}


def metadata_of(path: Path) -> dict[str, str]:
    """The entries of a model's metadata by name. Raises :class:`ModelError`."""
    return {entry.key: entry.value for entry in _decode(_contents(path), str(path)).metadata_props}


def _parse(source: Source) -> Model:
    if isinstance(source, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(source)
        return Model(copy, source.graph.name or "model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Model(_decode(bytes(source), "the model"), "the model", None)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return Model(_decode(_contents(path), str(path)), str(path), path.parent)
    content = source.read() if hasattr(source, "read") else None
    if isinstance(content, bytes):
        return Model(_decode(content, "the model"), "the model", None)
    advice = "; open it with 'rb'" if isinstance(content, str) else ""
    raise InputError(f"load takes a path, bytes, a binary file or a ModelProto, not {kind_of_value(source)}{advice}")


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except ValueError:
        raise ModelError(f"cannot read {str(path)!r}: no file has such a name") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None


def _decode(data: bytes, title: str) -> ModelProto:
    if not data:
        raise ModelError(f"{title} is empty, not an ONNX model")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        deep = deep_node(data)
        if deep is not None:
            raise too_deep(title, deep) from None
        if data.startswith(_ARCHIVE):
            advice = f"a module saved by PyTorch has to be exported first ({page('exporting.md')})"
            raise ModelError(
                f"{title} is an archive, as PyTorch and NumPy write, not an ONNX model; {advice}"
            ) from None
        raise ModelError(f"{title} is truncated or not an ONNX model: {len(data)} bytes do not parse") from None
    if not _is_text(proto):
        raise ModelError(f"{title} is damaged or not an ONNX model: a name in it is not text")
    return proto


def _is_text(message: Message) -> bool:
    """Whether all strings are text: protobuf gives bytes where they are not UTF-8."""
    if isinstance(message, TensorProto):  # listing its fields would copy its data
        texts: list[str | bytes] = [message.name, message.doc_string]
        return all(isinstance(text, str) for text in texts)
    for descriptor, value in message.ListFields():
        items = [value] if isinstance(value, (str, bytes, Message)) else value
        if descriptor.type == descriptor.TYPE_MESSAGE and not all(_is_text(item) for item in items):
            return False
        if descriptor.type == descriptor.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            return False
    return True


def _check_header(model: Model) -> None:
    proto, title = model.proto, model.title
    if not proto.HasField("graph") or not (proto.ir_version or proto.opset_import):
        raise ModelError(f"{title} is not an ONNX model: it has no graph or no version")
    if not proto.opset_import and 0 < proto.ir_version < 3:
        proto.opset_import.append(helper.make_opsetid("", 1))  # these files are older than operator sets
    opset = opset_of(proto)
    if opset is None and proto.opset_import and not any(is_standard(node.domain) for node in proto.graph.node):
        opset = defs.onnx_opset_version()  # what other domains' operators are made of
        proto.opset_import.append(helper.make_opsetid("", opset))
    if opset is None:
        raise ModelError(f"{title} does not say which version of the ONNX operators it uses (no opset_import)")
    if not OLDEST_OPSET <= opset <= defs.onnx_opset_version():
        newest = defs.onnx_opset_version()
        raise ModelError(f"{title} uses ONNX opset {opset}; supported are {OLDEST_OPSET} to {newest}")
    if not proto.graph.output:
        raise ModelError(f"{title} has no outputs")
    for value in proto.graph.input:
        if value.type.WhichOneof("value") is None:
            raise ModelError(f"{title}: input {value.name!r} has no type")


def opset_of(proto: ModelProto) -> int | None:
    """The version of the standard operators that a model uses."""
    return next((entry.version for entry in proto.opset_import if is_standard(entry.domain)), None)


def captures(node: NodeProto) -> Iterator[str]:
    """Names that a node's subgraphs take from the graphs around them."""
    for body in subgraphs(node):
        inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in (*inner.input, *captures(inner)) if name and name not in inside)
            inside.update(inner.output)
        yield from (value.name for value in body.output if value.name not in inside)


def _sort(graph: GraphProto, model: Model, outside: set[str]) -> None:
    """Put nodes after what they read, in place. Raises :class:`ModelError` for names without source and for cycles."""
    known = outside | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {sparse.values.name for sparse in graph.sparse_initializer}
    produced = _produced(graph, model, known)
    available = set(known)
    ordered = _ordered(graph, available)
    if len(ordered) < len(graph.node):
        placed = {id(node) for node in ordered}
        raise _stuck([node for node in graph.node if id(node) not in placed], available, produced, model)
    _check_outputs(graph, available, model)
    if any(node is not other for node, other in zip(ordered, graph.node, strict=True)):
        set_nodes(graph, ordered)
    for node in graph.node:
        for body in subgraphs(node):
            _sort(body, model, available)


def _ordered(graph: GraphProto, available: set[str]) -> list[NodeProto]:
    """The nodes of which all operands can be had, each after them, else in their order; outputs become ``available``.

    Kahn's algorithm (Topological sorting of large networks, 1962).
    """
    ordered: list[NodeProto] = []
    readers: dict[str, list[int]] = defaultdict(list)
    missing: list[int] = []
    nodes = list(graph.node)
    for position, node in enumerate(nodes):
        names = {name for name in reads(node) if name not in available}
        missing.append(len(names))
        for name in names:
            readers[name].append(position)
        ready = [] if names else [position]
        while ready:
            done = nodes[heapq.heappop(ready)]
            ordered.append(done)
            for name in done.output:
                available.add(name)
                for reader in readers.pop(name, ()):
                    missing[reader] -= 1
                    if not missing[reader]:
                        heapq.heappush(ready, reader)
    return ordered


def reads(node: NodeProto) -> list[str]:
    """All names that a node reads, also those its subgraphs take from outside."""
    return [name for name in (*node.input, *captures(node)) if name]


def _produced(graph: GraphProto, model: Model, known: set[str]) -> set[str]:
    produced: set[str] = set()
    for node in graph.node:
        for name in node.output:
            if name and (name in produced or name in known):
                raise ModelError(f"{model.title}: {describe(node)}: {name!r} is defined twice")
            produced.add(name)
    return produced


def _check_outputs(graph: GraphProto, available: Iterable[str], model: Model) -> None:
    listed = {
        "inputs": [value.name for value in graph.input],
        "outputs": [value.name for value in graph.output],
        "initializers": [tensor.name for tensor in graph.initializer],
        "sparse initializers": [sparse.values.name for sparse in graph.sparse_initializer],
    }
    for what, names in listed.items():
        for name, count in Counter(names).items():
            if count > 1:
                raise ModelError(f"{model.title}: {count} {what} are called {name!r}; names must differ")
    for what, names in listed.items():
        if "" in names:
            raise ModelError(f"{model.title}: graph {graph.name!r}: number {names.index('')} of its {what} has no name")
    for value in graph.output:
        if value.name not in available:
            raise ModelError(f"{model.title}: output {value.name!r} is not given by any node")


def _stuck(waiting: list[NodeProto], available: set[str], produced: set[str], model: Model) -> ModelError:
    for node in waiting:
        for name in reads(node):
            if name not in available and name not in produced:
                return ModelError(f"{model.title}: {describe(node)} reads {name!r}, which nothing defines")
    names = ", ".join(describe(node) for node in waiting[:5])
    return ModelError(f"{model.title}: these nodes depend on each other in a cycle: {names}")


def change_attributes(node: NodeProto, removed: Collection[str], added: Mapping[str, Any] | None = None) -> None:
    """Take attributes out of a node and put others in, in place."""
    rest = [attribute for attribute in node.attribute if attribute.name not in removed]
    del node.attribute[:]
    node.attribute.extend([*rest, *(helper.make_attribute(name, value) for name, value in (added or {}).items())])


def set_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Give a graph these nodes, in place; they may be its own."""
    listed = GraphProto(node=nodes)  # copies: what a graph is emptied of is gone
    del graph.node[:]
    graph.node.extend(listed.node)
