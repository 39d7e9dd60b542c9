"""What is said about networks and requests, checked: :class:`InputError` for what cannot be meant."""

from __future__ import annotations

import sys
from threading import TIMEOUT_MAX
from typing import Any

from glowtrain.errors import InputError

LONGEST = TIMEOUT_MAX
"""Seconds that a thread can wait."""


def check_request(priority: Any, timeout: Any) -> None:
    """Raise for what is no priority, or no time-out in seconds."""
    if type(priority) is not int:
        raise InputError(f"a priority is a whole number, not {priority!r}")
    if timeout is not None and not positive(timeout):
        raise InputError(f"a time-out is a number of seconds above 0, not {timeout!r}")


def positive(number: Any) -> bool:
    """Whether it is a number above 0; raises nothing. A whole number that no float is as large as is none."""
    if isinstance(number, int) and not isinstance(number, bool):
        return 0 < number <= sys.float_info.max
    return isinstance(number, float) and number > 0


def seconds(what: str, number: Any) -> float:
    """A time from 0, as it is."""
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number < float("inf"):
        raise InputError(f"{what} is a number of seconds from 0, not {number!r}")
    if number > LONGEST:
        raise InputError(f"{what} is longer than a thread can wait ({LONGEST:,.0f} seconds)")
    return float(number)


def count(what: str, number: Any) -> int:
    """A whole number from 1, as it is."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InputError(f"{what} is a whole number of at least 1, not {number!r}")
    return number


def text(what: str, value: Any) -> str:
    """A text that is not empty, as it is."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{what} is a text, not {value!r}")
    return value
