"""Cut a model into what runs on the host before and after what is compiled.

Nodes that read or give strings, or decode images, run on the host. Such a node runs

- before the compiled part, if all that it depends on does: strings of the model's inputs,
- after it, if all that depends on it does: labels of classes as strings,
- between compiled nodes, nowhere: those above it run before with it, unless they have parameters, else those below it
  run after with it, unless these have parameters: then the model is refused.

Of a classifier of ai.onnx.ml whose labels are strings, their numbers are compiled
(:mod:`glowtrain.onnx_io.read.string_labels`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    checker,
    helper,
    shape_inference,
)

from glowtrain.errors import ModelError
from glowtrain.onnx_io.host import IMAGES, OnnxHostPart
from glowtrain.onnx_io.read.check import all_nodes, schema_at, version_of
from glowtrain.onnx_io.read.parameters import key_of
from glowtrain.onnx_io.read.rules.tabular import REFUSED
from glowtrain.onnx_io.read.source import Model, describe, reads, set_nodes, subgraphs
from glowtrain.onnx_io.read.string_labels import number_labels, upgrade_map
from glowtrain.onnx_io.read.upgrade.upgrade import light, without_functions
from glowtrain.onnx_io.schema.tensors import (
    FLOATS,
    array_from_sparse,
    array_from_tensor,
    element_type,
    tensor_from_array,
)


class HostParts(NamedTuple):
    """What of a model runs on the host, before and after what is compiled, and the names of the whole."""

    before: OnnxHostPart
    after: OnnxHostPart
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(model: Model) -> tuple[Model, HostParts | None]:
    """What of a model is compiled, and the parts around it; ``None`` where its outputs need no strings or images.

    Raises :class:`ModelError` for strings that depend on parameters, and on which other parameters depend, and
    :class:`UnsupportedOperatorError` for operators on strings that the ``onnx`` package does not run.
    """
    if not _has_strings(model.proto):
        return model, None
    model = Model(without_functions(model), model.title, model.folder)
    number_labels(model.proto)
    _drop_dead(model.proto.graph)
    types = _types(model)
    strings = {name for name, type_ in types.items() if is_strings(type_)}
    found = _Cut(model, types, strings)
    ends = {value.name for value in (*model.proto.graph.input, *model.proto.graph.output)}
    return model, found.parts() if found.host or strings & ends else None


def _has_strings(proto: ModelProto) -> bool:
    """Whether strings or encoded images may be somewhere, found without types."""
    graph = proto.graph
    if any(is_strings(value.type) for value in (*graph.input, *graph.output)):
        return True
    nodes = (graph.node, *(function.node for function in proto.functions))
    return any(tensor.data_type == TensorProto.STRING for tensor in graph.initializer) or any(
        _gives_strings(node) for each in nodes for node in all_nodes(each)
    )


def is_strings(type_: TypeProto) -> bool:
    """Whether a type is that of strings, or of a sequence of such."""
    return element_type(type_) == TensorProto.STRING


def _gives_strings(node: NodeProto) -> bool:
    """Whether a node decodes images, or may give strings whatever it reads."""
    return node.op_type == IMAGES or any(
        (attribute.name.endswith(("value_string", "_strings")) and node.op_type != "ZipMap")
        or (attribute.name == "to" and attribute.i == TensorProto.STRING)
        or attribute.t.data_type == TensorProto.STRING
        for attribute in node.attribute
    )


def _drop_dead(graph: GraphProto) -> None:
    """Leave the nodes on which an output depends, in place: labels that nothing reads need no host."""
    needed, nodes = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node))
            nodes.append(node)
    set_nodes(graph, reversed(nodes))


def _types(model: Model) -> dict[str, TypeProto]:
    """The types of values by name, as far as the ``onnx`` package infers them or else the file says; older maps, whose
    meaning depends on them, are upgraded in place.

    A node after the other, and no bodies: inference of a whole model ends the process where an operator of strings has
    an operand without a type.
    """
    proto = light(model.proto)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    types = {name: helper.make_tensor_type_proto(each.data_type, each.dims) for name, each in constants.items()}
    types |= {value.name: value.type for value in proto.graph.input}
    stated = {value.name: value.type for value in (*model.proto.graph.value_info, *proto.graph.output)}
    for node in model.proto.graph.node:
        if operand := next((types[name] for name in node.input if name in types), None):
            upgrade_map(node, from_strings=is_strings(operand))
        try:
            inferred = _inferred(node, proto, types, constants)
        except (checker.ValidationError, shape_inference.InferenceError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"{model.title}: {describe(node)}: {error}") from None
        for name in node.output:
            found = [each[name] for each in (inferred, stated) if name in each and element_type(each[name])]
            if len({element_type(type_) for type_ in found}) > 1:
                raise ModelError(f"{model.title}: {describe(node)}: {name!r} is of another type than the model says")
            if found:
                types[name] = max(found, key=lambda type_: bool(type_.tensor_type.HasField("shape")))
        for attribute in node.attribute:
            if (node.op_type, attribute.name) == ("Constant", "value"):
                constants[node.output[0]] = attribute.t
    return types


def _inferred(
    node: NodeProto, proto: ModelProto, types: Mapping[str, TypeProto], constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The types of a node's outputs; none where it has a body, no definition, or an operand without a type."""
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    schema = schema_at(node.op_type, version_of(node, versions), node.domain)
    operands = {name: types[name] for name in node.input if name in types}
    if schema is None or any(True for _ in subgraphs(node)) or operands.keys() != {*filter(None, node.input)}:
        return {}
    return shape_inference.infer_node_outputs(
        schema, node, operands, dict(constants), None, list(proto.opset_import), proto.ir_version
    )


class _Cut:
    """Which nodes run where, by their numbers in the file, in which each is after those that it depends on."""

    def __init__(self, model: Model, types: Mapping[str, TypeProto], strings: Collection[str]) -> None:
        self.model, self.graph, self.types, self.strings = model, model.proto.graph, types, strings
        self.shared = {node.output[0]: node for node in self.graph.node if self._is_shared(node)}
        """Constants: each part that reads one has it."""
        self.nodes = [node for node in self.graph.node if not self._is_shared(node)]
        self.giver = {name: number for number, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            for name in reads(node):
                self.readers[name].append(number)
        self.host = {number for number, node in enumerate(self.nodes) if self._is_host(node)}
        self.before: set[int] = set()
        self.after: set[int] = set()
        for number in self.host:
            self._assign(number)

    def _is_shared(self, node: NodeProto) -> bool:
        return node.op_type == "Constant" and node.output[0] not in self.strings

    def _is_host(self, node: NodeProto) -> bool:
        if key_of(node) in REFUSED:
            return False
        inner = any(_gives_strings(each) for body in subgraphs(node) for each in all_nodes(body.node))
        return inner or node.op_type == IMAGES or not {*reads(node), *node.output}.isdisjoint(self.strings)

    def _assign(self, number: int) -> None:
        """Let a node of the host run before or after the compiled part. Raises :class:`ModelError`."""
        above = self._reached(number, lambda node: (self.giver[name] for name in reads(node) if name in self.giver))
        below = self._reached(number, lambda node: (reader for name in node.output for reader in self.readers[name]))
        if above <= self.host:
            self.before |= above
        elif below <= self.host:
            self.after |= below
        elif not (weights := self._weights(above)):
            self.before |= above
        elif not (trained := self._weights(below)):
            self.after |= below
        else:
            raise ModelError(
                f"{self.model.title}: {describe(self.nodes[number])} runs on the host, between parameters that it "
                f"depends on ({', '.join(weights[:3])}) and others that depend on it ({', '.join(trained[:3])}): no "
                "gradient goes through it. Make two files of it (onnx.utils.extract_model), and load each"
            )

    def _reached(self, number: int, neighbours: Callable[[NodeProto], Iterable[int]]) -> set[int]:
        found, stack = {number}, [number]
        while stack:
            fresh = set(neighbours(self.nodes[stack.pop()])) - found
            found |= fresh
            stack += fresh
        return found

    def _weights(self, numbers: Iterable[int]) -> list[str]:
        """Initializers that nodes that are not bound to the host read, and that look like parameters."""
        names = {name for number in set(numbers) - self.host for name in reads(self.nodes[number])}
        return [
            tensor.name
            for tensor in self.graph.initializer
            if tensor.name in names and tensor.dims and tensor.data_type in FLOATS
        ]

    def parts(self) -> HostParts:
        """The parts; what is compiled is left in the model."""
        compiled = set(range(len(self.nodes))) - self.before - self.after
        outputs = [value.name for value in self.graph.output]
        loose = {name for name in outputs if name in self.strings and name not in self.giver}
        inputs = [value.name for value in self.graph.input if value.name not in self._constants]
        read, late = self._reads(compiled) | set(outputs), self._reads(self.after)
        early = self._given(self.before) & (read | late) | loose
        fed = [name for name in inputs if name in self.strings or name in self._reads(self.before)]
        before = self._part(self.before, fed, sorted(early))
        own = late - self._given(self.after) - self._constants - self.shared.keys()
        after = self._part(self.after, sorted(own), [name for name in outputs if name in self._given(self.after)])
        taken = [n for n in inputs if n not in self.strings and (n in read or n not in late.union(fed))]
        results = [name for name in outputs if name not in early | self._given(self.after)]
        results += sorted(own & self._given(compiled) - set(results))
        self._reduce(compiled, [*taken, *sorted(early & self._reads(compiled))], results)
        return HostParts(before, after, tuple(inputs), tuple(outputs))

    @cached_property
    def _constants(self) -> set[str]:
        sparse = (tensor.values.name for tensor in self.graph.sparse_initializer)
        return {tensor.name for tensor in self.graph.initializer}.union(sparse)

    def _reads(self, numbers: Iterable[int]) -> set[str]:
        return {name for number in numbers for name in reads(self.nodes[number])}

    def _given(self, numbers: Iterable[int]) -> set[str]:
        return {name for number in numbers for name in self.nodes[number].output if name}

    def _infos(self, names: Iterable[str]) -> list[ValueInfoProto]:
        return [helper.make_value_info(name, self.types.get(name) or TypeProto()) for name in names]

    def _part(self, numbers: Collection[int], inputs: Iterable[str], outputs: Sequence[str]) -> OnnxHostPart:
        read = self._reads(numbers).union(outputs)
        nodes = [node for name, node in self.shared.items() if name in read]
        graph = helper.make_graph(
            [*nodes, *(self.nodes[number] for number in sorted(numbers))], "host",
            self._infos(inputs), self._infos(outputs), list(self._initializers(read)),
        )  # fmt: skip
        proto = helper.make_model(graph, opset_imports=self.model.proto.opset_import)
        return OnnxHostPart(proto, self.model.title)

    def _initializers(self, names: Collection[str]) -> Iterator[TensorProto]:
        """Those of these names, with their elements in them."""
        folder = self.model.folder
        for tensor in self.graph.initializer:
            if tensor.name in names:
                strings = tensor.data_type == TensorProto.STRING
                yield tensor if strings else tensor_from_array(array_from_tensor(tensor, folder), tensor.name)
        for sparse in self.graph.sparse_initializer:
            if sparse.values.name in names:
                yield tensor_from_array(array_from_sparse(sparse, folder), sparse.values.name)

    def _reduce(self, numbers: Iterable[int], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Leave the compiled part in the model, in place."""
        graph = self.graph
        constants = [value for value in graph.input if value.name in self._constants and not is_strings(value.type)]
        declared = {value.name: value for value in graph.output}
        parts = GraphProto(
            node=[*self.shared.values(), *(self.nodes[number] for number in sorted(numbers))],
            initializer=[tensor for tensor in graph.initializer if tensor.data_type != TensorProto.STRING],
            input=[*constants, *self._infos(inputs)],
            output=[declared.get(name, value) for name, value in zip(outputs, self._infos(outputs), strict=True)],
        )
        for name in ("node", "initializer", "input", "output", "value_info"):
            graph.ClearField(name)
        graph.MergeFrom(parts)
