"""What decides about code is in its key: no source that compiling imports is left out."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import glowtrain
from glowtrain.backends.cache import key

PACKAGE = Path(glowtrain.__file__).parent
ENTRIES = "compiler", "backends", "losses", "ops", "optim", "trainer/graphs.py"
"""What compiles, and what makes graphs of models."""
COMPILE = """
import sys, numpy as np, glowtrain as gt
from glowtrain import models
trainer = gt.Trainer(models.build("mlp"), gt.losses.softmax_cross_entropy(), gt.optim.Adam(lr=1e-3), threads=1,
                     backend=gt.Cpu(cache=sys.argv[1]))
trainer.step({"x": np.zeros((4, 1, 28, 28), "f4"), "labels": np.zeros(4, "i8")})
print(*sorted(file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))))
"""


def python_file(module: str) -> Path | None:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imports(file: Path) -> Iterator[str]:
    """The modules that statements of a source name, those for type checkers too: packages import these later."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(str(module), names):
                yield from (module, *(f"{module}.{alias.name}" for alias in names))


def closure() -> set[Path]:
    """The sources that the entries import, one by another."""
    todo = [file for entry in ENTRIES for file in sorted((PACKAGE / entry).rglob("*.py")) or [PACKAGE / entry]]
    seen = set(todo)
    while todo:
        for module in imports(todo.pop()):
            file = python_file(module) if module.startswith("glowtrain.") else None
            if file is not None and file not in seen:
                seen.add(file)
                todo.append(file)
    return seen


def hashed() -> set[Path]:
    return {Path(path) for path in key._files(str(PACKAGE), key.UNRELATED)}


def compiling(root: Path, cache: Path) -> set[Path]:
    """The package's sources that a process has imported once it has compiled a training step."""
    command = [sys.executable, "-c", COMPILE, str(cache)]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {Path(file) for file in done.stdout.split() if file.startswith(str(root / "glowtrain"))}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to edit."""
    folder = tmp_path_factory.mktemp("copy") / "glowtrain"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.exhaustive
def test_nothing_that_compiling_imports_is_left_out() -> None:
    assert sorted(closure() - hashed()) == []


def test_an_edit_anywhere_is_seen_by_a_warm_cache(copy: Path, tmp_path: Path) -> None:
    imported = compiling(copy.parent, tmp_path)
    count = len(list(tmp_path.glob("*.compiled")))
    assert {file.relative_to(copy) for file in imported} <= {file.relative_to(PACKAGE) for file in hashed()}
    compiling(copy.parent, tmp_path)
    assert len(list(tmp_path.glob("*.compiled"))) == count > 0
    budget = copy / "memory/budget.py"
    budget.write_text(budget.read_text() + "# edited\n")
    compiling(copy.parent, tmp_path)
    assert len(list(tmp_path.glob("*.compiled"))) == 2 * count


@pytest.mark.exhaustive
def test_each_part_counts(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("glowtrain")
    module.__file__ = str(copy / "__init__.py")
    monkeypatch.setattr(key, "import_module", lambda name: module)
    seen = [key.sources.__wrapped__()]
    parts = {file.relative_to(PACKAGE).parts[0]: file.relative_to(PACKAGE) for file in sorted(closure())}
    for file in parts.values():
        edited = copy / file
        edited.write_bytes(edited.read_bytes() + b"# edited again\n")
        seen.append(key.sources.__wrapped__())
    assert len(set(seen)) == len(parts) + 1
