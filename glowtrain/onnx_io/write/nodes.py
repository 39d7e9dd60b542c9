"""Write graphs as ONNX nodes, operators that ONNX lacks as functions of the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto, defs, helper

from glowtrain.errors import ModelError
from glowtrain.graph import Constant, Graph, Node, Operator, Value
from glowtrain.graph.specialise.binding import Trimmed
from glowtrain.names import Names
from glowtrain.onnx_io.schema.tensors import dtype_to_onnx, tensor_from_array
from glowtrain.onnx_io.write.downgrade import decomposed
from glowtrain.onnx_io.write.encodings import (
    OWN_DOMAIN,
    ComputedExtent,
    Encoding,
    Extents,
    default_encoding,
    encoding_of,
    schema_of,
)
from glowtrain.onnx_io.write.symbols import Number, Symbols
from glowtrain.ops.control.scan import Scan
from glowtrain.optimize.cse import exact_attributes
from glowtrain.types import Array, DType, TensorType

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


def value_info(name: str, type_: TensorType, dims: Extents | None = None) -> ValueInfoProto:
    """A declared type; ``dims`` replaces extents by names, or leaves them open."""
    declared = type_.shape if dims is None else dims
    extents = [None if isinstance(extent, ComputedExtent) else extent for extent in declared]
    return helper.make_tensor_value_info(name, dtype_to_onnx(type_.dtype), extents)


def reserve(names: Names, name: str, what: str) -> str:
    """Take exactly this name. Raises :class:`ModelError` if something else has it."""
    if name in names:
        raise ModelError(f"cannot save: {what} is called {name!r}, and so is another value; rename one of them")
    names.take(name)
    return name


@dataclass
class Functions:
    """The functions of a model: one for each operator on operands of given types."""

    opset: int
    protos: dict[str, FunctionProto] = field(default_factory=dict)
    by_signature: dict[Hashable, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    missing: dict[str, Node] = field(default_factory=dict)
    """Operators that can be written neither way, each with a node."""
    domains: dict[str, int] = field(default_factory=dict)
    """Versions of the other domains whose operators are used."""
    undecomposed: frozenset[str] = frozenset()
    """Domains whose operators are written as they are, although they have decompositions."""
    standard: bool = False
    """Operators of other packages that have none are not written as they are, but missing."""

    def imports(self, functions: bool) -> list[OperatorSetIdProto]:
        """The operator sets that the nodes written so far use, with the functions' own or without."""
        own = {OWN_DOMAIN: 1} if functions else {}
        return [helper.make_opsetid(*entry) for entry in {"": self.opset, **own, **self.domains}.items()]

    def writes(self, node: Node) -> bool:
        """Whether a node is written as it is, and not as a function."""
        operator, types = node.operator, [None if value is None else value.type for value in node.inputs]
        if operator.control or operator.domain in self.undecomposed:
            return True
        return encoding_of(operator, types, self.opset) is not None

    def name_of(self, node: Node) -> str | None:
        """The function that stands for a node's operator, made if need be; ``None`` if it has no decomposition."""
        operator, types = node.operator, tuple(None if value is None else value.type for value in node.inputs)
        key = (type(operator), exact_attributes(operator), types)
        if key not in self.by_signature:
            if not operator.has("decompose"):
                self.missing.setdefault(operator.key(), node)
                return None
            name = self.by_signature[key] = self.names.fresh(operator.onnx)
            self.protos[name] = self._function(name, operator, decomposed(node))
        return self.by_signature[key]

    def _function(self, name: str, operator: Operator, graph: Graph) -> FunctionProto:
        writer = Writer(self, Names(), constants_as_nodes=True)
        writer.declare(graph)
        writer.body(graph)
        return helper.make_function(
            OWN_DOMAIN,
            name,
            [value.name for value in graph.inputs],
            list(graph.outputs),
            writer.nodes,
            self.imports(functions=True),
            doc_string=str(operator),
        )


@dataclass
class Writer:
    """Writes the nodes of one graph, or of one function, whose constants are nodes."""

    functions: Functions
    names: Names
    constants_as_nodes: bool = False
    symbols: Symbols = field(default_factory=Symbols)
    value_names: dict[Value, str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    arrays: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    shapes: dict[Extents, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)
    read: set[Value] = field(default_factory=set)
    """Values that some node or output reads: optional results that nobody reads are not written."""
    node_names: Names = field(default_factory=Names)
    """Of this graph's nodes: ONNX Runtime refuses two of one name, as the steps of an older operator have."""

    def declare(self, graph: Graph) -> None:
        """Fix the names of inputs, variables and outputs."""
        leaves: Iterable[Value] = (*graph.inputs, *graph.variables)
        for value in leaves:
            self.value_names[value] = reserve(self.names, value.name, f"the {type(value).__name__.lower()}")
        for name, value in graph.outputs.items():
            if self.value_names.get(value) == name:
                continue
            reserve(self.names, name, "the output")
            if value.node is not None and value not in self.value_names:
                self.value_names[value] = name

    def body(self, graph: Graph) -> None:
        """Write the nodes, and a copy for every output that shares its value with another name."""
        self.read.update(_read(graph))
        for node in graph.nodes:
            self.node(node)
        for name, value in graph.outputs.items():
            if self.name(value) != name:
                self.nodes.append(helper.make_node("Identity", [self.name(value)], [name]))

    def name(self, value: Value) -> str:
        """The name of a value; constants are written when they are first used."""
        if value not in self.value_names:
            if isinstance(value, Constant):
                self.value_names[value] = self.constant_value(value)
            else:
                hint = value.name or (value.node.operator.onnx if value.node else "value")
                self.value_names[value] = self.names.fresh(hint)
        return self.value_names[value]

    def constant_value(self, value: Constant) -> str:
        """The name of a constant; one whose shape varies is filled with its number, which may vary as well."""
        extents, varying = self.symbols.constants.get(value), self.symbols.numbers.get(value)
        if extents is None:
            return self.constant(value.array, value.name or "constant")
        name = self.names.fresh(value.name or "constant")
        if varying is not None:
            operands = [self.number(varying, value.dtype), self.shape(extents)]
            self.nodes.append(helper.make_node("Expand", operands, [name]))
            return name
        number = tensor_from_array(value.array.reshape(-1)[:1], "")
        self.nodes.append(helper.make_node("ConstantOfShape", [self.shape(extents)], [name], value=number))
        return name

    def shape(self, extents: Extents) -> str:
        """The name of a list of extents, computed from the shapes of inputs where they are symbolic."""
        if all(isinstance(extent, int) for extent in extents):
            return self.constant(np.array(extents, np.int64), "shape")
        if extents not in self.shapes:
            parts = [self.extent(extent) for extent in extents]
            name = self.shapes[extents] = self.names.fresh("shape")
            self.nodes.append(helper.make_node("Concat", parts, [name], axis=0))
        return self.shapes[extents]

    def number(self, number: Number, dtype: DType) -> str:
        """The name of a number that follows dimensions, as a list of length 1."""
        product, name = self.extent(number.product), self.names.fresh("product")
        self.nodes.append(helper.make_node("Cast", [product], [name], to=dtype_to_onnx(dtype)))
        if number.factor == 1 and not number.divides:
            return name
        factor, result = self.constant(np.array([number.factor], dtype.numpy), "factor"), self.names.fresh("number")
        operands = [factor, name]
        self.nodes.append(helper.make_node("Div" if number.divides else "Mul", operands, [result]))
        return result

    def extent(self, extent: int | str | ComputedExtent) -> str:
        """The name of one extent, as a list of length 1."""
        if isinstance(extent, int):
            return self.constant(np.array([extent], np.int64), "extent")
        if isinstance(extent, ComputedExtent):
            return self.scaled(extent)
        if extent not in self.measured:
            source, axis = self.symbols.sources[extent]
            name = self.measured[extent] = self.names.fresh(extent)
            self.nodes.append(helper.make_node("Shape", [source], [name], start=axis, end=axis + 1))
        return self.measured[extent]

    def scaled(self, extent: ComputedExtent) -> str:
        """The name of what follows dimensions, as a list of length 1."""
        name = self.extent(extent.symbols[0])
        for symbol in extent.symbols[1:]:
            name = self.combined("Mul", name, symbol)
        name = self.combined("Mul", name, extent.factor) if extent.factor != 1 else name
        return self.combined("Add", name, extent.offset) if extent.offset else name

    def combined(self, op_type: str, name: str, extent: int | str) -> str:
        """The name of an extent and another one combined."""
        result, operands = self.names.fresh("extent"), [name, self.extent(extent)]
        self.nodes.append(helper.make_node(op_type, operands, [result]))
        return result

    def constant(self, array: Array, hint: str) -> str:
        """The name of a constant; equal ones are written once.

        Float tensors are written as nodes: float initializers are taken for parameters when a model is loaded. Signed
        bytes are never shared: ONNX Runtime converts the zero points of weights to unsigned ones, each under one name.
        """
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.arrays or array.dtype == np.int8:
            name = self.arrays[key] = self.names.fresh(hint)
            tensor = tensor_from_array(array, name)
            if self.constants_as_nodes or (array.dtype.kind not in "iub" and array.ndim):
                self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            else:
                self.initializers.append(tensor)
        return self.arrays[key]

    def trimmed(self, result: Trimmed, whole: str) -> None:
        """Write an output that is another cut to the size that was found."""
        one, zero, axis = (self.constant(np.array([n], np.int64), "extent") for n in (1, 0, result.axis))
        end = self.names.fresh(f"{result.size}.end")
        self.nodes.append(helper.make_node("Reshape", [result.size, one], [end]))
        self.nodes.append(helper.make_node("Slice", [whole, zero, end, axis], [result.output]))

    def node(self, node: Node) -> None:
        types = [None if value is None else value.type for value in node.inputs]
        operands = ["" if value is None else self.name(value) for value in node.inputs]
        outputs = [self.name(value) for value in self.written(node)]
        name = self.node_names.fresh(node.name) if node.name else ""
        if isinstance(node.operator, Scan) and node.operator.num_captured:
            self.nodes.append(self.scan(node.operator, operands, outputs, name))
            return
        undecomposed = self.functions.undecomposed
        encoding = encoding_of(node.operator, types, self.functions.opset, self.symbols.fields.get(node))
        alone = not node.operator.has("decompose") and not self.functions.standard
        if encoding is None and (node.operator.domain in undecomposed or alone):
            encoding = default_encoding(node.operator, len(operands))
        if encoding is not None:
            self.nodes.append(self.standard(encoding, operands, outputs, name))
            return
        function = self.functions.name_of(node)
        if function is not None:
            present = [name for name in operands if name]
            self.nodes.append(helper.make_node(function, present, outputs, name, domain=OWN_DOMAIN))

    def written(self, node: Node) -> tuple[Value, ...]:
        """The results without the last ones that are optional and that nobody reads: other runtimes have integer
        kernels for MaxPool, but not for its indices."""
        schema = schema_of(node.operator, self.functions.opset)
        count = len(node.outputs)
        while schema is not None and count > 1 and node.outputs[count - 1] not in self.read:
            if count > len(schema.outputs) or schema.outputs[count - 1].option != OPTIONAL:
                break
            count -= 1
        return node.outputs[:count]

    def standard(
        self,
        encoding: Encoding,
        operands: list[str],
        outputs: list[str],
        name: str,
        captured: Mapping[Value, str] | None = None,
    ) -> NodeProto:
        inputs = []
        for item in encoding.inputs:
            if isinstance(item, int):
                inputs.append(operands[item])
            elif isinstance(item, tuple):
                inputs.append(self.shape(item))
            else:
                inputs.append("" if item is None else self.constant(item, f"{outputs[0]}.{len(inputs)}"))
        node = helper.make_node(encoding.op_type, inputs, outputs, name, domain=encoding.domain or None)
        if encoding.domain:
            domains = self.functions.domains
            domains[encoding.domain] = max(encoding.version, domains.get(encoding.domain, 0))
        node.attribute.extend(encoding.attributes)
        for key, body in encoding.bodies.items():
            node.attribute.append(helper.make_attribute(key, self.subgraph(body, captured or {})))
        return node

    def scan(self, operator: Scan, operands: list[str], outputs: list[str], name: str) -> NodeProto:
        """Scan: in ONNX the body reads captured values by the names that they have outside.

        Raises :class:`ModelError` for a loop over parts of a batch, which ONNX does not have.
        """
        if operator.parts:
            raise ModelError(f"{name}: a step in parts of a batch has no form in ONNX; write the step of a whole batch")
        cut = len(operands) - operator.num_captured
        inner = operator.body.inputs[:cut]
        captured: dict[Value, str] = dict(zip(operator.body.inputs[cut:], operands[cut:], strict=True))
        plain = operator.replace(body=operator.body.with_(inputs=inner), num_captured=0)
        encoding = encoding_of(plain, [value.type for value in inner], self.functions.opset)
        assert encoding is not None
        return self.standard(encoding, operands[:cut], outputs, name, captured)

    def subgraph(self, body: Graph, captured: Mapping[Value, str]) -> GraphProto:
        """A graph that is an attribute. Its names differ from all others, since ONNX shares scopes."""
        inner = Writer(self.functions, self.names, self.constants_as_nodes, self.symbols, dict(captured))
        inner.value_names.update({value: self.names.fresh(value.name or "x") for value in body.inputs})
        outputs = {self.names.fresh(name): value for name, value in body.outputs.items()}
        for name, value in outputs.items():
            if value.node is not None:
                inner.value_names.setdefault(value, name)
        inner.body(body.with_(outputs=outputs))
        return helper.make_graph(
            inner.nodes,
            body.name,
            [value_info(inner.value_names[value], value.type, self.symbols.inner.get(value)) for value in body.inputs],
            [value_info(name, value.type, self.symbols.inner.get(value)) for name, value in outputs.items()],
            inner.initializers,
        )


def _read(graph: Graph) -> Iterator[Value]:
    """The values that a graph's nodes and outputs read, and those that graphs inside of it do."""
    yield from graph.roots
    for node in graph.nodes:
        yield from (value for value in node.inputs if value is not None)
        for field_value in node.operator.attributes().values():
            if isinstance(field_value, Graph):
                yield from _read(field_value)
