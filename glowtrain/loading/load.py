"""Loading models: by what is kept of them where code of theirs is, else from their files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.backends.cache.location import chosen
from glowtrain.collector import uncollected
from glowtrain.deferred import Deferred, dataclass
from glowtrain.errors import SharedWeightsWarning
from glowtrain.graph import Binding, Graph, Template
from glowtrain.kept.origin import GraphOrigin, Way, ground, hashed
from glowtrain.kept.promise import OriginalBuild, PromisedGraph
from glowtrain.loading.files import ModelFiles
from glowtrain.loading.models import KnownModel, model_bytes, read_model

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
    """Load an ONNX model as :func:`glowtrain.onnx_io.read.load.load` does, which says how, and what it raises.

    Where the user's folder for caches has code of a file, its bytes are read, and the rest when somebody looks at the
    graph.
    """
    request = LoadRequest(dims, values, open_batch, untie, name)
    with uncollected():
        model, warning = request.answer(source)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    return model


@dataclass(frozen=True)
class LoadRequest:
    """How a model is to be loaded: the arguments of :func:`load` besides its source."""

    dims: Mapping[str, int] | None
    values: Mapping[str, Any] | None
    open_batch: bool
    untie: str | Sequence[str]
    name: str

    def answer(self, source: Source) -> tuple[Graph | Template, SharedWeightsWarning | None]:
        """What :func:`load` returns and warns of."""
        cache = chosen(True)
        files = None if cache is None else ModelFiles.of(source)
        key = None if files is None else self.key(files)
        if cache is None or files is None or key is None:
            found = self.loaded(sources.read(source))
            return found.model, found.warning
        if (known := read_model(key, cache.glance(key), files)) is not None:
            return _promised(known, key, files, self), known.warning
        found = self.loaded(files.watched().parsed())
        return _with_origin(found, key, files), found.warning

    def loaded(self, model: sources.Model) -> Loaded:
        """What comes of a model that was read."""
        return reading.loaded(
            model, self.dims, values=self.values, open_batch=self.open_batch, untie=self.untie, name=self.name
        )

    def key(self, files: ModelFiles) -> str | None:
        """The hash of all that decides what comes of a model's file; None where something cannot be told."""
        common = ground()
        if common is None or not isinstance(self.untie, (str, list, tuple)):
            return None
        arrays = {name: np.asarray(value) for name, value in sorted((self.values or {}).items())}
        values = [(name, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()]
        arguments = sorted((self.dims or {}).items()), values, self.open_batch, self.untie, self.name
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


def _promised(known: KnownModel, key: str, files: ModelFiles, request: LoadRequest) -> Graph | Template:
    """A model of which no more is known than is kept."""
    made: list[Loaded] = []

    def read() -> Any:
        if not made:
            made.append(request.loaded(files.unchanged().parsed()))
        return made[0].model

    origin = GraphOrigin(key, Way(key, None), known.arrays)
    template = known.template
    if known.dims is None:
        assert template is not None
        return replace(template, build=OriginalBuild(origin, lambda: read().build))
    if template is not None:
        template = replace(template, build=OriginalBuild(origin.of("template"), lambda: read().template.build))
    own = {"name": known.name, "template": template, "binding": Binding(known.dims), "results": None}
    return PromisedGraph(origin, read, **own)
