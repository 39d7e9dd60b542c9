"""``glowtrain train``: a model, data, a loss and an optimizer in; a trained ONNX model out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import data
from glowtrain.cli import options
from glowtrain.cli.console import command, note, out, plural, seconds
from glowtrain.cli.files import check_writable
from glowtrain.cli.models import input_specs, open_model, parse_dims
from glowtrain.cli.training import feed, loss_of, optimizer_of, schedule_of
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.onnx_io import save
from glowtrain.trainer import Trainer
from glowtrain.trainer.fit import Moment
from glowtrain.trainer.history import check_plot
from glowtrain.trainer.progress import line


@command
def train(
    model: options.Model,
    dataset: options.Data,
    out_path: Annotated[
        Path,
        typer.Option("--out", metavar="F", help="Where the trained ONNX model goes.", rich_help_panel=options.OUTPUT),
    ],
    epochs: Annotated[int, typer.Option(min=0, metavar="N", help="Passes over the data.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, metavar="B")] = 64,
    data_dir: options.DataDir = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    backend: options.Backend = "cpu",
    seed: options.Seed = 0,
    loss: options.Loss = "softmax_cross_entropy",
    labels: options.Labels = None,
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    patience: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Stop after N epochs without progress.", rich_help_panel=options.TRAINING
        ),
    ] = None,
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
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Written after every epoch and at Ctrl-C.", rich_help_panel=options.OUTPUT),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the checkpoint if there is one.", rich_help_panel=options.OUTPUT),
    ] = False,
    log: Annotated[
        Path | None, typer.Option(metavar="F", help="JSON lines, one an epoch.", rich_help_panel=options.OUTPUT)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="F", help="Loss curves as a PNG.", rich_help_panel=options.OUTPUT)
    ] = None,
    step_out: Annotated[
        Path | None,
        typer.Option(metavar="F", help="The whole training step as an ONNX model.", rich_help_panel=options.OUTPUT),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of the ONNX files (the oldest that will do, from 17).", rich_help_panel=options.OUTPUT
        ),
    ] = None,
) -> None:
    """Train a model and write it as ONNX.

    Data arrays go to the inputs of the same name; x and y to a model's only input and its loss.

    Examples:

    glowtrain train mlp --data fashion-mnist --out trained.onnx

    glowtrain train model.onnx --data data.npz --loss mse --optimizer adamw --schedule cosine --out trained.onnx

    glowtrain train cnn --data digits --epochs 10 --checkpoint run.safetensors --resume --out trained.onnx
    """
    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint F, the file to go on from")
    check_writable(out_path, checkpoint, log, step_out)
    if plot is not None:
        check_plot(plot)
    loaded = data.load(dataset, data_dir)
    network = open_model(model, parse_dims(dims), loaded, seed)
    updates = max(1, epochs * math.ceil(len(loaded) / batch_size) // accumulate)
    rule = optimizer_of(
        optimizer, schedule_of(schedule, updates, warmup), lr=lr, momentum=momentum, nesterov=nesterov or None,
        weight_decay=weight_decay, no_decay=tuple(no_decay) or None, clip_norm=clip_norm, clip_value=clip_value,
        accumulate=accumulate,
    )  # fmt: skip
    trainer = Trainer(network, loss_of(loss, output), rule, trainable or None, backend, seed)
    training, validation = feed(loaded, input_specs(network), trainer.loss, labels)
    _check_savable(trainer, step_out, opset)
    _announce(trainer, network.name, loaded)
    try:
        trainer.fit(
            training, epochs, batch_size, validation, patience=patience, restore_best=patience is not None,
            checkpoint=checkpoint, resume=resume, log=log, plot=plot, callbacks=[_PlainLines(epochs)],
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = f"; go on with --checkpoint {checkpoint} --resume" if checkpoint is not None else "; nothing was saved"
        note(f"{trainer.history.stopped}{kept}")
        raise
    _finish(trainer, out_path, step_out, opset)


class _PlainLines:
    """A line an epoch where no progress bar prints one, because the output is not a terminal."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def __call__(self, moment: Moment) -> None:
        if moment.record is not None and not out.is_terminal:
            out.print(line(moment.record, self.epochs), markup=False)


def _check_savable(trainer: Trainer, step_path: Path | None, opset: int | None) -> None:
    """Raise :class:`ModelError` before training for what could not be saved after it."""
    save(trainer.model(), opset=opset)
    if step_path is not None:
        save(trainer.graph, opset=opset)


def _announce(trainer: Trainer, name: str, dataset: data.Dataset) -> None:
    trained = set(trainer.forms.parameters)
    shapes = {name: array.size for name, array in trainer.parameters().items()}
    count = sum(size for name, size in shapes.items() if name in trained)
    frozen = sum(shapes.values()) - count
    out.print(
        f"{name}: {count:,} parameters in {plural(len(trained), 'tensor')}"
        + (f", {frozen:,} frozen" if frozen else "")
        + f"; {len(dataset):,} examples of {dataset.name}; {trainer.optimizer.name} on {trainer.backend}",
        markup=False,
    )


def _finish(trainer: Trainer, path: Path, step_path: Path | None, opset: int | None) -> None:
    save(trainer.model(), path, opset=opset)
    spent = sum(trainer.history["seconds"])
    out.print(f"{trainer.history.stopped}, {seconds(spent)}; wrote {path}", markup=False)
    if step_path is not None:
        save(trainer.graph, step_path, opset=opset)
        out.print(f"wrote {step_path}: the training step, {_inputs(trainer.graph)}", markup=False)


def _inputs(graph: Graph) -> str:
    return f"inputs {', '.join(value.name for value in graph.inputs)} and {plural(len(graph.variables), 'variable')}"
