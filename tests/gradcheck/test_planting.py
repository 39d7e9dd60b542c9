"""Planting itself: a change makes code wrong however it is written, and says so where it does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from changes import (
    Change,
    NotPlanted,
    always,
    around,
    constant,
    flip,
    instead,
    keep,
    negate,
    never,
    off_by_one,
    result,
    rewrite,
    scale,
    swap,
    wrap,
)
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


# --- What is made wrong


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
