"""Starting the child processes of measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


class JobError(Exception):
    """A child process failed; the message is the last line of what it said."""


def run(kind: str, **arguments: Any) -> dict[str, Any]:
    """Let a fresh process do a job of :mod:`benchmarks.speed.worker`. Raises :class:`JobError`."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        job = json.dumps({"kind": kind, "arguments": arguments, "answer": str(answer)})
        done = subprocess.run([sys.executable, str(WORKER), job], capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise JobError(lines[-1])
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found
