"""The report on a quantized model: sizes, accuracies, noise by layer, sensitivities, and what stays in float."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glowtrain.errors import QuantizationError
from glowtrain.files import write_atomically
from glowtrain.onnx_io import save
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.tables import Table
from glowtrain.quantization.calibration.profile import Profile
from glowtrain.quantization.improve.sensitivity import (
    LayerNoise,
    Sensitivity,
    decibel_text,
    sensitivity,
    signal_to_noise,
)
from glowtrain.quantization.placement.placement import Kept
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.quantization.post_training import Quantized, bound
from glowtrain.quantization.report.html import html_page

NOISE = "Signal to noise in dB (20: an error of a tenth, 40: of a hundredth)"
SENSITIVITY = "Sensitivity: signal to noise of the results in dB"
MEASURED = 8
"""Calibration batches over which noise and sensitivities are measured."""


@dataclass(frozen=True, eq=False)
class Report(Displayable):
    """What is known of a quantized model. ``accuracies`` are parts of 1 by the name of the form of the model, on the
    data that ``measured_on`` names; sizes are those of the ONNX files, in bytes."""

    title: str
    recipe: str
    float_bytes: int
    quantized_bytes: int
    layers: Sequence[LayerNoise]
    sensitivities: Sequence[Sensitivity]
    kept: Sequence[Kept]
    profile: Profile
    parameters: Mapping[str, Parameters]
    accuracies: Mapping[str, float] = field(default_factory=dict)
    measured_on: str = ""

    @property
    def accuracy(self) -> str:
        """What accuracies are: ``accuracy on validation data``."""
        return f"accuracy on {self.measured_on}" if self.measured_on else "accuracy"

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"

    def _contents(self) -> Iterator[str | Table]:
        yield self.summary()
        yield from self.sections()

    def summary(self) -> str:
        """Sizes, accuracies and the noise of the results, in a few lines."""
        lines = [
            f"{self.title}: {self.recipe}",
            f"size {self.quantized_bytes:,} bytes instead of {self.float_bytes:,} ({self._change()})",
        ]
        lines += [f"{self.accuracy}, {name}: {100 * value:.2f} %" for name, value in self.accuracies.items()]
        outputs = [row for row in self.layers if row.operator == "output"]
        lines += [f"{row.name}: {decibel_text(row.decibels)} dB signal to noise" for row in outputs]
        lines += [f"in floating point: {len(self.kept)} of the operators"] if self.kept else []
        return "\n".join(lines)

    def _change(self) -> str:
        """How the sizes compare: scales and zero points can make a small model larger."""
        if self.quantized_bytes > self.float_bytes:
            return f"{self.quantized_bytes / max(self.float_bytes, 1):.2f} times larger"
        return f"{self.float_bytes / max(self.quantized_bytes, 1):.2f} times smaller"

    def sections(self) -> list[Table]:
        """The tables that have rows."""
        words = decibel_text
        noise = [
            [row.name, row.operator, row.module, words(row.decibels), words(row.weight_decibels)] for row in self.layers
        ]
        ranking = [
            [row.name, row.operator, row.module, words(row.alone), words(row.without)] for row in self.sensitivities
        ]
        kept = [[entry.name, entry.operator, entry.reason] for entry in self.kept]
        tables = [
            Table(("value", "made by", "module", "activations>", "weights>"), noise, NOISE),
            Table(("layer", "operator", "module", "only this rounded>", "all but this>"), ranking, SENSITIVITY),
            Table(("name", "operator", "reason"), kept, "In floating point"),
        ]
        return [table for table in tables if table.rows]

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinite decibels are ``None``."""
        return {
            "title": self.title,
            "recipe": self.recipe,
            "float_bytes": self.float_bytes,
            "quantized_bytes": self.quantized_bytes,
            "accuracies": dict(self.accuracies),
            "measured_on": self.measured_on,
            "layers": [_plain(row) for row in self.layers],
            "sensitivities": [_plain(row) for row in self.sensitivities],
            "kept": [_plain(row) for row in self.kept],
        }

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page with plots. Raises :class:`QuantizationError` if it cannot be written, and
        :class:`InputError` without matplotlib (the ``plot`` extra)."""
        _write(Path(path), html_page(self))

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_json`. Raises :class:`QuantizationError` if it cannot be written."""
        _write(Path(path), json.dumps(self.to_json(), indent=1) + "\n")


def report(
    quantized: Quantized,
    *,
    accuracies: Mapping[str, float] | None = None,
    measured_on: str = "",
    sensitivities: bool = True,
    sizes: tuple[int, int] | None = None,
) -> Report:
    """Measure a quantized model over a few of its calibration batches.

    ``accuracies`` are shown as they are, see :func:`~glowtrain.quantization.improve.sensitivity.accuracy`, with the
    data that they were ``measured_on``. Ranking layers runs the model twice for each of them; ``sensitivities=False``
    leaves that out. ``sizes`` are the bytes of the float and the quantized model's files; without, of the float model
    with folded BatchNormalization and of the quantized one as ``gt.save`` writes them.
    """
    if not hasattr(quantized, "exact"):
        raise QuantizationError(f"a report is of what gt.quantize gives, not of a {type(quantized).__name__}")
    fed, ready = quantized.data[:MEASURED], quantized.ready
    noise = signal_to_noise(quantized.exact, ready, fed)
    ranking = sensitivity(quantized.exact, ready, fed) if sensitivities else []
    models = (quantized.exact, quantized.model)
    before, after = sizes or (int(save(bound(model, fed[0])).ByteSize()) for model in models)
    return Report(
        quantized.example.graph.name,
        str(quantized.recipe),
        before,
        after,
        noise,
        ranking,
        quantized.kept,
        quantized.profile,
        quantized.example.parameters,
        accuracies or {},
        measured_on,
    )


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise QuantizationError(f"cannot write the report {path}: {error.strerror}") from None


def _plain(row: LayerNoise | Sensitivity | Kept) -> dict[str, Any]:
    return {name: None if _is_infinite(value) else value for name, value in vars(row).items()}


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
