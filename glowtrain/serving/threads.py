"""Run calls that take long in threads beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


async def in_daemon(call: Callable[[], None], name: str) -> None:
    """Make a call in a thread of its own, for which neither the loop's end nor the process's waits, as they do for
    threads of ``asyncio.to_thread``. Raises what it raises. To cancel this is to leave the call alone."""
    ended: Future[None] = Future()
    ended.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  whatever it is, whoever waits gets it
            ended.set_exception(error)
        else:
            ended.set_result(None)

    Thread(target=run, name=name, daemon=True).start()
    await asyncio.wrap_future(ended)
