"""Test data comes from a seed of its own: no test reads a generator that others have drawn from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("*.py"))


def shared_generators(source: str) -> list[str]:
    """Generators of a module that its functions draw from."""
    tree = ast.parse(source)
    made = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and ast.unparse(node.value.func).endswith(("default_rng", "RandomState"))
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    return sorted({n.id for f in functions for n in ast.walk(f) if isinstance(n, ast.Name) and n.id in made})


def test_no_generator_is_shared() -> None:
    found = {path: shared_generators(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_shared_generator_is_seen() -> None:
    made = "R = np.random.default_rng(0)\nX = R.normal(size=3)\n"
    assert shared_generators(made) == []
    assert shared_generators(made + "def test():\n    assert R.normal() < 9\n") == ["R"]


def test_the_fixture_gives_each_test_numbers_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        """
        from pathlib import Path

        def test_a(random): Path("a").write_text(str(random.integers(1 << 30)))
        def test_b(random): Path("b").write_text(str(random.integers(1 << 30)))
        """
    )
    assert pytester.runpytest_subprocess().ret == 0
    a, b = ((pytester.path / name).read_text() for name in "ab")
    assert a != b
    assert pytester.runpytest_subprocess("-k", "test_b").ret == 0
    assert (pytester.path / "b").read_text() == b
