"""MODEL arguments: ONNX files, and the models that come with Glowtrain."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from glowtrain import models
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.terminal.console import note
from glowtrain.datasets.stored import ExampleArray
from glowtrain.errors import BindingError, InputError, ModelError, SharedWeightsWarning
from glowtrain.graph import Graph, HostedModel, Template
from glowtrain.memory.resources import TRAINING
from glowtrain.onnx_io.read.load import load, numeric
from glowtrain.onnx_io.read.source import metadata_of
from glowtrain.settings import setting, values_of
from glowtrain.trainer.graphs import DEFAULT_BATCH
from glowtrain.types import Array


@dataclass(frozen=True)
class TrainedOn:
    """What a model's file says of its training: entries of its metadata such as ``glowtrain.classes``, JSON lists."""

    classes: tuple[str, ...] = ()
    """The names of the classes, by which labels are numbered."""
    columns: tuple[str, ...] = ()
    """The columns of a table that are its features, in order."""
    loss: tuple[str, ...] = ()
    """What ``--loss`` was."""

    @classmethod
    def of(cls, model: str) -> TrainedOn:
        """That of a MODEL argument; nothing where its file says nothing. Raises :class:`ModelError`."""
        entries = metadata_of(Path(model)) if Path(model).is_file() else {}
        named = {each.name: entries.get(f"glowtrain.{each.name}", "[]") for each in fields(cls)}
        return cls(**{name: _texts(model, name, text) for name, text in named.items()})

    @property
    def metadata(self) -> dict[str, str]:
        """The entries."""
        return {f"glowtrain.{name}": json.dumps(texts) for name, texts in values_of(self).items() if texts}


NOTHING = TrainedOn()
"""Of a model that nobody has trained."""
_ROWS = 1 << 16
"""Rows that are read at once: some arrays are larger than memory."""


def _texts(model: str, name: str, text: str) -> tuple[str, ...]:
    try:
        texts = json.loads(text)
    except ValueError as error:
        raise ModelError(f"{model}: the metadata 'glowtrain.{name}' are not JSON: {error}") from None
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ModelError(f"{model}: the metadata 'glowtrain.{name}' must be a list of texts")
    return tuple(texts)


@dataclass(frozen=True)
class FileOptions:
    """How a MODEL argument is read."""

    dims: Sequence[str] = setting(
        (), "Bind a symbolic dimension of the file (repeatable).", metavar="NAME=N", type=list[str]
    )
    open_batch: bool = setting(False, "Open the batch of a file that was exported for one size of it.")
    modules: Sequence[str] = setting(
        (), "Import a module of operators first (repeatable), e.g. myops.", flag="--import", metavar="MODULE",
        type=list[str],
    )  # fmt: skip

    @property
    def untied(self) -> Sequence[str]:
        """Patterns of initializers of which each node is to have its own."""
        return ()

    def open(
        self, model: str, examples: Mapping[str, ExampleArray] | None = None, seed: int = 0, *, training: bool = True
    ) -> Graph | Template:
        """What :meth:`open_hosted` gives. Raises :class:`UnsupportedOperatorError` for strings and encoded images."""
        return numeric(self.open_hosted(model, examples, seed, training=training))

    def open_hosted(
        self, model: str, examples: Mapping[str, ExampleArray] | None = None, seed: int = 0, *, training: bool = True
    ) -> Graph | Template | HostedModel:
        """The model of a MODEL argument; a built-in one takes its shapes from examples.

        Warnings about weights that would be trained together are notes, and left out without ``training``. Raises
        :class:`ModelError`, and :class:`InputError` for what :attr:`untied` does not match.
        """
        dims = parse_dims(self.dims)
        if model in models.MODELS and not Path(model).exists():
            if self.untied or self.open_batch:
                raise InputError(f"--untie and --open-batch are for ONNX files, not for {model}")
            return _bound(_built_in(model, examples, seed), dims)
        if not Path(model).exists():
            known = ", ".join(models.MODELS)
            raise ModelError(
                f"{model}: no such file (and no model of that name comes with Glowtrain; there are: {known})"
            )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            network = load(model, dims, open_batch=self.open_batch, untie=self.untied)
        for warning in caught:
            if training or not issubclass(warning.category, SharedWeightsWarning):
                note(str(warning.message))
        return network

    def import_modules(self) -> None:
        """Import what registers the operators of a model. Raises :class:`PluginError`."""
        import_modules(self.modules)


@dataclass(frozen=True)
class ModelFileOptions(FileOptions):
    """How a MODEL argument is read that is trained."""

    untie: Sequence[str] = setting(
        (), "Give each node that reads a matching initializer a parameter of its own (repeatable).", metavar="PATTERN",
        type=list[str], panel=TRAINING,
    )  # fmt: skip

    @property
    def untied(self) -> Sequence[str]:
        return self.untie


def as_graph(model: Graph | Template, batch: int = DEFAULT_BATCH) -> Graph:
    """A graph as it is; a template with every dimension bound to ``batch``."""
    if isinstance(model, Graph):
        return model
    chosen = dict.fromkeys(model.symbols, batch)
    shown = ", ".join(f"{name}={extent}" for name, extent in chosen.items())
    note(f"not bound: {', '.join(chosen)}; taking {shown} (--dims {next(iter(chosen))}=N for another)")
    return model.bind(chosen)


def parse_dims(options: Sequence[str]) -> dict[str, int]:
    """``["batch=64", "time=128"]`` as a mapping. Raises :class:`BindingError`."""
    dims: dict[str, int] = {}
    for item in (part for option in options for part in option.split(",")):
        name, _, extent = item.partition("=")
        if not name or not extent.isdigit() or int(extent) < 1:
            raise BindingError(f"--dims {item}: write NAME=EXTENT with a positive integer, for example batch=64")
        dims[name.strip()] = int(extent)
    return dims


def _bound(template: Template, dims: Mapping[str, int]) -> Graph | Template:
    unknown = [name for name in dims if name not in template.symbols]
    if unknown:
        known = ", ".join(template.symbols)
        raise BindingError(f"{template.name}: there is no dimension {', '.join(unknown)}; the model has: {known}")
    return template.bind(dims) if dims else template


def _built_in(name: str, examples: Mapping[str, ExampleArray] | None, seed: int) -> Template:
    if examples is None:
        return models.build(name, seed=seed)
    x, y = examples.get("x"), examples.get("y")
    if x is None or y is None or not _takes(name, x, y):
        found = ", ".join(f"{key} {array.dtype}{list(array.shape)}" for key, array in examples.items())
        rows = ", or rows x[n,features] with labels or numbers y[n]" if name == "mlp" else ""
        raise InputError(
            f"{name} takes images x[n,channels,height,width] and labels y[n]{rows}, not {found}; "
            "give an ONNX file for other data"
        )
    classes = 1 if y.dtype.kind == "f" else int(np.max(y)) + 1
    return models.build(name, x.shape[1:], classes, seed, _moments(x) if x.ndim == 2 else None)


def _moments(x: ExampleArray) -> tuple[Array, Array]:
    """Mean and deviation of each column of [n, columns]: those of a table have units, and weights are drawn for numbers
    about 1. The deviation is 1 for a column of one number, and of numbers that differ by less than f32 can tell."""

    def mean(of: Callable[[Array], Array]) -> Array:
        blocks = (np.asarray(x[start : start + _ROWS], np.float64) for start in range(0, len(x), _ROWS))
        total: Array = sum(of(block).sum(0) for block in blocks) / len(x)
        return total

    center = mean(lambda block: block)
    deviation = np.sqrt(mean(lambda block: np.square(block - center)))
    varies = deviation > np.finfo(np.float32).eps * np.abs(center)
    return center.astype(np.float32), np.where(varies, deviation, 1).astype(np.float32)


def _takes(name: str, x: ExampleArray, y: ExampleArray) -> bool:
    """Whether a model that comes along takes such examples: images with labels, the perceptron rows, too."""
    rows = name == "mlp" and x.ndim == 2
    return bool(y.ndim == 1 and len(y) and y.dtype.kind in ("iuf" if rows else "iu") and (rows or x.ndim == 4))
