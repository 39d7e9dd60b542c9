"""``glowtrain quantize``: a float model and typical data in; an integer model as ONNX, and what it costs, out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glowtrain import data
from glowtrain import quantization as q
from glowtrain.cli import options
from glowtrain.cli import quantize_options as given
from glowtrain.cli.console import command, nbytes, out, plural
from glowtrain.cli.files import check_writable
from glowtrain.cli.models import input_specs, open_model, parse_dims
from glowtrain.cli.training import feed, loss_of, optimizer_of, schedule_of
from glowtrain.errors import InputError
from glowtrain.figures import check_drawing
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.quantization.batches import Batch, batches
from glowtrain.quantization.export import save_quantized
from glowtrain.quantization.qat import finetune, prepare_training, resume_training
from glowtrain.quantization.scheme import ACTIVATIONS, WEIGHTS, Granularity
from glowtrain.types import DTYPES, Array, DType

EXAMPLES, BATCH = 1024, 256


@command
def quantize(
    model: options.Model,
    out_path: given.Out,
    calibrate: given.Calibrate,
    data_dir: options.DataDir = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    backend: options.Backend = "cpu",
    activations: given.ActivationType = given.Activations.u8,
    weights: given.WeightType = given.Weights.i8,
    per_channel: given.PerChannel = True,
    block: given.Block = 0,
    symmetric: given.Symmetric = False,
    power_of_two: given.PowerOfTwo = False,
    keep: given.Keep = [],  # noqa: B006
    keep_sensitive: given.KeepSensitive = 0,
    method: given.CalibrationMethod = given.MINMAX,
    weight_method: given.WeightCalibrationMethod = given.WEIGHT_MINMAX,
    examples: given.Examples = EXAMPLES,
    profile: given.ProfileFile = None,
    equalize: given.Equalize = False,
    correct_bias: given.CorrectBias = False,
    round_weights: given.RoundWeights = 0,
    qat: given.Epochs = 0,
    frozen: given.FrozenEpochs = None,
    batch_size: given.BatchSize = 64,
    optimizer: given.OptimizerName = "adam",
    lr: given.LearningRate = 2e-4,
    schedule: given.ScheduleName = "cosine",
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    seed: options.Seed = 0,
    form: given.FileFormat = given.QDQ,
    report: given.ReportPage = None,
    json_path: given.ReportJson = None,
    sensitivity: given.Ranking = False,
    opset: options.Opset = None,
) -> None:
    """Round a model's tensors to integers, after training or while it is trained on, and write it as ONNX.

    A model that is quantized already is trained on with --qat.

    Examples:

    glowtrain quantize trained.onnx --calibrate fashion-mnist --out int8.onnx

    glowtrain quantize trained.onnx --calibrate data.npz --method entropy --report report.html --out int8.onnx

    glowtrain quantize trained.onnx --calibrate fashion-mnist --weights i4 --qat 5 --out int4.onnx
    """
    check_writable(out_path, report, json_path, None if profile is None or profile.exists() else profile)
    if report is not None:
        check_drawing()
    if frozen is not None and frozen > qat:
        raise InputError(f"--frozen {frozen} is part of the epochs of --qat, and these are {qat}")
    if qat and (equalize or correct_bias or round_weights):
        raise InputError("--equalize, --correct-bias and --round-weights are for rounding after training: --qat trains")
    loaded = data.load(calibrate, data_dir)
    network = open_model(model, parse_dims(dims), loaded, seed)
    rule = loss_of(loss, output)
    labelled = qat or labels or any(name in loaded.train for name in (*rule.targets, "y"))
    arrays = feed(loaded, input_specs(network), rule if labelled else None, labels)
    scheme = q.Recipe(
        ACTIVATIONS.with_(
            dtype=DTYPES[activations], form="symmetric" if symmetric else ACTIVATIONS.form, power_of_two=power_of_two
        ),
        _weight_scheme(DTYPES[weights], block, per_channel=per_channel, power_of_two=power_of_two),
        method=str(method), weight_method=str(weight_method), keep=keep, keep_sensitive=keep_sensitive,
        equalize=equalize, correct_bias=correct_bias, round_weights=round_weights,
    )  # fmt: skip
    if opset is not None:
        scheme.check_opset(opset)
    run = _Run(network, arrays, scheme, rule, backend, seed)
    if is_quantized(network):
        if not qat:
            raise InputError(f"{model} is quantized already; --qat EPOCHS trains it on")
        if report or json_path or sensitivity:
            raise InputError(f"{model} is quantized already: there is no float model to compare it with in a report")
        result: Graph | Template = run.trained(
            resume_training(network), qat, frozen, batch_size, optimizer, lr, schedule
        )
        run.print_accuracies()
    else:
        found = run.calibrated(examples, profile, histograms=report is not None or profile is not None)
        result = found.model
        if qat:
            ready = prepare_training(network, found.profile, scheme)
            result = run.trained(ready, qat, frozen, batch_size, optimizer, lr, schedule)
        _report(run, found, report, json_path, sensitivity=sensitivity)
    run.write(result, out_path, form, opset)


def _weight_scheme(dtype: DType, block: int, *, per_channel: bool, power_of_two: bool) -> q.Scheme:
    granularity: Granularity = "block" if block else "channel" if per_channel else "tensor"
    return WEIGHTS.with_(dtype=dtype, granularity=granularity, block=block, power_of_two=power_of_two)


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

    def print_accuracies(self) -> None:
        """Say what was measured."""
        for name, value in self.accuracies.items():
            out.print(f"{100 * value:6.2f} %  {name}", markup=False)

    def write(self, model: Graph | Template, path: Path, form: given.Format, opset: int | None) -> None:
        """Save the model."""
        graph = model if isinstance(model, Graph) else self._bound(model)
        size = save_quantized(graph, path, form=form.value, opset=opset)
        out.print(f"wrote {path}: {form}, {nbytes(size)}", markup=False)

    def _bound(self, template: Template) -> Graph:
        batch = batches(template, self._inputs(self.arrays[0]), 2, 2)[0]
        return template.bind(template.dims_for({name: array.shape for name, array in batch.items()}))


def _report(run: _Run, found: q.Quantized, page: Path | None, plain: Path | None, *, sensitivity: bool) -> None:
    with out.status("measuring layers"):
        report = q.report(found, accuracies=run.accuracies, sensitivities=sensitivity)
    out.print(report.tables())
    if page is not None:
        report.write_html(page)
    if plain is not None:
        report.write_json(plain)
    for path in (page, plain):
        if path is not None:
            out.print(f"wrote {path}", markup=False)
