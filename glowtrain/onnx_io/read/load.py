"""Turn a model that was read into a graph or a template."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import GraphProto, TensorProto, ValueInfoProto

from glowtrain.errors import (
    BindingError,
    InputError,
    ModelError,
    ShapeError,
    SharedWeightsWarning,
    UnknownValueError,
    UnsupportedOperatorError,
)
from glowtrain.graph import Binding, Graph, HostedModel, Structure, Template
from glowtrain.graph.specialise.template import whole_extents
from glowtrain.onnx_io.read.build import BuildRecipe
from glowtrain.onnx_io.read.check import all_nodes
from glowtrain.onnx_io.read.cut import HostParts, cut
from glowtrain.onnx_io.read.exported import exported
from glowtrain.onnx_io.read.open_batch import open_batch as opened
from glowtrain.onnx_io.read.parameters import class_of, key_of, roles, stated_variables
from glowtrain.onnx_io.read.rules.table import RULES
from glowtrain.onnx_io.read.sharing import separate
from glowtrain.onnx_io.read.source import Model, Source, describe, name_of, read, reads
from glowtrain.onnx_io.read.upgrade.upgrade import light, upgrade
from glowtrain.onnx_io.schema.tensors import array_from_sparse, array_from_tensor, dtype_from_onnx
from glowtrain.presentation.messages import kind_of, page
from glowtrain.types import Array, Spec

_LISTED = 5
"""Initializers, and readers of each, that a warning names."""


def load(
    source: Source,
    dims: Mapping[str, int] | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    open_batch: bool = False,
    untie: str | Sequence[str] = (),
    name: str = "",
) -> Graph | Template | HostedModel:
    """Load an ONNX model from a path, bytes, a binary file or a ModelProto.

    ``dims`` binds symbolic dimensions by name; a dimension without a name is called ``<input>_<axis>``. With all bound
    the result is a :class:`Graph`, else a :class:`Template` that gives a graph for each binding of the rest. ``values``
    gives the elements of inputs on which shapes depend (the ``shape`` of a Reshape that is an input), which makes them
    constants; a template is also what comes of a model that needs more of these, or that takes sequences. A compiled
    template finds what it needs in each call. Operator sets from 1 up are converted to the newest. Float initializers
    become variables by the rule of :mod:`glowtrain.onnx_io.read.parameters`.

    ``open_batch`` makes a dimension ``batch`` of the first axis of the inputs, where a file fixes it
    (:mod:`glowtrain.onnx_io.read.open_batch`).

    Nodes that read one initializer share it. A :class:`SharedWeightsWarning` says where that may not be meant, because
    exporters merge equal initializers and the file does not tell; ``untie`` names those (or has patterns, such as
    ``"*.bias"``) of which each node is to have its own.

    A model of strings or encoded images is a :class:`~glowtrain.graph.hosted.HostedModel`: the arguments are about the
    part of it that is compiled (:mod:`glowtrain.onnx_io.read.cut`).

    Raises :class:`ModelError` for what is broken, :class:`UnsupportedOperatorError` naming all operators that are not
    supported, :class:`BindingError` for dimensions that the model does not have (or no batch to open), and
    :class:`InputError` for another kind of ``source``, and for what ``untie`` does not match.
    """
    model, warning = from_model(read(source), dims, values, open_batch=open_batch, untie=untie, name=name)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    return model


def load_numeric(source: Source, dims: Mapping[str, int] | None = None) -> Graph | Template:
    """A model for what takes numbers only. Raises what :func:`load` and :func:`numeric` raise."""
    model, warning = from_model(read(source), dims)
    if warning is not None:
        warnings.warn(warning, stacklevel=3)
    return numeric(model)


def numeric(model: Graph | Template | HostedModel) -> Graph | Template:
    """A model that was loaded. Raises :class:`UnsupportedOperatorError` for one of strings or encoded images."""
    if isinstance(model, HostedModel):
        raise UnsupportedOperatorError(
            f"{model.model.name}: only gt.compile and glowtrain run take strings and encoded images "
            f"({', '.join(model.operators or model.inputs)}). Here, give the numeric part, "
            "gt.save(gt.load(FILE).model, 'numeric.onnx'), and data for it from gt.load(FILE).preprocess(...)"
        )
    return model


def from_model(
    model: Model,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    open_batch: bool = False,
    untie: str | Sequence[str] = (),
    name: str = "",
) -> tuple[Graph | Template | HostedModel, SharedWeightsWarning | None]:
    """What :func:`load` gives for a model that was read, and what it warns of."""
    model, parts = cut(model)
    recipe, shared = _recipe(model, name, _patterns(untie))
    if parts is not None:
        _check_apart(parts, recipe)
    warning = _sharing(recipe.name, shared) if shared else None
    bound = whole_extents(recipe.name, dims or {})
    if open_batch:
        recipe = opened(recipe, bound, values or {})
    template = Template(recipe.name, dict(recipe.inputs), recipe.build, dict(recipe.structures))
    unknown = [symbol for symbol in bound if symbol not in template.symbols]
    if unknown:
        known = ", ".join(template.symbols) or "none"
        raise BindingError(f"{template.name}: there is no dimension {', '.join(unknown)}; the model has: {known}")
    rest = template.partly(bound, values or {}) if bound or values else template
    found = rest if rest.symbols or rest.structures else _whole(template, rest, bound, values)
    return found if parts is None else HostedModel(found, *parts), warning


def _check_apart(parts: HostParts, recipe: BuildRecipe) -> None:
    """Raise :class:`ModelError` for variables that nodes on the host read, too: these have the values of the file."""
    variables = recipe.roles.trainable | recipe.roles.running
    for node in (*parts.before.proto.graph.node, *parts.after.proto.graph.node):
        if both := sorted(variables.intersection(reads(node))):
            raise ModelError(
                f"{recipe.title}: {describe(node)} runs on the host and reads {both[0]!r}, which is a parameter or a "
                "running statistic: training would change it for what is compiled alone. Give that node an initializer "
                "of its own"
            )


def _whole(
    template: Template, rest: Template, bound: Mapping[str, int], values: Mapping[str, Any] | None
) -> Graph | Template:
    """The graph of a template of which all is bound; what is left of it where shapes depend on elements of inputs."""
    try:
        return template.bind(bound, values) if bound or values else template.build(Binding())
    except UnknownValueError:
        return rest


def _patterns(untie: Any) -> tuple[str, ...]:
    """Raises :class:`InputError` for what is neither a name nor several."""
    patterns = (untie,) if isinstance(untie, str) or not isinstance(untie, Iterable) else tuple(untie)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f"untie takes names, or patterns of names, not {kind_of(pattern)}")
    return patterns


def _recipe(model: Model, name: str, untie: Sequence[str]) -> tuple[BuildRecipe, dict[str, list[str]]]:
    """The model, and the nodes that share a variable without the file saying why, by the variable's name."""
    arrays, record = _initializers(model.proto.graph, model.folder), exported(model.proto)
    stated = stated_variables(model.proto, model.title)
    model = Model(light(model.proto), model.title, model.folder)
    graph = upgrade(model).graph
    _check_supported(graph, model.title)
    sharing = separate(graph, arrays, record, stated, untie)
    declared = [value for value in graph.input if value.name not in arrays]
    inputs = {value.name: _spec(value, model.title) for value in declared if value.type.HasField("tensor_type")}
    structures = {value.name: _structure(value, model.title) for value in declared if value.name not in inputs}
    title = name or name_of(model)
    found = roles(graph, arrays, stated, sharing.constants)
    recipe = BuildRecipe(graph, inputs, structures, arrays, found, title, model.title, model.folder, RULES)
    variables = found.trainable | found.running
    shared = {name: list(map(describe, nodes)) for name, nodes in sharing.unexplained.items() if name in variables}
    return recipe, shared


def _sharing(title: str, shared: Mapping[str, Sequence[str]]) -> SharedWeightsWarning:
    lines = [
        f"{name!r}: {', '.join(nodes[:_LISTED])}{' ...' if len(nodes) > _LISTED else ''}"
        for name, nodes in list(shared.items())[:_LISTED]
    ]
    more = [f"{len(shared) - _LISTED} more"] if len(shared) > _LISTED else []
    return SharedWeightsWarning(
        f"{title}: several nodes read one initializer and train it together. That is right for a layer that is used "
        "several times or tied to another, and wrong if the exporter merged equal parameters; this file does not tell "
        f"({page('exporting.md')}). untie={next(iter(shared))!r} or --untie gives each node its own:"
        + "".join(f"\n  - {line}" for line in lines + more),
        shared,
    )


def _initializers(graph: GraphProto, folder: Path | None) -> dict[str, Array]:
    arrays = {tensor.name: _initializer(tensor, folder) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        arrays[sparse.values.name] = array_from_sparse(sparse, folder)
    return arrays


def _initializer(tensor: TensorProto, folder: Path | None) -> Array:
    return array_from_tensor(tensor, folder, "initializer")


def _structure(value: ValueInfoProto, title: str) -> Structure:
    """The declared type of an input that is a sequence or optional."""
    kind, type_ = "", value.type
    while not type_.HasField("tensor_type"):
        field = type_.WhichOneof("value")
        kind = f"{kind} {str(field).removesuffix('_type')}".strip()
        if kind not in ("sequence", "optional", "optional sequence"):
            raise ModelError(f"{title}: input {value.name!r} is not a tensor but a {field or 'value without type'}")
        type_ = getattr(type_, str(field)).elem_type
    dtype = dtype_from_onnx(type_.tensor_type.elem_type, f"{title}: input {value.name!r}")
    return Structure(kind, Spec(dtype))  # type: ignore[arg-type]  # the loop leaves only these kinds


def _spec(value: ValueInfoProto, title: str) -> Spec:
    """The declared type of an input; extents that are not given get names."""
    what, tensor = f"{title}: input {value.name!r}", value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"{what} has no shape; set one with symbolic dimensions, e.g. ['batch', 784]")
    extents: list[int | str] = []
    for axis, extent in enumerate(tensor.shape.dim):
        known = extent.HasField("dim_value") and extent.dim_value >= 0
        extents.append(extent.dim_value if known else _named(extent.dim_param) or f"{value.name}_{axis}")
    spec = Spec(dtype_from_onnx(tensor.elem_type, what), tuple(extents))
    try:
        spec.bind(dict.fromkeys(spec.symbols, 1))
    except ShapeError as error:
        raise ModelError(f"{what}: {error}") from None
    return spec


def _named(symbol: str) -> str:
    """A dimension's name; empty for what exporters write for every dimension that they do not know (``?``)."""
    return symbol if symbol != "None" and any(character.isalpha() for character in symbol) else ""


def _check_supported(graph: GraphProto, title: str) -> None:
    missing: dict[str, list[str]] = defaultdict(list)
    for node in all_nodes(graph.node):
        if key_of(node) not in RULES and class_of(node) is None:
            missing[key_of(node)].append(describe(node))
    if missing:
        lines = [f"{key}: {', '.join(nodes[:5])}{' ...' if len(nodes) > 5 else ''}" for key, nodes in missing.items()]
        others = any("." in key and not key.startswith("ai.onnx.") for key in missing)
        hint = f"\nOperators of your own: {page('custom-operators.md')} says how to register them" if others else ""
        raise UnsupportedOperatorError(
            f"{title} uses operators that are not supported:" + "".join(f"\n  - {line}" for line in lines) + hint
        )
