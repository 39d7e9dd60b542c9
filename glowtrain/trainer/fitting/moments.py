"""What callbacks are told, and which of them want to know what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glowtrain.errors import InputError
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.trainer.history import Record
    from glowtrain.trainer.steps import Steps

EVENTS = "on_train_begin", "on_batch_end", "on_epoch_end", "on_train_end"
"""Methods of objects that are callbacks; each is called with a :class:`Moment`. The last one is called whatever ends
``fit``, an error and Ctrl-C among them, and after the best parameters are back."""


def _nobody(reason: str) -> None:
    """A moment outside of ``fit``: there is nothing to stop."""


@dataclass(frozen=True)
class Moment:
    """What a callback is told; it may change hyperparameters of the ``trainer``, save it and take gradients.

    ``batch`` counts from 1, ``batches`` is how many an epoch has, None where a source of batches does not say;
    ``inputs`` are the batch's arrays by name, after a batch; at the end of an epoch, ``record`` is its record, to which
    a callback may add numbers. ``stop`` ends training, after this batch, for a reason.
    """

    trainer: Steps
    epoch: int
    batch: int
    batches: int | None
    loss: float
    record: Record | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)
    stop: Callable[[str], None] = _nobody


Callback = Callable[[Moment], None] | Any
"""A function that is called after each batch and each epoch, or an object with some of the methods :data:`EVENTS`. In a
fleet each rank calls its own, and only the first those that say ``writes = True``."""


class Callbacks:
    """Callbacks by what they are called for. Raises :class:`InputError` for what is none."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.hooks: dict[str, list[Callable[[Moment], None]]] = {event: [] for event in EVENTS}
        if not isinstance(callbacks, Iterable):
            raise InputError(f"fit: callbacks takes a list, not {kind_of(callbacks)}")
        for callback in callbacks:
            methods = {event: getattr(callback, event) for event in EVENTS if hasattr(callback, event)}
            if isinstance(callback, type):
                methods = {}  # the class itself, and no object of it
            elif not methods and callable(callback):
                methods = dict.fromkeys(("on_batch_end", "on_epoch_end"), callback)
            if not methods:
                raise InputError(
                    f"fit: a callback is a function of a Moment, or an object with {', '.join(EVENTS[:-1])} or "
                    f"{EVENTS[-1]}, not {kind_of(callback)}"
                )
            for event, method in methods.items():
                self.hooks[event].append(method)

    @property
    def of_batches(self) -> bool:
        """Whether anything is to be done after each batch."""
        return bool(self.hooks["on_batch_end"])

    def call(self, event: str, moment: Moment) -> None:
        """Call those of an event, in their order."""
        for hook in self.hooks[event]:
            hook(moment)
