"""Planting itself: a mistake fits code that only reads otherwise, and says so where the code has become another."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from changes import (
    Change,
    NotPlanted,
    Syntax,
    always,
    around,
    constant,
    flip,
    functions_of,
    instead,
    keep,
    negate,
    never,
    off_by_one,
    parsed,
    result,
    rewrite,
    scale,
    swap,
    wrap,
)
from mistakes import MISTAKES, known
from patterns import Match, matches
from planting import Mistake

Patch = pytest.MonkeyPatch


# --- Functions to be made wrong, and the same ones written otherwise


def slope(g: float, y: float) -> float:
    return g * (1.0 - y * y)


def slope_otherwise(cotangent: float, of: float) -> float:
    # The derivative of tanh.
    square = of * of
    derivative: float = 1.0 - square
    return cotangent * derivative


def bounded(values: list[int], low: int, high: int) -> list[int]:
    if low > high:
        return []
    return [max(low, min(value, high)) for value in values]


def bounded_otherwise(numbers: list[int], least: int, most: int) -> list[int]:
    empty, result = least > most, []
    if empty:
        return []
    for number in numbers:
        below = min(number, most)
        result.append(max(least, below))
    return result


def padded(text: str, width: int) -> str:
    return text.rjust(width, " ") if width else text


def padded_otherwise(line: str, extent: int) -> str:
    right = line.rjust
    filled = right(extent, " ")
    return filled if extent else line


PAIRS: dict[Callable[..., Any], Callable[..., Any]] = {
    slope: slope_otherwise,
    bounded: bounded_otherwise,
    padded: padded_otherwise,
}


@pytest.mark.parametrize(
    ("right", "change", "arguments", "expected"),
    [
        (slope, negate("X * (1.0 - _)"), (2.0, 3.0), 16.0),
        (slope, scale("1.0 - A * A", 0.5), (2.0, 3.0), -8.0),
        (slope, off_by_one("X - _"), (2.0, 3.0), -14.0),
        (slope, off_by_one("X - _", -1), (2.0, 3.0), -18.0),
        (slope, constant("1.0 - X", 2.0), (2.0, 3.0), -2.0),
        (slope, keep("X * (1.0 - _)"), (2.0, 3.0), 2.0),
        (slope, keep("_ - X"), (2.0, 3.0), 18.0),
        (slope, swap("X - Y"), (2.0, 3.0), 16.0),
        (slope, rewrite("A - B * B", "A + B"), (2.0, 3.0), 8.0),
        (slope, wrap("_ - X", lambda square: square + 1), (2.0, 3.0), -18.0),
        (slope, result(lambda found: found + 0.5), (2.0, 3.0), -15.5),
        (slope, instead(lambda g, y: g + y), (2.0, 3.0), 5.0),
        (slope, around(lambda function, g, y: function(1.0, y)), (2.0, 3.0), -8.0),
        (bounded, flip("_ > _"), ([1, 5, 9], 2, 7), []),
        (bounded, always("_ > _"), ([1, 5, 9], 2, 7), []),
        (bounded, never("_ > _"), ([1, 5, 9], 7, 2), [7, 7, 7]),
        (bounded, keep("max(_, X)"), ([1, 5, 9], 2, 7), [1, 5, 7]),
        (bounded, wrap("min(...)", lambda value: value * 10), ([1, 5, 9], 2, 7), [10, 50, 70]),
        (padded, constant("_.rjust(X, ...)", 2), ("a", 3), " a"),
        (padded, swap("X if _ else Y"), ("a", 3), "a"),
        (padded, constant("_ if X else _", 0), ("a", 3), "a"),
    ],
)
def test_a_change_makes_either_way_of_writing_it_wrong(
    right: Callable[..., Any], change: Change, arguments: tuple[Any, ...], expected: object
) -> None:
    for function in (right, PAIRS[right]):
        before = function(*arguments)
        with Patch.context() as patch:
            change.plant(function, patch)
            assert function(*arguments) == expected != before
        assert function(*arguments) == before


# --- Mistakes that are planted in the product


class Renaming(ast.NodeTransformer):
    """Other names for the parameters and locals of a function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        nodes = list(ast.walk(function))
        self.names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.names |= {n.arg for n in nodes if isinstance(n, ast.arg)} - {"self", "cls"}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"renamed_{node.id}", node.ctx) if node.id in self.names else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(f"renamed_{node.arg}") if node.arg in self.names else node


class Extracting(ast.NodeTransformer):
    """Names for the operands of what a pattern matched."""

    def __init__(self, match: Match) -> None:
        children = [child for child in operands(match.whole) if not isinstance(child, ast.Name | ast.Constant)]
        self.names = {id(child): f"part{place}" for place, child in enumerate(children)}
        self.assigned = [ast.Assign([ast.Name(self.names[id(c)], ast.Store())], c, lineno=0) for c in children]

    def visit(self, node: ast.AST) -> Any:
        return ast.Name(self.names[id(node)], ast.Load()) if id(node) in self.names else self.generic_visit(node)


def operands(node: ast.expr) -> list[ast.expr]:
    children = [child.value if isinstance(child, ast.keyword) else child for child in ast.iter_child_nodes(node)]
    return [child for child in children if isinstance(child, ast.expr) and not isinstance(child, ast.Starred)]


IN_SYNTAX = [mistake for mistake in MISTAKES if isinstance(mistake.how, Syntax)]
each_mistake = pytest.mark.parametrize("mistake", IN_SYNTAX, ids=lambda mistake: mistake.name.replace(" ", "-"))


def pattern(mistake: Mistake) -> str:
    assert isinstance(mistake.how, Syntax)
    return mistake.how.pattern


@each_mistake
def test_a_mistake_fits_code_with_other_names_and_other_lines(mistake: Mistake) -> None:
    found = 0
    for function in functions_of(mistake.what):
        tree = parsed(function)
        (renamed,) = ast.parse(ast.unparse(Renaming(tree).visit(tree))).body
        assert isinstance(renamed, ast.FunctionDef)
        found += len(matches(pattern(mistake), renamed))
    assert found == 1


@each_mistake
def test_a_mistake_fits_code_in_which_operands_got_names(mistake: Mistake) -> None:
    for function in functions_of(mistake.what):
        for match in matches(pattern(mistake), tree := parsed(function)):
            extracting = Extracting(match)
            extracting.visit(tree)
            tree.body[:0] = extracting.assigned
            assert len(matches(pattern(mistake), tree)) == 1


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "name",
    [
        "sign",
        "swapped branches",
        "gradient outside of the bounds",
        "mean held constant",
        "write overtakes a read",
        "tail of a reduction unmasked",
        "momentum restarts",
        "bias correction one step late",
        "epsilon inside of the root",
    ],
)
def test_a_mistake_in_code_with_other_names_is_caught(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    mistake = known(name)
    (function,) = functions_of(mistake.what)
    tree, file = parsed(function), tmp_path / "renamed.py"
    file.write_text(ast.unparse(Renaming(tree).visit(tree)))
    found: dict[str, Any] = {}
    exec(compile(file.read_text(), file, "exec"), function.__globals__, found)
    monkeypatch.setattr(function, "__code__", found[function.__name__].__code__)
    assert not mistake.find()
    mistake.plant(monkeypatch)
    assert mistake.find()


def test_who_holds_the_function_gets_the_wrong_one(monkeypatch: Patch) -> None:
    held = (slope, {"slope": slope})
    negate("X * (1.0 - _)").plant(slope, monkeypatch)
    assert held[0](2.0, 3.0) == held[1]["slope"](2.0, 3.0) == 16.0


class Base:
    @property
    def one(self) -> int:
        return 1

    def two(self) -> int:
        return 2


class Derived(Base):
    factor = 1

    def two(self, *, times: int = 3) -> int:
        return super().two() * times + self.factor

    @staticmethod
    def depth(n: int) -> int:
        return Derived.depth(n - 1) + 1 if n else 0


def recursive(n: int) -> int:
    return recursive(n - 1) + 1 if n else 0


@pytest.mark.parametrize(
    ("what", "change", "ask", "expected"),
    [
        (Base.one, constant("1", 5), lambda: Base().one, 5),
        (Derived.two, constant("super().two()", 7), lambda: Derived().two(), 22),
        (Derived.two, around(lambda two, self, times=1: two(self, times=times)), lambda: Derived().two(), 3),
        (Derived, off_by_one("_ * X + _"), lambda: Derived().two(), 9),
        (Derived, negate("self.factor"), lambda: Derived().two(), 5),
        (Derived.depth, scale("_ + X", 2), lambda: Derived.depth(3), 6),
        (recursive, scale("_ + X", 2), lambda: recursive(3), 6),
        (recursive, result(lambda n: n * 2), lambda: recursive(2), 6),
    ],
)
def test_what_may_be_a_method_a_property_a_class(
    what: Any, change: Change, ask: Callable[[], int], expected: int, monkeypatch: Patch
) -> None:
    change.plant(what, monkeypatch)
    assert ask() == expected


# --- Mistakes that do not fit


@pytest.mark.parametrize(
    ("what", "change", "told"),
    [
        (slope, negate("_ / _"), "`_ / _` should match one expression of slope, but matches nothing"),
        (slope, keep("X * _"), "matches 2 expressions: `g * (1.0 - y * y)` in slope, `y * y` in slope"),
        (slope, swap("X * Y - A"), "matches nothing"),
        (slope, negate("A - A * A"), "matches nothing"),
        (slope, constant("1", 2), "matches nothing"),
        (Derived, keep("_ + X"), "+ self.factor` in Derived.two, `Derived.depth(n - 1) + 1` in Derived.depth"),
        (slope, constant("X - _", 1.0), "`X - _` is changed into itself: `1.0 - y * y`"),
        (slope, flip("X - _"), "`1.0` is no single comparison to flip"),
        (Base, result(abs), "Base is no function, so it has no behaviour to replace"),
        (abs, result(abs), "<built-in function abs> is neither a function nor a class nor a module"),
    ],
)
def test_a_mistake_that_does_not_fit_says_so(what: Any, change: Change, told: str, monkeypatch: Patch) -> None:
    mistake = Mistake("a known one", what, change, lambda: True)
    with pytest.raises(NotPlanted, match="^" + re.escape('the mistake "a known one" does not fit the code: ')) as error:
        mistake.plant(monkeypatch)
    assert told in str(error.value)
