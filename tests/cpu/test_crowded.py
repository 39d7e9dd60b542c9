"""Functions are linked wherever the system puts their objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from glowtrain.backends.target import Target
from tests.cpu.crowded import calling_objects

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="holes are cut with mmap as Linux has it")


def crowded(*arguments: object) -> str:
    """What a process with a crowded address space prints."""
    command = [sys.executable, "-m", "tests.cpu.crowded", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_objects_of_one_function_may_lie_anywhere() -> None:
    assert len(calling_objects(Target.host())) > 4
    assert "20 functions" in crowded("load", 20)


@pytest.mark.exhaustive
def test_steps_leave_the_same_bits_in_a_crowded_process(tmp_path: Path) -> None:
    fresh = crowded("steps", tmp_path)
    assert len(list(tmp_path.glob("*.compiled"))) > 1
    assert crowded("steps", tmp_path) == fresh
    assert crowded("steps", tmp_path, "plain") == fresh
