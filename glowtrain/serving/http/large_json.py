"""Large texts of JSON, in a process of their own.

Python's scanner keeps the interpreter's lock until it is through a text, a second for 30 MB: in whatever thread it
reads, all others of its process wait.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock
from typing import Any

from glowtrain.serving.http import messages
from glowtrain.serving.http.bodies import Body
from glowtrain.serving.requests import InferAnswer, InferRequest

LARGE = 1 << 18
"""Bytes of JSON, or about as many of numbers that are to become JSON, which take 10 ms."""
NUMBER = 16
"""About the bytes of a number in JSON."""


@dataclass(frozen=True)
class _Other:
    """The process, and this end of the line to it."""

    process: BaseProcess
    line: Connection


class JsonMessages:
    """Reads requests and writes answers; those of ``large`` texts in a process that begins with the first of them, one
    after another. It ends when it is closed, or when this process ends, however that does."""

    def __init__(self, large: int = LARGE) -> None:
        self._large = large
        self._turns = ThreadPoolExecutor(1, "serving: large JSON")
        self._other: _Other | None = None
        self._lock = Lock()
        self._closed = False

    @property
    def process(self) -> BaseProcess | None:
        """The process, once there is one."""
        return None if self._other is None else self._other.process

    async def decode(self, model: str, version: str | None, body: Body, header_length: str | None) -> InferRequest:
        """:func:`~glowtrain.serving.http.messages.decode`."""
        if messages.json_length(header_length, len(body)) < self._large:
            return messages.decode(model, version, body, header_length)
        found: InferRequest = await self._away(messages.decode, model, version, body, header_length)
        return found

    async def encode(self, request: InferRequest, answer: InferAnswer) -> tuple[bytes, int | None]:
        """:func:`~glowtrain.serving.http.messages.encode`."""
        numbers = sum(array.size for name, array in answer.outputs.items() if not messages.is_binary(request, name))
        if numbers * NUMBER < self._large:
            return messages.encode(request, answer)
        text: tuple[bytes, int | None] = await self._away(messages.encode, replace(request, inputs={}), answer)
        return text

    async def _away(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._turns, self._ask, function, arguments)

    def _ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """What a function returns, or raises, over there; a second time where the process ends meanwhile."""
        for again in (True, False):
            other = self._started()
            try:
                other.line.send((function, arguments))
                done, said = other.line.recv()
                break
            except (EOFError, OSError) as error:
                self._end()
                if not again:
                    raise RuntimeError("the process for large JSON ended twice at one request") from error
        if not done:
            raise said
        return said

    def _started(self) -> _Other:
        with self._lock:
            if self._closed:
                raise RuntimeError("the server has ended")
            if self._other is None:
                context = get_context("spawn")
                line, far = context.Pipe()
                process = context.Process(target=_serve, args=(far,), name="glowtrain: large JSON", daemon=True)
                process.start()
                far.close()
                self._other = _Other(process, line)
            return self._other

    def _end(self) -> None:
        with self._lock:
            other, self._other = self._other, None
        if other is not None:
            other.process.kill()
            other.process.join()
            other.line.close()

    def close(self) -> None:
        """End the process; what it works on fails."""
        self._closed = True
        self._end()
        self._turns.shutdown(wait=False, cancel_futures=True)


def _serve(line: Connection) -> None:
    """Do what is asked until nobody is there any more. A signal from a terminal is for the server alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            function, arguments = line.recv()
            try:
                said = True, function(*arguments)
            except Exception as error:  # noqa: BLE001  whatever it is, whoever asked shall know
                said = False, error
            line.send(said)
