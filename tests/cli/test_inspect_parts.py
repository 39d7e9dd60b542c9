"""``glowtrain inspect MODEL --devices N``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glowtrain.cli import app

COMMON = "mlp", "--train", "--dims", "batch=8", "--threads", "1"


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def done(*arguments: object) -> str:
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = invoked(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.replace("│", "").split())


def test_parts_are_printed_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "parts.svg"
    said = done(*COMMON, "--devices", "2", "--plot", picture)
    assert "partition mlp.step: 2 stages, 3 parts" in said
    assert "stage0.1 -> stage1: " in said
    assert f"wrote {picture}" in said
    assert "stage0.2" in picture.read_text()


@pytest.mark.exhaustive
def test_the_memory_of_each_device_is_kept() -> None:
    assert "partition mlp.step: 2 stages" in done(*COMMON, "--devices", "2", "--device-memory", "6MB")
    said = refused(*COMMON, "--devices", "2", "--device-memory", "10KB")
    assert "mlp.step does not fit into the memory of its devices" in said
    assert "cpu:1 has 10.0 KiB" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device-memory", "1MB"), "--device-memory is that of --devices"),
        (("--devices", "2", "--stage", "plan"), "--devices shows parts, and nothing of --stage plan"),
        (("--devices", "2", "--device-memory", "much"), "memory 'much': say a positive number of bytes"),
        (("--devices", "2", "--plot", "parts.pdf"), "a partition is drawn into a file whose name ends in one of"),
        (("--devices", "0"), "--devices"),
        (("--devices", "2", "--memory", "small"), "what each of --devices can hold is its --device-memory"),
        (("--data", "digits", "--budget", "64KB", "--memory", "1MB"), "--budget is that of the step"),
        (("--devices", "2", "--residuals", "bf16"), "--devices shows nothing that would differ with --residuals"),
        (
            ("--data", "digits", "--budget", "64KB", "--residuals", "bf16"),
            "--budget proposes nothing that would differ",
        ),
        (
            ("--data", "digits", "--budget", "64KB", "--micro-batches", "2"),
            "--budget proposes nothing that would differ",
        ),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*COMMON, *arguments)
