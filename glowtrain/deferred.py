"""What is there when it is first used: modules, methods of dataclasses, attributes of objects, what functions say of
objects.

What only compiling needs must not cost a process anything that finds its code compiled on disk. The plain import
stands beside, for type checkers and the import linter::

    if TYPE_CHECKING:
        from glowtrain.compiler import walk
    else:
        walk = Deferred("glowtrain.compiler.walk")
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from importlib import import_module
from threading import RLock
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, overload

from glowtrain.collector import uncollected

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Subject = TypeVar("Subject")
Details = TypeVarTuple("Details")


class Deferred:
    """Stands for a module, and imports it at the first look at one of its attributes, without a search for garbage."""

    def __init__(self, name: str) -> None:
        self.__module = name

    def __getattr__(self, attribute: str) -> Any:
        with uncollected():
            module = import_module(self.__module)
        return getattr(module, attribute)

    def __repr__(self) -> str:
        return f"<{self.__module}, when it is used>"


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """The standard library's, which writes the methods of a class when one of them is first asked for.

        It writes them as text and compiles that, 0.3 ms a class: a quarter of the time in which a process that finds
        its code begins to train went into 290 classes, of most of which it makes no object.
        """
        if cls is None:
            return functools.partial(dataclass, **options)
        if options.get("order"):
            return dataclasses.dataclass(cls, **options)
        if options.get("slots"):  # they make another class
            cls = dataclasses.dataclass(cls, **options, init=False)
            cls.__init__ = _initializer(cls)
            return cls
        return _Unwritten(cls, options).cls


class _Unwritten:
    """A class that is to be a dataclass: what the decorator gives it stands in it as :class:`_Later`."""

    lock = RLock()

    def __init__(self, cls: type, options: dict[str, bool]) -> None:
        self.cls, self.options = cls, options
        own = vars(cls)
        given = [name for name in _GIVEN if own.get(name) is None]  # None: no hash, as it compares in a way of its own
        defaults = [name for name, value in own.items() if isinstance(value, dataclasses.Field)]
        self.replaced = {name: own.get(name, _NOTHING) for name in (*given, *defaults)}
        self.writes_init = "__init__" in self.replaced
        for name in self.replaced:
            setattr(cls, name, _Later(self, name))

    def write(self) -> None:
        """Let the decorator do its work, once.

        Its ``__init__`` comes last, and in one step: until it is there, other threads that make objects wait.
        """
        with self.lock:
            replaced, self.replaced = self.replaced, {}
            if not replaced:
                return
            replaced.pop("__init__", None)
            for name, value in replaced.items():
                if value is _NOTHING:
                    delattr(self.cls, name)
                else:
                    setattr(self.cls, name, value)
            self.cls.__doc__ = self.cls.__doc__ or self.cls.__name__  # else the decorator writes the signature down
            dataclasses.dataclass(self.cls, **{**self.options, "init": not self.writes_init})
            if self.writes_init:
                self.cls.__init__ = _initializer(self.cls)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):  # a child that came to be while a thread wrote a class would have half of it
    _release = _Unwritten.lock.release
    os.register_at_fork(before=_Unwritten.lock.acquire, after_in_parent=_release, after_in_child=_release)


def _initializer(cls: Any) -> Any:
    """The ``__init__`` that the decorator gives a class with the fields of this one (none of which is an InitVar).

    Slots of a frozen class are set by their own descriptors, which takes half the time of ``object.__setattr__``: nodes
    of expressions are made by the hundred thousand.
    """
    frozen, names = cls.__dataclass_params__.frozen, dict[str, Any](__set__=object.__setattr__, __made__=_MADE)
    positional, keywords, lines = ["self"], list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        default = "" if field.default is dataclasses.MISSING else f"=_{name}"
        names[f"_{name}"] = field.default
        if field.default_factory is not dataclasses.MISSING:
            default, names[f"_{name}"] = "=__made__", field.default_factory
            value = f"_{name}() if {name} is __made__ else {name}" if field.init else f"_{name}()"
        if field.init:
            (keywords if field.kw_only else positional).append(name + default)
        if field.init or default == "=__made__":
            slot = vars(cls).get(name)
            if frozen and isinstance(slot, MemberDescriptorType):
                names[f"__set_{name}"] = slot.__set__
                lines.append(f"__set_{name}(self, {value})")
            else:
                lines.append(f"__set__(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n " + ("; ".join(lines) or "pass"), names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    made.__annotations__["return"] = None
    return made


class _Made:
    """Stands for the default of a parameter that a call makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE, _NOTHING = _Made(), object()
_GIVEN = (
    "__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__match_args__",
    "__dataclass_fields__", "__dataclass_params__",
)  # fmt: skip
"""What a class gets from the decorator, by whatever options, unless it has it itself."""


class _Later:
    """An attribute of a class that is there when the class is written."""

    def __init__(self, unwritten: _Unwritten, name: str) -> None:
        self.unwritten, self.name = unwritten, name

    @property
    def frozen(self) -> bool:
        """What the parameters of the decorator will say."""
        return self.unwritten.options.get("frozen", False)

    def __get__(self, instance: object | None, owner: type) -> Any:
        self.unwritten.write()
        cls = self.unwritten.cls
        found = vars(cls).get(self.name, self)
        if found is self:  # the decorator gave none
            return getattr(super(cls, owner if instance is None else instance), self.name)
        return found.__get__(instance, owner) if hasattr(found, "__get__") else found


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
