"""Connections on which requests have to begin in time: clients that send a head byte by byte keep none for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_Protocol: Any = AutoHTTPProtocol
"""Whichever uvicorn has for HTTP: what reads faster, where it is installed."""


class TimedConnection(_Protocol):
    """uvicorn's connection, which ends where the head of a request has not come within ``patience`` seconds since the
    connection was made, or since the head's first byte. Between requests uvicorn's own time-out holds."""

    patience: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._watch()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._end)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self.transport.close()


def timed(patience: float) -> type[asyncio.Protocol]:
    """Such connections, of so much patience."""
    made: type[asyncio.Protocol] = type("TimedConnection", (TimedConnection,), {"patience": patience})
    return made
