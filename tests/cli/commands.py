"""Commands in this process: what they print, and how they end."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner, Result

from glowtrain.cli import app

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def call(*arguments: str | Path) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: str | Path, status: int = 1) -> str:
    """The message of a call that must fail with a status of its own choosing."""
    result = call(*arguments)
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return re.sub(r"\s+", " ", result.output)


def done(*arguments: str | Path) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output
