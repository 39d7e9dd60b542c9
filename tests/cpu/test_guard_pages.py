"""Native code touches nothing outside of its buffers, wherever these lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(("kind", "count"), [("nests", 25), ("graphs", 15), ("convolutions", 15), ("reported", 3)])
def test_nothing_is_touched_outside_of_buffers(kind: str, count: int) -> None:
    """In a process of its own, which a fault ends."""
    path = os.pathsep.join([str(HERE.parent / "program"), str(HERE.parents[1])])
    command = [sys.executable, str(HERE / "guard_pages.py"), kind, "0", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} ended with {done.returncode}: {done.stderr}"
