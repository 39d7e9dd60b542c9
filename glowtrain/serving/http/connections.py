"""Connections on which every wait has a limit: no client keeps one, or what lies in it, for ever."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 1 << 16
"""Bytes of a request's head, its trailers and what encodes its chunks, at most: httptools has no limit of its own."""
CHUNK = 16
"""Bytes that may encode a byte of a body: a chunk of one byte has 5 more."""
SPARE = 64
"""Connections beside those of the requests that may be worked on, so that health can always be asked."""
LINGER = 1.0
"""Seconds, at most, that a kept connection stays when the server ends: its client's next request may be on its way."""


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection, with limits.

    It ends where the head of a request has not come within ``patience`` seconds since the connection was made, or since
    the head's first byte; where a head is too long; and where its client has not taken an answer for ``patience``
    seconds. Between requests uvicorn's own time-out holds. Beyond ``most`` connections, the one that has been idle
    longest, or whose client has not read for longest, makes room.

    Requests to go on with another protocol (``Upgrade: h2c``, which clients that can HTTP/2 begin with) are answered by
    this one, as RFC 9110, 7.8 has it, and what comes in trailers is no header. Transfer codings other than ``chunked``
    are refused (RFC 9112, 6.1): httptools would leave what they encode as it is. So are those of HTTP/1.0, and a second
    ``Host``, which others on the way may read otherwise (6.1 and 3.2).
    """

    parser: Any
    patience: float
    most: int
    linger: float
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _quiet_since = 0.0
    """Since when nothing is worked on, or the client has not read."""
    _head = _unread = 0
    """Bytes of the head and trailers, and those of a request that httptools has made nothing of so far."""
    _refusal = HTTPStatus.BAD_REQUEST, "this is no request of HTTP"
    """What is said of what cannot be read."""

    @property
    def idle(self) -> bool:
        """Whether no request is worked on."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # pause_writing means that the client does not read
        self._quiet_since = self.loop.time()
        self._watch()
        if len(self.connections) > self.most:
            quiet = [each for each in self.connections if (each.idle or each.flow.write_paused) and each is not self]
            min(quiet, key=lambda each: each._quiet_since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.transport.is_closing():
            return
        if self._unread > HEAD:
            self.send_400_response("")
        elif self.idle:
            self._watch()
        else:
            self._stop()

    def on_message_begin(self) -> None:
        self._head = self._unread = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > HEAD:
            raise ValueError("the head is too long")
        key = name.lower()
        if key == b"transfer-encoding" and self.parser.get_http_version() == "1.0":
            self._refuse(HTTPStatus.BAD_REQUEST, "HTTP/1.0 has no transfer codings")
        if key == b"transfer-encoding" and value.strip(b" ").lower() != b"chunked":
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, "of transfer codings, chunked alone is taken")
        if key == b"host" and key in dict(self.headers):
            self._refuse(HTTPStatus.BAD_REQUEST, "a request has one Host")
        super().on_header(name, value)

    def _refuse(self, status: HTTPStatus, error: str) -> NoReturn:
        self._refusal = status, error
        raise ValueError(error)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers: list[tuple[bytes, bytes]] = []  # for trailers: the request has the other list

    def _should_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's is
            except httptools.HttpParserError:
                self.logger.warning("what came is no request of HTTP")
                self.send_400_response("")
                return

    def _head_without_upgrade(self) -> bytes:
        """The head that has been read: behind one with it, httptools takes nothing for HTTP."""
        lines = [b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] != b"upgrade"]
        start = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        return b"".join([b"%b %b HTTP/%b\r\n" % start, *lines, b"\r\n"])

    def on_body(self, body: bytes) -> None:
        self._unread = max(0, self._unread - CHUNK * len(body))
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and end; where a request is worked on, its answer cannot be told from this."""
        if not self.idle:
            self.transport.abort()
            return
        status, error = self._refusal
        if max(self._head, self._unread) > HEAD:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            error = f"the head of the request has more than {HEAD:,} bytes"
        body = json.dumps({"error": error})
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._quiet_since = self.loop.time()
        self._writing = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def shutdown(self) -> None:
        """The server ends: an idle connection does soon."""
        if self.idle and not self.transport.is_closing():
            self.loop.call_later(self.linger, super().shutdown)
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

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


def guarded(patience: float, most: int, drain: float) -> type[asyncio.Protocol]:
    """Such connections, so many at once, of a server that ends within ``drain`` seconds."""
    limits = {"patience": patience, "most": most, "linger": min(LINGER, drain)}
    made: type[asyncio.Protocol] = type("GuardedConnection", (GuardedConnection,), limits)
    return made
