"""The interface of what gives batches: a source has epochs, an epoch has rows of batches.

    BatchSource --epoch(position)--> EpochRows --next(batch, most)--> BatchRow

A source of arrays can begin at any batch. One of a loader begins an epoch anew, and leaves out what was trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.types import Array, Shape


@dataclass(frozen=True)
class BatchRow:
    """``count`` batches of ``size`` examples each, one behind the other in arrays by input name.

    ``states``: what the source needs to go on behind each, if it has a state (:attr:`Position.source`).
    """

    arrays: dict[str, Array]
    count: int
    size: int
    states: tuple[Any, ...] = ()

    def first(self) -> BatchRow:
        """The first batch alone."""
        return self.part(0, 1)

    def part(self, begin: int, most: int) -> BatchRow:
        """At most so many of the batches, from the number ``begin`` on."""
        count = min(most, self.count - begin)
        if count == self.count:
            return self
        each = {name: len(array) // self.count for name, array in self.arrays.items()}
        arrays = {name: array[begin * each[name] : (begin + count) * each[name]] for name, array in self.arrays.items()}
        return BatchRow(arrays, count, self.size, self.states[begin : begin + count])

    def state_behind(self, batches: int) -> Any:
        """The source's state behind so many of them."""
        return self.states[batches - 1] if self.states and batches else None

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return sum(array.nbytes for array in self.arrays.values()) // self.count

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all arrays."""
        return tuple(array.shape for array in self.arrays.values())


class EpochRows(ABC):
    """The batches of an epoch, from where it was begun; ``with`` ends what makes them.

    ``state`` is what the source needs to begin the next epoch, if it has a state, once there are no more rows.
    """

    state: Any = None

    def __enter__(self) -> EpochRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what makes batches."""

    @abstractmethod
    def next(self, batch: int, most: int) -> BatchRow | None:
        """The row that begins with batch number ``batch`` (from 0), of at most ``most`` batches; None at the end.

        ``batch`` is that of the call before, or one of the following up to the end of its row. Raises
        :class:`BatchError` for a batch that cannot be made, or that does not fit.
        """

    def naming(self, batch: int) -> AbstractContextManager[None]:
        """Errors in this block (``with``) that a batch is at fault for say which, where they would not otherwise."""
        return nullcontext()


class BatchSource(ABC):
    """What gives batches of the same kind, epoch after epoch.

    ``batches``: how many an epoch has, None where that is not known before it ends. ``batch_size``: of all batches but
    a shorter last one; 0 where they come as they are.
    """

    batches: int | None
    batch_size: int
    cuts: Callable[[int], slice] | None = None
    """Which rows of a batch of so many are read, where not all are: those of a fleet's rank."""

    @abstractmethod
    def epoch(self, position: Position) -> EpochRows:
        """The rest of the epoch that a position is in."""
