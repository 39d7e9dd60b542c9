"""Arguments and options that several commands share, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glowtrain import losses, models
from glowtrain.backends.discovery import backend_names
from glowtrain.cli.arguments.completion import names, names_or_files
from glowtrain.data import NAMES
from glowtrain.fleet.spec import FLEET
from glowtrain.memory.resources import OUTPUT, TRAINING
from glowtrain.optim import OPTIMIZERS

OPTIMIZER = "Optimizer"
LOSS = "softmax_cross_entropy"
"""The loss where nobody says any."""

SCHEDULES = ("constant", "cosine", "linear", "onecycle", "step", "exponential")
LOSSES, OPTIMIZER_NAMES = names(losses.NAMED), names(OPTIMIZERS)
MODELS, DATA = names_or_files(models.MODELS, ".onnx"), names_or_files(NAMES, ".npz")
"""What shells complete values to."""

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"An ONNX file, or a model that comes along: {', '.join(models.MODELS)}.",
        autocompletion=MODELS,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="D",
        help=f"{', '.join(NAMES)}, a table (.csv, .parquet), an .npz file with arrays named after inputs, or a folder "
        "of shards (x-000.npy, y-000.npy, ...; 000.npz, ...) or images (CLASS/*.png); "
        "NAME_valid (also NAME_val, NAME_test) is for validation, as x_valid and y_valid.",
        autocompletion=DATA,
    ),
]
Drop = Annotated[
    list[str], typer.Option(metavar="COLUMN", help="Of a table: a column that is no feature (repeatable).")
]
SampleWeight = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The array of weights of examples in the data, or the column of a table.",
        rich_help_panel=TRAINING,
    ),
]
ImageSize = Annotated[
    str | None, typer.Option(metavar="HxW", help="Of images: what each is resized to, 32x48 or 32 for a square.")
]
Channels = Annotated[
    int | None, typer.Option(metavar="N", help="Of images: 1 (grey) or 3 (colours); by default what they have.")
]
DataDir = Annotated[Path | None, typer.Option(help="Directory with the files of fashion-mnist.", metavar="DIR")]
Dims = Annotated[
    list[str],
    typer.Option("--dims", metavar="NAME=N", help="Bind a symbolic dimension of the file (repeatable)."),
]
OpenBatch = Annotated[
    bool, typer.Option("--open-batch", help="Open the batch of a file that was exported for one size of it.")
]
Untie = Annotated[
    list[str],
    typer.Option(
        "--untie",
        metavar="PATTERN",
        help="Give each node that reads a matching initializer a parameter of its own (repeatable).",
        rich_help_panel=TRAINING,
    ),
]
Modules = Annotated[
    list[str],
    typer.Option("--import", metavar="MODULE", help="Import a module of operators first (repeatable), e.g. myops."),
]
BACKENDS = backend_names()
Backend = Annotated[
    str, typer.Option(metavar="B", help=f"One of {', '.join(BACKENDS)}.", autocompletion=names(BACKENDS))
]
CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Keep compiled code in this folder and not in the user's."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep no compiled code, and take none that is there.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Fixes initial values, the order of examples and dropout.")]
Loss = Annotated[
    list[str],
    typer.Option(
        metavar="L",
        help=f"{', '.join(losses.NAMED)}, or a scalar output of the model ({LOSS}); of several outputs (repeatable) "
        "OUTPUT=L and OUTPUT=0.5*L, whose targets are called OUTPUT_target.",
        autocompletion=LOSSES,
        rich_help_panel=TRAINING,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The array of labels or targets in the data (y), or the column of a table.",
        rich_help_panel=TRAINING,
    ),
]
LossOutput = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="NAME",
        help="The model output that the loss compares (the first).",
        rich_help_panel=TRAINING,
    ),
]
WholeStep = Annotated[bool, typer.Option("--train", help="The whole training step instead of the model.")]
OptimizerChoice = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="O",
        help=f"{', '.join(OPTIMIZERS)}.",
        autocompletion=OPTIMIZER_NAMES,
        rich_help_panel=OPTIMIZER,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option("--lr", metavar="R", help="Learning rate (the optimizer's default).", rich_help_panel=OPTIMIZER),
]
Momentum = Annotated[
    float | None, typer.Option(metavar="M", help="For sgd, rmsprop and muon.", rich_help_panel=OPTIMIZER)
]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="For sgd with momentum.", rich_help_panel=OPTIMIZER)]
Beta1 = Annotated[
    float | None, typer.Option(metavar="B", help="For adam and its kind, and lion.", rich_help_panel=OPTIMIZER)
]
Beta2 = Annotated[
    float | None, typer.Option(metavar="B", help="For adam and its kind, and lion.", rich_help_panel=OPTIMIZER)
]
Eps = Annotated[float | None, typer.Option(metavar="E", help="For all but sgd and lion.", rich_help_panel=OPTIMIZER)]
AMSGrad = Annotated[bool, typer.Option("--amsgrad", help="For adam and adamw.", rich_help_panel=OPTIMIZER)]
WeightDecay = Annotated[
    float | None, typer.Option(metavar="R", help="Weight decay (decoupled in adamw).", rich_help_panel=OPTIMIZER)
]
NoDecay = Annotated[
    list[str],
    typer.Option(
        metavar="PATTERN",
        help="Parameters that are not decayed, e.g. '*.bias' (repeatable).",
        rich_help_panel=OPTIMIZER,
    ),
]
ClipNorm = Annotated[
    float | None, typer.Option(metavar="C", help="Clip gradients to this global norm.", rich_help_panel=OPTIMIZER)
]
ClipValue = Annotated[
    float | None, typer.Option(metavar="C", help="Clip each gradient element.", rich_help_panel=OPTIMIZER)
]
Fleet = Annotated[
    str | None,
    typer.Option(
        metavar="F",
        help="Train with other processes: mpi, those that a launcher started; local:N, N on this machine.",
        rich_help_panel=FLEET,
    ),
]
Accumulate = Annotated[
    int,
    typer.Option(min=1, metavar="K", help="Average gradients of K batches for an update.", rich_help_panel=OPTIMIZER),
]
Schedule = Annotated[
    str,
    typer.Option(
        metavar="S",
        help=f"{', '.join(SCHEDULES)}, over the whole run.",
        autocompletion=names(SCHEDULES),
        rich_help_panel=OPTIMIZER,
    ),
]
WarmupSteps = Annotated[
    int,
    typer.Option(
        "--warmup", min=0, metavar="N", help="Raise the rate over the first N updates.", rich_help_panel=OPTIMIZER
    ),
]
FindRate = Annotated[
    bool,
    typer.Option(
        "--find-lr", help="Train nothing: try rising learning rates and suggest one (--plot draws the losses)."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="F", help="Where the trained ONNX model goes.", rich_help_panel=OUTPUT)
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew in place of an existing checkpoint.", rich_help_panel=OUTPUT)
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help=r"Events for TensorBoard (needs glowtrain\[tensorboard]).", rich_help_panel=OUTPUT
    ),
]
StepOut = Annotated[
    Path | None, typer.Option(metavar="F", help="The whole training step as an ONNX model.", rich_help_panel=OUTPUT)
]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Of the ONNX files (without: the oldest that will do, from 17).", rich_help_panel=OUTPUT
    ),
]
