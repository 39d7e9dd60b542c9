"""``glowtrain cache``, and where commands keep compiled code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glowtrain.backends.cache import location
from glowtrain.backends.cache.folder import Cache
from glowtrain.cli import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = Cache(location.user_folder(), private=True)
    monkeypatch.setattr(location, "user_cache", lambda: cache)
    return tmp_path / "glowtrain"


def done(*arguments: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def trained(out: Path, *options: str | Path, status: int = 0) -> str:
    given = ("--data", "digits", "--epochs", "1", "--threads", "1", "--out", out)
    return done("train", "mlp", *given, *options, status=status)


@pytest.mark.exhaustive
def test_what_is_kept_is_shown_and_deleted(users: Path, tmp_path: Path) -> None:
    assert re.search(rf"^folder +{users}\nfiles +0\nsize +0 bytes of 1.0 GiB at most\n$", done("cache"))
    trained(tmp_path / "t.onnx")
    count = len(list(users.glob("*.compiled")))
    assert count > 1
    assert re.search(
        rf"files +{count}\nsize +[\d.]+ KiB of 1.0 GiB at most\noldest +last used .* ago\n$", done("cache")
    )
    assert re.fullmatch(rf"removed {count} files, [\d.]+ KiB, from {users}\n", done("cache", "clear"))
    assert not list(users.glob("*.compiled"))
    assert f"removed 0 files, 0 bytes, from {users}" in done("cache", "clear")


def test_the_folder_can_be_pasted(users: Path) -> None:
    assert done("cache", "path") == f"{users}\n"


@pytest.mark.exhaustive
def test_another_folder_is_filled_shown_and_emptied(users: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    trained(tmp_path / "t.onnx", "--cache", folder)
    assert not users.exists()
    count = len(list(folder.glob("*.compiled")))
    assert f"files   {count}" in done("cache", "--folder", folder)
    assert f"removed {count} files" in done("cache", "clear", "--folder", folder)
    assert "no such folder" in done("cache", "--folder", tmp_path / "nowhere", status=1)


@pytest.mark.exhaustive
def test_nothing_is_kept_where_nothing_shall_be(users: Path, tmp_path: Path) -> None:
    trained(tmp_path / "t.onnx", "--no-cache")
    assert not users.exists()


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    said = trained(tmp_path / "t.onnx", "--no-cache", "--cache", tmp_path, status=1)
    assert "give --cache or --no-cache, not both" in said
    for option in (("--no-cache",), ("--cache", tmp_path)):
        said = trained(tmp_path / "t.onnx", *option, "--backend", "interpreter", status=1)
        assert f"{option[0]} is about native code" in " ".join(said.split())


@pytest.mark.exhaustive
def test_a_folder_that_cannot_be_used_is_a_remark_and_no_line_of_python(tmp_path: Path) -> None:
    (tmp_path / "glowtrain").write_text("in its place")
    command = [sys.executable, "-m", "glowtrain", "train", "mlp", "--data", "digits", "--epochs", "1"]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "t.onnx")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = " ".join(result.stderr.split())
    assert said.count(f"compiled code cannot be kept in {tmp_path / 'glowtrain'}: File exists") == 1
    assert ".py" not in said
    assert (tmp_path / "t.onnx").exists()


def test_a_command_imports_nothing_of_the_others() -> None:
    """Nor does what it prints of itself need the compiler."""
    code = (
        "import sys; sys.argv = ['glowtrain', 'cache', 'path']\n"
        "from glowtrain.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*(name for name in sys.modules if name.startswith(('glowtrain.cli.commands.', 'onnx.'))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "glowtrain.cli.commands.cache"
