"""The loop over epochs and batches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain import trainer as training
from glowtrain.data import Dataset, check_examples, count_examples, split
from glowtrain.datasets.augment import as_augmentations
from glowtrain.datasets.stored import ExampleArray
from glowtrain.errors import BatchError, CheckpointError, InputError, NonFiniteError
from glowtrain.fleet.digest import SAMPLED, digest
from glowtrain.metrics.base import Direction
from glowtrain.presentation.messages import plural, unknown
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.checkpoints.files import check_writable
from glowtrain.trainer.feed import Data, comes_in_batches, held_out, native, validation_of
from glowtrain.trainer.fitting.interrupts import Breakable, Interrupts, Terminated
from glowtrain.trainer.fitting.moments import Callbacks, Moment
from glowtrain.trainer.fitting.pace import Pace
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.fleets import TrainerFleet
from glowtrain.trainer.history import History, Record, TrainingLog, check_plot
from glowtrain.trainer.micro_batches.split import check_batches
from glowtrain.trainer.sources.cut import ArraySource
from glowtrain.trainer.sources.loader import READ_ONCE, LoaderSource, loader_of
from glowtrain.trainer.sources.prepare import Preparation
from glowtrain.trainer.sources.source import BatchRow, BatchSource, EpochRows
from glowtrain.trainer.sources.tensors import array_of
from glowtrain.trainer.steps import Steps
from glowtrain.types import Array, Shape


class Fit:
    """One call of :meth:`Trainer.fit`: data, options, and what is written on the way; ``resumed``: it goes on from its
    checkpoint."""

    def __init__(self, trainer: Steps, spec: FitSpec, *, resumed: bool) -> None:
        self.trainer, self.fleet = trainer, trainer.fleet
        self.options = spec = self.fleet.local_spec(spec) if self.fleet else spec
        self.resumed = resumed
        self.checkpoint = None if spec.checkpoint is None else Path(spec.checkpoint)
        self.size = trainer.signature.batch_size(spec.batch_size)
        self.interrupts = Interrupts()
        self.callbacks = Callbacks(spec.callbacks)
        self.stopped = ""
        """Why a callback wants training to end, if one does."""
        self.target = spec.epochs if resumed else trainer.position.epoch + spec.epochs
        self.labelled: dict[str, ExampleArray] | None = None
        """The arrays that are trained on."""
        examples, validation = self._split(*self._weighted(spec))
        self.source = self._source(examples, validation)
        self.validation = self._validation(examples, validation)
        if self.fleet is not None:
            self._check_fleet(self.fleet)
        saving = spec.checkpoint is not None, spec.checkpoint_every
        self.saves, self.every = self.fleet.from_first(lambda: saving) if self.fleet else saving
        """Whether there is a checkpoint, and after how many batches it is written, too; in a fleet, on rank 0."""
        self.better = self._direction(spec.monitor)
        self.batches = self.source.batches
        self._check_position()
        self._check_outputs()
        log = None if spec.log is None else Path(spec.log)
        self.log = TrainingLog(log, done=trainer.position.epoch if resumed else None)
        self.prepared: set[tuple[Shape, ...]] = set()
        """Shapes of batches that the step is compiled for."""
        self.pace = Pace()
        of_batches = self.callbacks.of_batches
        self.told_of_batches = self.fleet.any_of(of_batches) if self.fleet else of_batches
        """Whether there is anything to do after each batch; in a fleet, on any rank."""

    @property
    def position(self) -> Position:
        return self.trainer.position

    @property
    def history(self) -> History:
        return self.trainer.history

    def run(self) -> History:
        """Train to the target epoch, until patience runs out, or until something is wrong."""
        try:
            return self._run()
        finally:
            self._call("on_train_end", self.history.last.get("loss", math.nan))

    def _run(self) -> History:
        done = self.position.epoch * (self.batches or 0) + self.position.batch
        total = None if self.batches is None else self.target * self.batches
        self.history.stopped = self._nothing_to_do() or _done(self.target)
        with self.interrupts, training.progress.Display(self.options.progress, total, done) as display:
            self._begin(display)
            try:
                if self.labelled is not None:
                    self.trainer.count_labels(self.labelled)
                self._call("on_train_begin", math.nan)
                while self.position.epoch < self.target and not (self._out_of_patience() or self._told_to_stop()):
                    self._epoch(display)
            except (KeyboardInterrupt, Terminated):
                self._interrupted(display)
                raise
            except NonFiniteError as error:
                where = f" (epoch {self.position.epoch + 1}, batch {self.position.batch + 1})"
                error.args = (f"{error}{where}; {self._last_good()}",)  # the same error, by which a fleet knows it
                raise
            except BatchError as error:
                if error.epoch is None:
                    raise
                raise BatchError(f"{error}; {self._last_good()}", error.batch, error.epoch) from error.__cause__
        if self.fleet is not None:
            self.fleet.gather()
        if self.options.restore_best:
            self._take_best()
        if self.options.plot is not None:
            self.history.plot(Path(self.options.plot))
        return self.history

    def _take_best(self) -> None:
        """Go back to the parameters of the best epoch, and say which that is."""
        self.trainer.use_best()
        if 0 < (since := self._epochs_without_progress) < len(self.history):
            best = self.history.records[-1 - since]["epoch"]
            self.history.stopped += f", back to the parameters of epoch {best:.0f}"

    def _begin(self, display: training.progress.Display) -> None:
        """Say how a restored run goes on."""
        notes = [self.history.resumed] if self.resumed else []
        if isinstance(self.source, LoaderSource):
            notes.append(self.source.going_on(self.position))
        if self.trainer.restored:
            self.history.resumed = "; ".join(filter(None, notes))
        self.trainer.restored = False
        for text in filter(None, notes):
            display.say(text)

    def _epoch(self, display: training.progress.Display) -> None:
        """The rest of the present epoch, and what comes at its end."""
        self.position.batch_size = self.source.batch_size
        began, before = time.perf_counter(), self.position.examples
        if self.fleet is not None:
            self.fleet.step.times.restart()
        with self.source.epoch(self.position) as rows:
            compiling = self._batches(rows, display, began)
            if self.stopped and self._in_the_middle():
                self._checkpoint()
                return
            self.trainer.position.source = rows.state
        seconds = time.perf_counter() - began - compiling
        record = self._record()
        record |= {"seconds": seconds, "examples_per_second": (self.position.examples - before) / max(seconds, 1e-9)}
        self._end_epoch(record, display)

    def _batches(self, rows: EpochRows, display: training.progress.Display, began: float) -> float:
        """Train on the batches of an epoch; the seconds of compiling, which count in no epoch's."""
        epoch, before, compiling = self.position.epoch, self.position.examples, 0.0
        while not self.stopped:
            row = rows.next(self.position.batch, self._most)
            if self.fleet is not None and not self.source.cuts:
                name = f"batch {self.position.batch + 1} of epoch {epoch + 1}"
                self.fleet.check_whole(name, None if row is None else row.arrays)
            if row is None:
                break
            with rows.naming(self.position.batch):
                own = row if self.fleet is None or self.source.cuts else self.fleet.cut(row)
                compiling += self._prepare(own)
                done, loss = self._steps(own)
            seconds = time.perf_counter() - began - compiling
            rate = (self.position.examples - before) / max(seconds, 1e-9)
            display.batches(done, epoch + 1, self.target, loss, rate)
            if self.told_of_batches:
                self._call("on_batch_end", loss, inputs=row.first().arrays)
            self._between_batches()
        return compiling

    def _prepare(self, row: BatchRow) -> float:
        """Compile the step for batches of new shapes; the seconds that took."""
        began, first = time.perf_counter(), row.first()
        if first.shapes not in self.prepared:
            self.trainer.prepare(first.arrays)
            self.prepared.add(first.shapes)
            self.pace.batch_bytes = first.nbytes
            if self.fleet is not None:
                self.fleet.step.times.resume()
        return time.perf_counter() - began

    def _steps(self, row: BatchRow) -> tuple[int, float]:
        """Train on the next batches; how many, and the loss of the last."""
        try:
            return self._steps_at_once(row)
        except InputError:
            if row.count == 1:
                raise
        return self._steps_at_once(row.first())  # those before the bad one first, whose own error says where it is

    def _steps_at_once(self, row: BatchRow) -> tuple[int, float]:
        began = time.perf_counter()
        if self.fleet is not None:
            self.fleet.step.request = self.interrupts.requested or 0
        with Breakable(self.trainer):
            measured = self.trainer.run(row.arrays, row.count, row.size)
            source = row.state_behind(len(measured.losses))
            masses = self.fleet.step.masses if self.fleet else self.trainer.loss.mass(row.arrays, row.count)
            self.trainer.position = self.position.after(measured.losses, measured.metrics, row.size, source, masses)
        if measured.bad is not None:
            raise self.trainer.non_finite(*measured.bad)
        self.pace.went(len(measured.losses), time.perf_counter() - began)
        return len(measured.losses), measured.losses[-1]

    @property
    def _most(self) -> int:
        """How many batches to run in the next call at most: up to where something else is to be done."""
        if self.callbacks.of_batches or self.fleet:
            return 1
        batch, every = self.position.batch, self.every
        return self.pace.batches if every is None else min(self.pace.batches, every - batch % every)

    def _between_batches(self) -> None:
        every = self.every
        if every is not None and self.position.batch % every == 0 and self.position.batch != self.batches:
            self._checkpoint()
        if self.fleet is None:
            self.interrupts.check()
        else:  # what any rank was sent before the step, all obey behind it
            self.interrupts.obey(self.fleet.step.request)

    def _check_waiting(self) -> None:
        """Obey a signal while a batch is waited for; in a fleet, only behind the next step, as all do."""
        if self.fleet is None:
            self.interrupts.check()

    def _record(self) -> Record:
        position = self.position
        record: Record = {"epoch": position.epoch + 1, "loss": position.loss_sum / position.counted}
        means = {name: total / position.counted for name, total in position.metric_sums.items()}
        record |= {f"train_{name}": value for name, value in self.trainer.graphs.measures.finish(means).items()}
        record["lr"] = self.trainer.scheduled_rate
        if self.validation is not None:
            with self.fleet.spreading() if self.fleet else nullcontext():
                found = self._validated(self.validation)
            record |= {f"val_{name}": value for name, value in found.items()}
        return record

    def _validated(self, validation: dict[str, ExampleArray] | LoaderSource) -> dict[str, Any]:
        """The loss and metrics on the validation data."""
        if not isinstance(validation, LoaderSource):
            return self.trainer.evaluate(validation, batch_size=self.size, drop_last=self.options.drop_last)
        try:
            return self.trainer.measure(validation)
        except BatchError as error:
            where = f"validation of epoch {self.position.epoch + 1}"
            raise BatchError(f"{where}, {error}", error.batch) from error.__cause__

    def _end_epoch(self, record: Record, display: training.progress.Display) -> None:
        batches = self.position.batch
        self.history.records.append(record)
        self.trainer.position = Position(self.position.epoch + 1, source=self.position.source)
        if self.options.restore_best and self._epochs_without_progress == 0:
            self.trainer.keep_best()
        if self.fleet is not None:
            self.fleet.gather()  # for callbacks that save
        self._call("on_epoch_end", record["loss"], batch=batches, record=record)  # the checkpoint has what they change
        self.log.add(record)
        self._checkpoint()
        display.epoch(record, self.target, str(self.fleet.step.times) if self.fleet else "")

    def _out_of_patience(self) -> bool:
        patience = self.options.patience
        if patience is None or self._epochs_without_progress < patience:
            return False
        self.history.stopped = f"no progress in {patience} epochs"
        return True

    @property
    def _epochs_without_progress(self) -> int:
        return self.history.epochs_without_progress(self.options.min_delta, self.options.monitor, self.better)

    def _direction(self, monitor: str | None) -> Direction:
        """Whether more or less of an entry of records is better. Raises :class:`InputError` for one that they will not
        have."""
        if monitor is None:
            return "min"
        graphs, training = self.trainer.graphs, self.trainer.spec.measured_in_steps
        validation = self.validation is not None
        entries = graphs.measures.entries(graphs.inference_example, training=training, validation=validation)
        if problem := unknown([monitor], entries, "entry", "they have"):
            raise InputError(f"fit: monitor: records have {problem}")
        if (direction := entries[monitor]) is None:
            raise InputError(f"fit: monitor: {monitor!r} is no number, or gt.metrics.custom(better=) says no direction")
        return direction

    def _checkpoint(self) -> None:
        if self.saves and self.fleet is not None:
            self.fleet.gather()
        if self.checkpoint is not None:
            self._check_finite()
            self.trainer.save(self.checkpoint)

    def _check_finite(self) -> None:
        """An update can overflow where the loss was still finite: that must not replace a good checkpoint."""
        for name, array in self.trainer.parameters().items():
            if name in self.trainer.graphs.parameters and not np.isfinite(array).all():
                raise NonFiniteError(
                    f"the update made parameter {name!r} NaN or infinite, though the loss was finite; "
                    f"{self.checkpoint} is not written over. Lower the learning rate or clip the gradients"
                )

    def _call(
        self, event: str, loss: float, *, batch: int | None = None, record: Record | None = None,
        inputs: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        """Tell callbacks of an event. At the end of an epoch that one is the last that is done."""
        epoch = self.position.epoch + (record is None)
        number = self.position.batch if batch is None else batch
        self.callbacks.call(
            event,
            Moment(self.trainer, epoch, number, self.batches, loss, record, inputs or {}, self._stop),
        )
        if self.fleet is not None and event != "on_train_end":
            self.stopped = self.fleet.any_of(self.stopped)
        if self.fleet is not None and event == "on_epoch_end":
            self.fleet.check_same({"variables": self.trainer.digest})

    def _stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def _told_to_stop(self) -> bool:
        """Whether a callback wants training to end."""
        if self.stopped:
            self.history.stopped = self.stopped
        return bool(self.stopped)

    def _in_the_middle(self) -> bool:
        """Whether batches of the epoch are left, as far as is known."""
        return self.batches is None or self.position.batch < self.batches

    def _interrupted(self, display: training.progress.Display) -> None:
        """Keep what there is: the state is whole between steps, and the checkpoint on disk is whole in any case."""
        where = f"interrupted in epoch {self.position.epoch + 1} after batch {self.position.batch}"
        where += "" if self.batches is None else f" of {self.batches}"
        self.history.stopped = where
        if self.saves and self.trainer.whole:
            self._checkpoint()
        if self.checkpoint is not None and self.trainer.whole:
            where += f"; {self.checkpoint} holds everything up to there: resume to go on"
        elif self.checkpoint is not None:
            where += f"; {self.checkpoint} is as it was"
        elif self.trainer.whole:
            where += "; the parameters are those of that moment"
        display.say(where)

    def _nothing_to_do(self) -> str:
        """Why no epoch is left to train, if none is."""
        done = self.position.epoch
        if not self.resumed or done < self.target:
            return ""
        asked = "they were" if done == self.target else f"{self.target} were"
        return f"the checkpoint's run has {plural(done, 'epoch')} already, and {asked} asked for"

    def _last_good(self) -> str:
        where = "the parameters are from before it"
        if self.checkpoint is not None and self.checkpoint.exists():
            return f"{where}, and {self.checkpoint} holds the last good checkpoint"
        return where

    def _weighted(self, spec: FitSpec) -> tuple[Data, Data | float | None]:
        """The examples with their weights, and the validation data. Raises :class:`InputError`."""
        examples, validation = native(spec.examples), native(spec.validation)
        if spec.sample_weight is None:
            return examples, validation
        if (optional := self.trainer.graphs.optional) is None:
            raise InputError("fit: sample_weight= needs gt.Trainer(..., sample_weight=True), whose loss takes weights")
        if comes_in_batches(examples):
            raise InputError("fit: sample_weight= is of arrays; batches that come one by one have weights of their own")
        own = isinstance(examples, Dataset) and examples.valid and validation is None
        arrays = self.trainer.signature.named(examples)
        weighted = arrays | {optional: array_of(optional, spec.sample_weight)}
        check_examples(weighted, "fit")
        return weighted, held_out(examples) if own else validation

    def _split(self, examples: Data, validation: Data | float | None) -> tuple[Data, Data | None]:
        """The examples without those that are held out, and these. Raises :class:`InputError`, :class:`DataError`."""
        if not isinstance(validation, (int, float)):
            return examples, validation
        if comes_in_batches(examples):
            raise InputError("fit: a part of arrays can be held out for validation, and not of batches that come so")
        signature = self.trainer.signature
        arrays = signature.named(examples)
        targets = [name for name in signature.names[1] if name != self.trainer.graphs.optional]
        labels = [name for name in targets if arrays[name].dtype.kind in "iu" and arrays[name].ndim == 1]
        by = labels[0] if len(labels) == 1 else None
        return split(arrays, validation, seed=self.trainer.spec.seed, by=by)

    @property
    def _facts(self) -> dict[str, str]:
        """What must be the same on all ranks of a fleet, beside the trainer's own."""
        held = {"data": self.source.arrays if isinstance(self.source, ArraySource) else None}
        held["validation"] = None if isinstance(self.validation, LoaderSource) else self.validation
        return {name: digest(arrays, SAMPLED) for name, arrays in held.items() if arrays is not None}

    def _check_fleet(self, fleet: TrainerFleet) -> None:
        """Have each rank read its own rows, of data that are the same on all. Raises :class:`InputError`,
        :class:`FleetError`."""
        if isinstance(self.source, ArraySource):
            fleet.check_batch(min(self.size, self.source.examples))
            self.source.cuts = fleet.rows
        fleet.check_same(self.trainer.facts | self._facts)
        fleet.agreed = True

    def _source(self, examples: Data, validation: Data | None) -> BatchSource:
        """The batches to train on. Raises :class:`InputError` if there are none, or they cannot be trained on."""
        options, signature = self.options, self.trainer.signature
        if not comes_in_batches(examples):
            arrays = signature.named(examples)
            self.labelled = arrays
            signature.check_all(arrays, self.size, drop_last=options.drop_last)
            parts, count = self.trainer.spec.micro_batches, count_examples(arrays)
            check_batches(parts, self.size, count, drop_last=options.drop_last)
            return self._cut(arrays)
        if self.trainer.loss.balanced:
            self.trainer.balance(examples)  # which refuses
        if options.augment:
            raise InputError("fit: augment= is for arrays, images and shards; batches are augmented by what makes them")
        for_arrays = validation is not None and not comes_in_batches(validation)
        source = loader_of(
            examples, signature, None if for_arrays else options.batch_size, steps=options.steps_per_epoch,
            prefetch=options.prefetch, drop_last=options.drop_last, check=self._check_waiting, training=True,
            keeps_state=self.checkpoint is not None, restored=self.trainer.restored,
        )  # fmt: skip
        self._check_read_once(source, "fit", "; or say how many batches an epoch has (steps_per_epoch=)")
        return source

    def _cut(self, arrays: dict[str, ExampleArray]) -> ArraySource:
        """Batches of arrays, as many as there are to be."""
        options, size = self.options, self.size
        augmentations = as_augmentations(options.augment)
        prepare = None
        if augmentations:
            prepare = Preparation(self.trainer.signature, augmentations, self.trainer.spec.seed)
            prepare.check(arrays)
        source = ArraySource(
            arrays, size, seed=self.trainer.spec.seed, shuffle=options.shuffle, drop_last=options.drop_last,
            steps=options.steps_per_epoch, prefetch=options.prefetch, check=self.interrupts.check, training=True,
            prepare=prepare, group=2 if augmentations else 1,
        )  # fmt: skip
        if not source.batches:
            raise InputError(f"fit: {source.examples} examples do not fill one batch of {size}, and drop_last=True")
        steps = options.steps_per_epoch or 0
        if source.batches < steps:
            has = f"{source.examples} examples are {source.batches} batches of {size}"
            raise InputError(f"fit: {has}, fewer than steps_per_epoch={steps}")
        return source

    def _validation(self, examples: Data, validation: Data | None) -> dict[str, ExampleArray] | LoaderSource | None:
        """The data to validate on. Raises :class:`InputError` for such that the model or its loss cannot take."""
        options, signature = self.options, self.trainer.signature
        if validation is not None and comes_in_batches(validation):
            source = loader_of(
                validation, signature, None, prefetch=options.prefetch, check=self.interrupts.check,
                drop_last=options.drop_last and signature.fixed_batch is not None,
            )  # fmt: skip
            self._check_read_once(source, "validation")
            return source
        arrays = validation_of(examples, validation, *signature.names, self.trainer.graphs.optional)
        if arrays is not None:
            signature.check_all(arrays, self.size, drop_last=options.drop_last)
        return arrays

    def _check_read_once(self, source: LoaderSource, what: str, otherwise: str = "") -> None:
        """Raise :class:`InputError` for a generator that would have to be read in several epochs."""
        epochs = self.target - self.position.epoch
        if source.read_once and source.steps is None and epochs > 1:
            raise InputError(
                f"{what}: a {type(source.data).__name__} can be read once only, but there are {epochs} epochs: "
                f"{READ_ONCE}{otherwise}"
            )

    def _check_position(self) -> None:
        """Raise :class:`CheckpointError` for a checkpoint from the middle of an epoch of other batches.

        In the same process, an epoch that was stopped over arrays begins anew over a loader, and the other way round.
        """
        before, now = self.position.batch_size, self.source.batch_size
        if not self.position.batch or before == now:
            return
        where = "the checkpoint is from the middle of an epoch"
        if before and now:
            raise CheckpointError(f"{where} in batches of {before}; go on with batch_size={before}, not {now}")
        kinds = f"arrays in batches of {before}" if before else "a loader's batches"
        if self.trainer.restored:
            raise CheckpointError(f"{where} over {kinds}; go on with {'these' if before else 'such'}")
        self.trainer.position = Position(self.position.epoch)

    def _check_outputs(self) -> None:
        """Find out before training whether the files can be written."""
        if self.checkpoint is not None:
            check_writable(self.checkpoint, self.trainer.nbytes)
        if self.options.plot is not None:
            check_plot(Path(self.options.plot))


def _done(epochs: int) -> str:
    return f"{plural(epochs, 'epoch')} {'is' if epochs == 1 else 'are'} done"
