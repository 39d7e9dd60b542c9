"""``glowtrain train``: a model, data, a loss and an optimizer in; a trained ONNX model out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import callbacks
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import BackendOptions
from glowtrain.cli.arguments.feed import DataOptions, Fed, feed
from glowtrain.cli.arguments.files import check_writable
from glowtrain.cli.arguments.fleet import FleetOptions
from glowtrain.cli.arguments.models import ModelFileOptions, TrainedOn
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions, ScheduleOptions, batches_in
from glowtrain.cli.terminal.console import INTERRUPTED, command, note, out, seconds
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.fleet.spec import FleetSpec
from glowtrain.graph import Graph
from glowtrain.memory.resources import OUTPUT
from glowtrain.onnx_io.write import save as writing
from glowtrain.presentation.messages import plural
from glowtrain.settings import setting
from glowtrain.trainer import History, Trainer
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.fitting.interrupts import Terminated
from glowtrain.trainer.fitting.moments import Callback
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import specs_of
from glowtrain.trainer.history import check_plot
from glowtrain.trainer.rate_range import find_learning_rate
from glowtrain.trainer.settings import TrainingSettings


@dataclass(frozen=True)
class TrainFiles:
    """What a run reads and writes beside its model and data."""

    out_path: Path | None = setting(None, "Where the trained ONNX model goes.", flag="--out", metavar="F", panel=OUTPUT)
    find_lr: bool = setting(
        False, "Train nothing: try rising learning rates and suggest one (--plot draws the losses)."
    )
    overwrite: bool = setting(False, "Begin anew in place of an existing checkpoint.", panel=OUTPUT)
    step_out: Path | None = setting(None, "The whole training step as an ONNX model.", metavar="F", panel=OUTPUT)
    tensorboard: Path | None = setting(
        None, r"Events for TensorBoard (needs glowtrain\[tensorboard]).", metavar="DIR", panel=OUTPUT
    )
    opset: options.Opset = None

    def check(self, fit: Given) -> None:
        """Raise :class:`InputError` before anything is loaded for a file that could not be written, be it one of the
        settings of :meth:`Trainer.fit`."""
        checkpoint = fit["checkpoint"]
        if (self.out_path is None) != self.find_lr:
            what = "give it, where the trained model goes, or --find-lr, which trains nothing"
            raise typer.BadParameter(what, param_hint="--out")
        written = {"--checkpoint": checkpoint, "--log": fit["log"], "--step-out": self.step_out}
        if self.find_lr and (idle := [option for option, path in written.items() if path is not None]):
            raise InputError(f"--find-lr trains nothing, so nothing is written for {', '.join(idle)}")
        if fit["resume"] and checkpoint is None:
            raise InputError("--resume needs --checkpoint F, the file to go on from")
        if fit["resume"] and self.overwrite:
            raise InputError("give --resume or --overwrite, not both")
        if checkpoint is not None and checkpoint.is_file() and not (fit["resume"] or self.overwrite):
            raise InputError(f"{checkpoint} exists: --resume goes on from it, --overwrite begins anew in its place")
        check_writable(self.out_path, checkpoint, fit["log"], self.step_out)
        if fit["plot"] is not None:
            check_plot(fit["plot"])

    @property
    def model(self) -> Path:
        """Where the trained model goes."""
        assert self.out_path is not None, "a learning rate is looked for"
        return self.out_path

    @property
    def loggers(self) -> list[Callback]:
        """Callbacks that write. Raises :class:`MissingExtraError`."""
        return [] if self.tensorboard is None else [callbacks.TensorBoard(self.tensorboard)]

    def check_savable(self, trainer: Trainer) -> None:
        """Raise :class:`ModelError` before training for what could not be saved after it."""
        writing.save(trainer.model(), opset=self.opset)
        if self.step_out is not None:
            writing.save(trainer.graph, opset=self.opset)

    def write(self, trainer: Trainer, metadata: Mapping[str, str]) -> None:
        """Save the trained model, and the step if it was asked for, and say so."""
        with trainer.averaged() if trainer.spec.ema is not None else nullcontext():
            writing.save(trainer.model(), self.model, opset=self.opset, metadata=metadata)
        means = ", of the means of the parameters" if trainer.spec.ema is not None else ""
        out.print(f"{_stopped(trainer.history)}; wrote {self.model}{means}")
        if self.step_out is not None:
            writing.save(trainer.graph, self.step_out, opset=self.opset)
            out.print(f"wrote {self.step_out}: the training step, {_inputs(trainer.graph)}")


@command
def train(
    model: options.Model,
    dataset: options.Data,
    source: DataOptions,
    files: TrainFiles,
    fit: Annotated[Given, From(FitSpec)],
    schedule: ScheduleOptions,
    file: ModelFileOptions,
    on: BackendOptions,
    loss: LossOptions,
    optimizer: OptimizerOptions,
    settings: Annotated[Given, From(TrainingSettings)],
    ranks: FleetOptions,
    together: Annotated[Given, From(FleetSpec)],
    sample_weight: options.SampleWeight = None,
) -> None:
    """Train a model and write it as ONNX.

    Data arrays go to the inputs of the same name; x and y to a model's only input and its loss.

    Examples:

    glowtrain train mlp --data fashion-mnist --out trained.onnx

    glowtrain train model.onnx --data data.npz --loss mse --optimizer adamw --schedule cosine --out trained.onnx

    glowtrain train mlp --data iris.csv --labels species --validation 0.2 --out iris.onnx

    glowtrain train mlp --data digits --find-lr --plot rates.png

    glowtrain train cnn --data digits --epochs 10 --checkpoint run.safetensors --resume --out trained.onnx

    glowtrain train cnn --data digits --fleet local:2 --shards 8 --out trained.onnx
    """
    fleet = ranks.joined(together)
    file.import_modules()
    files.check(fit)
    loaded = source.stored(dataset, sample_weight, TrainedOn.of(model))
    network = file.open(model, loaded.train, settings["seed"])
    fed = feed(loaded, specs_of(network), loss.named)
    batches = batches_in(network, round(len(fed) * (1 - (fit["validation"] or 0))), fit)
    rule = optimizer.rule(schedule.over(batches, optimizer.accumulate))
    weighted = sample_weight is not None
    trainer = Trainer(network, loss.named, rule, backend=on.chosen, sample_weight=weighted, fleet=fleet, **settings)
    files.check_savable(trainer)
    if files.find_lr:
        _find_rate(trainer, fed, fit)
        return
    _announce(trainer, f"{plural(len(fed), 'example')} of {loaded.name}")
    metadata = replace(loaded.trained_on, loss=loss.texts).metadata
    _fit(trainer, fed, files, fit, metadata)
    if trainer.fleet is None or trainer.fleet.first:
        files.write(trainer, metadata)


def _find_rate(trainer: Trainer, fed: Fed, fit: Given) -> None:
    """Say which learning rate the loss falls fastest at, and draw it."""
    result = find_learning_rate(trainer, fed.train, batch_size=fit["batch_size"])
    said = f"--lr {result.suggestion:.2g}" if result.suggestion is not None else "none, as the loss falls at no rate"
    tried = f" at rates from {result.rates[0]:.2g} to {result.rates[-1]:.2g}" if result.rates else ""
    out.print(f"{len(result.rates)} batches{tried}: {result.stopped}; suggested: {said}")
    if fit["plot"] is not None:
        result.plot(fit["plot"])
        out.print(f"wrote {fit['plot']}")


def _fit(trainer: Trainer, fed: Fed, files: TrainFiles, fit: Given, metadata: Mapping[str, str]) -> None:
    """Train; at Ctrl-C or SIGTERM keep what there is."""
    best = fit["patience"] is not None
    if fit["validation"] is None:
        fit = {**fit, "validation": fed.valid}
    elif fed.valid is not None:
        raise InputError("--validation holds out a part of the examples, and the data have a part for validation")
    try:
        trainer.fit(fed.train, restore_best=best, progress=sys.stdout, callbacks=files.loggers, **fit)
    except InputError as error:
        raise InputError(fed.explained(str(error))) from None
    except (KeyboardInterrupt, Terminated) as wish:
        if trainer.fleet is None or trainer.fleet.first:
            _keep(trainer, files, fit["checkpoint"], metadata)
        if isinstance(wish, Terminated):
            raise
        raise typer.Exit(INTERRUPTED) from None


def _keep(trainer: Trainer, files: TrainFiles, checkpoint: Path | None, metadata: Mapping[str, str]) -> None:
    """After Ctrl-C or SIGTERM: say how to go on from the checkpoint; without one, save the model as it is."""
    if checkpoint is not None:
        note(f"go on with --checkpoint {checkpoint} --resume; {files.out_path} was not written")
    elif trainer.whole and trainer.position != Position():
        writing.save(trainer.model(), files.model, opset=files.opset, metadata=metadata)
        note(f"wrote {files.out_path}: the model as it is now (with --checkpoint F a run can go on)")
    else:
        note(f"{files.out_path} was not written")


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
