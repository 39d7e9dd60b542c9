"""``glowtrain quantize``: a float model and typical data in; an integer model as ONNX, and what it costs, out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from glowtrain import losses
from glowtrain import quantization as q
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments import quantize_options as given
from glowtrain.cli.arguments.cache import kept
from glowtrain.cli.arguments.feed import Fed, Stored, feed, stored
from glowtrain.cli.arguments.files import check_differs, check_writable
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_model, parse_dims
from glowtrain.cli.arguments.quantizing import (
    Finetuning,
    QuantizeFiles,
    Run,
    activation_scheme,
    is_quantized,
    saying_what_is_lost,
    weight_scheme,
)
from glowtrain.cli.arguments.training import is_given
from glowtrain.cli.terminal.console import command, out
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.memory.byte_size import byte_text
from glowtrain.onnx_io import save
from glowtrain.quantization.training.qat import prepare_training, resume_training
from glowtrain.trainer.graphs import specs_of
from glowtrain.types import DTYPES

EXAMPLES = 1024
DYNAMIC = "model", "out_path", "dynamic", "dims", "open_batch", "untie", "keep", "opset", "modules"
"""Arguments that mean something with --dynamic."""


@command
def quantize(
    context: typer.Context,
    model: options.Model,
    out_path: given.Out,
    calibrate: given.Calibrate = None,
    dynamic: given.Dynamic = False,
    data_dir: options.DataDir = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    cache: options.CacheFolder = None,
    no_cache: options.NoCache = False,
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
    batch_size: options.BatchSize = None,
    drop_last: options.DropLast = False,
    optimizer: given.OptimizerName = "adam",
    lr: given.LearningRate = 2e-4,
    schedule: given.ScheduleName = "cosine",
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    untie: options.Untie = [],  # noqa: B006
    seed: options.Seed = 0,
    form: given.FileFormat = given.QDQ,
    as_bytes: given.AsBytes = False,
    report: given.ReportPage = None,
    json_path: given.ReportJson = None,
    sensitivity: given.Ranking = False,
    opset: options.Opset = None,
    modules: options.Modules = [],  # noqa: B006
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
        import_modules(modules)
        check_writable(out_path)
        check_differs(model, out_path)
        network = open_model(model, parse_dims(dims), untie=untie, open_batch=open_batch, training=False)
        _write_dynamic(network, out_path, keep, opset)
        return
    if calibrate is None:
        raise InputError("quantize takes typical data, --calibrate D, or rounds without them, --dynamic")
    import_modules(modules)
    files = QuantizeFiles(out_path, profile, report, json_path, form, opset, as_bytes)
    training = Finetuning(qat, frozen, batch_size, drop_last, optimizer, lr, schedule)
    files.check()
    training.check(after_training=equalize or correct_bias or round_weights > 0)
    loaded = stored(calibrate, data_dir)
    network = open_model(model, parse_dims(dims), loaded.train, seed, untie=untie, open_batch=open_batch)
    rule = losses.by_name(loss, output)
    fed = _fed(loaded, network, rule, labels, trained=qat > 0)
    recipe = q.Recipe(
        activation_scheme(DTYPES[activations], symmetric=symmetric, power_of_two=power_of_two),
        weight_scheme(DTYPES[weights], block, per_channel=per_channel, power_of_two=power_of_two),
        method=str(method), weight_method=str(weight_method), keep=keep, keep_sensitive=keep_sensitive,
        equalize=equalize, correct_bias=correct_bias, round_weights=round_weights,
    )  # fmt: skip
    files.check_savable(recipe)
    chosen = backend_of(kept(backend, cache, no_cache=no_cache), threads)
    run = Run(network, (fed.train, fed.valid), recipe, rule, chosen, seed, model)
    with saying_what_is_lost(files):
        run.write(_result(run, training, files, examples, sensitivity=sensitivity), files)


def _check_dynamic(context: typer.Context) -> None:
    """Raise :class:`InputError` for options that say something of data, ranges or training."""
    others = [each for each in context.command.params if each.name not in DYNAMIC and is_given(context, each.name)]
    if others:
        raise InputError(
            f"{', '.join(each.opts[0] for each in others)}: nothing is calibrated, measured or trained with --dynamic"
        )


def _write_dynamic(network: Graph | Template, path: Path, keep: Sequence[str], opset: int | None) -> None:
    """The model whose rows are quantized as they come, and what it takes beside what it took."""
    result = network.map(lambda graph: q.dynamic(graph, keep=keep))
    before, after = save(network, opset=opset).ByteSize(), save(result, path, opset=opset).ByteSize()
    out.print(f"wrote {path}: {byte_text(after)} instead of {byte_text(before)}")


def _fed(found: Stored, network: Graph | Template, loss: Loss, labels: str | None, *, trained: bool) -> Fed:
    """The arrays for a model, and for its loss if it is trained or there are labels to measure it by."""
    labelled = trained or labels or any(name in found.train for name in (*loss.targets, "y"))
    return feed(found, specs_of(network), loss if labelled else None, labels)


def _result(
    run: Run, training: Finetuning, files: QuantizeFiles, examples: int, *, sensitivity: bool
) -> Graph | Template:
    """The model that is written."""
    if is_quantized(run.network):
        return _trained_on(run, training, files, sensitivity=sensitivity)
    return _quantized(run, training, files, examples, sensitivity=sensitivity)


def _trained_on(run: Run, training: Finetuning, files: QuantizeFiles, *, sensitivity: bool) -> Graph:
    """The model, which is quantized, after more training."""
    if not training.epochs:
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
    if training.epochs:
        result = run.trained(prepare_training(run.network, found.profile, run.recipe), training)
    run.report(found, result, files, sensitivity=sensitivity)
    return result
