"""The models and inputs of the inference rows, written as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.peers import export, imagenet, models, quantized, real_models
from benchmarks.speed.prepared import Arrays, Prepared

IMAGENET = tuple(imagenet.MODELS)


def prepare(patterns: Sequence[str], folder: Path, *, sizes: bool) -> dict[str, str]:
    """Write the rows whose names fit a pattern, each to a folder of its own; their folders by name.

    Models of packages come at their first size, with ``sizes`` at all that :mod:`real_models` lists.
    """
    rows: dict[str, str] = {}
    for name, model, feeds in (*_small(patterns), *_imagenet(patterns, folder), *_real(patterns, sizes=sizes)):
        place = folder / f"inference-{len(rows)}"
        Prepared(place, [feeds]).write(model)
        rows[name] = str(place)
    return rows


Case = tuple[str, bytes, Arrays]
"""A row's name, its model and inputs by name."""


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether a row's name, or what comes before its size, fits a pattern."""
    return any(fnmatchcase(text, pattern) for text in (name, name.split(" ")[0]) for pattern in patterns)


def _small(patterns: Sequence[str]) -> Iterator[Case]:
    """An MLP that gets one example, where the time is that of a call and not of arithmetic."""
    if _fits(name := "mlp batch=1", patterns):
        module: Any = models.build("mlp").eval()
        x, _ = models.make_batches(module, 1, 1)[0]
        yield name, export.export(module, x, exporter="legacy", opset=17), {"x": x.numpy()}


def _imagenet(patterns: Sequence[str], folder: Path) -> Iterator[Case]:
    """ResNet-50 and MobileNetV2 as float models, and quantized by ONNX Runtime's tool (QDQ, per channel)."""
    x = np.random.default_rng(1).normal(size=quantized.SHAPE).astype(np.float32)
    for name in IMAGENET:
        names = f"imagenet/{name}", f"imagenet/{name}-int8"
        if not any(_fits(row, patterns) for row in names):
            continue
        source = quantized.export(name, folder)
        if _fits(names[0], patterns):
            yield names[0], source.read_bytes(), {"x": x}
        if _fits(names[1], patterns):
            yield names[1], quantized.quantized(source, "QDQ").read_bytes(), {"x": x}


def _real(patterns: Sequence[str], *, sizes: bool) -> Iterator[Case]:
    """Models that packages ship, and the light models of the ``onnx`` package with He weights (``light/...``)."""
    for model in (*real_models.package_models(), *real_models.light_models()):
        name = model.name if model.kind == "package" else f"light/{model.name}"
        if _fits(name, patterns):
            data = model.read().SerializeToString()
            session = onnxruntime.InferenceSession(data, real_models.one_thread())
            largest = real_models.LARGEST_INTEGER.get(model.file, 30)
            for dims in real_models.sizes_of(model, session)[: None if sizes else 1]:
                size = "".join(f" {key}={extent}" for key, extent in dims.items())
                yield f"{name}{size}", data, real_models.inputs_of(session, dims, largest)
