"""Attributes that are computed when they are asked for first, and kept."""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class cached_property(functools.cached_property[T_co]):
    """The standard library's, without the lock around the computation that it has before Python 3.12.

    Passes ask hundreds of thousands of objects for such attributes, most of them once. Two threads that ask at the same
    time compute the same.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T_co: ...

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | T_co:
        if instance is None:
            return self
        assert self.attrname is not None
        value: T_co = self.func(instance)
        instance.__dict__[self.attrname] = value
        return value
