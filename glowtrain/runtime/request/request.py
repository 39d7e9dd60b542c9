"""Requests: rows of examples, and the answer that will come.

A request has a number of rows: examples, of which a batch takes as many as it has room for. What is left waits for the
next batch, at the head of the queue. Results are put together row by row, so a request's answer is its own whatever
batches its rows were in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock, current_thread, main_thread
from typing import Any, Protocol

import numpy as np

from glowtrain.types import Array

Outputs = dict[str, Array]


class RequestFuture(Future[Any]):
    """The answer to a request that will come: a :class:`concurrent.futures.Future` that can be awaited, too."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = Lock()
        self._begun = False
        self.unwanted = False
        """Whether it was cancelled after it had begun."""

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call ``fn`` with this future when it is done. What it raises is logged, whatever it is: the thread that calls
        it has other answers to give."""
        super().add_done_callback(partial(_call, fn))

    def _invoke_callbacks(self) -> None:
        """Call the callbacks, and let go of them: they refer to this future, and Python keeps them in it for ever."""
        super()._invoke_callbacks()  # type: ignore[misc]
        self._done_callbacks.clear()  # type: ignore[attr-defined]

    def begin(self) -> bool:
        """From now on it cannot be cancelled. Whether that is so by this call, and it had not been cancelled."""
        with self._turn:
            if self._begun:
                return False
            self._begun = True
            return self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        """Cancel it, unless it has begun: then rows that are in no batch yet do not run, and it ends with
        ``CancelledError``. ``concurrent.futures.wait`` learns of it here: a request that is cancelled leaves its queue,
        so nobody would come to begin it."""
        cancelled = super().cancel()
        if cancelled:
            self.begin()
        self.unwanted = not cancelled
        return cancelled

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


def _call(fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        raise  # Python's future logs it
    except BaseException as error:
        if current_thread() is main_thread():  # an interrupt of the whole program
            raise
        raise RuntimeError(f"a callback raised {type(error).__name__}, which ends no thread of the runtime") from error


class Teller(Protocol):
    """Who is told of an answer, or an error, before anybody can see it."""

    def __call__(self, request: NetworkRequest, error: BaseException | None) -> None: ...


@dataclass(eq=False)
class NetworkRequest:
    """One call of a network: ``rows`` examples in ``inputs``, whose first axes are these rows if the network is
    batched; ``outputs`` that are asked for. Times are those of ``time.monotonic``; ``deadline`` is one. ``tell`` is
    called once if it ends without being cancelled. Threads may give it rows and errors at the same time."""

    inputs: Mapping[str, Array]
    rows: int
    outputs: tuple[str, ...]
    priority: int = 0
    deadline: float | None = None
    tell: Teller | None = None

    def __post_init__(self) -> None:
        self.future = RequestFuture()
        self.arrival = time.monotonic()
        self.began: float | None = None
        """When its first rows left the queue."""
        self.taken = 0
        """Rows that are in batches already."""
        self._lock = Lock()
        self._ended = False
        self._answered = 0
        self._results: Outputs = {}

    @property
    def patience(self) -> float:
        """The seconds from its arrival to its deadline."""
        return float("inf") if self.deadline is None else self.deadline - self.arrival

    @property
    def queued_rows(self) -> int:
        """Rows that are in no batch yet."""
        return self.rows - self.taken

    def start(self, now: float) -> bool:
        """It leaves the queue, or its first rows do. False if it was cancelled, or has been answered with an error."""
        if self.began is not None:
            return not self._ended
        if not self.future.begin():
            return False
        self.began = now
        return True

    def answer(self, begin: int, end: int, outputs: Mapping[str, Array]) -> bool:
        """Take the outputs of its rows from ``begin`` to before ``end``. True when that was the last of it."""
        own = {name: outputs[name] for name in self.outputs}
        if end - begin == self.rows:
            return self._end(own)
        with self._lock:
            if self._ended:
                return False
            self._results = self._results or _empty(self.rows, own)
            for name, result in self._results.items():
                result[begin:end] = own[name]
            self._answered += end - begin
            complete = self._answered == self.rows
        if self.future.unwanted and not complete:
            return self.fail(CancelledError())
        return complete and self._end(self._results)

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, unless it has an answer."""
        return self._end({}, error)

    def abandon(self, error: BaseException) -> None:
        """Answer with an error whatever state it is in: the thread that was to answer it was interrupted."""
        self._ended = True
        self.future.begin()
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def _end(self, outputs: Outputs, error: BaseException | None = None) -> bool:
        self.future.begin()  # it may be waiting still
        with self._lock:
            if self._ended or self.future.cancelled():
                return False
            self._ended = True
        if self.tell is not None:
            self.tell(self, error)
        if error is None:
            self.future.set_result(outputs)
        else:
            self.future.set_exception(error)
        return True


def _empty(rows: int, like: Outputs) -> Outputs:
    return {name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in like.items()}


@dataclass(frozen=True)
class Segment:
    """The rows of a request from ``begin`` to before ``end``."""

    request: NetworkRequest
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin
