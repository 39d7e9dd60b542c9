"""How the code is laid out: operators are named in the registry only, a class name means one thing, and names are the
field's terms.

Which room may import which is for the import linter (``pyproject.toml``).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("glowtrain", "grad", "gradcheck", "optim")

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
    "L1": "the loss, and the penalty on parameters",
    "Metric": "what a server counts, and what a model is measured by",
    "Normal": "the operator that draws, and the initializer",
    "TopK": "ONNX's operator, and the metric",
}

PRIVATE_WORDS = {
    "ahead": 1, "alike": 0, "alone": 0, "apart": 0, "aside": 0, "asked": 0, "asks": 0, "elsewhere": 0, "far": 0,
    "form": 1, "found": 0, "given": 1, "ground": 0, "held": 1, "joint": 1, "kept": 1, "known": 0, "made": 1,
    "noted": 0, "origin": 0, "outside": 1, "own": 0, "place": 9, "placed": 1, "places": 0, "remembered": 0,
    "said": 1, "settled": 0, "sharing": 2, "squares": 1, "taken": 0, "told": 0, "twice": 0, "uncollected": 0,
    "waiting": 0, "waits": 0, "way": 0, "words": 8,
}  # fmt: skip
"""Plain words that say less than the field's term for the same thing, and how many names have each: a new one is
refused, a rename lowers the number. Those that are left are documented interfaces (``Device.place``, ``Kept``), or the
word is the term: in place, held-out data, words of 32 bits."""


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


def names_in(path: Path) -> Iterator[str]:
    """Names of a module, its public classes and functions, and the parameters of these."""
    yield path.stem if path.stem != "__init__" else path.parent.name
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name
            if not isinstance(node, ast.ClassDef):
                yield from (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg))


def words_of(name: str) -> set[str]:
    """``{"by", "place"}`` for ``by_place`` and ``ByPlace``."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}


def test_words_of_names() -> None:
    assert words_of("by_place2") == words_of("ByPlace") == {"by", "place"}
    assert words_of("LLVMWays") == {"ways"}


def test_names_say_the_fields_terms() -> None:
    counts = Counter(word for path in modules() for name in names_in(path) for word in words_of(name))
    changed = {word: counts[word] for word, count in PRIVATE_WORDS.items() if counts[word] != count}
    assert changed == {}, "say the field's term where a number has grown; lower those that have shrunk"


def test_files_that_pytest_collects_together_have_names_of_their_own(pytestconfig: pytest.Config) -> None:
    """Folders of tests are no packages, so of two files of one name pytest runs one and reports the other."""
    apart = set(pytestconfig.getini("norecursedirs"))
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if apart.isdisjoint(path.relative_to(ROOT).parts):
            found[path.name].append(name_of(path))
    assert [paths for paths in found.values() if len(paths) > 1] == []
