"""Requests: rows of examples, and the answer that will come.

A request has a number of rows: examples, of which a batch takes as many as it has room for. What is left waits for the
next batch, at the head of the queue. Results are put together row by row, so a request's answer is its own whatever
batches its rows were in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.types import Array

Outputs = dict[str, Array]


class RequestFuture(Future[Any]):
    """The answer to a request that will come: a :class:`concurrent.futures.Future` that can be awaited, too."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


@dataclass(eq=False)
class Request:
    """One call of a network: ``rows`` examples in ``inputs``, whose first axes are these rows if the network is
    batched; ``outputs`` that are asked for. Times are those of ``time.monotonic``; ``deadline`` is one."""

    inputs: Mapping[str, Array]
    rows: int
    outputs: tuple[str, ...]
    priority: int = 0
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.future = RequestFuture()
        self.arrival = time.monotonic()
        self.began: float | None = None
        """When its first rows left the queue."""
        self.taken = 0
        """Rows that are in batches already."""
        self._answered = 0
        self._results: Outputs = {}

    def __lt__(self, other: Request) -> bool:
        """In heaps, whose entries are equal before it, never asked for."""
        return self.arrival < other.arrival

    @property
    def patience(self) -> float:
        """The seconds from its arrival to its deadline."""
        return float("inf") if self.deadline is None else self.deadline - self.arrival

    @property
    def waiting(self) -> int:
        """Rows that are in no batch yet."""
        return self.rows - self.taken

    def start(self, now: float) -> bool:
        """It leaves the queue, or its first rows do. False if it was cancelled, or has been answered with an error."""
        if self.began is not None:
            return not self.future.done()
        try:
            if not self.future.set_running_or_notify_cancel():
                return False
        except (InvalidStateError, RuntimeError):  # answered already
            return False
        self.began = now
        return True

    def answer(self, begin: int, end: int, outputs: Mapping[str, Array]) -> bool:
        """Take the outputs of its rows from ``begin`` to before ``end``. True when that was the last of it."""
        if end - begin == self.rows:
            return self._done({name: outputs[name] for name in self.outputs})
        if not self._results:
            self._results = {
                name: np.empty((self.rows, *outputs[name].shape[1:]), outputs[name].dtype) for name in self.outputs
            }
        for name, result in self._results.items():
            result[begin:end] = outputs[name]
        self._answered += end - begin
        return self._answered == self.rows and self._done(self._results)

    def _done(self, outputs: Outputs) -> bool:
        try:
            self.future.set_result(outputs)
        except InvalidStateError:  # it was too late
            return False
        return True

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, unless it has an answer."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True


@dataclass(frozen=True)
class Segment:
    """The rows of a request from ``begin`` to before ``end``."""

    request: Request
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin
