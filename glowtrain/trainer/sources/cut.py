"""Batches cut out of arrays: in an order that is a function of seed and epoch, from any position on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glowtrain import data
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.sources.source import BatchRow, BatchSource, EpochRows
from glowtrain.trainer.sources.windows import WindowRows
from glowtrain.types import Array

Prepare = Callable[[dict[str, Array], Array, int], dict[str, Array]]
"""Changes examples, given their numbers and the epoch's, before a step takes them."""


class ArraySource(BatchSource):
    """Mini-batches of ``size`` examples of arrays that :func:`~glowtrain.data.check_examples` accepts.

    ``drop_last`` leaves out a short last one. ``steps``: no more batches than these in an epoch. Examples that are not
    in memory, and such that are to be prepared, are made by threads, ``prefetch`` rows ahead (0: when they are needed);
    while one is waited for, ``check`` is called. ``group``: examples that are prepared together, from multiples of it.
    """

    batches: int

    def __init__(
        self,
        arrays: Mapping[str, ExampleArray],
        size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        steps: int | None = None,
        prepare: Prepare | None = None,
        group: int = 1,
        prefetch: int | None = None,
        check: Callable[[], None] = lambda: None,
        training: bool = False,
    ) -> None:
        self.arrays = arrays
        self.batch_size = size
        self.seed = seed
        self.shuffle = shuffle
        self.prepare = prepare
        self.group = group
        self.prefetch = prefetch
        self.check = check
        self.training = training
        self.examples = data.count_examples(arrays)
        whole, rest = divmod(self.examples, size)
        self.batches = min(whole + (rest > 0 and not drop_last), steps or self.examples)
        self.whole = min(whole, self.batches)
        """Batches that are not short."""

    def epoch(self, position: Position) -> EpochRows:
        if self.prepare is not None or any(isinstance(array, StoredArray) for array in self.arrays.values()):
            return WindowRows(self, position)
        return ArrayRows(self, position.epoch)


class ArrayRows(EpochRows):
    """The rows of an epoch, whose batches lie one behind the other once they are gathered."""

    def __init__(self, source: ArraySource, epoch: int) -> None:
        self.source = source
        self.order = data.epoch_order(source.examples, seed=source.seed, epoch=epoch) if source.shuffle else None

    def close(self) -> None:
        """Nothing was begun."""

    def next(self, batch: int, most: int) -> BatchRow | None:
        source = self.source
        if batch >= source.batches:
            return None
        start = batch * source.batch_size
        size = min(source.batch_size, source.examples - start)
        if source.cuts is not None:
            own = source.cuts(size)
            rows = slice(start + own.start, start + own.stop)
            return BatchRow(data.examples(source.arrays, self.order, rows), 1, size)
        count = max(1, min(most, source.whole - batch))
        return BatchRow(data.examples(source.arrays, self.order, slice(start, start + count * size)), count, size)
