"""What a backend is expected to refuse, so that a refusal that is new is a failure.

operators = ["Pow"]                              # of which nothing runs in f32

[reasons]
'no literal of type f8\\w+' = "8-bit floats"      # a regular expression for the error, and the reason in words
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glowtrain.errors import InputError


@dataclass(frozen=True)
class ExpectedRefusals:
    """``operators`` of which nothing runs in f32; ``reasons``: patterns of errors, and what each means."""

    operators: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ExpectedRefusals:
        """Read a file. Raises :class:`InputError` for one that is not of this format."""
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            operators, reasons = data.pop("operators", []), data.pop("reasons", {})
            if data or not isinstance(operators, list) or not isinstance(reasons, dict):
                raise ValueError("it must have a list operators and a table reasons, and nothing else")
            for pattern in reasons:
                re.compile(pattern)
        except (OSError, ValueError, re.error) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        return cls(frozenset(operators), reasons)

    def reason(self, refusal: str) -> str | None:
        """The reason for an error, in words; ``None`` for one that is not expected."""
        return next((words for pattern, words in self.reasons.items() if re.search(pattern, refusal)), None)


def plain_reason(refusal: str) -> str:
    """The first line of an error without the kernel's name, which many operators share."""
    return re.sub(r"^(kernel|call|function) \S+?:? ", "", refusal.splitlines()[0])


def skip_refused(refusal: str, expected: ExpectedRefusals | None) -> None:
    """Skip the test for a refusal that is allowed; fail it for another one."""
    assert expected is None or expected.reason(refusal) is not None, refusal
    pytest.skip(refusal)
