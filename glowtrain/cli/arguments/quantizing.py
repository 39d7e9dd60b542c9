"""The steps of a run of ``glowtrain quantize``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from glowtrain import quantization as q
from glowtrain.backends.base import Backend
from glowtrain.cli.arguments.quantize_options import Finetuning, QuantizeFiles
from glowtrain.cli.terminal.console import INTERRUPTED, err, out
from glowtrain.cli.terminal.records import Given
from glowtrain.datasets.stored import ExampleArray
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.memory.byte_size import byte_text
from glowtrain.onnx_io import save
from glowtrain.onnx_io.read.source import bytes_on_disk
from glowtrain.presentation.messages import plural
from glowtrain.quantization.calibration.batches import Batch, batches
from glowtrain.quantization.export.files import save_quantized
from glowtrain.quantization.training.qat import finetune
from glowtrain.trainer.graphs import specs_of

BATCH = 256


def is_quantized(model: Graph | Template) -> bool:
    """Whether a model rounds its tensors already."""
    graph = model if isinstance(model, Graph) else model.bind(dict.fromkeys(model.symbols, 1))
    return any(node.operator.key() in ("QuantizeLinear", "DequantizeLinear") for node in graph.nodes)


@contextmanager
def saying_what_is_lost(files: QuantizeFiles) -> Iterator[None]:
    """At Ctrl-C end the command with one line that says that the model was not written."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"interrupted: {files.out_path} was not written", style="red")
        raise typer.Exit(INTERRUPTED) from None


@dataclass
class Run:
    """A model, called ``model`` by whoever gave it, with its data and recipe, how it is trained (``fit``), and what the
    written file's ``metadata`` say besides; the accuracies found so far."""

    network: Graph | Template
    arrays: tuple[dict[str, ExampleArray], dict[str, ExampleArray] | None]
    recipe: q.Recipe
    loss: Loss
    backend: Backend
    seed: int
    model: str
    fit: Given
    metadata: Mapping[str, str]

    def __post_init__(self) -> None:
        self.accuracies: dict[str, float] = {}
        training, validation = self.arrays
        self.measured = training if validation is None else validation
        self.measured_on = "the data for calibration" if validation is None else "validation data"

    def calibrated(self, examples: int, files: QuantizeFiles) -> q.Quantized:
        """The model after calibration; the profile is read from a file that is there, else written to it."""
        profile = files.profile
        known = q.Profile.load(profile) if profile is not None and profile.exists() else None
        with out.status("calibrating"):
            found = q.quantize(
                self.network, self._inputs(self.arrays[0]), self.recipe,
                profile=known, batch_size=BATCH, examples=examples, histograms=files.histograms, backend=self.backend,
            )  # fmt: skip
        if profile is not None:
            if known is None:
                found.profile.save(profile)
            out.print(f"{'wrote' if known is None else 'ranges from'} {profile}")
        self._measure("float", self.network)
        self._measure("after calibration", found.model)
        return found

    def trained(self, ready: Graph | Template, training: Finetuning) -> Graph:
        """The model after training with rounding."""
        arrays, validation = self.arrays
        count = len(next(iter(arrays.values())))
        trainer = finetune(
            ready, arrays, self.loss, training.rule(ready, count, self.fit),
            epochs=training.qat, frozen_epochs=training.frozen_epochs, **self.fit,
            validation=validation, backend=self.backend, seed=self.seed, progress=1,
        )  # fmt: skip
        result = q.convert(trainer.model())
        assert isinstance(result, Graph)
        self._measure(f"after {plural(training.qat, 'epoch')} of training", result.template or result)
        return result

    def print_accuracies(self) -> None:
        """Say what was measured."""
        for name, value in self.accuracies.items():
            out.print(f"accuracy on {self.measured_on}, {name}: {100 * value:.2f} %")

    def report(
        self, quantized: q.Quantized, result: Graph | Template, files: QuantizeFiles, *, sensitivity: bool
    ) -> None:
        """Say what rounding to ``result`` costs, and write it where it was asked for."""
        with out.status("measuring layers"):
            report = q.report(
                quantized, accuracies=self.accuracies, measured_on=self.measured_on, sensitivities=sensitivity,
                sizes=(self._float_bytes(), self._stored(result, files, None)),
            )  # fmt: skip
        out.print(report)
        if files.page is not None:
            report.write_html(files.page)
        if files.plain is not None:
            report.write_json(files.plain)
        for path in (files.page, files.plain):
            if path is not None:
                out.print(f"wrote {path}")

    def write(self, model: Graph | Template, files: QuantizeFiles) -> None:
        """Save the model."""
        size = self._stored(model, files, files.out_path)
        out.print(f"wrote {files.out_path}: {files.form}, {byte_text(size)}")

    def _stored(self, model: Graph | Template, files: QuantizeFiles, path: Path | None) -> int:
        """The bytes of the model's file, which is written if there is a path."""
        graph = model if isinstance(model, Graph) else self._bound(model)
        return save_quantized(
            graph, path, form=files.form.value, opset=files.opset, as_bytes=files.as_bytes, metadata=self.metadata
        )

    def _float_bytes(self) -> int:
        """The bytes of the given model: of its file, or of what would be written of one that comes along."""
        path = Path(self.model)
        if path.exists():
            return bytes_on_disk(path)
        graph = self.network if isinstance(self.network, Graph) else self._bound(self.network)
        return int(save(graph).ByteSize())

    def _inputs(self, arrays: Mapping[str, ExampleArray]) -> dict[str, ExampleArray]:
        return {name: arrays[name] for name in specs_of(self.network)}

    def _measure(self, name: str, model: Graph | Template) -> None:
        """The accuracy on validation data, or without them on those for calibration, if they have labels."""
        targets = self.measured.get(self.loss.targets[0]) if self.loss.targets else None
        if targets is None or targets.dtype.kind not in "iu" or targets.ndim != self._scores_rank() - 1:
            return
        fed: list[Batch] = batches(model, self._inputs(self.measured), BATCH)
        ends = np.cumsum([len(next(iter(batch.values()))) for batch in fed])
        self.accuracies[name] = q.accuracy(model, fed, np.split(targets[: ends[-1]], ends[:-1]), backend=self.backend)

    def _scores_rank(self) -> int:
        graph = self.network if isinstance(self.network, Graph) else self._bound(self.network)
        return next(iter(graph.outputs.values())).rank

    def _bound(self, template: Template) -> Graph:
        batch = batches(template, self._inputs(self.arrays[0]), 2, 2)[0]
        return template.bind(template.dims_for({name: array.shape for name, array in batch.items()}))
