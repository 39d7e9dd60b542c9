"""What the Python code of a step reads beside tensors: numbers, flags, settings, which function a name stands for.

A trace runs that code once, so that these values become part of the compiled step. Code is followed from the loss and
from the modules' ``forward``: globals that it loads, variables of enclosing functions, attributes of objects whose
names it mentions, short lists, dicts and arrays. Not followed are globals of PyTorch, NumPy and the standard library.
"""

from __future__ import annotations

import argparse
import dis
import functools
import itertools
import logging
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from operator import attrgetter, call, is_
from random import Random
from typing import Any

import numpy as np
import torch

from glowtrain.torch.tracing.surroundings import Namespace, Surroundings

PLAIN = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, Enum)
GENERATORS = (Random, np.random.Generator, np.random.RandomState)
ITERATORS: tuple[type, ...] = (
    types.GeneratorType, itertools.cycle, itertools.count, itertools.chain, enumerate, map, zip, type(iter([])),
    type(iter(())), type(iter(range(0))),
)  # fmt: skip
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
LONGEST, MOST_BYTES = 64, 512
"""Elements of lists and dicts, and bytes of arrays, that are watched at most."""
CACHED = functools._lru_cache_wrapper
LOADS, STORES = ("LOAD_GLOBAL", "LOAD_NAME"), ("STORE_GLOBAL", "DELETE_GLOBAL")
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, threading.local, types.FunctionType)
"""Classes of the standard library whose objects are what people put into them."""
ENTRIES = frozenset({
    "forward", "__call__", "__getitem__", "__setitem__", "__contains__", "__iter__", "__next__", "__len__", "__bool__",
    "__enter__", "__exit__", "__getattr__", "__setattr__",
})  # fmt: skip
"""Methods that code calls without their names."""
WATCHED_ELSEWHERE = frozenset({"__dict__", *vars(torch.nn.Module())})
"""Modes, parameters, submodules and hooks; and each attribute for itself."""
LIBRARIES = frozenset({"torch", "numpy", "glowtrain", "builtins", "_pytest", *sys.stdlib_module_names})
"""What is not followed; pytest has asserts in tests call it."""
Members = dict[str, Any]


class PythonReads:
    """What code reads that starts at ``roots``, functions and modules, as it was when this was made."""

    def __init__(self, roots: Sequence[Any]) -> None:
        names: set[str] = set(ENTRIES)
        texts: set[str] = set()
        count = 0
        while count < len(names):  # code that is reached later may mention attributes of objects that were met before
            count, walk = len(names), _Walk(names, texts)
            for root in roots:
                walk.visit(root, "")
        self.generators = walk.generators
        self.surroundings = walk.surroundings
        """What the code may change beside attributes of modules."""
        self._readers = [read for read, _ in walk.readers]
        self.values = list(chain.from_iterable(map(call, self._readers)))
        """Kept alive, as some count by identity."""
        labels = chain.from_iterable(labels for _, labels in walk.readers)
        self.key = tuple(zip(labels, map(_fingerprint, self.values), strict=True))
        """By value where that is plain: what is read, under labels for people."""

    @property
    def unchanged(self) -> bool:
        """Whether each value is the same object."""
        try:
            return all(map(is_, chain.from_iterable(map(call, self._readers)), self.values))
        except (AttributeError, ValueError):  # deleted, or a variable that has no value
            return False

    def changes(self, before: PythonReads) -> list[str]:
        """Labels of what has another value than before."""
        return list(dict.fromkeys(label for label, _ in set(self.key) ^ set(before.key)))


class _Walk:
    """One pass over code and objects: how each value is read again, with its label. ``names`` grows by those that code
    mentions, ``texts`` by those among them that it may look for, as ``hasattr`` does."""

    def __init__(self, names: set[str], texts: set[str]) -> None:
        self.names = names
        self.texts = texts
        self.readers: list[tuple[Callable[[], Iterable[Any]], Sequence[str]]] = []
        self.generators: list[Any] = []
        self.surroundings = Surroundings()
        self._seen: dict[int, Any] = {}

    def visit(self, value: Any, label: str) -> None:
        """Watch what can be read through a value."""
        if isinstance(value, PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        for kinds, follow in self._ways():
            if isinstance(value, kinds):
                follow(value, label)
                return

    def _ways(self) -> Iterator[tuple[Any, Callable[[Any, str], None]]]:
        yield (*GENERATORS, *ITERATORS), lambda value, _: self.generators.append(value)
        yield (torch.Tensor, logging.Logger), lambda *_: None
        yield types.FunctionType, self._function
        yield types.MethodType, lambda value, label: self._each((value.__func__, value.__self__), label)
        yield CACHED, self._cached
        yield functools.partial, lambda value, label: self._each((value.func, value.args, value.keywords), label)
        yield torch.nn.Module, self._module
        yield CONTAINERS, self._container
        yield np.ndarray, self._array
        yield (type, types.ModuleType), self._namespace
        yield object, lambda value, label: self._object(value, label or type(value).__name__, type(value).__mro__)

    def _each(self, values: Iterable[Any], label: str) -> None:
        for value in values:
            self.visit(value, label)

    def _watch(self, read: Callable[[], Iterable[Any]], labels: Sequence[str]) -> None:
        self.readers.append((read, labels))
        for value, label in zip(list(read()), labels, strict=True):
            self.visit(value, label)

    def _function(self, function: types.FunctionType, _: str) -> None:
        mentioned, texts, loaded, stored = _names(function.__code__)
        self.names |= mentioned | texts
        self.texts |= texts
        own = function.__globals__
        if not _is_library(own.get("__name__")):
            names = sorted(loaded & own.keys())
            self._watch(functools.partial(map, own.get, names), names)
            read = functools.partial(_part, own, loaded | stored)
            self._change(Namespace("", read, own.__setitem__, own.__delitem__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._change(_namespace_of_cell(name, cell))
            self._watch(functools.partial(_contents, cell), [name])
        if not _is_library(own.get("__name__")):
            self._object(function, function.__name__, ())
        self._each((function.__defaults__, function.__kwdefaults__), function.__qualname__)

    def _change(self, namespace: Namespace) -> None:
        self.surroundings.namespaces.append(namespace)

    def _cached(self, function: Any, label: str) -> None:
        self.surroundings.caches.append(function)
        self.visit(function.__wrapped__, label)

    def _module(self, module: torch.nn.Module, label: str) -> None:
        kinds = type(module).__mro__
        self._object(module, label or type(module).__name__, kinds[: kinds.index(torch.nn.Module)])
        self._each(chain(module._forward_pre_hooks.values(), module._forward_hooks.values()), label)
        self._each(module._modules.values(), "")

    def _container(self, value: Any, label: str) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self.surroundings.containers.append((label, value))
        if len(value) <= LONGEST:
            keys = value if isinstance(value, dict) else ()
            items = [f"{label}[{key!r}]" for key in (keys or range(len(value)))]
            labels = [f"len({label})", *(f"key {key!r} of {label}" for key in keys), *items]
            self._watch(functools.partial(_elements, value), labels)

    def _array(self, array: Any, label: str) -> None:
        if array.nbytes <= MOST_BYTES:
            self._watch(lambda: (sys.intern(repr(array.tobytes())),), [label])

    def _namespace(self, value: Any, label: str) -> None:
        if not _is_library(value.__name__ if isinstance(value, types.ModuleType) else value.__module__):
            self._object(value, label, value.__mro__ if isinstance(value, type) else ())

    def _object(self, value: Any, label: str, kinds: Sequence[type]) -> None:
        """Attributes whose names code mentions, and the code of methods and properties among them."""
        self._may_change(value, label)
        members = [*(vars(kind) for kind in kinds if kind is not object), getattr(value, "__dict__", {})]
        found = {name: each[name] for each in members for name in sorted(self.names & each.keys())}
        methods = [_code_of(each[name]) for each in members for name in sorted(self.names & each.keys())]
        self._each(filter(None, methods), label)
        names = [name for name, member in found.items() if _is_read(member, value) and name not in WATCHED_ELSEWHERE]
        if names:
            read = functools.partial(attrgetter("__class__", *names), value)
            self._watch(read, [label, *[f"{label}.{name}" for name in names]])
        self._absent(value, label, self.texts - found.keys())

    def _may_change(self, value: Any, label: str) -> None:
        """Code may change attributes of an object or a class, but for those of a module and of a library's objects."""
        kind = value if isinstance(value, type) else type(value)
        foreign = _is_library(kind.__module__) and kind not in NAMESPACES
        if not foreign and not isinstance(value, (torch.nn.Module, types.ModuleType)):
            slots = [] if isinstance(value, type) else [name for each in kind.__mro__ for name in _slots(each)]
            read = functools.partial(_attributes, value, frozenset(self.names), slots)
            special = isinstance(value, (type, threading.local))
            ways = (
                (setattr, delattr) if special else (object.__setattr__, object.__delattr__)
            )  # past frozen dataclasses
            self._change(Namespace(label, read, *(functools.partial(way, value) for way in ways)))

    def _absent(self, value: Any, label: str, names: Iterable[str]) -> None:
        """Attributes that an object does not have, and code may look for; not of PyTorch's layers."""
        own = getattr(value, "__dict__", {})
        absent = sorted(name for name in names if name not in own)
        if absent and not (isinstance(value, torch.nn.Module) and _is_library(type(value).__module__)):
            self._watch(functools.partial(map, own.__contains__, absent), [f"{label}.{name}" for name in absent])


def _code_of(member: Any) -> Any:
    """The function of a method or property; None for other members of a class."""
    for name in ("__func__", "fget", "func"):
        has = hasattr(type(member), name) or name in getattr(member, "__dict__", {})  # what __getattr__ says is no code
        member = getattr(member, name) if has and not isinstance(member, functools.partial) else member
    return member if isinstance(member, (types.FunctionType, CACHED)) else None


def _is_read(member: Any, owner: Any) -> bool:
    """Whether a member of an object is a value, set by now: reading others runs code, or makes an object each time."""
    if not isinstance(member, types.MemberDescriptorType):
        return not hasattr(type(member), "__get__")
    try:
        member.__get__(owner, type(owner))
    except (AttributeError, TypeError):  # an empty slot, or one of a class's objects
        return False
    return True


def _part(values: Mapping[str, Any], names: frozenset[str]) -> Members:
    return {name: values[name] for name in names & values.keys()}


def _slots(kind: type) -> list[str]:
    return [name for name, member in vars(kind).items() if isinstance(member, types.MemberDescriptorType)]


def _attributes(value: Any, names: frozenset[str], slots: Sequence[str]) -> Members:
    own = {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}
    return _part(own, names)


def _namespace_of_cell(name: str, cell: types.CellType) -> Namespace:
    """A variable of an enclosing function."""

    def read() -> Members:
        try:
            return {name: cell.cell_contents}
        except ValueError:  # it has no value yet
            return {}

    def write(_: str, value: Any) -> None:
        cell.cell_contents = value

    def delete(_: str) -> None:
        del cell.cell_contents

    return Namespace("", read, write, delete)


def _contents(cell: types.CellType) -> tuple[Any]:
    return (cell.cell_contents,)


def _elements(value: Any) -> tuple[Any, ...]:
    """The number comes first: where it is another one, so are the elements."""
    return (len(value), *value, *value.values()) if isinstance(value, dict) else (len(value), *value)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]:
    """Names that code, and code within it, mentions, as such and as texts; those of globals that it loads, and of those
    that it stores."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    texts = [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]  # for getattr
    instructions = list(dis.get_instructions(code))
    loaded, stored = ([each.argval for each in instructions if each.opname in names] for names in (LOADS, STORES))
    return (
        frozenset(code.co_names).union(*(mentioned for mentioned, *_ in inner)),
        frozenset(texts).union(*(looked for _, looked, *_ in inner)),
        frozenset(loaded).union(*(globals_ for *_, globals_, _ in inner)),
        frozenset(stored).union(*(globals_ for *_, globals_ in inner)),
    )


def _is_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in LIBRARIES


def _fingerprint(value: Any) -> Any:
    """What of a value decides about the step: what can be read through it has fingerprints of its own."""
    if isinstance(value, PLAIN):
        return type(value), repr(value)  # -0.0 is no 0.0
    if isinstance(value, types.FunctionType):
        return value.__code__
    followed = isinstance(value, CONTAINERS) and len(value) <= LONGEST
    seen_through = hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, torch.nn.Module, type))
    return type(value) if followed or seen_through else id(value)
