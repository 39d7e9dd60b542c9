"""A line in the log for each request."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glowtrain.serving.logs import log_request
from glowtrain.serving.status import shortened

CLIENT_GONE = 499
"""The status that logs have of a request whose client went away; nobody gets it."""


class Events:
    """Middleware that logs requests: answered ones for those who look closely (debug), refused ones, failed ones."""

    def __init__(self, app: ASGIApp, ends: Callable[[], bool]) -> None:
        self._app = app
        self._ends = ends
        """Whether the server does: then each answer tells its client to connect anew."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start" and self._ends():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            asked = shortened(f"{scope['method']} {scope['path']}")
            log_request("http", asked, status, status, time.perf_counter() - began)
