"""Loading models: by what is kept of them where code of theirs is, else from their files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.backends.cache.location import chosen
from glowtrain.deferred import Deferred
from glowtrain.errors import SharedWeightsWarning
from glowtrain.graph import Binding, Graph, Template
from glowtrain.kept.origin import GraphOrigin, Way, ground, hashed
from glowtrain.kept.promise import OriginalBuild, PromisedGraph
from glowtrain.loading.files import ModelFiles
from glowtrain.loading.models import KnownModel, model_bytes, read_model
from glowtrain.onnx_io.options import LoadOptions

if TYPE_CHECKING:
    from glowtrain.onnx_io.read import load as reading
    from glowtrain.onnx_io.read import source as sources
    from glowtrain.onnx_io.read.load import Loaded
    from glowtrain.onnx_io.read.source import Source
else:
    reading = Deferred("glowtrain.onnx_io.read.load")
    sources = Deferred("glowtrain.onnx_io.read.source")


def load(
    source: Source,
    dims: Mapping[str, int] | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    open_batch: bool = False,
    untie: str | Sequence[str] = (),
    name: str = "",
) -> Graph | Template:
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

    Where the user's folder for caches has code of a file, its bytes are read, and the rest when somebody looks at the
    graph (:mod:`glowtrain.kept`).

    Raises :class:`ModelError` for what is broken, :class:`UnsupportedOperatorError` naming all operators that are not
    supported, :class:`BindingError` for dimensions that the model does not have (or no batch to open), and
    :class:`InputError` for another kind of ``source``, and for what ``untie`` does not match.
    """
    model, warning = _answer(source, LoadOptions(dims, values, open_batch, untie, name))
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    return model


def _answer(source: Source, options: LoadOptions) -> tuple[Graph | Template, SharedWeightsWarning | None]:
    """What :func:`load` returns and warns of."""
    cache = chosen(True)
    files = None if cache is None else ModelFiles.of(source)
    key = None if files is None else load_key(files, options)
    if cache is None or files is None or key is None:
        found = reading.loaded(sources.read(source), options)
        return found.model, found.warning
    if (known := read_model(key, cache.glance(key), files)) is not None:
        return _promised(known, key, files, options), known.warning
    found = reading.loaded(files.watched().parsed(), options)
    return _with_origin(found, key, files), found.warning


def load_key(files: ModelFiles, options: LoadOptions) -> str | None:
    """The hash of all that decides what comes of a model's file; None where something cannot be told."""
    common = ground()
    if common is None or not isinstance(options.untie, (str, list, tuple)):
        return None
    arrays = {name: np.asarray(value) for name, value in sorted((options.values or {}).items())}
    if any(array.dtype.hasobject for array in arrays.values()):
        return None  # their bytes are addresses
    values = [(name, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()]
    arguments = sorted((options.dims or {}).items()), values, options.open_batch, options.untie, options.name
    return hashed("model", common, repr(arguments), files.stem, files.data)


def _with_origin(found: Loaded, key: str, files: ModelFiles) -> Graph | Template:
    """A model that was loaded from its files, with its origin."""
    model = found.model
    data = model_bytes(key, found, files) if files.alone else None  # now, so that its bytes need not stay
    way = Way(key, (lambda: data) if files.alone else lambda: model_bytes(key, found, files))
    origin = GraphOrigin(key, way, found.arrays)
    if isinstance(model, Graph):
        return PromisedGraph.made_of(origin, model)
    return replace(model, build=OriginalBuild(origin, lambda: model.build))


def _promised(known: KnownModel, key: str, files: ModelFiles, options: LoadOptions) -> Graph | Template:
    """A model of which no more is known than is kept."""
    made: list[Loaded] = []

    def read() -> Any:
        if not made:
            made.append(reading.loaded(files.unchanged().parsed(), options))
        return made[0].model

    origin = GraphOrigin(key, Way(key, None), known.arrays)
    template = known.template
    if known.dims is None:
        assert template is not None
        return replace(template, build=OriginalBuild(origin, lambda: read().build))
    if template is not None:
        template = replace(template, build=OriginalBuild(origin.of("template"), lambda: read().template.build))
    binding = Binding(known.dims)
    return PromisedGraph(
        origin, read, name=known.name, template=template, binding=binding, results=None, input_types=known.inputs
    )
