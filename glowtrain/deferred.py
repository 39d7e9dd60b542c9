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

import abc
import dataclasses
import functools
import os
import re
from collections.abc import Callable
from importlib import import_module
from reprlib import recursive_repr
from threading import RLock
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Subject = TypeVar("Subject")
Details = TypeVarTuple("Details")
Fields = dict[str, dataclasses.Field[Any]]


class Deferred:
    """Stands for a module, and imports it at the first look at one of its attributes, without a search for cycles."""

    def __init__(self, name: str) -> None:
        self.__name = name
        self.__module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self.__module is None:
            self.__module = import_module(self.__name)
        return getattr(self.__module, attribute)

    def __repr__(self) -> str:
        return f"<{self.__name}, when it is used>"


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
        if options.get("order") or options.get("unsafe_hash"):
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
        """Give the class what it is to have, once.

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
            _fill(self.cls, self.options)
            if self.writes_init:
                self.cls.__init__ = _initializer(self.cls)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):  # a child that came to be while a thread wrote a class would have half of it
    _release = _Unwritten.lock.release
    os.register_at_fork(before=_Unwritten.lock.acquire, after_in_parent=_release, after_in_child=_release)


def _fill(cls: Any, options: dict[str, bool]) -> None:
    """What the decorator gives a class besides its ``__init__``.

    The standard library, which finds the fields, would write all methods as text and compile them, 0.4 ms a class. Here
    those that compare are, as they must be fast: each when it is first asked for.
    """
    cls.__dataclass_fields__ = _fields(cls, options)
    cls.__dataclass_params__ = _parameters(frozenset(options.items()))
    fields = dataclasses.fields(cls)
    if options.get("match_args", True):
        _give(cls, "__match_args__", tuple(field.name for field in fields if field.init and not field.kw_only))
    if options.get("repr", True):
        _give(cls, "__repr__", _representation([field.name for field in fields if field.repr]))
    if options.get("frozen"):
        names = frozenset(field.name for field in fields)
        _refuse(cls, "__setattr__", "assign to", names)
        _refuse(cls, "__delattr__", "delete", names)
    if options.get("eq", True):
        _compare(cls, fields, hashable=options.get("frozen", False))
    abc.update_abstractmethods(cls)


def _fields(cls: Any, options: dict[str, bool]) -> Fields:
    """The fields of a class after those that it inherits: its own as the standard library finds them in a class that
    has nothing else, with their defaults in their places."""
    found = _inherited(cls, options.get("frozen", False))
    annotations = vars(cls).get("__annotations__", {})
    plain = {name: object for name, text in annotations.items() if isinstance(text, str) and not _SPECIAL.search(text)}
    space: dict[str, Any] = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
    space |= {name: getattr(cls, name) for name in annotations if hasattr(cls, name)}
    space |= {"__annotations__": annotations | plain, "__module__": cls.__module__, "__doc__": "Fields."}
    nothing = dict.fromkeys(("init", "repr", "eq", "match_args"), False)
    bare: Any = dataclasses.dataclass(type(cls.__name__, (), space), **nothing, kw_only=options.get("kw_only", False))
    for name, field in bare.__dataclass_fields__.items():
        field.type = annotations[name]
        if isinstance(vars(cls).get(name), dataclasses.Field):
            if field.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)
    if "__replace__" in vars(bare):  # from Python 3.13 on
        _give(cls, "__replace__", vars(bare)["__replace__"])
    found |= bare.__dataclass_fields__
    return found


_SPECIAL = re.compile("ClassVar|InitVar|KW_ONLY")
"""Annotations that say more than a type. The standard library looks for these in each text, for as long as all the rest
of its work takes."""


def _inherited(cls: type, frozen: bool) -> Fields:
    found: Fields = {}
    for base in cls.__mro__[-1:0:-1]:
        known: Any = base
        if dataclasses.is_dataclass(base):
            found.update(known.__dataclass_fields__)
            if known.__dataclass_params__.frozen != frozen:
                kinds = ("frozen", "a non-frozen") if frozen else ("non-frozen", "a frozen")
                raise TypeError(f"cannot inherit {' dataclass from '.join(kinds)} one")
    return found


@functools.cache
def _parameters(options: frozenset[tuple[str, bool]]) -> Any:
    """What the standard library notes of the options."""
    decorated: Any = dataclasses.dataclass(**dict[str, Any](options))(type("_", (), {}))
    return decorated.__dataclass_params__


def _give(cls: Any, name: str, value: Any) -> bool:
    """An attribute, unless the class has it itself."""
    missing = name not in vars(cls)
    if missing:
        if isinstance(value, FunctionType):
            value.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, value)
    return missing


def _representation(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr("...")
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _refuse(cls: Any, method: str, what: str, names: frozenset[str]) -> None:
    """Make a method that changes attributes refuse those of these names."""

    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    refuse.__name__ = method
    if not _give(cls, method, refuse):
        raise TypeError(f"Cannot overwrite attribute {method} in class {cls.__name__}")


def _compare(cls: Any, fields: tuple[dataclasses.Field[Any], ...], hashable: bool) -> None:
    """Let objects be equal whose fields are; unless they can be changed, they have a hash."""
    hashed = _tuple("self", [field for field in fields if (field.compare if field.hash is None else field.hash)])
    own, other = (_tuple(each, [field for field in fields if field.compare]) for each in ("self", "other"))
    body = f"return {own} == {other} if other.__class__ is self.__class__ else NotImplemented"
    if vars(cls).get("__hash__", _NOTHING) is (None if "__eq__" in vars(cls) else _NOTHING):  # None is Python's then
        cls.__hash__ = _Text(cls, "__hash__", "self", f"return hash({hashed})") if hashable else None
    _give(cls, "__eq__", _Text(cls, "__eq__", "self, other", body))


def _tuple(subject: str, fields: list[dataclasses.Field[Any]]) -> str:
    return f"({''.join(f'{subject}.{field.name}, ' for field in fields)})"


class _Text:
    """A method of a class whose text is compiled when it is first asked for."""

    def __init__(self, cls: Any, name: str, parameters: str, body: str) -> None:
        self.cls, self.name = cls, name
        self.text = f"def {name}({parameters}):\n {body}"

    def __get__(self, instance: object | None, owner: type) -> Any:
        names: dict[str, Any] = {}
        exec(self.text, names)
        method = names[self.name]
        method.__qualname__ = f"{self.cls.__qualname__}.{self.name}"
        setattr(self.cls, self.name, method)
        return method.__get__(instance, owner)


def _initializer(cls: Any) -> Any:
    """The ``__init__`` that the decorator gives a class with the fields of this one (none of which is an InitVar).

    Slots of a frozen class are set by their own descriptors, which takes half the time of ``object.__setattr__``: nodes
    of expressions are made by the hundred thousand.
    """
    frozen, names = cls.__dataclass_params__.frozen, dict[str, Any](__set__=object.__setattr__, __made__=_MADE)
    positional, keywords, lines = ["self"], list[str](), list[str]()
    fields = dataclasses.fields(cls)
    for field in fields:
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
    made.__annotations__ = {field.name: field.type for field in fields if field.init}
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
