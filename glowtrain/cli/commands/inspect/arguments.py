"""The options of ``glowtrain inspect``, as annotated types, and which of them go together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.base import Backend
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import step_options
from glowtrain.cli.commands.inspect.stages import MEMORY, STAGES, stage_names
from glowtrain.profiling.memory.page import check_plot
from glowtrain.runtime.partition.drawing import check_drawing

StageName = Annotated[
    str, typer.Option(metavar="STAGE", help=f"What to print: {', '.join(STAGES)}.", autocompletion=names(STAGES))
]
ShapesOf = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="D",
        help="Shapes of a built-in model follow this data set; examples of --budget.",
        autocompletion=options.DATA,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="F",
        help="A picture of memory over the step, kernel by kernel, for --stage memory, or of the parts for --devices: "
        "a page (.html), .png or .svg.",
        rich_help_panel=options.OUTPUT,
    ),
]
ProposedBudget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="BYTES",
        help="Propose what to train, with its optimizer and the arena, in so many bytes (256KB); needs --data.",
        rich_help_panel=options.TRAINING,
    ),
]
ProposedTarget = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="T",
        help=f"The processor of --budget: {', '.join(TARGETS)}.",
        autocompletion=names(TARGETS),
        rich_help_panel=options.TRAINING,
    ),
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", metavar="N", min=1, help="How the model is cut into stages for N devices like this one."),
]
DeviceMemory = Annotated[
    str | None, typer.Option("--device-memory", metavar="M", help="What each of --devices can hold: 64MB.")
]
Explain = Annotated[bool, typer.Option("--explain", help="What passes left as it is, and why.")]


def check_stage(stage: str, backend: Backend) -> None:
    """End as wrong usage for what is none of :func:`stage_names`."""
    known = stage_names(backend)
    if stage not in known:
        raise typer.BadParameter(f"there is no stage {stage!r}; choose from {', '.join(known)}", param_hint="--stage")


def check_budget(stage: str, dataset: str | None, trainable: Sequence[str]) -> None:
    """End as wrong usage where nothing can be proposed, or it would not be what was asked for."""
    if dataset is None:
        raise typer.BadParameter("--budget takes gradients on examples: name them with --data", param_hint="--budget")
    if stage != "summary":
        raise typer.BadParameter(f"--budget proposes what to train, and prints no {stage}", param_hint="--budget")
    if trainable:
        raise typer.BadParameter("--budget proposes what --trainable says: give one of them", param_hint="--budget")


def check_devices(stage: str, devices: int | None, memory: str | None) -> None:
    """End as wrong usage for a limit of nothing, and for a stage that is not shown."""
    if memory is not None and devices is None:
        raise typer.BadParameter("--device-memory is that of --devices", param_hint="--device-memory")
    if devices is not None and stage != "summary":
        raise typer.BadParameter(f"--devices shows parts, and nothing of --stage {stage}", param_hint="--devices")


def check_memory(memory: str | None, devices: int | None, budget: str | None) -> None:
    """End as wrong usage where a budget would change nothing that is shown."""
    if memory is not None and devices is not None:
        raise typer.BadParameter("what each of --devices can hold is its --device-memory", param_hint="--memory")
    if memory is not None and budget is not None:
        raise typer.BadParameter("--budget is that of the step for which it proposes", param_hint="--memory")


def check_step(micro_batches: int, residuals: str | None, *, train: bool, parts: bool, proposal: bool) -> None:
    """End as wrong usage for options of a step where nothing is trained, and where nothing of them is shown: what waits
    on ``parts`` of a model, and both in a ``proposal``."""
    for name in step_options(micro_batches, residuals, train=train):
        if proposal or (parts and name == "--residuals"):
            shown = "--budget proposes" if proposal else "--devices shows"
            raise typer.BadParameter(f"{shown} nothing that would differ with {name}", param_hint=name)


def check_picture(stage: str, plot: Path | None, *, parts: bool) -> None:
    """Raise now for a picture that could not be drawn or written later; end as wrong usage where nobody draws it."""
    if plot is None:
        return
    if stage != MEMORY and not parts:
        text = f"--plot draws --stage {MEMORY}, and nothing of {stage}; or the parts of --devices"
        raise typer.BadParameter(text, param_hint="--plot")
    (check_drawing if parts else check_plot)(plot)
