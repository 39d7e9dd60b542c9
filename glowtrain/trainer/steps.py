"""A model, a loss and an optimizer as one compiled step over one state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from glowtrain.backends.base import Batches
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.state import State
from glowtrain.compiler import Function, Specialisation
from glowtrain.compiler.service import options_for
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import InputError, NonFiniteError, UntrainedWarning
from glowtrain.fleet.digest import digest
from glowtrain.fleet.spec import FleetSpec
from glowtrain.grad.training import LOSS, STEP
from glowtrain.graph import Binding, Graph, Template
from glowtrain.memory.budget import Budget, check_variables
from glowtrain.modes.training_and_inference import inference
from glowtrain.modes.variables import with_values
from glowtrain.optim.per_parameter import average_name
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import listed, plural, unknown
from glowtrain.presentation.tables import Table
from glowtrain.settings import method_takes, values_of
from glowtrain.trainer.arrays import as_variables
from glowtrain.trainer.checkpoints import checkpoint as checkpoints
from glowtrain.trainer.checkpoints.checkpoint import Checkpoint, Position
from glowtrain.trainer.checkpoints.copies import Progress, check_settings, rebuild
from glowtrain.trainer.checkpoints.fingerprint import fingerprint
from glowtrain.trainer.checkpoints.resuming import resumed
from glowtrain.trainer.diagnose import first_bad
from glowtrain.trainer.evaluator import ModelEvaluator
from glowtrain.trainer.feed import Data, comes_in_batches
from glowtrain.trainer.fitting.interrupts import Breakable, Exclusive
from glowtrain.trainer.fleets import TrainerFleet, joined
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.history import History
from glowtrain.trainer.hyper import Hyper, schedule_factor
from glowtrain.trainer.micro_batches.within_budget import StepFunction
from glowtrain.trainer.settings import TrainingSpec
from glowtrain.trainer.summary import settings_of_trainer
from glowtrain.types import Array, type_of

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """What steps in a row have measured, each before its update: losses, and means that metrics follow from, by name.

    ``bad``: the loss of the next batch and its arrays, if that was NaN or infinite, which updated nothing.
    """

    losses: list[float]
    metrics: dict[str, list[float]]
    bad: tuple[float, dict[str, Array]] | None = None


class Steps(ModelEvaluator, Displayable):
    """A model, a loss and an optimizer as compiled functions over one state: all of a trainer but its loop.

    Arguments and attributes are those of :class:`~glowtrain.trainer.trainer.Trainer`.
    """

    @method_takes(TrainingSpec)
    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        fleet = joined(spec.fleet)
        threads = spec.threads if fleet is None or spec.threads is not None else fleet.threads
        resolved = backend_of(spec.backend, threads)
        graphs = TrainerGraphs(spec)
        graphs.check_metrics()
        self._example_step = graphs.example_step
        _check_room(self._example_step, spec.budget)
        _warn_of(graphs)
        self.options = options_for(self._example_step, spec, resolved.facts)
        """How a step is compiled."""
        initial = {**self._example_step.initial_values, **graphs.inference_example.initial_values}
        self.fleet = None if fleet is None else TrainerFleet(fleet, graphs, resolved, initial, self.options)
        state = self.fleet.state if self.fleet else State(initial)
        given = spec.backend if threads is None else resolved
        super().__init__(graphs, given, self._example_step, state, self.options.precision)
        self.optimizer = graphs.optimizer
        self.history = History()
        self.position = Position()
        self._exclusive = Exclusive(_IN_USE)
        self.whole = True
        """False while a step runs, and after one that was broken off."""
        self.restored = False
        """True from :meth:`restore` to the next epoch of ``fit``."""
        self.measured: dict[str, float] = {}
        """The metrics of the last step's batch, from before the update, where ``metrics`` asks for them."""
        self.hyper = Hyper(self.optimizer, self._example_step)
        self._step = self.fleet.step if self.fleet else StepFunction(graphs, resolved, state, self.options)
        self._began = self.optimizer.hyper()
        self._best: dict[str, Array] = {}
        self._binding: Binding | None = None

    def __repr__(self) -> str:
        """``<Trainer of mlp: 6 trained tensors, adam on cpu; 3 epochs done>``"""
        trained, done = plural(len(self.graphs.parameters), "trained tensor"), plural(self.position.epoch, "epoch")
        return f"<Trainer of {self.graphs.model.name}: {trained}, {self.optimizer.name} on {self.backend}; {done} done>"

    def _contents(self) -> Iterator[str | Table]:
        yield repr(self)[1:-1]
        yield Table(("", ""), settings_of_trainer(self))
        if self.history:
            yield from self.history._contents()

    # --- copies ------------------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What it was made of and how far it is: the step is compiled anew where it is read.

        Raises :class:`UnpicklableError` for a model, loss or optimizer that has no name at the top of a module.
        """
        settings = values_of(self.spec)
        check_settings(settings)
        return rebuild, (type(self), settings, self._progress)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The same model, loss and optimizer, which are immutable, with a state of its own."""
        return rebuild(type(self), values_of(self.spec), deepcopy(self._progress, memo))

    @property
    def _progress(self) -> Progress:
        """What steps have changed."""
        return Progress(
            self.variables(), dict(self.hyper), self._began, self.history, self.position, self._best, self._binding,
            self.whole,
        )  # fmt: skip

    def take(self, progress: Progress) -> None:
        """Go to where another trainer of the same settings is."""
        for name, array in progress.variables.items():
            self.state.write(name, array)
        self.hyper.update(progress.hyper)
        self._began = progress.began
        self.history = progress.history
        self.position = progress.position
        self._best = progress.best
        self._binding = progress.binding
        self.whole = progress.whole

    # --- one batch ---------------------------------------------------------------------------------------------------

    def step(self, inputs: Mapping[str, Any]) -> float:
        """Train on one batch, given by input name; the loss from before the update.

        Raises :class:`InputError` for wrong names, shapes, dtypes or labels, and :class:`NonFiniteError` if the loss is
        NaN or infinite: then nothing has been updated.
        """
        if self.fleet is None:
            return self._stepped_on(self._checked(inputs))
        with self.fleet.run("training"):
            if not self.fleet.agreed:
                self.fleet.check_same(self.facts | self.fleet.settings)
                self.fleet.agreed = True
            arrays = self._checked(inputs)
            self.fleet.check_whole("the batch", arrays)
            return self._stepped_on(arrays)

    def _stepped_on(self, arrays: dict[str, Array]) -> float:
        """Train on one batch."""
        with Breakable(self):
            outputs = self._step({**arrays, **self.hyper.inputs})
        loss = float(outputs[LOSS])
        if not math.isfinite(loss):
            raise self.non_finite(loss, arrays)
        means = {name: float(value) for name, value in outputs.items() if name != LOSS}
        self.measured = self.graphs.measures.finish(means)
        if self._binding is None:
            self._stepped(arrays)
        return loss

    def run(self, inputs: Mapping[str, Any], count: int, examples: int) -> Measured:
        """Train on ``count`` batches in a row, which lie one behind the other in the arrays by input name: to the same
        bits as :meth:`step` for each, in one call of the backend. Perhaps fewer, but at least one. In a fleet it is one
        batch, of ``examples`` on all ranks, of which the arrays have this rank's.

        Whoever counts the steps does so in the same :class:`Breakable` block. Raises :class:`InputError` as
        :meth:`step` does, for what is wrong with any of the batches, before the first.
        """
        arrays = self._checked(inputs)
        rows = {name: array for name, array in arrays.items() if array.ndim}
        shared = {name: array for name, array in arrays.items() if not array.ndim}
        batches = Batches(count, rows, {**shared, **self.hyper.inputs}, LOSS)
        outputs = self._ran(batches, examples)
        numbers = {name: array.astype(np.float64).tolist() for name, array in outputs.items()}
        losses, bad = numbers.pop(LOSS), None
        if not math.isfinite(losses[-1]):
            bad = losses.pop(), {name: batches[len(losses)][name] for name in arrays}
        metrics = {name: values[: len(losses)] for name, values in numbers.items()}
        if losses:
            self.measured = self.graphs.measures.finish({name: values[-1] for name, values in metrics.items()})
        if losses and self._binding is None:
            self._stepped(batches[0])
        return Measured(losses, metrics, bad)

    def _ran(self, batches: Batches, examples: int) -> dict[str, Array]:
        """The outputs of steps in a row; in a fleet of one step, of ``examples`` examples on all ranks."""
        if self.fleet is None:
            return self._step.run_many(batches)
        outputs = self.fleet.step.on_rows(batches[0], examples)
        return {name: array[np.newaxis] for name, array in outputs.items()}

    def balance(self, examples: Data) -> None:
        """Count the labels of some data, in arrays as for ``fit``, for weights of classes that are balanced. ``fit``
        counts those that it trains on. Raises :class:`InputError`."""
        if not self.loss.balanced:
            raise InputError("balance: the trainer's loss has no class_weight='balanced'")
        if comes_in_batches(examples):
            raise InputError(
                "class_weight='balanced' counts labels of arrays, not of batches that come one by one: "
                "give class_weight= numbers"
            )
        self.count_labels(self.signature.named(examples))

    def count_labels(self, examples: Mapping[str, ExampleArray]) -> None:
        """The same for arrays by input name, where anything is balanced."""
        arrays = {name: array for name, array in examples.items() if not isinstance(array, StoredArray)}
        for name, count in self.loss.balanced.items():
            self.state.write(name, count(self.graphs.example, arrays).astype(self.state.read(name).dtype))

    def _stepped(self, arrays: Mapping[str, Array]) -> None:
        """Take note of the first step."""
        self._binding = self._step.specialised(arrays).graph.binding

    def prepare(self, inputs: Mapping[str, Any]) -> None:
        """Compile the step for a batch's shapes now; :meth:`step` does so when it first meets them."""
        arrays = self.signature.arrays(inputs, self.graphs.names)
        if all(len(array) for array in arrays.values() if array.ndim):  # a rank may have none of a short batch's rows
            self._step.specialised(arrays)

    def gradients(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The gradient of the loss on one batch for each trained parameter, by name; nothing is updated."""
        return self._gradients(self._checked(inputs))

    @property
    def lr(self) -> float:
        """The learning rate, before a schedule: ``hyper["lr"]``."""
        return self.hyper["lr"]

    @lr.setter
    def lr(self, rate: float) -> None:
        self.hyper["lr"] = rate

    @property
    def scheduled_rate(self) -> float:
        """The learning rate of the last update that was made, with its schedule; of the first, before any was."""
        if self.optimizer.schedule is None:
            return self.lr
        updates = max(0, int(self.state.read(STEP)) - 1)
        return self.lr * schedule_factor(self.optimizer.schedule, updates, self.hyper)

    # --- results -----------------------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Array]:
        """Copies of the trainable parameters, frozen ones included, by name."""
        parameters = self._example_step.parameter_names
        return {name: self.state.read(name) for name in self._example_step.initial_values if name in parameters}

    def variables(self) -> dict[str, Array]:
        """Copies of the whole state by name: parameters, optimizer's slots, counters, running statistics."""
        return {name: self.state.read(name) for name in self.state.names}

    def gather(self) -> None:
        """In a fleet with ``sharded_optimizer``, bring the optimizer's state to rank 0, where it can be read and saved
        until the next update. All ranks call it; ``fit`` does so after each epoch and at its end."""
        if self.fleet is not None:
            with self.fleet.run("gathering the optimizer's state"):
                self.fleet.gather()

    def set_variables(self, values: Mapping[str, Any]) -> None:
        """Set some of :meth:`variables` by name: parameters of another model, say. The others stay.

        Raises :class:`InputError` for unknown names and other shapes; nothing has been set then.
        """
        if problem := unknown(values, self.state.names, "variable"):
            raise InputError(f"the trainer has {problem}")
        arrays = as_variables(values, {name: self.state.read(name) for name in values})
        for name, array in arrays.items():
            self.state.write(name, array)

    @contextmanager
    def averaged(self) -> Iterator[Self]:
        """The means that ``ema=`` keeps in place of the parameters, within the block (``with``): to evaluate, to
        predict, and as :meth:`model`, which is saved. Raises :class:`InputError` where none are kept."""
        if self.spec.ema is None:
            raise InputError("averaged: the trainer keeps no means of its parameters; make it with ema=0.999, say")
        names = {name: average_name(name) for name in self.graphs.chosen if average_name(name) in self.state.names}
        before = {name: self.state.read(name) for name in names}
        for name, mean in names.items():
            bounds = self.graphs.chosen[name]
            part = ... if bounds is None else tuple(slice(each.start, each.stop) for each in bounds)
            array = before[name].copy()
            array[part] = self.state.read(mean)
            self.state.write(name, array)
        try:
            yield self
        finally:
            for name, array in before.items():
                self.state.write(name, array)

    def model(self) -> Graph:
        """The model in inference form with the present parameters as initial values, under their names."""
        graph = inference(self._bound())
        return with_values(graph, {name: self.state.read(name) for name in graph.initial_values})

    @property
    def graph(self) -> Graph:
        """The whole training step, with the present state as initial values.

        For a model with symbolic dimensions: as bound by the first step's batch. It takes the batch at once, whatever
        ``micro_batches`` says.
        """
        return with_values(self.graphs.whole_step_of(self._bound()), self.variables())

    @property
    def compiled(self) -> Specialisation:
        """The step as it was compiled last, in the parts that ``micro_batches`` and the budget led to.

        Raises :class:`InputError` where nothing has been compiled yet.
        """
        return self._step.latest()

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return sum(self.state.sizes.values())

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, whole or not at all. Raises :class:`CheckpointError`."""
        checkpoints.write(Path(path), self._checkpoint())

    def restore(self, path: str | Path) -> None:
        """Take everything from a checkpoint of this run: training goes on as if it had not been interrupted.

        Hyperparameters that this trainer's optimizer was given take effect where the run began with others:
        ``Adam(lr=1e-4)`` goes on with that rate, ``Adam()`` with the run's own. ``history.resumed`` says so.

        Raises :class:`CheckpointError` if the file is broken or is of another model, loss, optimizer or seed; the
        trainer is then unchanged.
        """
        if self.fleet is not None:
            self.fleet.gather()
        found = self._on_first(partial(self._read, Path(path)))
        self.take(resumed(found, self.optimizer, self._binding, Path(path)))
        self.restored = True

    def _read(self, path: Path) -> Checkpoint:
        """A checkpoint of this run."""
        found = checkpoints.read(path)
        checkpoints.check_belongs(found, self._checkpoint(), path)
        return found

    def _on_first(self, make: Callable[[], T]) -> T:
        """What is made, in a fleet by rank 0 for all."""
        return make() if self.fleet is None else self.fleet.from_first(make)

    def keep_best(self) -> None:
        """Remember the present parameters and running statistics as the best."""
        self._best = {name: self.state.read(name) for name in self.graphs.inference_example.initial_values}

    def use_best(self) -> None:
        """Go back to the parameters that :meth:`keep_best` remembered."""
        for name, array in self._best.items():
            self.state.write(name, array)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self.variables(),
            self.spec.seed,
            self._fingerprint,
            self.position,
            dict(self.hyper),
            self._began,
            self.history.deterministic(),
            self._best,
        )

    @property
    def facts(self) -> dict[str, str]:
        """What must be the same on all ranks of a fleet."""
        return {**self._fingerprint, "hyperparameters": str(dict(self.hyper)), "variables": self.digest}

    @property
    def digest(self) -> str:
        """A checksum of the variables that each rank of a fleet has all of."""
        return digest(self.variables() if self.fleet is None else self.fleet.common)

    @cached_property
    def _fingerprint(self) -> dict[str, str]:
        """A fleet's shards belong to it, as each has random numbers and statistics of its own."""
        fleet = self.spec.fleet or FleetSpec(1)
        rounded = "" if fleet.gradients == "f32" else f", gradients in {fleet.gradients}"
        return {**fingerprint(self.graphs), "number of shards": f"{fleet.shards}{rounded}"}

    # --- functions compiled when first needed ------------------------------------------------------------------------

    @cached_property
    def _gradients(self) -> Function:
        return self._compiled(self.graphs.gradients())

    @cached_property
    def objective(self) -> Function:
        """The loss with its penalties and its gradients, of a whole data set."""
        return self._compiled(self.graphs.objective())

    def _bound(self) -> Graph:
        """The model as the first step bound it, else as it was given."""
        model = self.graphs.model
        if isinstance(model, Template) and self._binding is not None:
            return model.bound(self._binding)
        return self.graphs.example

    def non_finite(self, loss: float, arrays: Mapping[str, Array]) -> NonFiniteError:
        """The error for a batch that gave such a loss and updated nothing: it names the first value that went bad."""
        if self.fleet is not None:
            diagnosis = self.fleet.diagnosis(arrays, self.hyper.inputs, self.fleet.common)
            return self.fleet.raised_by_all(NonFiniteError(f"the loss is {loss}: {diagnosis}"))
        graph = self._step.specialised(arrays).graph
        diagnosis = first_bad(graph, graph.outputs[LOSS], {**arrays, **self.hyper.inputs}, self.variables())
        return NonFiniteError(f"the loss is {loss}: {diagnosis}")


def _warn_of(graphs: TrainerGraphs) -> None:
    """Warn of parameters that are to be trained, and that the loss does not depend on."""
    if names := graphs.untrained:
        warnings.warn(
            f"the loss of {graphs.model.name} does not depend on {listed(names)}, which stay as they are: several "
            "outputs have losses by their names, {'a': 'mse', 'b': ...}, or a sum; trainable= leaves parameters out",
            UntrainedWarning,
            stacklevel=4,
        )


def _check_room(step: Graph, budget: Budget) -> None:
    """Raise :class:`MemoryBudgetError` where the budget has no room for a step's variables alone."""
    needed = sum(type_of(initial).nbytes for initial in step.initial_values.values())
    check_variables(step.name, needed, budget.nbytes)


_IN_USE = (
    "fit: another call of fit runs on this trainer; wait until it returns, or give each a trainer of its own "
    "(copy.deepcopy(trainer))"
)
