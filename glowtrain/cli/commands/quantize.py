"""``glowtrain quantize``: a float model and typical data in; an integer model as ONNX, and what it costs, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from glowtrain import quantization as q
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import BackendOptions
from glowtrain.cli.arguments.feed import DataOptions, Fed, Stored, feed
from glowtrain.cli.arguments.files import check_differs, check_writable
from glowtrain.cli.arguments.models import ModelFileOptions, TrainedOn
from glowtrain.cli.arguments.quantize_options import (
    Calibrate,
    CalibrationOptions,
    Dynamic,
    Finetuning,
    QuantizeFiles,
    Ranking,
    SchemeOptions,
)
from glowtrain.cli.arguments.quantizing import Run, is_quantized, saying_what_is_lost
from glowtrain.cli.arguments.training import LossOptions, is_set
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.memory.byte_size import byte_text
from glowtrain.onnx_io import save
from glowtrain.quantization.training.qat import prepare_training, resume_training
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import specs_of
from glowtrain.trainer.settings import TrainingSettings

DYNAMIC = "model", "out_path", "dynamic", "dims", "open_batch", "untie", "keep", "opset", "modules"
"""Arguments that mean something with --dynamic."""


@command
def quantize(
    context: typer.Context,
    model: options.Model,
    files: QuantizeFiles,
    file: ModelFileOptions,
    on: BackendOptions,
    settings: Annotated[Given, From(TrainingSettings, only=("threads", "seed"))],
    scheme: SchemeOptions,
    calibration: CalibrationOptions,
    training: Finetuning,
    fit: Annotated[Given, From(FitSpec, only=("batch_size", "drop_last"))],
    source: DataOptions,
    loss: LossOptions,
    calibrate: Calibrate = None,
    dynamic: Dynamic = False,
    sensitivity: Ranking = False,
) -> None:
    """Round a model's tensors to integers, after training or while it is trained on, and write it as ONNX.

    A model that is quantized already is trained on with --qat.

    Examples:

    glowtrain quantize trained.onnx --calibrate fashion-mnist --out int8.onnx

    glowtrain quantize trained.onnx --calibrate data.npz --method entropy --report report.html --out int8.onnx

    glowtrain quantize trained.onnx --calibrate fashion-mnist --weights i4 --qat 5 --out int4.onnx

    glowtrain quantize encoder.onnx --dynamic --keep "*.head" --out int8.onnx
    """
    if dynamic:
        _check_dynamic(context)
    elif calibrate is None:
        raise InputError("quantize takes typical data, --calibrate D, or rounds without them, --dynamic")
    file.import_modules()
    if dynamic or calibrate is None:
        check_writable(files.out_path)
        check_differs(model, files.out_path)
        _write_dynamic(file.open(model, training=False), files, scheme.keep, TrainedOn.of(model).metadata)
        return
    files.check()
    training.check(after_training=calibration.after_training)
    loaded = source.stored(calibrate, trained_on=TrainedOn.of(model))
    network = file.open(model, loaded.train, settings["seed"])
    fed = _fed(loaded, network, loss.named, trained=training.qat > 0)
    recipe = calibration.recipe(scheme)
    files.check_savable(recipe)
    chosen = backend_of(on.chosen, settings["threads"])
    arrays, seed = (fed.train, fed.valid), settings["seed"]
    run = Run(network, arrays, recipe, loss.named, chosen, seed, model, fit, loaded.trained_on.metadata)
    with saying_what_is_lost(files):
        run.write(_result(run, training, files, calibration.examples, sensitivity=sensitivity), files)


def _check_dynamic(context: typer.Context) -> None:
    """Raise :class:`InputError` for options that say something of data, ranges or training."""
    others = [each for each in context.command.params if each.name not in DYNAMIC and is_set(context, each.name)]
    if others:
        raise InputError(
            f"{', '.join(each.opts[0] for each in others)}: nothing is calibrated, measured or trained with --dynamic"
        )


def _write_dynamic(
    network: Graph | Template, files: QuantizeFiles, keep: Sequence[str], metadata: Mapping[str, str]
) -> None:
    """The model whose rows are quantized as they come, and what it takes beside what it took."""
    result = network.map(lambda graph: q.dynamic(graph, keep=keep))
    path, opset = files.out_path, files.opset
    before = save(network, opset=opset).ByteSize()
    after = save(result, path, opset=opset, metadata=metadata).ByteSize()
    out.print(f"wrote {path}: {byte_text(after)} instead of {byte_text(before)}")


def _fed(found: Stored, network: Graph | Template, loss: Loss, *, trained: bool) -> Fed:
    """The arrays for a model, and for its loss if it is trained or there are labels to measure it by."""
    labelled = trained or found.labels or any(name in found.train for name in (*loss.targets, "y"))
    return feed(found, specs_of(network), loss if labelled else None)


def _result(
    run: Run, training: Finetuning, files: QuantizeFiles, examples: int, *, sensitivity: bool
) -> Graph | Template:
    """The model that is written."""
    if is_quantized(run.network):
        return _trained_on(run, training, files, sensitivity=sensitivity)
    return _quantized(run, training, files, examples, sensitivity=sensitivity)


def _trained_on(run: Run, training: Finetuning, files: QuantizeFiles, *, sensitivity: bool) -> Graph:
    """The model, which is quantized, after more training."""
    if not training.qat:
        raise InputError(f"{run.model} is quantized already; --qat EPOCHS trains it on")
    if files.page or files.plain or sensitivity:
        raise InputError(f"{run.model} is quantized already: there is no float model to compare it with in a report")
    result = run.trained(resume_training(run.network), training)
    run.print_accuracies()
    return result


def _quantized(
    run: Run, training: Finetuning, files: QuantizeFiles, examples: int, *, sensitivity: bool
) -> Graph | Template:
    """The float model quantized, and trained with rounding if that was asked for; what it costs is reported."""
    found = run.calibrated(examples, files)
    result: Graph | Template = found.model
    if training.qat:
        result = run.trained(prepare_training(run.network, found.profile, run.recipe), training)
    run.report(found, result, files, sensitivity=sensitivity)
    return result
