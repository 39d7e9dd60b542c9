"""The options of ``glowtrain inspect``, as annotated types, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.base import Backend
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.commands.inspect.stages import MEMORY, STAGES, stage_names
from glowtrain.cli.terminal.records import Given
from glowtrain.memory.resources import TRAINING
from glowtrain.profiling.memory.page import check_plot
from glowtrain.runtime.partition.drawing import check_drawing
from glowtrain.settings import setting

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
Explain = Annotated[bool, typer.Option("--explain", help="What passes left as it is, and why.")]


def check_stage(stage: str, backend: Backend) -> None:
    """End as wrong usage for what is none of :func:`stage_names`."""
    known = stage_names(backend)
    if stage not in known:
        raise typer.BadParameter(f"there is no stage {stage!r}; choose from {', '.join(known)}", param_hint="--stage")


@dataclass(frozen=True)
class ProposalOptions:
    """What to train is proposed instead of shown."""

    budget: str | None = setting(
        None, "Propose what to train, with its optimizer and the arena, in so many bytes (256KB); needs --data.",
        metavar="BYTES", panel=TRAINING,
    )  # fmt: skip
    target: str = setting("host", f"The processor of --budget: {', '.join(TARGETS)}.", metavar="T", choices=TARGETS)

    @property
    def requested(self) -> bool:
        """Whether anything is proposed."""
        return self.budget is not None

    def check(self, stage: str, dataset: str | None, settings: Given) -> None:
        """End as wrong usage where nothing can be proposed, or it would not be what was asked for."""
        if dataset is None:
            raise _wrong("--budget takes gradients on examples: name them with --data", "--budget")
        if stage != "summary":
            raise _wrong(f"--budget proposes what to train, and prints no {stage}", "--budget")
        if settings["trainable"]:
            raise _wrong("--budget proposes what --trainable says: give one of them", "--budget")
        if settings["memory"] is not None:
            raise _wrong("--budget is that of the step for which it proposes", "--memory")
        for name in _of_steps(settings):
            raise _wrong(f"--budget proposes nothing that would differ with {name}", name)


@dataclass(frozen=True)
class PartOptions:
    """The parts that a model is cut into are shown."""

    devices: int | None = setting(
        None, "How the model is cut into stages for N devices like this one.", metavar="N", least=1
    )
    device_memory: str | None = setting(None, "What each of --devices can hold: 64MB.", metavar="M")

    @property
    def requested(self) -> bool:
        """Whether parts are shown."""
        return self.devices is not None

    def check(self, stage: str, settings: Given) -> None:
        """End as wrong usage for a limit of nothing, and for what parts do not show."""
        if not self.requested:
            if self.device_memory is not None:
                raise _wrong("--device-memory is that of --devices", "--device-memory")
            return
        if stage != "summary":
            raise _wrong(f"--devices shows parts, and nothing of --stage {stage}", "--devices")
        if settings["memory"] is not None:
            raise _wrong("what each of --devices can hold is its --device-memory", "--memory")
        if "--residuals" in _of_steps(settings):
            raise _wrong("--devices shows nothing that would differ with --residuals", "--residuals")


def _of_steps(settings: Given) -> list[str]:
    """Which settings are not as they are by default that say how a step is computed."""
    steps = {"--residuals": settings["residuals"] is not None, "--micro-batches": settings["micro_batches"] != 1}
    return [name for name, said in steps.items() if said]


def _wrong(problem: str, option: str) -> typer.BadParameter:
    return typer.BadParameter(problem, param_hint=option)


def check_picture(stage: str, plot: Path | None, *, parts: bool) -> None:
    """Raise now for a picture that could not be drawn or written later; end as wrong usage where nobody draws it."""
    if plot is None:
        return
    if stage != MEMORY and not parts:
        text = f"--plot draws --stage {MEMORY}, and nothing of {stage}; or the parts of --devices"
        raise typer.BadParameter(text, param_hint="--plot")
    (check_drawing if parts else check_plot)(plot)
