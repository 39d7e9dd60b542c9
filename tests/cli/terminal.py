"""Commands in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOKEN = re.compile(r"(\n|\r|\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?\x1b\\)")
"""Line ends; colours and movements of the cursor; links."""


def screen(columns: int, *arguments: str | Path, folder: Path, status: int = 0) -> list[str]:
    """The lines that ``glowtrain`` leaves on a terminal; a line may be longer than it has columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    surroundings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "glowtrain", *map(str, arguments)], stdin=its, stdout=its, stderr=its, cwd=folder,
        env={**surroundings, "TERM": "xterm", "PYTHONPATH": str(ROOT)}, close_fds=True,
    )  # fmt: skip
    os.close(its)
    text = _everything(ours)
    assert process.wait() == status, text
    return _left(text)


def _left(text: str) -> list[str]:
    """The lines that stay: a bar that runs is drawn over, and erased in the end."""
    lines, row, column = [""], 0, 0
    for token in TOKEN.split(text):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token.startswith("\x1b[") and token.endswith("A"):
            row -= int(token[2:-1])
        elif not token.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return lines


def _everything(terminal: int) -> str:
    """What is written until the last writer goes, which Linux tells by an error."""
    parts = []
    while True:
        try:
            parts.append(os.read(terminal, 1 << 16))
        except OSError:
            os.close(terminal)
            return b"".join(parts).decode()


def words(text: str) -> set[str]:
    """The words of a text, without numbers and marks."""
    return set(re.findall(r"[A-Za-z]{2,}", text))
