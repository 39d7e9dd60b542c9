"""The registry: every operator by name. It is full whenever it is asked: operators that come along are all imported
when one is looked up that is not there yet, those of other packages when their domain is met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from glowtrain.errors import PluginError
from glowtrain.graph.operator import Operator
from glowtrain.graph.plugins import load_domain

BUILT_IN = "glowtrain.ops"
"""The package of the operators that come along; its modules register them when they are imported."""

OWN = "glowtrain"
"""The domain of operators that come along and that ONNX does not have."""

_registered: dict[str, type[Operator]] = {}
"""The operators whose modules were imported, by key."""

Class = TypeVar("Class", bound=type[Operator])


def operator(cls: Class) -> Class:
    """Class decorator: enter the operator in the registry (under its class name unless ``onnx`` says otherwise).

    Raises :class:`PluginError` for a class that is not an operator, and ``ValueError`` for a name that is taken.
    """
    _check_class(cls)
    if "onnx" not in vars(cls):
        cls.onnx = cls.__name__
    key = cls.key()
    if key in _registered and _registered[key].__qualname__ != cls.__qualname__:
        raise ValueError(f"operator {key} is already registered by {_registered[key].__module__}")
    _registered[key] = cls
    return cls


def _check_class(cls: type[Operator]) -> None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not issubclass(cls, Operator):
        raise PluginError(f"{name} cannot be registered: an operator is a subclass of glowtrain.Operator")
    if "__dataclass_params__" not in vars(cls) or not vars(cls)["__dataclass_params__"].frozen:
        raise PluginError(f"{name} cannot be registered: put @dataclass(frozen=True) between @operator and the class")
    missing = [method for method in ("infer", "reference") if not cls.has(method)]
    if missing:
        raise PluginError(f"{name} cannot be registered: it has no {' and no '.join(missing)}")


def lookup(key: str) -> type[Operator] | None:
    """The operator registered under ``key``, if any; one of another domain may come from an installed package.

    Raises :class:`PluginError` if that package cannot be imported.
    """
    if key not in _registered:
        _import_all()
    if key not in _registered and (domain := key.rpartition(".")[0]) not in ("", OWN):
        load_domain(domain)
    return _registered.get(key)


def _import_all() -> None:
    """Import the operators that come along."""
    import_module(BUILT_IN).import_all()


class _Operators(MutableMapping[str, type[Operator]]):
    """All operators but those of packages that nobody asked for: those that come along are imported when needed."""

    def __getitem__(self, key: str) -> type[Operator]:
        if key not in _registered:
            _import_all()
        return _registered[key]

    def __setitem__(self, key: str, cls: type[Operator]) -> None:
        _registered[key] = cls

    def __delitem__(self, key: str) -> None:
        del _registered[key]

    def __iter__(self) -> Iterator[str]:
        _import_all()
        return iter(tuple(_registered))

    def __len__(self) -> int:
        _import_all()
        return len(_registered)


OPERATORS: MutableMapping[str, type[Operator]] = _Operators()
"""Every registered operator by :meth:`Operator.key`."""


def class_of(key: str) -> type[Operator]:
    """The operator registered under ``key``. Raises :class:`KeyError` where there is none."""
    cls = lookup(key)
    if cls is None:
        raise KeyError(key)
    return cls


@dataclass(frozen=True)
class Named:
    """An operator by name, looked up when it is made.

    For Python's operators on values, and for rules that need an operator of a family which stands on theirs: the
    gradient of a broadcast is a sum, and that of a sum a broadcast.
    """

    key: str

    def __call__(self, *attributes: Any, **named: Any) -> Operator:
        """The operator with these attributes."""
        return self.cls(*attributes, **named)

    @property
    def cls(self) -> type[Operator]:
        """The operator's class."""
        return class_of(self.key)


def registered(where: Callable[[type[Operator]], bool] = lambda cls: True) -> Iterator[type[Operator]]:
    """All registered operators that satisfy ``where``, by name."""
    _import_all()
    return (_registered[key] for key in sorted(_registered) if where(_registered[key]))
