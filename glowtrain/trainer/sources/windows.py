"""Batches of examples that are not in memory, or are changed on the way: made by threads while the step runs.

An epoch goes through the examples window by window. A window is some blocks of consecutive examples, drawn from all
over the data; its examples are shuffled among themselves. So a file is read in large pieces, of which a window's worth
is in memory (twice, for the next is read ahead), and which example comes when follows from seed and epoch alone:
neither batch size nor where a run goes on changes it. Examples that cost the same in any order have blocks of one, for
which this is the order of arrays in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from glowtrain import data
from glowtrain.datasets.stored import ExampleArray, StoredArray, take
from glowtrain.errors import BatchError, BindingError, DataError, InputError, ShapeError
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.sources.prefetch import Inline, Prefetched
from glowtrain.trainer.sources.source import BatchRow, EpochRows
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.trainer.sources.cut import ArraySource

Item = TypeVar("Item")

BLOCK = 1 << 18
"""Bytes of consecutive examples that are read at once: of a disk's time, seeking is a small part then."""
WINDOW = 96 * BLOCK
"""Bytes of a window of such blocks: below 32 MiB, from which on C's allocator would map new pages for each."""
ROW = 1 << 20
"""Bytes of the batches that are handed over at once, where there are several; of a window where blocks are of one."""
AHEAD = 2
"""Rows that are made ahead where nobody says how many."""


class EpochOrder:
    """The order in which an epoch takes ``count`` examples, in windows of so many ``blocks`` of ``block`` examples."""

    def __init__(self, count: int, block: int, blocks: int, *, seed: int, epoch: int, shuffle: bool) -> None:
        self.count, self.block, self.per_window = count, block, blocks
        self.key = np.array([seed, epoch], np.uint64)
        self.mixes = shuffle and block > 1
        every = -(-count // block)
        self.blocks = data.epoch_order(every, seed=seed, epoch=epoch) if shuffle else np.arange(every)
        sizes = np.minimum(block, count - self.blocks * block)
        self.ends = np.cumsum(np.add.reduceat(sizes, np.arange(0, every, blocks)))
        """Where each window ends in the order."""

    def find(self, position: int) -> int:
        """The window that a position of the order is in."""
        return int(np.searchsorted(self.ends, position, side="right"))

    def window(self, number: int) -> Array:
        """The numbers of a window's examples, in their order."""
        blocks = self.blocks[number * self.per_window : (number + 1) * self.per_window]
        numbers = (blocks[:, None] * self.block + np.arange(self.block)).reshape(-1)
        numbers = numbers[numbers < self.count]
        if not self.mixes:
            return numbers
        words = np.random.Philox(key=self.key, counter=[0, 0, 0, number + 1]).random_raw(len(numbers))
        mixed: Array = numbers[data.ascending(words)]
        return mixed


@dataclass(frozen=True)
class ReadWindow:
    """The examples from position ``begin`` of an epoch's order on: their numbers; of stored arrays what was read, by
    ascending numbers, and the index of each example in that."""

    begin: int
    numbers: Array
    read: Mapping[str, Array]
    indices: Array

    @property
    def end(self) -> int:
        return self.begin + len(self.numbers)

    def part(self, name: str, array: ExampleArray, begin: int, end: int) -> Array:
        """Examples of an array, between positions of the order, as far as they are in the window."""
        part = slice(max(0, begin - self.begin), max(0, end - self.begin))
        if name in self.read:
            return np.take(self.read[name], self.indices[part], axis=0)
        return take(array, self.numbers[part])


class WindowRows(EpochRows):
    """The rest of an epoch, whose rows hold several batches where these are small."""

    def __init__(self, source: ArraySource, position: Position) -> None:
        self.source = source
        self.position = position
        self.stored = {name: array for name, array in source.arrays.items() if isinstance(array, StoredArray)}
        self.order = self._order()
        size = sum(array.nbytes // len(array) for array in self._plain()) + self._stored_bytes
        self.per_row = max(1, ROW // max(1, size * source.batch_size))
        self._row: BatchRow | None = None
        self._begin = position.batch
        ahead = AHEAD if source.prefetch is None else source.prefetch
        self._rows = _begun(self._read(position.batch), ahead, source.check)

    @property
    def _stored_bytes(self) -> int:
        return sum(array.example_bytes for array in self.stored.values())

    def _plain(self) -> list[Array]:
        return [array for array in self.source.arrays.values() if not isinstance(array, StoredArray)]

    def _order(self) -> EpochOrder:
        source, size = self.source, max(1, self._stored_bytes)
        sequential = any(array.sequential for array in self.stored.values())
        block = max(1, BLOCK // size) if sequential else 1
        blocks = max(1, (WINDOW if sequential else ROW) // (block * size))
        return EpochOrder(
            source.examples, block, blocks, seed=source.seed, epoch=self.position.epoch, shuffle=source.shuffle
        )

    def close(self) -> None:
        self._rows.close()

    def next(self, batch: int, most: int) -> BatchRow | None:
        while self._row is None or batch >= self._begin + self._row.count:
            self._begin += 0 if self._row is None else self._row.count
            with self._naming(self._begin, "from batch {} on"):
                taken = self._rows.take(1)
            if not taken:
                return None
            (self._row,) = taken
        if self.source.cuts is None:
            return self._row.part(batch - self._begin, most)
        row = self._row.part(batch - self._begin, 1)
        own = self.source.cuts(row.size)
        return BatchRow({name: array[own] for name, array in row.arrays.items()}, 1, row.size)

    def naming(self, batch: int) -> AbstractContextManager[None]:
        return self._naming(batch, "batch {}")

    @contextmanager
    def _naming(self, batch: int, where: str) -> Iterator[None]:
        epoch = self.position.epoch + 1 if self.source.training else None
        where = ("" if epoch is None else f"epoch {epoch}, ") + where.format(batch + 1)
        try:
            yield
        except BatchError:
            raise
        except (DataError, InputError, BindingError, ShapeError) as error:
            raise BatchError(f"{where}: {error}", batch + 1, epoch) from error

    def _read(self, batch: int) -> Generator[BatchRow, None, None]:
        """Rows from a batch on."""
        source, size = self.source, self.source.batch_size
        first = self.order.find(batch * size - batch * size % source.group)
        windows = _begun(self._windows(first), 1 if self.stored and source.prefetch != 0 else 0)
        held: deque[ReadWindow] = deque()
        with closing(windows):
            while batch < source.batches:
                count = max(1, min(self.per_row, source.whole - batch))
                begin, end = batch * size, min((batch + count) * size, source.examples)
                yield BatchRow(self._examples(windows, held, begin, end), count, min(size, end - begin))
                batch += count

    def _windows(self, number: int) -> Generator[ReadWindow, None, None]:
        """The windows from a number on, read."""
        begin = int(self.order.ends[number - 1]) if number else 0
        for each in range(number, len(self.order.ends)):
            numbers = self.order.window(each)
            ascending = np.sort(numbers)
            read = {name: array.read(ascending) for name, array in self.stored.items()}
            yield ReadWindow(begin, numbers, read, np.searchsorted(ascending, numbers))
            begin += len(numbers)

    def _examples(
        self, windows: Prefetched[ReadWindow] | Inline[ReadWindow], held: deque[ReadWindow], begin: int, end: int
    ) -> dict[str, Array]:
        """The examples between two positions of the order, prepared in whole groups."""
        source = self.source
        first = begin - begin % source.group
        last = min(source.examples, end + -end % source.group)
        while held and held[0].end <= first:
            held.popleft()
        while not held or held[-1].end < last:
            held.extend(windows.take(1))
        arrays = {
            name: _joined([window.part(name, array, first, last) for window in held])
            for name, array in source.arrays.items()
        }
        if source.prepare is None:
            return arrays
        numbers = _joined([window.numbers[max(0, first - window.begin) : last - window.begin] for window in held])
        prepared = source.prepare(arrays, numbers, self.position.epoch)
        return {name: array[begin - first : end - first] for name, array in prepared.items()}


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _begun(
    items: Generator[Item, None, None], ahead: int, check: Callable[[], None] = lambda: None
) -> Prefetched[Item] | Inline[Item]:
    """The items of a generator, of which a thread makes so many ahead."""
    return Prefetched(items, ahead, ahead, check) if ahead else Inline(items)
