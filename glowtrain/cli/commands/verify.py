"""``glowtrain verify``: a model up the ladder of ever more compiled forms, and on other processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from glowtrain import losses
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.llvm.target import Target
from glowtrain.bundles.contents import PREDICT, STEP, Contents, contents_of
from glowtrain.bundles.module import module_of
from glowtrain.bundles.verify.elsewhere import PROGRAM, ExampleRunner
from glowtrain.bundles.verify.record import Record, check_against, record_of, require_same
from glowtrain.bundles.verify.trace import BitTrace, backend_like, trace_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import as_graph, open_model, parse_dims
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import (
    compile_options,
    is_given,
    optimizer_of,
    require_train,
    step_graphs,
    step_options,
)
from glowtrain.cli.commands.bundle import batch_of
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import waiting
from glowtrain.compiler.service import in_bytes
from glowtrain.errors import InputError
from glowtrain.graph import Template
from glowtrain.presentation.words import plural
from glowtrain.stages import Facts, Options
from glowtrain.verification import ladder, random_inputs

Settings = Callable[[Facts], Options]
"""What bundles are compiled with for a processor of these facts."""
BATCH = 4
STEPS = 5
ELSEWHERE = "Other processors"
"""The panel of the options that compare with them."""


@command
def verify(
    context: typer.Context,
    model: options.Model,
    train: options.WholeStep = False,
    backend: options.Backend = "cpu",
    memory: options.Memory = None,
    micro_batches: options.MicroBatchCount = 1,
    residuals: options.Residuals = None,
    fixed_point: options.FixedPoint = False,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Examples in a batch that the model leaves open ({BATCH}).")
    ] = None,
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    open_batch: options.OpenBatch = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Fixes the inputs, which are drawn.")] = 0,
    loss: options.Loss = "softmax_cross_entropy",
    output: options.LossOutput = None,
    trainable: options.Trainable = [],  # noqa: B006
    untie: options.Untie = [],  # noqa: B006
    optimizer: options.OptimizerChoice = "adam",
    momentum: options.Momentum = None,
    target: Annotated[
        list[str],
        typer.Option(
            metavar="T",
            help=f"Compare with a bundle for another processor (repeatable): {', '.join(TARGETS)}.",
            autocompletion=names(TARGETS),
            rich_help_panel=ELSEWHERE,
        ),
    ] = [],  # noqa: B006
    compiler: Annotated[
        str | None, typer.Option("--cc", metavar="C", help="The C compiler for it.", rich_help_panel=ELSEWHERE)
    ] = None,
    run: Annotated[
        str, typer.Option(metavar="R", help="What runs its programs, {} being one.", rich_help_panel=ELSEWHERE)
    ] = PROGRAM,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Of training.", rich_help_panel=ELSEWHERE)] = STEPS,
    record: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Write what this machine computes.", rich_help_panel=ELSEWHERE),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Compare with what another machine recorded.", rich_help_panel=ELSEWHERE),
    ] = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Run a model in every form that the compiler gives it, and compare each with the reference in double precision.

    Names the first form that differs, and the operator or kernel at which it begins to. --memory, --micro-batches,
    --residuals and --fixed-point compile it as train and bundle do with them. With --target the last form is
    a bundle that another compiler builds and --run runs, and the bits of some steps are compared; --record and
    --against do so for two machines that never meet. The first step, function and variable that differ are named.

    Examples:

    glowtrain verify model.onnx

    glowtrain verify model.onnx --train --optimizer sgd --momentum 0.9 --dims batch=8

    glowtrain verify cnn --train --memory small --residuals bf16

    glowtrain verify mlp --train --target aarch64 --run "qemu-aarch64 {}"

    glowtrain verify mlp --train --record here.json
    """
    require_train(context, train=train, others=("steps",))
    import_modules(modules)
    step_options(micro_batches, residuals, train=train)
    processors = [Target.named(each) for each in target]
    network = open_model(model, parse_dims(dims), open_batch=open_batch, untie=untie)
    bound = batch_of(network, batch)
    graph = network.bind(bound) if bound and isinstance(network, Template) else as_graph(network, BATCH)
    if target or record or against:
        contents = contents_of(
            graph,
            losses.by_name(loss, output) if train else None,
            optimizer_of(optimizer, momentum=momentum) if train else None,
            (trainable or None) if train else None,
            {},
            None,
            micro_batches=micro_batches,
        ).fixed()

        def settings(facts: Facts) -> Options:
            step = contents.graphs[STEP if train else PREDICT]
            return compile_options(step, facts, memory, residuals, fixed_point=fixed_point)

        _compare_bits(contents, settings, processors, ExampleRunner(compiler, run), steps, seed, record, against)
        return
    if compiler is not None or run != PROGRAM:
        raise InputError("--cc and --run are for a bundle: name its --target")
    if is_given(context, "steps"):
        raise InputError("--steps is for --target, --record and --against: the ladder compares one step")
    if train:
        graph = step_graphs(graph, loss, output, trainable, optimizer, momentum, micro_batches).step_of(graph)
    how = compile_options(graph, backend_of(backend).facts, memory, residuals, fixed_point=fixed_point)
    with waiting("verifying") as progress:
        report = ladder(graph, random_inputs(graph, seed), backend=backend, options=how, progress=progress)
    out.print(report)
    report.require()


def _compare_bits(
    contents: Contents,
    settings: Settings,
    targets: Sequence[Target],
    runner: ExampleRunner,
    steps: int,
    seed: int,
    record: Path | None,
    against: Path | None,
) -> None:
    if len(targets) > 1 and (record or against):
        raise InputError("--record and --against are of one arithmetic: give one --target at most")
    if record or against:
        trace = _here(contents, settings, targets[0] if targets else Target.host(), steps, seed)
        _recorded(contents, trace, seed, record, against)
    for target in targets:
        trace = _here(contents, settings, target, steps, seed)
        with waiting(f"computing for {target.name}"):
            there = runner.trace(module_of(contents, target, settings(facts_for(target)), known=True), steps, seed)
        require_same(contents.name, trace, there, f"{target.name} ({runner.command})")
        out.print(f"{contents.name}: {_what(trace)}: the same bits on {target.name} ({runner.command}) as here")


def _recorded(contents: Contents, trace: BitTrace, seed: int, record: Path | None, against: Path | None) -> None:
    mine = record_of(contents, trace, seed)
    if record:
        mine.write(record)
        out.print(f"{record}: {_what(trace)}")
    if against:
        check_against(Record.read(against), mine)
        out.print(f"{contents.name}: {_what(trace)}: the bits of {against}")


def _here(contents: Contents, settings: Settings, target: Target, steps: int, seed: int) -> BitTrace:
    """What this machine computes with a target's arithmetic."""
    with waiting("computing here"):
        how = in_bytes(contents.graphs, settings(facts_for(target)))
        return trace_of(contents, backend_like(target), steps, seed, options=how)


def facts_for(target: Target) -> Facts:
    """What passes know of a target."""
    return Cpu(target, cache=None).facts


def _what(trace: BitTrace) -> str:
    functions = [*([plural(len(trace.steps), "step")] if trace.steps else []), *trace.outputs]
    return " and ".join(functions)
