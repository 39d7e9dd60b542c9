"""What is known of a loaded model as a file: what it takes, and where in its files the initial values lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from glowtrain.backends.container import pack, unpack
from glowtrain.errors import ArtifactError, SharedWeightsWarning
from glowtrain.graph import Binding, Graph, Template
from glowtrain.kept.interfaces import BROKEN, as_text, specs_of_text, specs_text, types_of_text, types_text
from glowtrain.loading.files import ModelFiles
from glowtrain.types import Array, LazyArray, TensorType, parse_type, type_of

if TYPE_CHECKING:
    from glowtrain.onnx_io.read.load import Loaded

_MODEL = "model"
"""The kind of files."""

_BEGINNING, _TRIES = 64, 64
"""Bytes of an array by which its place is sought, and places that are looked at."""


@dataclass(frozen=True)
class KnownModel:
    """A model's name, the template of it that is left open, and the dimensions that it is bound to (None: it is the
    template) with the types of its inputs then; the initial values that lie in its files, and what loading it warns
    of."""

    name: str
    template: Template | None
    dims: dict[str, int] | None
    inputs: dict[str, TensorType]
    arrays: dict[str, LazyArray]
    warning: SharedWeightsWarning | None


def model_bytes(key: str, found: Loaded, files: ModelFiles) -> bytes | None:
    """The file of what is known of a model. None for one that is bound by more than dimensions, and where one of its
    files has changed."""
    model, binding = found.model, Binding()
    template: Template | None
    if isinstance(model, Graph):
        template, binding = model.template, model.binding
        open_otherwise = bool(model.results or binding.values or binding.parts)
    else:
        template, open_otherwise = model, False
    if open_otherwise or (template is not None and template.structures):
        return None
    contents, warning = files.contents(), found.warning
    if contents is None:
        return None
    facts = {
        "key": key,
        "name": model.name,
        "template": None if template is None else [template.name, specs_text(template.inputs)],
        "dims": dict(binding.dims) if isinstance(model, Graph) else None,
        "inputs": types_text(model.input_types) if isinstance(model, Graph) else {},
        "files": files.hashes,
        "arrays": _places(found.arrays, contents),
        "warning": None if warning is None else [str(warning), warning.readers],
    }
    return pack(_MODEL, {}, facts)


def read_model(key: str, data: bytes | None, files: ModelFiles) -> KnownModel | None:
    """What :func:`model_bytes` wrote of a model with these files; None for anything else."""
    if data is None:
        return None
    try:
        facts = unpack(_MODEL, data)[1]
        contents = {"": files.data, **{name: files.beside(name) for name in facts["files"]}}
        if (facts["key"], facts["files"]) != (key, files.hashes):
            return None
        return _known(facts, contents)
    except (OSError, *BROKEN):
        return None


def _known(facts: dict[str, Any], contents: Mapping[str, bytes]) -> KnownModel:
    template = None
    if facts["template"] is not None:
        name, specs = facts["template"]
        template = Template(as_text(name), specs_of_text(specs), _unknown)
    arrays = {
        name: _lying(contents[file], place, parse_type(text)) for name, (file, place, text) in facts["arrays"].items()
    }
    warning = None if facts["warning"] is None else SharedWeightsWarning(*facts["warning"])
    dims = None if facts["dims"] is None else dict(facts["dims"])
    if template is None and dims is None:
        raise ArtifactError("a model is a graph or a template")
    return KnownModel(as_text(facts["name"]), template, dims, types_of_text(facts["inputs"]), arrays, warning)


def _unknown(binding: Binding) -> NoReturn:
    raise AssertionError("what builds it is not known here")


def _lying(content: bytes, place: int, type_: TensorType) -> LazyArray:
    """The array that lies at a place. Raises :class:`ArtifactError` where there is not so much."""
    if not 0 <= place < place + type_.nbytes <= len(content):
        raise ArtifactError("an initial value lies outside of its file")
    return LazyArray(type_, partial(_array_at, content, place, type_))


def _array_at(content: bytes, place: int, type_: TensorType) -> Array:
    found: Array = np.frombuffer(content, np.uint8, type_.nbytes, place).view(type_.dtype.numpy).reshape(type_.shape)
    return found


def _places(arrays: Mapping[str, Array], contents: Mapping[str, bytes]) -> dict[str, tuple[str, int, str]]:
    """Where arrays lie in files, as far as they do: file, first byte and type by name.

    Wherever a file has these bytes it has them, so nothing need be known of its format. Arrays lie one behind the other
    mostly.
    """
    found, behind = dict[str, tuple[str, int, str]](), dict.fromkeys(contents, 0)
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        for file, content in contents.items():
            place = _find(content, data, behind[file])
            if data and place >= 0:
                found[name], behind[file] = (file, place, str(type_of(array))), place + len(data)
                break
    return found


def _find(content: bytes, data: bytes, first: int) -> int:
    """A place of ``data`` in ``content``, behind the ``first`` byte rather than before; -1 where none is found."""
    for begin, end in ((first, len(content)), (0, first)):
        place = begin - 1
        for _ in range(_TRIES):
            place = content.find(data[:_BEGINNING], place + 1, end)
            if place < 0 or content[place : place + len(data)] == data:
                break
        else:
            continue
        if place >= 0:
            return place
    return -1
