"""Arguments of another kind than ``gt.bundle`` takes: each is an error that says so, and nothing is written."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.target import Target
from glowtrain.bundles.libraries import linking
from glowtrain.bundles.verify.example_runner import ExampleRunner
from glowtrain.cli import app
from glowtrain.errors import BundleError, GlowtrainError
from glowtrain.graph import Value
from tests.bundles.in_process import compiled, contents


@gt.model(x=gt.f32["batch", 3])
def tiny(x: Value) -> Value:
    return gt.nn.linear(x, 2, name="layer")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no target": ({"target": None}, "target must be the name of one, such as 'host' or 'cortex-m4', not NoneType"),
    "a backend": ({"target": gt.Cpu()}, "target must be the name of one, .*, not Cpu"),
    "a number for a name": ({"name": 3}, r"name must be text, not 3 \(int\)"),
    "bytes for a name": ({"name": b"x"}, "name must be text, not bytes"),
    "no mapping": ({"dims": [("batch", 2)]}, "dims must be a mapping, such as {'batch': 8}, not list"),
    "text of dims": ({"dims": "batch=2"}, "dims must be a mapping"),
    "less than no RAM": ({"ram": -1}, "ram -1: say a positive number of bytes"),
    "RAM of text": ({"ram": "much"}, "ram 'much': say a positive number of bytes, such as 262144, 256KB or 4MB"),
    "RAM of a list": ({"ram": []}, "ram .*: say a positive number of bytes"),
    "boards": ({"board": ["mps2-an386"]}, r"board \['mps2-an386'\] is unknown; the boards are mps2-an386"),
    "a pattern": ({"loss": "mse", "trainable": [3]}, "trainable: a pattern of names is text, not 3"),
    "text of a seed": ({"seed": "one"}, r"seed must be a whole number of 64 bits, not 'one' \(str\)"),
    "half a seed": ({"seed": 0.5}, "seed must be a whole number of 64 bits"),
    "a large seed": ({"seed": 1 << 63}, "seed must be a whole number of 64 bits"),
    "a number of faces": ({"faces": 3}, r"faces must be names of languages, such as \['rust'\], not 3 \(int\)"),
    "an open quote": ({"shared": True, "linker": "cc '"}, r"linker \(--cc\) \"cc '\" is no command: No closing"),
    "no linker": ({"shared": True, "linker": " "}, r"linker \(--cc\) ' ' names no command"),
    "words": ({"shared": True, "linker": ["cc"]}, r"linker \(--cc\) must be a command as in a shell, not list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_another_kind(case: str, tmp_path: Path) -> None:
    settings, said = WRONG[case]
    with pytest.raises(GlowtrainError, match=said):
        gt.bundle(tiny, tmp_path / "out", **{"dims": {"batch": 2}, **settings})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "the folder of a bundle has no name; . is the present one"),
        (None, "the folder of a bundle must be a path, not NoneType"),
        (b"out", "the folder of a bundle must be a path, not bytes"),
        ("a\0b", "is no path: it has a null character"),
    ],
)
def test_folders_that_are_none(out: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BundleError, match=said):
        gt.bundle(tiny, out, dims={"batch": 2})


def test_the_command_needs_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bundle", "mlp", "--batch", "2", "--out", ""])
    assert done.exit_code == 1
    assert "the folder of a bundle has no name" in done.output
    assert not list(tmp_path.iterdir())


def test_one_face_may_stand_alone(tmp_path: Path) -> None:
    assert "rust/Cargo.toml" in gt.bundle(tiny, tmp_path, dims={"batch": 2}, faces="rust").files


def program(text: str) -> str:
    """A command that runs a text of Python."""
    return shlex.join([sys.executable, "-c", text])


SILENT = {"writes nothing": program(""), "writes no byte": program("open('libtiny.so', 'w')")}


@pytest.mark.parametrize("linker", SILENT)
def test_linkers_that_make_nothing(linker: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"dims": {"batch": 2}, "target": "avx2", "shared": True}
    with pytest.raises(BundleError, match="ended well and wrote no libtiny.so: it is no linker"):
        gt.bundle(tiny, tmp_path / "out", linker=SILENT[linker], **given)
    with pytest.raises(BundleError, match="failed:\nit printed nothing"):
        gt.bundle(tiny, tmp_path / "out", linker=program("exit(7)"), **given)
    assert not (tmp_path / "out").exists()


def test_commands_of_verify() -> None:
    module = compiled(contents(tiny, dims={"batch": 2}))
    copies = program("import shutil, sys; shutil.copy(sys.argv[4], sys.argv[-1])")  # an object is no program
    for compiler, command, said in (
        ("cc '", "{}", r"--cc \"cc '\" is no command: No closing quotation"),
        ("cc", '"{}', "--run .* is no command: No closing quotation"),
        ("", "{}", "--cc '' names no command"),
        (program(""), "{}", r"ended well and wrote no program: it is no C compiler \(--cc\)"),
        (copies, "{}", "cannot be run: .*: name what runs programs for .* --run 'qemu-aarch64 {}'"),
    ):
        with pytest.raises(BundleError, match=said):
            ExampleRunner(compiler, command).trace(module, 1)


def test_compilers_for_another_system_are_chosen_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.named("riscv64")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert linking.program_compiler(target) == ["/bin/riscv64-linux-gnu-gcc", "-static"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(linking, "find_spec", lambda name: name)
    assert linking.program_compiler(target)[1:] == ["-m", "ziglang", "cc", "-target", "riscv64-linux-musl"]
    others = [Target.named(name) for name in ("armv7", "x86-64-windows", "aarch64-macos")]
    found = [linking.program_compiler(other)[-1] for other in others]
    assert found == ["arm-linux-musleabihf", "x86_64-windows-gnu", "aarch64-macos"]
    monkeypatch.setattr(linking, "find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"install riscv64-linux-gnu-gcc .*or Zig .pip install ziglang."):
        linking.program_compiler(target)
