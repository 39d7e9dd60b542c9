"""Planting a mistake in the product's code, and the checks of the suite that should see it.

A mistake names what it changes (a function by its import; or a class or a module, somewhere in which the pattern
stands) and how (``changes.py``), by behaviour or by syntax and never by the text of the source. So renamed locals,
other line breaks and expressions that got a name of their own leave it as it is, and where the code has become another
the mistake says so.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from changes import Change, NotPlanted

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.operators.edges import drawn_example
from glowtrain.gradcheck.operators.oracles import check_sample
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import check_case
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import OPERATORS, Value

Find = Callable[[], bool]


@dataclass(frozen=True)
class Mistake:
    """A known kind of mistake: what it changes, how, and the check that must find it (and finds nothing without it)."""

    name: str
    what: Any
    how: Change
    find: Find

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Make it until ``patch`` is undone. Raises :class:`NotPlanted` if it does not fit the code."""
        try:
            self.how.plant(self.what, patch)
        except NotPlanted as error:
            raise NotPlanted(f'the mistake "{self.name}" does not fit the code: {error}') from None


def ones(value: Value) -> Value:
    """1 everywhere, of the value's type."""
    return value * 0.0 + 1.0


def operator(key: str, oracle: str = "jacobian", examples: int = 24) -> Find:
    """Whether an oracle fails on one of an operator's own samples, as ``glowtrain gradcheck --op`` draws them."""
    return _Operator(key, oracle, examples)


def program(oracle: str, examples: int = 12, seed: int = 0) -> Find:
    """Whether an oracle fails on one of the random programs."""
    return _Program(oracle, examples, seed)


def suite(test: Callable[..., None], *arguments: Any) -> Find:
    """Whether a test of the suite fails."""
    return _Test(test, arguments)


def _wrong(measures: Iterable[Measure]) -> bool:
    """Whether something is found wrong: code that no longer runs at all is no mistake worth planting."""
    return any(m.status == "failed" and not m.detail.startswith(("AttributeError", "TypeError")) for m in measures)


@dataclass(frozen=True)
class _Operator:
    key: str
    oracle: str
    examples: int

    def __call__(self) -> bool:
        for example in range(self.examples):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # NumPy on means of nothing
                sample = drawn_example(OPERATORS[self.key], 0, example)
                if _wrong(check_sample(sample, [self.oracle])):
                    return True
        return False


@dataclass(frozen=True)
class _Program:
    oracle: str
    examples: int
    seed: int

    def __call__(self) -> bool:
        for example in range(self.examples):
            if _wrong(check_case(drawn_case(self.seed, example), [self.oracle])):
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
