"""What objects need from a linker: nothing, but for arithmetic that a processor has no instructions for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from glowtrain.backends.llvm.target import Target, target_names
from glowtrain.types import f64
from tests.compiler.test_artifacts import routine_of
from tests.targets import cases

LINKER = {"__stack_pointer", "__linear_memory", "__indirect_function_table", "__memory_base", "__table_base"}
"""What WebAssembly's linker makes itself."""
CASES = [*cases.training(), *cases.in_integers(), *cases.operators(), *cases.operators(f64)]
PORTABLE = [case for case in CASES if case.artifact(Target.named("scalar"), "").portable]


@pytest.mark.parametrize("name", target_names())
def test_no_object_needs_a_library(name: str, tmp_path: Path) -> None:
    assert shutil.which("llvm-nm"), "install llvm-nm: Debian has it in llvm"
    target, paths = Target.named(name), dict[str, str]()
    for number, case in enumerate(PORTABLE):
        path = tmp_path / f"{number}.o"
        path.write_bytes(case.artifact(target, "one_").code)
        paths[str(path)] = case.name
    command = ["llvm-nm", "--print-file-name", "--undefined-only", *paths]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"^(\S+): +U (\S+)$", told, re.MULTILINE)
    others = {(paths[path], need) for path, need in needed if need not in LINKER}
    assert not {pair for pair in others if not routine_of(pair[1], target.soft)}
