"""``glowtrain verify``: a model up the ladder of ever more compiled forms, and on other processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.backends.discovery import backend_for, backend_of
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import PREDICT, STEP, Contents, contents_of
from glowtrain.bundles.module import module_of
from glowtrain.bundles.verify.example_runner import PROGRAM, ExampleRunner
from glowtrain.bundles.verify.record import Record, check_against, record_of, require_same
from glowtrain.bundles.verify.trace import BitTrace, backend_like, trace_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.models import ModelFileOptions, as_graph
from glowtrain.cli.arguments.targets import TARGETS
from glowtrain.cli.arguments.training import LossOptions, OptimizerOptions, compilation_of, is_set, require_train
from glowtrain.cli.commands.bundle import batch_of
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import spinner
from glowtrain.cli.terminal.records import From, Given
from glowtrain.compiler.service import in_bytes, options_for
from glowtrain.errors import InputError
from glowtrain.graph import Template
from glowtrain.losses.classification import BALANCED
from glowtrain.presentation.messages import plural
from glowtrain.settings import setting
from glowtrain.stages import Facts, Options
from glowtrain.trainer.settings import TrainingSettings
from glowtrain.verification import ladder, random_inputs

Settings = Callable[[Facts], Options]
"""What bundles are compiled with for a processor of these facts."""
BATCH = 4
STEPS = 5
ELSEWHERE = "Other processors"
"""The panel of the options that compare with them."""


@dataclass(frozen=True)
class OtherProcessors:
    """Which processors are compared with this one, and how."""

    target: Sequence[str] = setting(
        (), f"Compare with a bundle for another processor (repeatable): {', '.join(TARGETS)}.", metavar="T",
        type=list[str], choices=TARGETS, panel=ELSEWHERE,
    )  # fmt: skip
    compiler: str | None = setting(None, "The C compiler for it.", flag="--cc", metavar="C", panel=ELSEWHERE)
    run: str = setting(PROGRAM, "What runs its programs, {} being one.", metavar="R", panel=ELSEWHERE)
    steps: int = setting(STEPS, "Of training.", metavar="N", least=1, panel=ELSEWHERE)
    record: Path | None = setting(None, "Write what this machine computes.", metavar="F", panel=ELSEWHERE)
    against: Path | None = setting(None, "Compare with what another machine recorded.", metavar="F", panel=ELSEWHERE)

    @property
    def requested(self) -> bool:
        """Whether there are any."""
        return bool(self.target or self.record or self.against)

    def check(self, context: typer.Context) -> None:
        """Raise :class:`InputError` for options of other processors where there are none."""
        if self.requested:
            return
        if self.compiler is not None or self.run != PROGRAM:
            raise InputError("--cc and --run are for a bundle: name its --target")
        if is_set(context, "steps"):
            raise InputError("--steps is for --target, --record and --against: the ladder compares one step")


@command
def verify(
    context: typer.Context,
    model: options.Model,
    file: ModelFileOptions,
    loss: LossOptions,
    optimizer: OptimizerOptions,
    settings: Annotated[Given, From(TrainingSettings, but=("threads", "seed", "metrics"))],
    others: OtherProcessors,
    train: options.WholeStep = False,
    backend: options.Backend = "cpu",
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Examples in a batch that the model leaves open ({BATCH}).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Fixes the inputs, which are drawn.")] = 0,
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
    others.check(context)
    if settings["class_weight"] == BALANCED:
        raise InputError("--class-weight balanced follows from labels, of which there are none: give numbers")
    file.import_modules()
    network = file.open(model)
    bound = batch_of(network, batch)
    graph = network.bind(bound) if bound and isinstance(network, Template) else as_graph(network, BATCH)
    if others.requested:
        chosen, rule = (loss.named, optimizer.rule()) if train else (None, None)
        own = TrainingSettings(**settings)
        contents = contents_of(graph, chosen, rule, own, {}, None)
        how = partial(options_for, contents.graphs[STEP if train else PREDICT], own)
        _compare_bits(contents.fixed(), how, others, seed)
        return
    facts = backend_of(backend).facts
    compiled = compilation_of(graph, facts, loss, optimizer, settings, train=train)
    with spinner("verifying") as progress:
        report = ladder(
            compiled.step, random_inputs(compiled.step, seed),
            backend=backend, options=compiled.options, progress=progress,
        )  # fmt: skip
    out.print(report)
    report.require()


def _compare_bits(contents: Contents, settings: Settings, others: OtherProcessors, seed: int) -> None:
    """Compare what this machine computes with bundles for other processors, and with a record."""
    targets = [Target.named(each) for each in others.target]
    runner, steps = ExampleRunner(others.compiler, others.run), others.steps
    recorded = others.record or others.against
    if len(targets) > 1 and recorded:
        raise InputError("--record and --against are of one arithmetic: give one --target at most")
    if recorded:
        trace = _here(contents, settings, targets[0] if targets else Target.host(), steps, seed)
        _recorded(contents, trace, seed, others.record, others.against)
    for target in targets:
        trace = _here(contents, settings, target, steps, seed)
        with spinner(f"computing for {target.name}"):
            module = module_of(contents, target, settings(backend_for(target).facts), holds_weights=True)
            there = runner.trace(module, steps, seed)
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
    with spinner("computing here"):
        how = in_bytes(contents.graphs, settings(backend_for(target).facts))
        return trace_of(contents, backend_like(target), steps, seed, options=how)


def _what(trace: BitTrace) -> str:
    functions = [*([plural(len(trace.steps), "step")] if trace.steps else []), *trace.outputs]
    return " and ".join(functions)
