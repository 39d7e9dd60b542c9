"""The repository's shape: symlinked packages with one import name, version, licences, declared dependencies."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import glowtrain
from glowtrain.cli.commands.demo import demo

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("grad", "optim", "gradcheck")
SOURCE_DIRS = ("glowtrain", *LINKED, "tests", "examples", "benchmarks")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def source_files(*directories: str) -> Iterator[Path]:
    """Python files, each once: symlinked directories are not entered."""
    for directory in directories:
        for parent, _, names in os.walk(ROOT / directory, followlinks=False):
            yield from (Path(parent) / name for name in names if name.endswith(".py"))


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full module name) of every absolute import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


@pytest.mark.parametrize("name", LINKED)
def test_symlinks_are_relative(name: str) -> None:
    link = ROOT / "glowtrain" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert (ROOT / name / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKED)
def test_linked_packages_have_one_name(name: str) -> None:
    module = importlib.import_module(f"glowtrain.{name}")
    assert module.__name__ == f"glowtrain.{name}"
    assert module.__file__ is not None
    twins = [
        key
        for key, other in sys.modules.items()
        if key.split(".")[0] == name and str(getattr(other, "__file__", "")).startswith(str(ROOT))
    ]
    assert not twins, f"{twins} imported beside glowtrain.{name}"


def test_no_file_imports_a_linked_package_by_its_bare_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in source_files(*SOURCE_DIRS)
        for line, name in imported_names(path)
        if name.split(".")[0] in LINKED
    ]
    assert not found


def test_lint_bans_bare_names(project: dict[str, Any]) -> None:
    lint = project["tool"]["ruff"]["lint"]
    assert "TID" in lint["select"]
    assert set(lint["flake8-tidy-imports"]["banned-api"]) == set(LINKED)


def test_every_directory_with_modules_is_a_package() -> None:
    """A missing ``__init__.py`` would leave its directory out of the wheel."""
    directories = {path.parent for path in source_files("glowtrain", *LINKED)}
    assert [str(directory) for directory in directories if not (directory / "__init__.py").is_file()] == []


def test_version(project: dict[str, Any]) -> None:
    assert glowtrain.__version__ == project["project"]["version"]
    assert f'\nversion: "{glowtrain.__version__}"\n' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[:1] in ([], [glowtrain.__version__])


def test_every_import_is_declared(project: dict[str, Any]) -> None:
    """The package imports the standard library, its core dependencies and its gradcheck and plot extras: no peer, but
    for PyTorch where its modules are taken, Flower for its clients, scikit-learn for its estimators, mpi4py for fleets,
    wgpu for its backend, IPython where it runs, and what servers are made of."""
    extras = project["project"]["optional-dependencies"]
    requirements = [*project["project"]["dependencies"], *extras["gradcheck"], *extras["plot"]]
    declared = {re.split(r"[<>=~!\[ ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    allowed = declared | set(sys.stdlib_module_names) | {"glowtrain", "google"}  # google.protobuf
    serving = ROOT / "glowtrain" / "serving"
    bridges = {
        "torch": ROOT / "glowtrain" / "torch",
        "mpi4py": ROOT / "glowtrain" / "fleet",
        "wgpu": ROOT / "glowtrain" / "backends" / "webgpu",
        "flwr": ROOT / "glowtrain" / "flower",
        "sklearn": ROOT / "glowtrain" / "sklearn",
        "IPython": ROOT / "glowtrain" / "trainer" / "live_output.py",
    }
    bridges |= dict.fromkeys(("starlette", "uvicorn", "httptools", "grpc", "grpc_health"), serving)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in source_files("glowtrain", *LINKED)
        for line, name in imported_names(path)
        if name.split(".")[0] not in allowed | {peer for peer, home in bridges.items() if path.is_relative_to(home)}
    ]
    assert not found


def test_peers_are_installed_by_hand_only(project: dict[str, Any]) -> None:
    wanted = "\n".join([*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]])
    assert not re.search(r"\b(torch|flwr|starlette|uvicorn|httptools|grpcio|jax|jaxlib|optax)\b|peers", wanted)


def test_typed_marker_and_licences() -> None:
    assert (ROOT / "glowtrain" / "py.typed").is_file()
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    for shipped in (ROOT / "glowtrain" / "datasets").glob("*.npz"):
        licence = shipped.with_suffix(".LICENSE.md").read_text(encoding="utf-8")
        assert "Licence:" in licence
        assert "https://" in licence


def test_make_clean_removes_what_the_demo_writes() -> None:
    default = inspect.signature(demo).parameters["path"].default
    removed = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nclean:\n")[1].split("\n\n")[0].split()
    assert {str(default), str(default.with_stem(f"{default.stem}-int8"))} <= set(removed)
