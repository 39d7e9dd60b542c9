"""Arguments and options that several commands share, as annotated types."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain import losses, models
from glowtrain.backends.discovery import backend_names
from glowtrain.cli.arguments.completion import names, names_or_files
from glowtrain.data import NAMES
from glowtrain.memory.resources import OUTPUT, TRAINING

OPTIMIZER = "Optimizer"
LOSS = "softmax_cross_entropy"
"""The loss where nobody says any."""

SCHEDULES = ("constant", "cosine", "linear", "onecycle", "step", "exponential")
LOSSES = names(losses.NAMED)
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
SampleWeight = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The array of weights of examples in the data, or the column of a table.",
        rich_help_panel=TRAINING,
    ),
]
BACKENDS = backend_names()
Backend = Annotated[
    str, typer.Option(metavar="B", help=f"One of {', '.join(BACKENDS)}.", autocompletion=names(BACKENDS))
]
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
WholeStep = Annotated[bool, typer.Option("--train", help="The whole training step instead of the model.")]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Of the ONNX files (without: the oldest that will do, from 17).", rich_help_panel=OUTPUT
    ),
]
