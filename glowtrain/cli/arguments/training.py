"""What training options mean: how long a run is, an optimizer with its schedule, the step that is compiled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from glowtrain import optim
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.options import OPTIMIZER, SCHEDULES
from glowtrain.cli.terminal.records import Given
from glowtrain.compiler.service import options_for
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.losses.choose import losses_in
from glowtrain.memory.resources import TRAINING
from glowtrain.modes.training_and_inference import make_trainable
from glowtrain.optim import OPTIMIZERS, Optimizer, Schedule
from glowtrain.settings import setting, values_of
from glowtrain.stages import Facts, Options
from glowtrain.trainer.graphs import TrainerGraphs, default_batch, optimizer_variables
from glowtrain.trainer.settings import TrainingSpec

FINAL_FACTOR = 0.01
"""Where an exponential schedule ends, as a factor on the learning rate."""


@dataclass(frozen=True)
class LossOptions:
    """What is minimised."""

    loss: options.Loss = field(default_factory=list)
    output: str | None = setting(
        None, "The model output that the loss compares (the first).", metavar="NAME", panel=TRAINING
    )

    @property
    def named(self) -> Loss:
        """The loss. Raises :class:`InputError` for an unknown one."""
        return losses_in(self.loss or [options.LOSS], self.output)

    @property
    def texts(self) -> tuple[str, ...]:
        """The loss in a form that says all of it."""
        prefix = "" if self.output is None else f"{self.output}="
        return tuple(prefix + text for text in self.loss or [options.LOSS])

    def default(self, texts: Collection[str]) -> LossOptions:
        """These options, or if nothing is said another loss, where there is one."""
        return self if self.loss or self.output else replace(self, loss=list(texts))


@dataclass(frozen=True)
class OptimizerOptions:
    """An optimizer; what is None keeps its default."""

    optimizer: str = setting("adam", f"{', '.join(OPTIMIZERS)}.", metavar="O", choices=OPTIMIZERS, panel=OPTIMIZER)
    lr: float | None = setting(None, "Learning rate (the optimizer's default).", metavar="R", panel=OPTIMIZER)
    momentum: float | None = setting(None, "For sgd, rmsprop and muon.", metavar="M", panel=OPTIMIZER)
    nesterov: bool = setting(False, "For sgd with momentum.", panel=OPTIMIZER)
    beta1: float | None = setting(None, "For adam and its kind, and lion.", metavar="B", panel=OPTIMIZER)
    beta2: float | None = setting(None, "For adam and its kind, and lion.", metavar="B", panel=OPTIMIZER)
    eps: float | None = setting(None, "For all but sgd and lion.", metavar="E", panel=OPTIMIZER)
    amsgrad: bool = setting(False, "For adam and adamw.", panel=OPTIMIZER)
    weight_decay: float | None = setting(None, "Weight decay (decoupled in adamw).", metavar="R", panel=OPTIMIZER)
    no_decay: Sequence[str] = setting(
        (), "Parameters that are not decayed, e.g. '*.bias' (repeatable).", metavar="PATTERN", type=list[str],
        panel=OPTIMIZER,
    )  # fmt: skip
    clip_norm: float | None = setting(None, "Clip gradients to this global norm.", metavar="C", panel=OPTIMIZER)
    clip_value: float | None = setting(None, "Clip each gradient element.", metavar="C", panel=OPTIMIZER)
    accumulate: int = setting(1, "Average gradients of K batches for an update.", metavar="K", least=1, panel=OPTIMIZER)

    def rule(self, schedule: Schedule | None = None) -> Optimizer:
        """The optimizer. Raises :class:`InputError` for an unknown one, and for a setting that it does not have."""
        switches = {name: getattr(self, name) or None for name in ("nesterov", "amsgrad")}
        settings = values_of(self) | switches | {"no_decay": tuple(self.no_decay) or None}
        return optimizer_of(settings.pop("optimizer"), schedule, **settings)


@dataclass(frozen=True)
class ScheduleOptions:
    """How the learning rate changes over a run."""

    schedule: str = setting(
        "constant", f"{', '.join(SCHEDULES)}, over the whole run.", metavar="S", choices=SCHEDULES, panel=OPTIMIZER
    )
    warmup: int = setting(0, "Raise the rate over the first N updates.", metavar="N", least=0, panel=OPTIMIZER)

    def over(self, batches: int, accumulate: int) -> Schedule | None:
        """The schedule of a run of so many batches, ``accumulate`` of which make an update. Raises
        :class:`InputError`."""
        return schedule_of(self.schedule, max(1, batches // accumulate), self.warmup)


def batches_in(model: Graph | Template, examples: int, fit: Given) -> int:
    """The batches of a run over so many examples, with the settings of :meth:`Trainer.fit`."""
    size = default_batch(model) if fit["batch_size"] is None else fit["batch_size"]
    whole, rest = divmod(examples, size)
    return int(fit["epochs"] * (whole + (rest > 0 and not fit["drop_last"])))


def require_train(context: typer.Context, *, train: bool, others: Collection[str] = ()) -> None:
    """Raise :class:`InputError` where options of training, or ``others``, are given without ``--train``.

    ``--untie`` is none of them: it says how a file is read.
    """
    options = [each for each in context.command.params if each.name and each.name != "untie"]
    training = [each for each in options if each.name in others or _panel(each) in (TRAINING, OPTIMIZER)]
    stated = [each.opts[0] for each in training if is_set(context, each.name)]
    if stated and not train:
        raise InputError(f"{', '.join(stated)}: nothing is trained without --train")


def is_set(context: typer.Context, name: str | None) -> bool:
    """Whether an option stands on the command line, be it with its default."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def _panel(option: object) -> str | None:
    return getattr(option, "rich_help_panel", None)


def optimizer_of(name: str, schedule: Schedule | None = None, **settings: Any) -> Optimizer:
    """An optimizer by its name; settings that are None keep their defaults.

    Raises :class:`InputError` for an unknown optimizer, and for a setting that it does not have.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    known = [field.name for field in dataclasses.fields(optim.by_name(name))]
    unknown = [f"--{key.replace('_', '-')}" for key in given if key not in known]
    if unknown:
        raise InputError(
            f"{name} has no {', '.join(unknown)}; it has {', '.join(name for name in known if name != 'schedule')}"
        )
    return optim.by_name(name, schedule=schedule, **given)


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
        "linear": optim.Linear(rest),
        "onecycle": optim.OneCycle(rest),
        "step": optim.Step(every=max(1, math.ceil(rest / 3))),
        "exponential": optim.Exponential(gamma=FINAL_FACTOR ** (1 / max(1, rest))),
    }
    if warmup:
        return optim.Warmup(warmup).then(after[name])
    return None if name == "constant" else after[name]


@dataclass(frozen=True)
class Compilation:
    """What is compiled of a graph, which ``train`` would compile so, too: its training step, of the ``graphs`` of one,
    or the graph itself."""

    graphs: TrainerGraphs | None
    step: Graph
    options: Options


def compilation_of(
    graph: Graph, facts: Facts, loss: LossOptions, optimizer: OptimizerOptions, settings: Given, *, train: bool
) -> Compilation:
    """The step of a graph, or the graph, and how it is compiled. Raises :class:`InputError`."""
    spec = TrainingSpec(graph, loss.named, optimizer.rule(), **settings)
    graphs = TrainerGraphs(spec) if train else None
    step = graph if graphs is None else graphs.step_of(graph)
    return Compilation(graphs, step, options_for(step, spec, facts))


def optimizer_state_names(step: Graph, graph: Graph) -> set[str]:
    """The names of the variables that an optimizer has in a step of a graph; none of the graph itself."""
    return set() if step is graph else optimizer_variables(step, make_trainable(graph))
