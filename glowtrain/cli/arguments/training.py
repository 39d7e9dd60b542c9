"""What training options mean: how long a run is, an optimizer with its schedule, the step that is compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import typer

from glowtrain import losses, optim
from glowtrain.cli.arguments.options import OPTIMIZER, SCHEDULES, TRAINING
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.lower.own_updates import residuals_for
from glowtrain.memory.budget import budget_of
from glowtrain.memory.residuals import checked_type
from glowtrain.modes.training_and_inference import make_trainable
from glowtrain.optim import OPTIMIZERS, Optimizer, Schedule
from glowtrain.stages import Facts, Options
from glowtrain.trainer.graphs import TrainerGraphs, optimizer_variables
from glowtrain.trainer.micro_batches.split import MicroBatches, checked_count

FINAL_FACTOR = 0.01
"""Where an exponential schedule ends, as a factor on the learning rate."""


@dataclass(frozen=True)
class RunLength:
    """How long a run is: epochs, of batches of a size."""

    epochs: int
    batch_size: int
    drop_last: bool

    def batches(self, examples: int) -> int:
        """The batches of all epochs over so many examples."""
        whole, rest = divmod(examples, self.batch_size)
        return self.epochs * (whole + (rest > 0 and not self.drop_last))


def require_train(context: typer.Context, *, train: bool, others: Collection[str] = ()) -> None:
    """Raise :class:`InputError` where options of training, or ``others``, are given without ``--train``.

    ``--untie`` is none of them: it says how a file is read.
    """
    options = [each for each in context.command.params if each.name and each.name != "untie"]
    training = [each for each in options if each.name in others or _panel(each) in (TRAINING, OPTIMIZER)]
    given = [each.opts[0] for each in training if is_given(context, each.name)]
    if given and not train:
        raise InputError(f"{', '.join(given)}: nothing is trained without --train")


def step_options(micro_batches: int, residuals: str | None, *, train: bool) -> list[str]:
    """Which of the options are given that are those of a step, such as parts of a batch. Ends as wrong usage where
    nothing is trained."""
    given = {"--residuals": residuals is not None, "--micro-batches": micro_batches > 1}
    found = [name for name, is_there in given.items() if is_there]
    if found and not train:
        raise typer.BadParameter(f"{found[0]} are those of a training step (--train)", param_hint=found[0])
    return found


def is_given(context: typer.Context, name: str | None) -> bool:
    """Whether an option stands on the command line, be it with its default."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def _panel(option: object) -> str | None:
    return getattr(option, "rich_help_panel", None)


def optimizer_of(name: str, schedule: Schedule | None = None, **settings: Any) -> Optimizer:
    """An optimizer by its name; settings that are None keep their defaults.

    Raises :class:`InputError` for an unknown optimizer, and for a setting that it does not have.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; choose from {', '.join(OPTIMIZERS)}")
    given = {key: value for key, value in settings.items() if value is not None}
    known = [field.name for field in dataclasses.fields(OPTIMIZERS[name])]
    unknown = [f"--{key.replace('_', '-')}" for key in given if key not in known]
    if unknown:
        raise InputError(f"{name} has no {', '.join(unknown)}; it has {', '.join(known)}")
    return OPTIMIZERS[name](schedule=schedule, **given)


def schedule_of(name: str, updates: int, warmup: int) -> Schedule | None:
    """A schedule over ``updates`` updates, the first ``warmup`` of them with a rising rate; None if it is constant.

    ``step`` divides the rate by 10 after each third; ``exponential`` ends at 1 % of it. Raises :class:`InputError`.
    """
    if name not in SCHEDULES:
        raise InputError(f"there is no schedule {name!r}; choose from {', '.join(SCHEDULES)}")
    if warmup >= updates and warmup:
        raise InputError(f"--warmup {warmup} is not shorter than the run of {updates} updates")
    rest = updates - warmup
    after: dict[str, Schedule] = {
        "constant": optim.Constant(),
        "cosine": optim.Cosine(rest),
        "step": optim.Step(every=max(1, math.ceil(rest / 3))),
        "exponential": optim.Exponential(gamma=FINAL_FACTOR ** (1 / max(1, rest))),
    }
    if warmup:
        return optim.Warmup(warmup).then(after[name])
    return None if name == "constant" else after[name]


def step_graphs(
    graph: Graph, loss: str, output: str | None, trainable: list[str], optimizer: str, momentum: float | None,
    micro_batches: int = 1,
) -> TrainerGraphs:  # fmt: skip
    """The graphs that ``train`` would compile for a graph."""
    rule = optimizer_of(optimizer, momentum=momentum)
    return TrainerGraphs(
        graph, losses.by_name(loss, output), rule, trainable or None, 0, unbiased=False, micro_batches=micro_batches
    )


def compile_options(
    graph: Graph, facts: Facts, memory: str | None, residuals: str | None, *, fixed_point: bool = False
) -> Options:
    """What ``train`` and ``bundle`` compile a model or a step with. Raises :class:`InputError`."""
    saved = residuals_for(graph, checked_type(residuals))
    return Options(facts=facts, fixed_point=fixed_point, memory=budget_of(memory), residuals=saved)


def parts_of_batches(given: str) -> MicroBatches:
    """The parts of a batch, from text. Raises :class:`InputError`."""
    return checked_count(int(given) if given.isdecimal() else given)


def kept_for_updates(step: Graph, graph: Graph) -> set[str]:
    """The names of the variables that an optimizer has in a step of a graph; none of the graph itself."""
    return set() if step is graph else optimizer_variables(step, make_trainable(graph))
