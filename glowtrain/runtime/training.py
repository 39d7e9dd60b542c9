"""Training on devices: steps as requests, prepared while others run, on one device or on several at once.

On several devices a batch is cut into equal parts (:mod:`glowtrain.grad.data_parallel`). Each device has all variables;
it computes the gradients of its parts, and when all of them are there, the update from all gradients, in the same order
everywhere. So the devices have the same variables to the bit, those of one device which accumulates as many gradients.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock
from typing import Any

from glowtrain.errors import DeviceLostError, InputError, NonFiniteError, QueueFullError, UnavailableError
from glowtrain.grad.training import LOSS
from glowtrain.presentation.messages import plural
from glowtrain.runtime.checks import seconds
from glowtrain.runtime.deadline import NEVER, Deadline, in_threads
from glowtrain.runtime.placement.replica import NetworkPlacement
from glowtrain.runtime.request.request import RequestFuture
from glowtrain.runtime.training_parts import StepRunner, check_part, run_part
from glowtrain.trainer import Trainer
from glowtrain.types import Array


@dataclass(eq=False)
class TrainingStep:
    """One step to be made: the batch, the hyperparameters at the time it was asked for, and the loss that will come."""

    arrays: Mapping[str, Array]
    hyper: Mapping[str, Array]

    def __post_init__(self) -> None:
        self.future = RequestFuture()
        self.results: dict[str, Array] = dict(self.hyper)
        """What the update takes, as far as it is there."""
        self.waiting = 0
        """Functions that this step waits for."""
        self._lock = Lock()

    def arrived(self, results: Mapping[str, Array]) -> bool:
        """One function has run; whether it was the last that the step waits for."""
        with self._lock:
            self.results |= results
            self.waiting -= 1
            return not self.waiting


class TrainingNetwork:
    """A trainer's steps on devices; made by :meth:`HostManager.add_training`.

    Variables are on the devices until :meth:`finish` gives them back to the trainer. Steps are made one after the
    other, in the order in which they were asked for; while one runs the next batch can be prepared.
    """

    def __init__(
        self,
        name: str,
        trainer: Trainer,
        batch_size: int,
        parts: int,
        placements: Sequence[NetworkPlacement],
        queue: int,
        gone: Callable[[TrainingNetwork], None],
    ) -> None:
        """``gone`` is told when it has left its devices."""
        self.name = name
        self.trainer = trainer
        self.batch_size = batch_size
        self.limit = queue
        self.parts = parts
        self.ended = False
        """Whether it has left its devices."""
        self._gone = gone
        self._placements = list(placements)
        devices, cut = len(placements), parts > 1
        self._runners = [
            StepRunner(placement, range(n, parts, devices) if cut else ()) for n, placement in enumerate(placements)
        ]
        self._changed = Condition()
        self._queue: deque[TrainingStep] = deque()
        self._running: TrainingStep | None = None
        self._stopped: Exception | None = None
        self._differ = False
        """Whether devices have different variables."""

    def renew(self, why: str) -> None:
        """In a child of fork, which has no devices."""
        self._changed = Condition()
        self._queue.clear()
        self._running, self._stopped = None, self._stopped or UnavailableError(why)

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self, batch: Mapping[str, Any]) -> RequestFuture:
        """Ask for a step on a batch, by input name; the answer is its loss, from before the update.

        The answer is :class:`NonFiniteError` for a loss that is NaN or infinite, which updates nothing. Raises
        :class:`InputError` for a batch that does not fit, :class:`QueueFullError` naming the limit, and
        :class:`UnavailableError` after a device was lost.
        """
        step = TrainingStep(self._checked(batch), dict(self.trainer.hyper.inputs))
        self._check_feeds(step)
        with self._changed:
            self._check_going()
            if len(self._queue) >= self.limit:
                raise QueueFullError(
                    f"training {self.name}: {plural(self.limit, 'step')} wait already, which is the limit"
                )
            self._queue.append(step)
        self._begin_next()
        return step.future

    def fit(self, batches: Iterable[Mapping[str, Any]], *, ahead: int = 2) -> list[float]:
        """Steps on all batches, of which up to ``ahead`` are prepared while one runs; their losses.

        Raises what :meth:`step` and its answers do, and what the batches' source raises, after the steps before it.
        """
        if type(ahead) is not int or not 0 <= ahead < self.limit:
            raise InputError(f"ahead is a number of batches from 0 to {self.limit - 1}, not {ahead!r}")
        self._check_thread("fit")
        losses: list[float] = []
        waiting: deque[RequestFuture] = deque()
        for batch in batches:
            waiting.append(self.step(batch))
            while len(waiting) > ahead:
                losses.append(waiting.popleft().result())
        return losses + [future.result() for future in waiting]

    def _checked(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        arrays = self.trainer.signature.checked(batch)
        wrong = {name: len(array) for name, array in arrays.items() if array.ndim and len(array) != self.batch_size}
        if wrong:
            found = ", ".join(f"{name!r} has {rows}" for name, rows in wrong.items())
            raise InputError(f"training {self.name} has batches of {plural(self.batch_size, 'example')}: {found}")
        return {name: array.copy() for name, array in arrays.items()}  # whoever asks may write to theirs meanwhile

    def _check_feeds(self, step: TrainingStep) -> None:
        """Raise :class:`InputError` for what a device could not compute with, indices out of range among it."""
        for runner in self._runners:
            for number, function in runner.parts.items():
                check_part(function, self._own(step, number))
            if not runner.parts:
                check_part(runner.update, {**step.arrays, **step.hyper})

    def _own(self, step: TrainingStep, number: int) -> dict[str, Array]:
        """What a part takes of a batch."""
        size = self.batch_size // self.parts
        rows = slice(number * size, (number + 1) * size)
        return {name: array[rows] if array.ndim else array for name, array in step.arrays.items()}

    def _begin_next(self) -> None:
        """Have the devices make the first step that was not cancelled, if none is being made."""
        while (step := self._next()) is not None:
            if step.future.begin():
                self._make(step)
                return
            with self._changed:
                self._running = None

    def _next(self) -> TrainingStep | None:
        with self._changed:
            if self._running is not None or not self._queue:
                self._changed.notify_all()
                return None
            self._running = self._queue.popleft()
            return self._running

    def _make(self, step: TrainingStep) -> None:
        parts = [(runner, number) for runner in self._runners for number in runner.parts]
        step.waiting = len(parts)
        for runner, number in parts:
            runner.submit(partial(self._gradients, step, runner, number), partial(self._lost, step))
        if not parts:
            self._update(step)

    def _gradients(self, step: TrainingStep, runner: StepRunner, number: int) -> None:
        """One part's gradients, on its device's thread."""
        try:
            results = run_part(runner.parts[number], self._own(step, number))
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001 - it is this step's, whatever it is; nothing has been updated
            self._ended(step, None, error)
            return
        if step.arrived(results):
            self._update(step)

    def _update(self, step: TrainingStep) -> None:
        """All gradients are there: update everywhere."""
        step.waiting = len(self._runners)
        for runner in self._runners:
            runner.submit(partial(self._updated, step, runner), partial(self._torn, step))

    def _updated(self, step: TrainingStep, runner: StepRunner) -> None:
        """The update on one device; the step ends with the last of them."""
        given = step.results if runner.parts else {**step.arrays, **step.results}
        try:
            results = run_part(runner.update, given)
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the update is not everywhere
            self._torn(step, DeviceLostError(f"the update failed on device {runner.manager.name}: {error}"))
            return
        if step.arrived({}):
            loss = float(results[LOSS])
            bad = None if math.isfinite(loss) else NonFiniteError(f"training {self.name}: the loss is {loss}")
            self._ended(step, loss, bad)

    def _torn(self, step: TrainingStep, error: DeviceLostError) -> None:
        """An update was made on some devices and not on others."""
        self._differ = len(self._runners) > 1
        self._lost(step, error)

    def _ended(self, step: TrainingStep, loss: float | None, error: Exception | None) -> None:
        with self._changed:
            if self._running is not step:
                return
            self._running = None
        if error is not None:
            step.future.set_exception(error)
        else:
            step.future.set_result(loss)
        self._begin_next()

    def _lost(self, step: TrainingStep, error: DeviceLostError) -> None:
        """A device is gone, and with it what it was to add: nothing goes on."""
        with self._changed:
            self._stopped = self._stopped or error
        waiting = self._taken()
        self._ended(step, None, error)
        _fail(waiting, error)

    def _taken(self) -> list[TrainingStep]:
        """The steps that wait, taken out."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        return waiting

    def _check_going(self) -> None:
        if self._stopped is not None:
            raise UnavailableError(f"training {self.name} takes no more steps: {self._stopped}")

    # --- variables ----------------------------------------------------------------------------------------------------

    def variables(self) -> dict[str, Array]:
        """All variables as they are after the steps asked for so far, by name.

        Raises :class:`UnavailableError` where no device is left that has them, :class:`InputError` in a callback of a
        step, which would wait for itself.
        """
        self._check_thread("variables")
        self._idle(None)
        if self.ended:
            raise UnavailableError(f"training {self.name} has left its devices: {self._stopped}")
        if self._differ:
            raise UnavailableError(
                f"training {self.name}: not all devices made the last update; go back to a checkpoint"
            )
        for placement in self._placements:
            ((manager, variables),) = placement.variables.values()
            if manager.lost is None:
                return manager.call(variables.read_all, f"reading variables of {self.name}")
        raise UnavailableError(f"training {self.name}: no device is left that has its variables")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all steps have been made; False where that takes longer than ``timeout`` seconds. Raises
        :class:`InputError` in a callback of a step."""
        self._check_thread("wait")
        return self._idle(None if timeout is None else seconds("timeout", timeout))

    def _check_thread(self, what: str) -> None:
        """Raise :class:`InputError` on the thread of a device, which has yet to make the steps that are waited for."""
        if any(runner.manager.on_thread for runner in self._runners):
            raise InputError(
                f"{what} was called by a device's own thread, which makes the steps: it would wait for itself; in a "
                "callback of a step use another thread"
            )

    def _idle(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None and not self._queue, timeout)

    def finish(self) -> None:
        """Wait for all steps, give the trainer its variables, and leave the devices. Raises what :meth:`variables`
        does; the devices are left all the same."""
        self._check_thread("finish")
        try:
            self.trainer.set_variables(self.variables())
        finally:
            problems = self.close("it is finished")
        for problem in problems:
            raise problem

    def close(self, why: str, *, drain: bool = True, deadline: Deadline = NEVER) -> list[Exception]:
        """Make the steps that wait (or, without ``drain``, fail them) until a deadline, and leave the devices; what
        these did not do. Variables that nobody has asked for are gone."""
        error = UnavailableError(f"training {self.name}: {why}")
        with self._changed:
            self._stopped = self._stopped or UnavailableError(why)
        if not drain or not self._idle(deadline.left):
            _fail(self._taken(), error)
            self._idle(deadline.left)  # what runs ends by itself
        placements, self._placements, self.ended = self._placements, [], True
        self._gone(self)
        return in_threads([placement.release for placement in placements], deadline)


def _fail(steps: Iterable[TrainingStep], error: Exception) -> None:
    for step in steps:
        if step.future.begin():
            step.future.set_exception(error)
