"""What is there when it is first used: modules, attributes of objects, and what functions say of objects.

What only compiling needs must not cost a process anything that finds its code compiled on disk. The plain import
stands beside, for type checkers and the import linter::

    if TYPE_CHECKING:
        from glowtrain.compiler import walk
    else:
        walk = Deferred("glowtrain.compiler.walk")
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Self, TypeVar, TypeVarTuple, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Subject = TypeVar("Subject")
Details = TypeVarTuple("Details")


class Deferred:
    """Stands for a module, and imports it at the first look at one of its attributes."""

    def __init__(self, name: str) -> None:
        self.__module = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__module), attribute)

    def __repr__(self) -> str:
        return f"<{self.__module}, when it is used>"


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


def remembered(function: Callable[[Subject, *Details], T]) -> Callable[[Subject, *Details], T]:
    """A function of an object that never changes, and of hashable details: what it says is kept with the object.

    Passes ask the same again of instructions that they and others left as they are.
    """
    attribute = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def answer(subject: Subject, *details: *Details) -> T:
        known: dict[tuple[*Details], T] = subject.__dict__.setdefault(attribute, {})
        if details not in known:
            known[details] = function(subject, *details)
        return known[details]

    return answer
