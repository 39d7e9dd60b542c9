"""Help pages can be read and obeyed; shells complete what commands take."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from glowtrain.cli import app
from tests.cli.terminal import words

COMMANDS = (
    "demo", "train", "quantize", "run", "serve", "inspect", "verify", "gradcheck", "conformance", "operators", "cache",
)  # fmt: skip


def page(*command: str, columns: int) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.spread(4)
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=["glowtrain", *COMMANDS])
def test_help_breaks_no_word_and_shows_values_as_they_are_given(command: tuple[str, ...]) -> None:
    narrow, wide = page(*command, columns=80), page(*command, columns=1000)
    assert words(narrow) - words(wide) == set()
    shown = narrow.replace("gradcheck [OPTIONS] [MODEL]", "").replace("serve [OPTIONS] [MODEL]...", "")
    for typed in ("<bool>", "range>", "<path>", "<float>", "<int>", "|", "{MODEL}", "[MODEL]"):
        assert typed not in shown
    assert max(map(len, narrow.splitlines())) <= 80


def test_paragraphs_are_broken_where_the_terminal_ends() -> None:
    (said,) = [line for line in page("profile", columns=1000).splitlines() if "Run a compiled model" in line]
    assert "what it did in it beside what this machine can do, and which layers it belongs to." in said


def test_help_tells_of_validation_data_and_of_the_epoch_that_is_kept() -> None:
    said = page("train", columns=1000)
    assert "NAME_valid (also NAME_val, NAME_test) is for validation, as x_valid and y_valid" in said
    assert "keep the parameters of the best epoch" in said


def completed(command: str, parameter: str, incomplete: str) -> list[str]:
    """What a shell offers for a value."""
    group = typer.main.get_command(app)
    context = group.make_context("glowtrain", [command, "--help"], resilient_parsing=True)
    found = group.commands[command]  # type: ignore[attr-defined]
    (chosen,) = (each for each in found.params if each.name == parameter)
    return [item.value for item in chosen.shell_complete(context, incomplete)]


@pytest.mark.parametrize(
    ("command", "parameter", "incomplete", "offered"),
    [
        ("train", "optimizer", "ada", ["adadelta", "adagrad", "adam", "adamax", "adamw"]),
        ("quantize", "optimizer", "s", ["sgd"]),
        ("train", "loss", "softm", ["softmax_cross_entropy"]),
        ("train", "schedule", "", ["constant", "cosine", "exponential", "linear", "onecycle", "step"]),
        ("train", "backend", "i", ["interpreter"]),
        ("gradcheck", "op", "Softp", ["Softplus"]),
        ("gradcheck", "profile", "d", ["deep"]),
        ("train", "dataset", "dig", ["digits"]),
        ("inspect", "stage", "pl", ["plan"]),
        ("quantize", "weights", "u", ["u8", "u4"]),
    ],
)
def test_shells_complete_names(command: str, parameter: str, incomplete: str, offered: list[str]) -> None:
    assert completed(command, parameter, incomplete) == offered


def test_shells_complete_models_and_data_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("mine.onnx", "mine.npz", ".hidden.onnx", "models/small.onnx"):
        (tmp_path / name).touch()
    assert completed("run", "model", "m") == ["mlp", "mobilenet", "mine.onnx", "models/"]
    assert completed("run", "model", "models/") == ["models/small.onnx"]
    assert completed("gradcheck", "model", f"{tmp_path}/mi") == [f"{tmp_path}/mine.onnx"]
    assert completed("train", "dataset", "mi") == ["mine.npz"]
    assert completed("run", "model", "nowhere/") == []
