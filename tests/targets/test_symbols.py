"""What objects need from a linker: nothing, but for arithmetic that a processor has no instructions for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from glowtrain.backends.target import Target, target_names
from glowtrain.types import f64
from tests.compiler.test_artifacts import routine_of
from tests.targets import cases
from tests.targets.emulated import Case

LINKER = {"__stack_pointer", "__linear_memory", "__indirect_function_table", "__memory_base", "__table_base"}
"""What WebAssembly's linker makes itself."""
STEPS = [*cases.training(), *cases.in_integers()]
SAMPLES = [*cases.operators(), *cases.operators(f64)]


def share(name: str) -> list[Case]:
    """Steps, and of the operators' samples those that fall to a target: targets of one kind share them."""
    alike = [other for other in target_names() if kind(other) == kind(name)]
    return [*STEPS, *SAMPLES[alike.index(name) :: len(alike)]]


def kind(name: str) -> tuple[object, ...]:
    """What decides for which operations there are instructions, whatever vectors are wide, and what a system adds."""
    target = Target.named(name)
    operations = target.soft, target.has_fma, target.has_half, target.has_rounding, bool(target.features)
    return target.architecture, target.pointer_bits, target.system == "windows", operations


def test_targets_of_one_kind_take_every_sample() -> None:
    kinds = {kind(name) for name in target_names()}
    assert sum(len(share(name)) - len(STEPS) for name in target_names()) == len(kinds) * len(SAMPLES)


@pytest.mark.parametrize("name", target_names())
def test_no_object_needs_a_library(name: str, tmp_path: Path) -> None:
    assert shutil.which("llvm-nm"), "install llvm-nm: Debian has it in llvm"
    target, paths = Target.named(name), dict[str, str]()
    for number, case in enumerate(share(name)):
        artifact = case.artifact(target, "one_")
        if artifact.portable:
            path = tmp_path / f"{number}.o"
            path.write_bytes(artifact.code)
            paths[str(path)] = case.name
    command = ["llvm-nm", "--print-file-name", "--undefined-only", *paths]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"^(\S+): +U (\S+)$", told, re.MULTILINE)
    others = {(paths[path], need) for path, need in needed if need not in LINKER}
    assert not {pair for pair in others if not routine_of(pair[1], target.soft)}
