"""docs/operator-support.md is what the registry says."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from glowtrain.cli import app
from glowtrain.onnx_io.checks.support import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operator-support.md"


def test_page_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "table.md"
    done = CliRunner().invoke(app, ["operators", "--output", str(made)])
    assert done.exit_code == 0, done.output
    expected = made.read_text(encoding="utf-8").splitlines()
    written = PAGE.read_text(encoding="utf-8").splitlines()
    stale = sorted({*expected} ^ {*written})
    assert not stale, "run: python -m glowtrain operators --output docs/operator-support.md\n" + "\n".join(stale[:20])
    assert expected == written


def test_what_the_table_says() -> None:
    """A few lines that are known by other means."""
    lines = [line for line in table(lambda cls: ()).splitlines() if line.startswith("| ")]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    assert "| loop nest | rule |" in rows["Tanh"]
    assert "known when compiling: shape" in rows["Reshape"]
    assert "| on load |" in rows["If"]
    assert "positions are integers" in rows["ArgMax"]
    assert rows["LinearRegressor"].startswith("| LinearRegressor | 1 |")
    assert "StringConcat" not in rows
