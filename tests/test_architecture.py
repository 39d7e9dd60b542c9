"""How the code is laid out: operators are named in the registry only, folders stay small, a class name means one thing.

Which room may import which is for the import linter (``pyproject.toml``).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("glowtrain", "grad", "gradcheck", "optim")
MOST_MODULES = 15
"""Modules side by side in one folder."""


BY_NAME = {
    "glowtrain/graph/value.py": "Python's operators on values stand below the operators",
    "glowtrain/ops/elementwise/arithmetic.py": "the gradient of a power has a logarithm, which stands on arithmetic",
    "glowtrain/ops/indexing/gather.py": "the gradient of a gather is a scatter, and that of a scatter a gather",
    "glowtrain/ops/indexing/sorting.py": "the gradient of a sorting network is that of TopK, which stands on it",
    "glowtrain/ops/tensor/move.py": "the gradients of moves are sums and pads, whose families stand on moves",
}
"""Modules that name operators by strings, and why they cannot import them."""

NAMED_TWICE = {
    "Adagrad": "ONNX's operator, and the optimizer",
    "Adam": "ONNX's operator, and the optimizer",
    "Cast": "ONNX's operator, and the loop language's expression that it becomes",
    "Constant": "a value of a graph, and a schedule",
    "Normal": "the operator that draws, and the initializer",
}


def modules() -> Iterator[Path]:
    """Every module, through its own folder and not the symlink to it."""
    for room in ROOMS:
        paths = sorted((ROOT / room).rglob("*.py"))
        yield from (path for path in paths if not any(parent.is_symlink() for parent in path.parents))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_an_operator(node: ast.AST) -> bool:
    """Whether an expression looks an operator up by a string that is written there."""
    if isinstance(node, ast.Subscript):
        return called(node.value) == "OPERATORS"
    by_name = isinstance(node, ast.Call) and called(node.func) in ("lookup", "class_of", "Named")
    return by_name and bool(node.args) and isinstance(node.args[0], ast.Constant)


def called(node: ast.expr) -> str:
    """``f`` for ``f`` and ``module.f``."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("Named('Add')", True),
        ("registry.lookup('Add')", True),
        ("OPERATORS['Add']", True),
        ("lookup(key)", False),
        ("Add()", False),
    ],
)
def test_what_counts_as_naming_an_operator(code: str, expected: bool) -> None:
    assert names_an_operator(ast.parse(code, mode="eval").body) == expected


def test_operators_are_named_by_strings_only_where_they_cannot_be_imported() -> None:
    found = {name_of(path) for path in modules() if any(map(names_an_operator, ast.walk(ast.parse(path.read_text()))))}
    assert found == set(BY_NAME)


def test_no_folder_holds_too_many_modules() -> None:
    folders: dict[str, int] = defaultdict(int)
    for path in modules():
        folders[name_of(path.parent)] += path.name != "__init__.py"
    assert len(folders) > 30
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_a_class_name_means_one_thing() -> None:
    """Names beginning with an underscore are for their module alone."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in NAMED_TWICE} == {}
    assert set(NAMED_TWICE) - set(twice) == set(), "these are defined once now"


def test_files_that_pytest_collects_together_have_names_of_their_own(pytestconfig: pytest.Config) -> None:
    """Folders of tests are no packages, so of two files of one name pytest runs one and reports the other."""
    apart = set(pytestconfig.getini("norecursedirs"))
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if apart.isdisjoint(path.relative_to(ROOT).parts):
            found[path.name].append(name_of(path))
    assert [paths for paths in found.values() if len(paths) > 1] == []
