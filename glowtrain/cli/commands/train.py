"""``glowtrain train``: a model, data, a loss and an optimizer in; a trained ONNX model out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from glowtrain import losses
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import kept
from glowtrain.cli.arguments.feed import Fed, feed, stored
from glowtrain.cli.arguments.files import check_writable
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_model, parse_dims
from glowtrain.cli.arguments.training import RunLength, optimizer_of, parts_of_batches, schedule_of
from glowtrain.cli.terminal.console import INTERRUPTED, command, note, out, seconds
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.memory.residuals import checked_type
from glowtrain.onnx_io.write import save as writing
from glowtrain.presentation.words import plural
from glowtrain.trainer import History, Trainer
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.graphs import DEFAULT_EPOCHS, default_batch, specs_of
from glowtrain.trainer.history import check_plot
from glowtrain.trainer.interrupts import Terminated


@command
def train(
    model: options.Model,
    dataset: options.Data,
    out_path: options.Out,
    epochs: options.Epochs = DEFAULT_EPOCHS,
    batch_size: options.BatchSize = None,
    drop_last: options.DropLast = False,
    data_dir: options.DataDir = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    backend: options.Backend = "cpu",
    threads: options.Threads = None,
    memory: options.Memory = None,
    micro_batches: options.MicroBatches = "1",
    residuals: options.Residuals = None,
    cache: options.CacheFolder = None,
    no_cache: options.NoCache = False,
    seed: options.Seed = 0,
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    freeze_statistics: options.FreezeStatistics = False,
    untie: options.Untie = [],  # noqa: B006
    train_metrics: options.TrainMetrics = False,
    patience: options.Patience = None,
    optimizer: options.OptimizerChoice = "adam",
    lr: options.LearningRate = None,
    momentum: options.Momentum = None,
    nesterov: options.Nesterov = False,
    weight_decay: options.WeightDecay = None,
    no_decay: options.NoDecay = [],  # noqa: B006
    clip_norm: options.ClipNorm = None,
    clip_value: options.ClipValue = None,
    accumulate: options.Accumulate = 1,
    schedule: options.Schedule = "constant",
    warmup: options.WarmupSteps = 0,
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    log: options.Log = None,
    plot: options.Plot = None,
    step_out: options.StepOut = None,
    opset: options.Opset = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Train a model and write it as ONNX.

    Data arrays go to the inputs of the same name; x and y to a model's only input and its loss.

    Examples:

    glowtrain train mlp --data fashion-mnist --out trained.onnx

    glowtrain train model.onnx --data data.npz --loss mse --optimizer adamw --schedule cosine --out trained.onnx

    glowtrain train cnn --data digits --epochs 10 --checkpoint run.safetensors --resume --out trained.onnx
    """
    import_modules(modules)
    files = TrainFiles(out_path, checkpoint, resume, overwrite, log, plot, step_out, opset)
    files.check()
    loaded = stored(dataset, data_dir)
    network = open_model(model, parse_dims(dims), loaded.train, seed, untie=untie, open_batch=open_batch)
    chosen = losses.by_name(loss, output)
    fed = feed(loaded, specs_of(network), chosen, labels)
    length = RunLength(epochs, default_batch(network) if batch_size is None else batch_size, drop_last)
    updates = max(1, length.batches(len(fed)) // accumulate)
    rule = optimizer_of(
        optimizer, schedule_of(schedule, updates, warmup), lr=lr, momentum=momentum, nesterov=nesterov or None,
        weight_decay=weight_decay, no_decay=tuple(no_decay) or None, clip_norm=clip_norm, clip_value=clip_value,
        accumulate=accumulate,
    )  # fmt: skip
    trainer = Trainer(
        network, chosen, rule, trainable or None, kept(backend, cache, no_cache=no_cache), seed,
        freeze_statistics=freeze_statistics, metrics=train_metrics, threads=threads, memory=memory,
        micro_batches=parts_of_batches(micro_batches), residuals=checked_type(residuals),
    )  # fmt: skip
    files.check_savable(trainer)
    _announce(trainer, f"{plural(len(fed), 'example')} of {loaded.name}")
    _fit(trainer, fed, files, length, patience)
    files.write(trainer)


@dataclass(frozen=True)
class TrainFiles:
    """What a run reads and writes beside its model and data."""

    model: Path
    checkpoint: Path | None
    resume: bool
    overwrite: bool
    log: Path | None
    plot: Path | None
    step: Path | None
    opset: int | None

    def check(self) -> None:
        """Raise :class:`InputError` before anything is loaded for a file that could not be written."""
        if self.resume and self.checkpoint is None:
            raise InputError("--resume needs --checkpoint F, the file to go on from")
        if self.resume and self.overwrite:
            raise InputError("give --resume or --overwrite, not both")
        if self.checkpoint is not None and self.checkpoint.is_file() and not (self.resume or self.overwrite):
            raise InputError(
                f"{self.checkpoint} exists: --resume goes on from it, --overwrite begins anew in its place"
            )
        check_writable(self.model, self.checkpoint, self.log, self.step)
        if self.plot is not None:
            check_plot(self.plot)

    def check_savable(self, trainer: Trainer) -> None:
        """Raise :class:`ModelError` before training for what could not be saved after it."""
        writing.save(trainer.model(), opset=self.opset)
        if self.step is not None:
            writing.save(trainer.graph, opset=self.opset)

    def write(self, trainer: Trainer) -> None:
        """Save the trained model, and the step if it was asked for, and say so."""
        writing.save(trainer.model(), self.model, opset=self.opset)
        out.print(f"{_stopped(trainer.history)}; wrote {self.model}")
        if self.step is not None:
            writing.save(trainer.graph, self.step, opset=self.opset)
            out.print(f"wrote {self.step}: the training step, {_inputs(trainer.graph)}")


def _fit(trainer: Trainer, fed: Fed, files: TrainFiles, length: RunLength, patience: int | None) -> None:
    """Train; at Ctrl-C or SIGTERM keep what there is."""
    try:
        trainer.fit(
            fed.train, length.epochs, length.batch_size, fed.valid, drop_last=length.drop_last,
            patience=patience, restore_best=patience is not None,
            checkpoint=files.checkpoint, resume=files.resume, log=files.log, plot=files.plot,
            progress=sys.stdout,
        )  # fmt: skip
    except InputError as error:
        raise InputError(fed.explained(str(error))) from None
    except (KeyboardInterrupt, Terminated) as wish:
        _keep(trainer, files)
        if isinstance(wish, Terminated):
            raise
        raise typer.Exit(INTERRUPTED) from None


def _keep(trainer: Trainer, files: TrainFiles) -> None:
    """After Ctrl-C or SIGTERM: say how to go on from the checkpoint; without one, save the model as it is."""
    if files.checkpoint is not None:
        note(f"go on with --checkpoint {files.checkpoint} --resume; {files.model} was not written")
    elif trainer.whole and trainer.position != Position():
        writing.save(trainer.model(), files.model, opset=files.opset)
        note(f"wrote {files.model}: the model as it is now (with --checkpoint F a run can go on)")
    else:
        note(f"{files.model} was not written")


def _announce(trainer: Trainer, examples: str) -> None:
    trained = set(trainer.graphs.parameters)
    shapes = {name: array.size for name, array in trainer.parameters().items()}
    count = sum(size for name, size in shapes.items() if name in trained)
    frozen = sum(shapes.values()) - count
    out.print(
        f"{trainer.graphs.model.name}: {plural(count, 'parameter')} in {plural(len(trained), 'tensor')}"
        + (f", {frozen:,} frozen" if frozen else "")
        + f"; {examples}; {trainer.optimizer.name} on {trainer.backend}",
    )


def _stopped(history: History) -> str:
    """Why training ended, and how long its epochs of this run took."""
    spent = history["seconds"]
    return f"{history.stopped}, {seconds(sum(spent))}" if spent else history.stopped


def _inputs(graph: Graph) -> str:
    return f"inputs {', '.join(value.name for value in graph.inputs)} and {plural(len(graph.variables), 'variable')}"
