"""``glowtrain inspect``: what every stage of the walk makes of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from glowtrain import data
from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.toolchain import assembly, module_text
from glowtrain.cli import options
from glowtrain.cli.console import command
from glowtrain.cli.models import open_graph, parse_dims
from glowtrain.cli.profile import profile
from glowtrain.cli.summary import summary
from glowtrain.cli.training import loss_of, optimizer_of
from glowtrain.compiler import planned
from glowtrain.graph import Graph, to_text
from glowtrain.lower.expand import expand
from glowtrain.lower.lower import lower
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.pipeline import optimize
from glowtrain.program.text import plan_text
from glowtrain.program.text import to_text as program_text
from glowtrain.trainer.forms import Forms


class Stage(StrEnum):
    """A stage of the walk that can be printed; ``summary`` and ``profile`` look across them."""

    summary = "summary"
    graph = "graph"
    integers = "integers"
    optimized = "optimized"
    lowered = "lowered"
    program = "program"
    plan = "plan"
    llvm = "llvm"
    asm = "asm"
    profile = "profile"


@command
def inspect(
    model: options.Model,
    stage: Annotated[Stage, typer.Option(help="What to print.")] = Stage.summary,
    train: Annotated[bool, typer.Option("--train", help="The whole training step instead of the model.")] = False,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    dataset: Annotated[
        str | None, typer.Option("--data", metavar="D", help="Shapes of a built-in model follow this data set.")
    ] = None,
    data_dir: options.DataDir = None,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
) -> None:
    """Print what a stage of the compiler makes of a model, or a summary of all of them.

    The stages, in order: graph, integers (what is quantized is computed so), optimized, lowered, program (fused, laid
    out, scheduled), plan (memory), llvm, asm. The stage profile runs the compiled step and counts the processor's
    cycles in each kernel.

    Examples:

    glowtrain inspect model.onnx

    glowtrain inspect cnn --train --stage plan

    glowtrain inspect model.onnx --train --stage profile --dims batch=128
    """
    loaded = data.load(dataset, data_dir) if dataset is not None else None
    graph = open_graph(model, parse_dims(dims), loaded)
    if train:
        graph = training_step(graph, loss, output, trainable, optimizer, momentum)
    if stage is not Stage.graph:
        graph = in_integers(graph)
    if stage is Stage.summary:
        summary(graph)
    elif stage is Stage.profile:
        profile(graph)
    else:
        sys.stdout.write(TEXTS[stage](graph))


def training_step(
    graph: Graph, loss: str, output: str | None, trainable: list[str], optimizer: str, momentum: float | None
) -> Graph:
    """The training step that ``train`` would compile for a graph."""
    rule = optimizer_of(optimizer, momentum=momentum)
    return Forms(graph, loss_of(loss, output), rule, trainable or None, 0, unbiased=False).step_of(graph)


def code(graph: Graph) -> Code:
    """The native code of a graph for this machine, as text."""
    return generate(planned(graph), Target.host())


TEXTS: dict[Stage, Callable[[Graph], str]] = {
    Stage.graph: to_text,
    Stage.integers: to_text,
    Stage.optimized: lambda graph: to_text(optimize(expand(graph))),
    Stage.lowered: lambda graph: program_text(lower(optimize(expand(graph)))),
    Stage.program: lambda graph: program_text(planned(graph).program),
    Stage.plan: lambda graph: plan_text(planned(graph)),
    Stage.llvm: lambda graph: module_text(code(graph).text, Target.host()),
    Stage.asm: lambda graph: assembly(code(graph).text, Target.host()),
}
"""The text of each stage that has one."""
