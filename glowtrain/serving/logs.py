"""What the server writes about itself: a line an event, as text or as JSON, on the error stream."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LOGGER = logging.getLogger("glowtrain.serving")
"""Of everything here; ``extra={"fields": {...}}`` are an event's facts."""
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO request answered model=mlp status=200``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time.strftime(datefmt or "", time.gmtime(record.created))

    def formatMessage(self, record: logging.LogRecord) -> str:
        told = "".join(f" {name}={_word(value)}" for name, value in fields_of(record).items())
        return super().formatMessage(record) + told


class JsonFormatter(logging.Formatter):
    """An object of JSON, with ``time`` (seconds since 1970), ``level``, ``event`` and the event's facts."""

    def format(self, record: logging.LogRecord) -> str:
        said = {"time": round(record.created, 6), "level": record.levelname, "event": record.getMessage()}
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps({**said, **fields_of(record)}, default=str)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """An event's facts."""
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


def _word(value: object) -> str:
    """A value in a line of words: in quotes if it has others than letters, digits and marks without spaces."""
    text = str(value)
    return text if text and text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def set_up(log_format: str, level: str) -> None:
    """Write events of ``level`` and above to the error stream; also those of the libraries that have connections."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for logger in (LOGGER, *map(logging.getLogger, ("asyncio", "grpc", "uvicorn"))):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if logger is LOGGER else logging.WARNING)


def log_request(transport: str, call: str, status: object, severity: int, seconds: float) -> None:
    """Log one; ``severity`` is its status, or what that is in HTTP."""
    level = logging.DEBUG if severity < 400 else logging.WARNING if severity >= 500 else logging.INFO
    if LOGGER.isEnabledFor(level):
        facts = {"way": transport, "call": call, "status": status, "ms": round(seconds * 1e3, 3)}
        LOGGER.log(level, "request", extra={"fields": facts})
