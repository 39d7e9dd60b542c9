"""Memos: results of functions of immutable objects, stored with these objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Subject = TypeVar("Subject")
Details = TypeVarTuple("Details")


def memoized(function: Callable[[Subject, *Details], T]) -> Callable[[Subject, *Details], T]:
    """Store a function's results in the ``__dict__`` of its first argument, by the others.

    For an object that never changes and hashable other arguments. Passes ask the same again of instructions that they
    and others left as they are; unlike :func:`functools.cache`, this hashes no instruction and keeps none alive.
    """
    attribute = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def lookup(subject: Subject, *details: *Details) -> T:
        memo: dict[tuple[*Details], T] = subject.__dict__.setdefault(attribute, {})
        if details not in memo:
            memo[details] = function(subject, *details)
        return memo[details]

    return lookup
