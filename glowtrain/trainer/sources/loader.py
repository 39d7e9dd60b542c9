"""Batches of a loader, an iterable, or a function that returns one: read by a thread while the step runs.

An epoch reads a source from its beginning, and one that can be read once only (a generator) from where it is.

Where an epoch does not begin at its first batch, a source with a state (``state_dict``, ``load_state_dict``, as of
torchdata's StatefulDataLoader) is set to where it was; of any other the batches that were trained on are read and left
out.
"""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from glowtrain.errors import BatchError, BatchesWarning, BindingError, CheckpointError, InputError, ShapeError
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.signature import BatchSignature
from glowtrain.trainer.sources.prefetch import Inline, Prefetched
from glowtrain.trainer.sources.reading import BatchReader
from glowtrain.trainer.sources.source import BatchRow, BatchSource, EpochRows
from glowtrain.trainer.sources.states import decode, encode, has_state

PREFETCH = 2
"""Batches that are made ahead where nobody says how many; of those of short steps, which run many in a call, more."""

MOST = 64
"""Batches of a call at most, and so of those that are made ahead: enough for what a call costs not to matter."""

END = object()
"""In place of a batch: there are no more."""

READ_ONCE = "pass a list, a DataLoader or a function that returns a new iterator"
"""What to do where a source would have to be read again."""


class LoaderSource(BatchSource):
    """The batches of ``data``, which :func:`~glowtrain.trainer.feed.comes_in_batches`.

    ``steps``: how many batches an epoch has; without it, all there are. ``prefetch``: how many a thread makes ahead
    (:data:`PREFETCH`), 0 for none, and no thread. ``drop_last`` leaves out a last batch that is smaller than the first.
    ``training``: errors say in which epoch they are. ``keeps_state``: positions have the source's own state.
    ``restored``: the first epoch goes on with a checkpoint's run. While a batch is waited for, ``check`` is called.
    """

    batch_size = 0

    def __init__(
        self,
        data: Any,
        signature: BatchSignature,
        *,
        inputs_only: bool = False,
        steps: int | None = None,
        prefetch: int | None = None,
        drop_last: bool = False,
        training: bool = False,
        keeps_state: bool = False,
        restored: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.data = data
        self.steps = steps
        self.prefetch = prefetch
        self.drop_last = drop_last
        self.training = training
        self.check = check
        self.is_factory = callable(data) and not hasattr(data, "__iter__")
        self.read_once = not self.is_factory and hasattr(data, "__next__")
        self.stateful = has_state(data)
        self.keeps_state = keeps_state and self.stateful
        self.batches = steps if steps is not None else None if self.is_factory else length_of(data)
        self.fixed = None if inputs_only else signature.fixed_batch
        self.reader = BatchReader(signature, inputs_only=inputs_only, copies=not yields_new_arrays(data))
        self.restored = restored

    @property
    def repeats(self) -> bool:
        """Whether an epoch that is read again has the same batches, as far as can be seen."""
        if self.is_factory:
            return takes_the_epoch(self.data)
        return isinstance(self.data, Sequence) or reads_in_order(self.data) or bool(epoch_setters(self.data))

    @property
    def empty(self) -> str:
        """What is wrong with an epoch that has no batches."""
        if self.read_once:
            return f"the {type(self.data).__name__} is exhausted; {READ_ONCE}"
        return "the function must return a new iterator each time" if self.is_factory else "the data source is empty"

    def going_on(self, position: Position) -> str:
        """What is to be said of going on with a checkpoint's run; empty if its bits are those of one without a stop."""
        if not self.restored or not (position.epoch or position.batch) or self._loads(position) or self.repeats:
            return ""
        count = self._behind(position)
        left_out = f" without its first {count:,} {'batch' if count == 1 else 'batches'}" if count else ""
        return (
            f"going on in epoch {position.epoch + 1}: the data source has no state to restore, so it is read anew"
            f"{left_out}; only if it gives the same batches again will the bits be those of a run without a stop"
        )

    def epoch(self, position: Position) -> LoaderRows:
        restored, self.restored = self.restored, False
        return LoaderRows(self, position, self._left_out(position, restored), self._begun(position))

    def _left_out(self, position: Position, restored: bool) -> int:
        """Set the source to a position, if it has a state; the number of batches to leave out otherwise."""
        if self._loads(position) and (restored or position.batch):
            self._load(position.source)
            return 0
        return 0 if self.read_once and not restored else self._behind(position)

    def _loads(self, position: Position) -> bool:
        """Whether the source can be set to a position."""
        return self.stateful and position.source is not None

    def _behind(self, position: Position) -> int:
        """The batches that a source, read anew, gives before a position."""
        return position.batch + (position.epoch * (self.steps or 0) if self.read_once else 0)

    def _load(self, state: Any) -> None:
        try:
            self.data.load_state_dict(decode(state))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the data source does not take its state of the checkpoint ({error_line(error)}): it must be as it was"
            ) from error

    def _begun(self, position: Position) -> Iterator[Any]:
        """An iterator over an epoch's batches, made in the caller's thread: processes are better begun there."""
        try:
            iterable = self._iterable(position.epoch)
            for set_epoch in epoch_setters(iterable):
                set_epoch(position.epoch)
            return iter(iterable)
        except InputError:
            raise
        except Exception as error:
            raise self.error(position, 1, f"the data source cannot be read: {error_line(error)}") from error

    def _iterable(self, epoch: int) -> Any:
        if not self.is_factory:
            return self.data
        iterable = self.data(epoch=epoch) if takes_the_epoch(self.data) else self.data()
        if not hasattr(iterable, "__iter__"):
            raise InputError(f"the function must return an iterable of batches, not a {type(iterable).__name__}")
        return iterable

    def error(self, position: Position, batch: int, message: str) -> BatchError:
        """The error about a batch of an epoch, by its number from 1."""
        if not self.training:
            return BatchError(f"batch {batch}: {message}", batch)
        return BatchError(f"epoch {position.epoch + 1}, batch {batch}: {message}", batch, position.epoch + 1)


class LoaderRows(EpochRows):
    """An epoch's batches, one in a row, from behind ``left_out`` of those that the iterator gives."""

    def __init__(self, source: LoaderSource, position: Position, left_out: int, iterator: Iterator[Any]) -> None:
        self.source = source
        self.position = position
        self.left_out = left_out
        self.iterator: Iterator[Any] | None = iterator
        self.expected = source.steps if source.steps is not None else length_of(source.data)
        self.given = position.batch
        """Batches of the epoch that were read, also those that were left out."""
        self._rows = self._made_ahead(source.prefetch)
        self._waiting: deque[BatchRow] = deque()
        """Batches that were read, the first of them number ``begin``."""
        self._begin = position.batch

    def _made_ahead(self, prefetch: int | None) -> Prefetched[BatchRow] | Inline[BatchRow]:
        if prefetch == 0:
            return Inline(self._read())
        ahead, limit = (PREFETCH, MOST) if prefetch is None else (prefetch, prefetch)
        return Prefetched(self._read(), ahead, limit, self.source.check)

    def close(self) -> None:
        self._rows.close()

    def next(self, batch: int, most: int) -> BatchRow | None:
        for _ in range(batch - self._begin):
            self._waiting.popleft()
        self._begin = batch
        if not self._waiting:
            self._waiting.extend(self._rows.take(min(most, MOST)))
        if not self._waiting:
            self._check_end()
            return None
        return _stacked([row for row, _ in zip(_alike(self._waiting), range(most), strict=False)])

    def naming(self, batch: int) -> AbstractContextManager[None]:
        return self._naming(batch + 1)

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        try:
            yield
        except (InputError, BindingError, ShapeError) as error:
            raise self.source.error(self.position, number, str(error)) from error

    def _read(self) -> Generator[BatchRow, None, None]:
        """Rows of one batch each; then the iterator is closed, unless it is the person's own."""
        iterator, self.iterator = self.iterator, None
        assert iterator is not None
        try:
            self._leave_out(iterator)
            for number, row in self._without_short_last(self._taken(iterator)):
                if self.source.fixed not in (None, row.size):
                    raise self._error(number, self._unfit(row.size))
                yield row
            if self.source.keeps_state and self.source.steps is None:
                self.state = self._state(self.given)
        finally:
            if not self.source.read_once and hasattr(iterator, "close"):
                iterator.close()

    def _leave_out(self, iterator: Iterator[Any]) -> None:
        for number in range(1, self.left_out + 1):
            if self._pulled(iterator, number) is END:
                where = f"behind {self.left_out} batches, which were trained on"
                raise self._error(number, f"the data source ended, but the run goes on {where}")

    def _taken(self, iterator: Iterator[Any]) -> Iterator[tuple[int, BatchRow]]:
        """The batches as rows, with their numbers in the epoch."""
        while self.source.steps is None or self.given < self.source.steps:
            number = self.given + 1
            batch = self._pulled(iterator, number)
            if batch is END:
                return
            try:
                row = self.source.reader(batch)
            except InputError as error:
                raise self._error(number, str(error)) from error
            self.given = number
            yield number, replace(row, states=(self._state(number),)) if self.source.keeps_state else row

    def _without_short_last(self, rows: Iterator[tuple[int, BatchRow]]) -> Iterator[tuple[int, BatchRow]]:
        """The rows; with ``drop_last`` without a last one that is smaller than the first."""
        before = self.position
        first, held = before.examples // max(before.batch, 1), None
        for number, row in rows:
            if held is not None:
                yield held
            first = first or row.size
            held = (number, row) if self.source.drop_last and row.size < first else None
            if held is None:
                yield number, row

    def _pulled(self, iterator: Iterator[Any], number: int) -> Any:
        """The next batch as the source gives it, or :data:`END`."""
        try:
            return next(iterator, END)
        except Exception as error:
            raise self._error(number, f"the data source raised {error_line(error)}") from error

    def _state(self, number: int) -> Any:
        """The source's state behind a batch, as a checkpoint holds it."""
        try:
            return encode(self.source.data.state_dict())
        except Exception as error:
            raise self._error(number, f"the data source's state cannot be kept: {error_line(error)}") from error

    def _error(self, number: int, message: str) -> BatchError:
        return self.source.error(self.position, number, message)

    def _unfit(self, size: int) -> str:
        return (
            f"the model's batch is fixed at {self.source.fixed} and cannot take {size} examples: "
            "leave a last, short batch out with drop_last=True, or give the model a symbolic batch dimension"
        )

    def _check_end(self) -> None:
        """Raise :class:`BatchError` for an epoch that ended too early, and warn of one with more or fewer batches than
        ``len()`` said."""
        source, given = self.source, self.given
        if not given:
            raise self._error(1, source.empty)
        if source.steps is not None and given < source.steps:
            ended = f"the data source ended after {given} of steps_per_epoch={source.steps} batches"
            raise self._error(given + 1, ended)
        if self.expected is not None and given != self.expected:
            warnings.warn(
                f"the data source gave {given} batches, but its len() is {self.expected}", BatchesWarning, stacklevel=2
            )


def _alike(rows: Iterable[BatchRow]) -> Iterator[BatchRow]:
    """The first rows, as long as their arrays have the same shapes; the first alone if one is a number."""
    shapes = None
    for row in rows:
        if shapes is not None and (shapes != row.shapes or () in shapes):
            return
        shapes = row.shapes
        yield row


def _stacked(rows: Sequence[BatchRow]) -> BatchRow:
    """Rows of one batch each as one row."""
    if len(rows) == 1:
        return rows[0]
    arrays = {name: np.concatenate([row.arrays[name] for row in rows]) for name in rows[0].arrays}
    return BatchRow(arrays, len(rows), rows[0].size, sum((row.states for row in rows), ()))


def loader_of(data: Any, signature: BatchSignature, batch_size: int | None, **settings: Any) -> LoaderSource:
    """A :class:`LoaderSource`. Raises :class:`InputError` for a batch size, which is the loader's own."""
    if batch_size is not None:
        raise InputError("batch_size= is for arrays: batches of a loader or an iterable are taken as they are")
    return LoaderSource(data, signature, **settings)


def error_line(error: BaseException) -> str:
    """An error that someone else raised, in a line: of the many of a loader's process the last is its own."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {text}"


def length_of(data: Any) -> int | None:
    """How many batches a source says it has."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def takes_the_epoch(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter ``epoch``."""
    try:
        return "epoch" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def reads_in_order(loader: Any) -> bool:
    """Whether a loader reads a data set's examples in their order, as PyTorch's does without ``shuffle``."""
    names = [type(getattr(loader, part, None)).__name__ for part in ("batch_sampler", "sampler")]
    return names[0] in ("BatchSampler", "NoneType") and names[1] == "SequentialSampler"


def epoch_setters(iterable: Any) -> list[Callable[[int], Any]]:
    """``set_epoch`` of a loader and of what it draws from, as of PyTorch's DistributedSampler: order by epoch."""
    parts = (iterable, *(getattr(iterable, name, None) for name in ("sampler", "batch_sampler", "dataset")))
    return [part.set_epoch for part in parts if callable(getattr(part, "set_epoch", None))]


def yields_new_arrays(data: Any) -> bool:
    """Whether each batch has memory of its own for certain: those of a list.

    A generator may fill the same arrays again and again. Batches of a loader's processes lie in memory that these
    share: that is copied, so that the thread which reads waits for its pages and gives it back, and not the step.
    """
    return isinstance(data, Sequence)
