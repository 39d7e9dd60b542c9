"""``glowtrain quantize``: a float model and typical data in; an integer model as ONNX, and what it costs, out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from glowtrain import data
from glowtrain import quantization as q
from glowtrain.cli import options
from glowtrain.cli.console import command, nbytes, out, plural
from glowtrain.cli.files import check_writable
from glowtrain.cli.models import input_specs, open_model, parse_dims
from glowtrain.cli.training import feed, loss_of, optimizer_of, schedule_of
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.quantization.batches import Batch, batches
from glowtrain.quantization.export import FORMATS, save_quantized
from glowtrain.quantization.qat import finetune, prepare_training, resume_training
from glowtrain.quantization.scheme import ACTIVATIONS, WEIGHTS
from glowtrain.types import DTYPES, Array

SCHEME, CALIBRATION, TRAINING = "Types and scales", "Calibration and rounding", "Training (--qat)"
EXAMPLES, BATCH = 1024, 256


class Activations(StrEnum):
    """Types of activations."""

    u8 = "u8"
    i8 = "i8"
    u16 = "u16"
    i16 = "i16"


class Weights(StrEnum):
    """Types of weights."""

    i8 = "i8"
    u8 = "u8"
    i4 = "i4"
    u4 = "u4"


Format = StrEnum("Format", FORMATS)  # type: ignore[misc]
Method = StrEnum("Method", {name.replace("-", "_"): name for name in q.METHODS})  # type: ignore[misc]
QDQ, MINMAX = Format("qdq"), Method("minmax")


@command
def quantize(
    model: options.Model,
    out_path: Annotated[
        Path, typer.Option("--out", metavar="F", help="Where the integer model goes.", rich_help_panel=options.OUTPUT)
    ],
    calibrate: Annotated[
        str, typer.Option("--calibrate", metavar="D", help=f"Typical data: {', '.join(data.NAMES)} or an .npz file.")
    ],
    data_dir: options.DataDir = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    backend: options.Backend = "cpu",
    activations: Annotated[Activations, typer.Option(help="Type of activations.", rich_help_panel=SCHEME)] = (
        Activations.u8
    ),
    weights: Annotated[Weights, typer.Option(help="Type of weights.", rich_help_panel=SCHEME)] = Weights.i8,
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="What shares a scale of weights.", rich_help_panel=SCHEME)
    ] = True,
    block: Annotated[
        int, typer.Option(min=0, metavar="N", help="N weights of a channel share a scale.", rich_help_panel=SCHEME)
    ] = 0,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Activations' ranges symmetric about 0.", rich_help_panel=SCHEME)
    ] = False,
    power_of_two: Annotated[
        bool, typer.Option("--power-of-two", help="All scales powers of two.", rich_help_panel=SCHEME)
    ] = False,
    keep: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="Stay in float: names or operators (repeatable).", rich_help_panel=SCHEME),
    ] = [],  # noqa: B006
    method: Annotated[
        Method, typer.Option(help="How ranges of activations are found.", rich_help_panel=CALIBRATION)
    ] = MINMAX,
    examples: Annotated[
        int, typer.Option(min=1, metavar="N", help="Calibrate with the first N.", rich_help_panel=CALIBRATION)
    ] = EXAMPLES,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="F", help="Ranges as JSON: read if it is there, else written.", rich_help_panel=CALIBRATION
        ),
    ] = None,
    equalize: Annotated[
        bool, typer.Option("--equalize", help="Cross-layer equalisation first.", rich_help_panel=CALIBRATION)
    ] = False,
    correct_bias: Annotated[
        bool, typer.Option("--correct-bias", help="Take mean errors out of biases.", rich_help_panel=CALIBRATION)
    ] = False,
    round_weights: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="N steps of AdaRound for each layer's weights.", rich_help_panel=CALIBRATION
        ),
    ] = 0,
    qat: Annotated[
        int, typer.Option(min=0, metavar="EPOCHS", help="Train with rounding for so long.", rich_help_panel=TRAINING)
    ] = 0,
    frozen: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="EPOCHS",
            help="Of these, the last with BatchNormalization frozen (a third).",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="B", rich_help_panel=TRAINING)] = 64,
    optimizer: Annotated[str, typer.Option(metavar="O", rich_help_panel=TRAINING)] = "adam",
    lr: Annotated[float, typer.Option(metavar="R", help="Learning rate.", rich_help_panel=TRAINING)] = 2e-4,
    schedule: Annotated[str, typer.Option(metavar="S", rich_help_panel=TRAINING)] = "cosine",
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    seed: options.Seed = 0,
    form: Annotated[Format, typer.Option("--format", help="Of the ONNX file.", rich_help_panel=options.OUTPUT)] = QDQ,
    report: Annotated[
        Path | None, typer.Option(metavar="F", help="A page with plots.", rich_help_panel=options.OUTPUT)
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Rank layers by what rounding them costs.", rich_help_panel=options.OUTPUT),
    ] = False,
    opset: options.Opset = None,
) -> None:
    """Round a model's tensors to integers, after training or while it is trained on, and write it as ONNX.

    A model that is quantized already is trained on with --qat.

    Examples:

    glowtrain quantize trained.onnx --calibrate fashion-mnist --out int8.onnx

    glowtrain quantize trained.onnx --calibrate data.npz --method entropy --report report.html --out int8.onnx

    glowtrain quantize trained.onnx --calibrate fashion-mnist --weights i4 --qat 5 --out int4.onnx
    """
    check_writable(out_path, report, None if profile is None or profile.exists() else profile)
    loaded = data.load(calibrate, data_dir)
    network = open_model(model, parse_dims(dims), loaded, seed)
    rule = loss_of(loss, output)
    labelled = qat or labels or any(name in loaded.train for name in (*rule.targets, "y"))
    arrays = feed(loaded, input_specs(network), rule if labelled else None, labels)
    scheme = q.Recipe(
        ACTIVATIONS.with_(
            dtype=DTYPES[activations], form="symmetric" if symmetric else ACTIVATIONS.form, power_of_two=power_of_two
        ),
        WEIGHTS.with_(
            dtype=DTYPES[weights],
            granularity="block" if block else "channel" if per_channel else "tensor",
            block=block,
            power_of_two=power_of_two,
        ),
        method=str(method), keep=keep, equalize=equalize, correct_bias=correct_bias, round_weights=round_weights,
    )  # fmt: skip
    if opset is not None:
        scheme.check_opset(opset)
    run = _Run(network, arrays, scheme, rule, backend, seed)
    if is_quantized(network):
        if not qat:
            raise InputError(f"{model} is quantized already; --qat EPOCHS trains it on")
        result: Graph | Template = run.trained(
            resume_training(network), qat, frozen, batch_size, optimizer, lr, schedule
        )
    else:
        found = run.calibrated(examples, profile, histograms=report is not None)
        result = found.model
        if qat:
            ready = prepare_training(network, found.profile, scheme)
            result = run.trained(ready, qat, frozen, batch_size, optimizer, lr, schedule)
        _report(run, found, report, sensitivity=sensitivity)
    run.write(result, out_path, form, opset)


def is_quantized(model: Graph | Template) -> bool:
    """Whether a model rounds its tensors already."""
    graph = model if isinstance(model, Graph) else model.bind(dict.fromkeys(model.symbols, 1))
    return any(node.operator.key() in ("QuantizeLinear", "DequantizeLinear") for node in graph.nodes)


@dataclass
class _Run:
    network: Graph | Template
    arrays: tuple[dict[str, Array], dict[str, Array] | None]
    recipe: q.Recipe
    loss: Loss
    backend: str
    seed: int

    def __post_init__(self) -> None:
        self.accuracies: dict[str, float] = {}
        training, validation = self.arrays
        self.validation = training if validation is None else validation

    def calibrated(self, examples: int, profile: Path | None, *, histograms: bool) -> q.Quantized:
        """The model after calibration; the profile is read from a file that is there, else written to it."""
        known = q.Profile.load(profile) if profile is not None and profile.exists() else None
        with out.status("calibrating"):
            found = q.quantize(
                self.network, self._inputs(self.arrays[0]), self.recipe,
                profile=known, batch_size=BATCH, examples=examples, histograms=histograms, backend=self.backend,
            )  # fmt: skip
        if profile is not None and known is None:
            found.profile.save(profile)
        self._measure("float", self.network)
        self._measure("after calibration", found.model)
        return found

    def trained(
        self, ready: Graph | Template, epochs: int, frozen: int | None, batch_size: int, optimizer: str, lr: float,
        schedule: str,
    ) -> Graph:  # fmt: skip
        """The model after training with rounding."""
        training, validation = self.arrays
        count = len(next(iter(training.values())))
        rule = optimizer_of(optimizer, schedule_of(schedule, epochs * math.ceil(count / batch_size), 0), lr=lr)
        trainer = finetune(
            ready, training, self.loss, rule, epochs=epochs, frozen_epochs=epochs // 3 if frozen is None else frozen,
            batch_size=batch_size, validation=validation, backend=self.backend, seed=self.seed,
        )  # fmt: skip
        result = q.convert(trainer.model())
        assert isinstance(result, Graph)
        self._measure(f"after {plural(epochs, 'epoch')} of training", result.template or result)
        return result

    def _inputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: arrays[name] for name in input_specs(self.network)}

    def _measure(self, name: str, model: Graph | Template) -> None:
        """The accuracy on validation data, if they have labels."""
        targets = self.validation.get(self.loss.targets[0]) if self.loss.targets else None
        if targets is None or targets.dtype.kind not in "iu":
            return
        fed: list[Batch] = batches(model, self._inputs(self.validation), BATCH)
        ends = np.cumsum([len(next(iter(batch.values()))) for batch in fed])
        self.accuracies[name] = q.accuracy(model, fed, np.split(targets[: ends[-1]], ends[:-1]), backend=self.backend)

    def write(self, model: Graph | Template, path: Path, form: Format, opset: int | None) -> None:
        """Save the model and say what came of it."""
        graph = model if isinstance(model, Graph) else self._bound(model)
        size = save_quantized(graph, path, form=form.value, opset=opset)
        for name, value in self.accuracies.items():
            out.print(f"{100 * value:6.2f} %  {name}", markup=False)
        out.print(f"wrote {path}: {form}, {nbytes(size)}", markup=False)

    def _bound(self, template: Template) -> Graph:
        batch = batches(template, self._inputs(self.arrays[0]), 2, 2)[0]
        return template.bind(template.dims_for({name: array.shape for name, array in batch.items()}))


def _report(run: _Run, found: q.Quantized, path: Path | None, *, sensitivity: bool) -> None:
    with out.status("measuring layers"):
        report = q.report(found, accuracies=run.accuracies, sensitivities=sensitivity)
    out.print(report.tables())
    if path is not None:
        report.write_html(path)
        out.print(f"wrote {path}", markup=False)
