"""Numbers of bytes as a person gives them."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.errors import InputError
from glowtrain.memory.byte_size import byte_text, parse_bytes

SAID: dict[object, int] = {
    65536: 65536,
    6.4e7: 64_000_000,
    np.int64(4096): 4096,
    "65536": 65536,
    "6.4e7": 64_000_000,
    "256KB": 256 << 10,
    "256k": 256 << 10,
    " 64 MB ": 64 << 20,
    "64MiB": 64 << 20,
    "1.5GiB": 3 << 29,
    "2T": 2 << 40,
    "100B": 100,
    "0.3KB": 307,
    "9007199254740993": 9007199254740993,
}
REFUSED = (
    0, -1, 0.5, float("nan"), float("inf"), True, None, [1], b"1", "", "0", "-1", "KB", "256XB", "256 K B", "0.5B",
    "1e999", "1,000", "nan", "0KB",
)  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_bytes_are_numbers_or_text_with_units(said: object) -> None:
    assert parse_bytes(said) == SAID[said]


@pytest.mark.parametrize("said", REFUSED, ids=repr)
def test_what_is_no_positive_number_of_bytes_is_refused(said: object) -> None:
    with pytest.raises(InputError, match="^ram .*: say a positive number of bytes, such as 262144, 256KB or 4MB$"):
        parse_bytes(said, "ram")


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (7 << 20, "7.0 MiB")],
)
def test_bytes_are_shown_in_units(count: int, shown: str) -> None:
    assert byte_text(count) == shown
