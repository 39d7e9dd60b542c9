"""Planting a mistake in the product's code, and the checks of the suite that should see it.

A mistake is an edit of one function: a snippet, which must stand there exactly once, is replaced by another. So it is
the one that a person could have made, and a refactoring that removes the snippet says so.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.operators.oracles import check_sample, drawn
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import check_case
from glowtrain.graph import OPERATORS

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Find = Callable[[], bool]


@dataclass(frozen=True)
class Mistake:
    """A known kind of mistake, how to make it, and the check that must find it (and finds nothing without it)."""

    name: str
    plant: Plant
    find: Find


def edit(owner: Any, name: str, *changes: tuple[str, str]) -> Plant:
    """Replace snippets in the source of ``owner.name``, a function of a module or of a class (or a base of it)."""

    def plant(patch: Patch) -> None:
        home = next(cls for cls in owner.__mro__ if name in vars(cls)) if isinstance(owner, type) else owner
        member = vars(home)[name]
        function = member.fget if isinstance(member, property) else getattr(member, "func", member)
        function = getattr(function, "__func__", function)
        patch.setattr(home, name, _edited(function, name, changes))

    return plant


def edit_everywhere(owner: Any, name: str, *changes: tuple[str, str]) -> Plant:
    """The same for a function that others hold by reference (in a table, by an import of its name)."""

    def plant(patch: Patch) -> None:
        function = vars(owner)[name]
        patch.setattr(function, "__code__", _edited(function, name, changes).__code__)

    return plant


def _edited(function: Any, name: str, changes: tuple[tuple[str, str], ...]) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert source.count(old) == 1, f"{function.__qualname__}: {old!r} stands there {source.count(old)} times"
        source = source.replace(old, new)
    assert function.__closure__ is None, f"{function.__qualname__} cannot be edited: it reads names around it"
    found: dict[str, Any] = {}
    exec(compile(source, f"<edited {function.__qualname__}>", "exec"), vars(sys.modules[function.__module__]), found)
    return found[name]


def rule(key: str, old: str, new: str, name: str = "vjp") -> Plant:
    """An edit of an operator's gradient rule, or another of its methods."""
    return edit(OPERATORS[key], name, (old, new))


def operator(key: str, oracle: str = "jacobian", examples: int = 24) -> Find:
    """Whether an oracle fails on one of an operator's own samples, as ``glowtrain gradcheck --op`` draws them."""
    return _Operator(key, oracle, examples)


def program(oracle: str, examples: int = 12, seed: int = 0) -> Find:
    """Whether an oracle fails on one of the random programs."""
    return _Program(oracle, examples, seed)


def suite(test: Callable[..., None], *arguments: Any) -> Find:
    """Whether a test of the suite fails."""
    return _Test(test, arguments)


@dataclass(frozen=True)
class _Operator:
    key: str
    oracle: str
    examples: int

    def __call__(self) -> bool:
        for example in range(self.examples):
            sample = drawn(OPERATORS[self.key], 0, example)
            if any(measure.status == "failed" for measure in check_sample(sample, [self.oracle])):
                return True
        return False


@dataclass(frozen=True)
class _Program:
    oracle: str
    examples: int
    seed: int

    def __call__(self) -> bool:
        for example in range(self.examples):
            if any(m.status == "failed" for m in check_case(drawn_case(self.seed, example), [self.oracle])):
                return True
        return False


@dataclass(frozen=True)
class _Test:
    test: Callable[..., None]
    arguments: tuple[Any, ...]

    def __call__(self) -> bool:
        try:
            self.test(*self.arguments)
        except (AssertionError, GlowtrainError, pytest.fail.Exception):
            return True
        return False


@functools.cache
def clean(find: Find) -> bool:
    """Whether a check finds nothing in the code as it is; asked once for all mistakes that it is to find."""
    return not find()
