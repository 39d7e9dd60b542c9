"""Native code touches nothing outside of its buffers, wherever these lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "count"), [("nests", 25), ("graphs", 15), ("convolutions", 15), ("rounded", 70), ("reported", 3)]
)
def test_nothing_is_touched_outside_of_buffers(kind: str, count: int) -> None:
    """In a process of its own, which a fault ends."""
    command = [sys.executable, "-m", "tests.cpu.guard_pages", kind, "0", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} ended with {done.returncode}: {done.stderr}"
