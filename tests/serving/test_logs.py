"""The log: a line an event, whatever is in it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from glowtrain.serving.logs import JsonFormatter, TextFormatter, log_request

ODD = {"call": 'GET /v2/models/a b\n2026 INFO "all is well"', "status": 404, "way": "http"}


def record(fields: dict[str, object], error: BaseException | None = None) -> logging.LogRecord:
    made = logging.LogRecord("glowtrain.serving", logging.INFO, "", 0, "request", (), None)
    made.created, made.fields = 1769860800.25, fields
    made.exc_info = None if error is None else (type(error), error, error.__traceback__)
    return made


def test_text_is_one_line() -> None:
    said = TextFormatter().format(record(ODD))
    assert said == (
        '2026-01-31T12:00:00Z INFO request call="GET /v2/models/a b\\n2026 INFO \\"all is well\\"" status=404 way=http'
    )


def test_json_is_one_object() -> None:
    assert json.loads(JsonFormatter().format(record(ODD))) == {
        "time": 1769860800.25, "level": "INFO", "event": "request", **ODD,
    }  # fmt: skip


def test_where_an_error_came_from_is_told() -> None:
    try:
        raise ZeroDivisionError("secret")
    except ZeroDivisionError:
        (error,) = sys.exc_info()[1:2]
    assert error is not None
    assert "ZeroDivisionError: secret" in json.loads(JsonFormatter().format(record({}, error)))["error"]
    assert "ZeroDivisionError: secret" in TextFormatter().format(record({}, error))


@pytest.mark.parametrize(("status", "level"), [(200, "DEBUG"), (404, "INFO"), (499, "INFO"), (503, "WARNING")])
def test_levels(caplog: pytest.LogCaptureFixture, status: int, level: str) -> None:
    logger = logging.getLogger("glowtrain.serving")
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.addHandler(caplog.handler)
        try:
            log_request("http", "GET /v2", status, status, 0.0015)
        finally:
            logger.removeHandler(caplog.handler)
    said = caplog.records[-1]
    assert (said.levelname, said.fields["ms"]) == (level, 1.5)  # type: ignore[attr-defined]
