"""The kit for backends: each planted mistake is found at its level and nowhere else; a refusal is told; C passes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from glowtrain.backends.discovery import BUILT_IN, GROUP
from glowtrain.errors import InputError
from glowtrain.kit import models as models  # runs within this process share what is imported before
from glowtrain.kit.operators import operators
from glowtrain.kit.refusals import ExpectedRefusals, plain_reason
from glowtrain.kit.report import KitReport

pytest_plugins = ["pytester"]

REGISTRY = operators()
EXAMPLE = Path(__file__).parents[2] / "examples" / "backend_in_c"
QUICK = "wise-Tanh] or (second_run and mlp) or limit or allocation"
"""A part of the kit that has tests of all levels."""
PLANTED = {
    "sound": "SoundBackend", "wrong": "WrongTanh", "drifting": "Drifting", "unlimited": "Unlimited",
    "refusing": "Refusing",
}  # fmt: skip
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of the kit's quick part on a backend, planted or one that comes along."""

    def run(name: str, *options: str) -> pytest.RunResult:
        if name in PLANTED:
            monkeypatch.setitem(BUILT_IN, name, f"tests.kit.planted_backends:{PLANTED[name]}")
        own = "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "glowtrain.kit.plugin", "--backend", name, "-k", QUICK
        return pytester.runpytest_inprocess("--pyargs", "glowtrain.kit", *own, *options)

    return run


def test_a_sound_backend_passes_all_levels(run: Run) -> None:
    result = run("sound", "-k", "wise-Tanh] or stated or failures")
    assert result.ret == 0, result.outlines
    assert [line[:15] for line in result.outlines if line.startswith("level")] == [
        f"level {n}: passed" for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("name", ["interpreter", "evaluator", "cpu"])
def test_backends_that_come_along_pass(name: str, run: Run) -> None:
    """The first takes graphs, the others plans; the program has a scalar among its inputs."""
    result = run(name, "-k", "wise-Tanh] or (second_run and mlp) or random_program[4]")
    assert result.ret == 0, result.outlines
    assert sum(line.startswith(("level 1: passed (2", "level 2: passed (1")) for line in result.outlines) == 2


@pytest.mark.parametrize(
    ("name", "level", "test"),
    [
        ("wrong", 1, "test_operator[elementwise-Tanh]"),
        ("drifting", 2, "test_second_run[mlp]"),
        ("unlimited", 2, "test_memory_limit"),
    ],
)
def test_a_planted_mistake_is_found_at_its_level(name: str, level: int, test: str, run: Run) -> None:
    result = run(name)
    assert result.ret == 1
    failed = [line.split("::")[1].split(" - ")[0] for line in result.outlines if line.startswith("FAILED")]
    assert failed == [test]
    verdicts = {int(line[6]): line.split()[2] for line in result.outlines if line.startswith("level")}
    assert verdicts == {n: "FAILED" if n == level else "passed" for n in (1, 2, 3)}


def test_the_report_begins_with_the_operator_at_fault(run: Run) -> None:
    """Others that are made of it are wrong too, of which some stand before it in the registry, and so is training."""
    result = run("wrong", "-k", "-Tanh] or -Sub] or -com.microsoft.FastGelu] or -RNN] or (losses and lstm)")
    assert result.ret == 1
    found = result.outlines.index("wrong in f32, of the fewest parts first: Tanh, com.microsoft.FastGelu, RNN")
    assert "tanh (3 wrong of 3)" in result.outlines[found + 1]
    assert any("test_losses[lstm]" in line for line in result.outlines if line.startswith("FAILED"))


def test_a_test_that_ends_its_process_is_a_failure_of_its_level() -> None:
    """As pytest-xdist reports it: there is no more than its id."""
    report = KitReport()
    test = "glowtrain/kit/test_operators.py::test_operator[indexing-Gather]"
    report.pytest_runtest_logreport(pytest.TestReport(test, ("", None, ""), {}, "failed", "crashed", "???"))
    assert report.lines() == ["level 1: FAILED (1 failed)"]


def test_a_refusal_is_skipped_and_told_with_its_reason(run: Run, tmp_path: Path) -> None:
    result = run("refusing", "--level", "1")
    assert result.ret == 0, result.outlines
    assert "    f32, there is no tanh here: Tanh" in result.outlines
    expected = tmp_path / "refusals.toml"
    expected.write_text('operators = ["Tanh"]\n[reasons]\n"no tanh" = "functions of trigonometry"\n')
    result = run("refusing", "--level", "1", "--refusals", str(expected))
    assert result.ret == 0, result.outlines
    assert "    f32, functions of trigonometry: Tanh" in result.outlines
    expected.write_text('operators = ["Tanh"]\n[reasons]\n"no sinh" = "others"\n')
    assert run("refusing", "--level", "1", "--refusals", str(expected)).ret == 1
    expected.write_text('operators = []\n[reasons]\n"no tanh" = "functions"\n')
    assert run("refusing", "--level", "1", "--refusals", str(expected)).ret == 1


@pytest.mark.parametrize("text", ["operators = 3", "other = []", "[reasons]\n'(' = 'words'", "operators"])
def test_a_file_of_another_format_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "refusals.toml"
    path.write_text(text)
    with pytest.raises(InputError, match="refusals.toml"):
        ExpectedRefusals.read(path)


def test_reasons_have_no_names_of_kernels() -> None:
    assert plain_reason("kernel mul_add: C has no type f16\nmore") == "C has no type f16"


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)  # a run of the C compiler for each use of an operator
def test_the_example_in_c_passes_the_first_level(tmp_path: Path) -> None:
    """As an installed package, found by the entry point that its pyproject.toml declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = tmp_path / f"glowtrain_c-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"][GROUP].items())
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)])}
    options = "-q", "-p", "no:cacheprovider", "--level", "1", "--programs", "6", "-n", "0"
    command = [sys.executable, "-m", "pytest", "--pyargs", "glowtrain.kit", "--backend", "c", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "level 1: passed" in done.stdout
    assert "C has no type f16" in done.stdout
