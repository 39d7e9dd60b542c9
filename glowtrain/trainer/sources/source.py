"""The interface of what gives batches: a source has epochs, an epoch has rows of batches.

    BatchSource --epoch(position)--> EpochRows --next(batch, most)--> BatchRow

A source of arrays can begin at any batch. One of a loader begins an epoch anew, and leaves out what was trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType

from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.types import Array, Shape


@dataclass(frozen=True)
class BatchRow:
    """``count`` batches of ``size`` examples each, one behind the other in arrays by input name."""

    arrays: dict[str, Array]
    count: int
    size: int

    def first(self) -> BatchRow:
        """The first batch alone."""
        if self.count == 1:
            return self
        return BatchRow({name: array[: len(array) // self.count] for name, array in self.arrays.items()}, 1, self.size)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all arrays."""
        return tuple(array.shape for array in self.arrays.values())


class EpochRows(ABC):
    """The batches of an epoch, from where it was begun; ``with`` ends what makes them."""

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

        ``batch`` is the number after the batches that were trained on, in order.
        """


class BatchSource(ABC):
    """What gives the same kind of batches, epoch after epoch.

    ``batches``: how many an epoch has, None where that is not known before it ends. ``batch_size``: of all batches but
    a shorter last one; 0 where they come as they are. ``batch_bytes``: of the arrays of a batch, 0 if unknown.
    """

    batches: int | None
    batch_size: int
    batch_bytes: int

    @abstractmethod
    def epoch(self, position: Position) -> EpochRows:
        """The rest of the epoch that a position is in."""
