"""Load ONNX models as graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnx import GraphProto, TensorProto, ValueInfoProto

from glowtrain.errors import BindingError, ModelError, ShapeError, UnsupportedOperatorError
from glowtrain.graph import Graph, Template, lookup
from glowtrain.graph.template import whole_extents
from glowtrain.onnx_io.build import BUILT_IN, Builder, Recipe
from glowtrain.onnx_io.parameters import key_of, roles, untie
from glowtrain.onnx_io.source import Model, Source, describe, read, subgraphs
from glowtrain.onnx_io.tensors import array_from_sparse, array_from_tensor, dtype_from_onnx
from glowtrain.onnx_io.upgrade import light, upgrade
from glowtrain.types import Array, Spec

_SMALL = 1024
"""Elements up to which an initializer is shown to the converter."""


def load(source: Source, dims: Mapping[str, int] | None = None, *, name: str = "") -> Graph | Template:
    """Load an ONNX model from a path, bytes or a ModelProto.

    ``dims`` binds symbolic dimensions by name; a dimension without a name is called ``<input>_<axis>``. With all bound
    the result is a :class:`Graph`, else a :class:`Template` that gives a graph for each binding of the rest. Operator
    sets from 6 up are converted to the newest. Float initializers become variables by the rule of
    :mod:`glowtrain.onnx_io.parameters`.

    Raises :class:`ModelError` for what is broken, :class:`UnsupportedOperatorError` naming all operators that are not
    supported, and :class:`BindingError` for dimensions that the model does not have.
    """
    template = _template(read(source), name)
    bound = whole_extents(template.name, dims or {})
    unknown = [symbol for symbol in bound if symbol not in template.symbols]
    if unknown:
        known = ", ".join(template.symbols) or "none"
        raise BindingError(f"{template.name}: there is no dimension {', '.join(unknown)}; the model has: {known}")
    if not template.symbols:
        return template.build({})
    if len(bound) == len(template.symbols):
        return template.bind(bound)
    return _partly_bound(template, bound) if bound else template


def _partly_bound(template: Template, bound: dict[str, int]) -> Template:
    inputs = {
        name: Spec(
            spec.dtype, tuple(bound.get(extent, extent) if isinstance(extent, str) else extent for extent in spec.shape)
        )
        for name, spec in template.inputs.items()
    }
    return Template(template.name, inputs, lambda dims: template.build({**bound, **dims}))


def _template(model: Model, name: str) -> Template:
    arrays = _initializers(model.proto.graph, model.folder)
    model = Model(light(model.proto, _SMALL), model.title, model.folder)
    try:
        graph = upgrade(model).graph
    except ModelError:
        _check_supported(model.proto.graph, model.title)
        raise
    _check_supported(graph, model.title)
    arrays |= _initializers(graph, model.folder)
    untie(graph, arrays)
    inputs = {value.name: _spec(value, model.title) for value in graph.input if value.name not in arrays}
    title = name or model.proto.graph.name or "model"
    recipe = Recipe(graph, inputs, arrays, roles(graph, arrays), title, model.title, model.folder)
    return Template(title, inputs, lambda dims: Builder(recipe, dims).graph())


def _initializers(graph: GraphProto, folder: Path | None) -> dict[str, Array]:
    arrays = {tensor.name: _initializer(tensor, folder) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        arrays[sparse.values.name] = array_from_sparse(sparse, folder)
    return arrays


def _initializer(tensor: TensorProto, folder: Path | None) -> Array:
    return array_from_tensor(tensor, folder, "initializer")


def _spec(value: ValueInfoProto, title: str) -> Spec:
    """The declared type of an input; extents that are not given get names."""
    what = f"{title}: input {value.name!r}"
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{what} is not a tensor but a {value.type.WhichOneof('value') or 'value without type'}")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"{what} has no shape; set one with symbolic dimensions, e.g. ['batch', 784]")
    extents: list[int | str] = []
    for axis, extent in enumerate(tensor.shape.dim):
        known = extent.HasField("dim_value") and extent.dim_value >= 0
        extents.append(extent.dim_value if known else extent.dim_param or f"{value.name}_{axis}")
    spec = Spec(dtype_from_onnx(tensor.elem_type, what), tuple(extents))
    try:
        spec.bind(dict.fromkeys(spec.symbols, 1))
    except ShapeError as error:
        raise ModelError(f"{what}: {error}") from None
    return spec


def _check_supported(graph: GraphProto, title: str) -> None:
    missing: dict[str, list[str]] = defaultdict(list)
    for key, node in _operators(graph):
        if key not in BUILT_IN and lookup(key) is None:
            missing[key].append(node)
    if missing:
        lines = [f"{key}: {', '.join(nodes[:5])}{' ...' if len(nodes) > 5 else ''}" for key, nodes in missing.items()]
        raise UnsupportedOperatorError(
            f"{title} uses operators that are not supported:" + "".join(f"\n  - {line}" for line in lines)
        )


def _operators(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        yield key_of(node), describe(node)
        for body in subgraphs(node):
            yield from _operators(body)
