"""Which values code reaches that runs, beside tensors, and how each is read again.

Code that has run is followed, and no other, as nothing else can have been read: globals that it loads, variables of
enclosing functions, attributes of objects whose names it mentions, short lists, dicts and arrays. Not followed are
globals of PyTorch, NumPy and the standard library.
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
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import chain
from operator import attrgetter
from random import Random
from typing import Any

import numpy as np
import torch

from glowtrain.torch.tracing.drawn import Generators
from glowtrain.torch.tracing.surroundings import Namespace, Surroundings

PLAIN = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, Enum)
GENERATORS = (Random, np.random.Generator, np.random.RandomState)
ITERATORS: tuple[type, ...] = (
    types.GeneratorType, itertools.cycle, itertools.count, itertools.chain, enumerate, map, zip, type(iter([])),
    type(iter(())), type(iter(range(0))),
)  # fmt: skip
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
INERT = (logging.Logger, types.GenericAlias, types.UnionType, typing._GenericAlias)  # type: ignore[attr-defined]
"""What says or describes things; some of it makes its attributes anew each time."""
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
TRACERS = ("torch.fx.", "torch.export.", "torch._export.")
"""What puts methods of its own into classes of modules while it traces them."""
Members = dict[str, Any]


class Walk:
    """Code that runs, and the objects that it reaches: how each value is read again, with its label."""

    def __init__(self) -> None:
        self.readers: list[tuple[Callable[[], Iterable[Any]], Sequence[str]]] = []
        self.draws = Generators()
        self.surroundings = Surroundings()
        """What the code may change beside attributes of modules, as it is before that starts."""
        self._names: set[str] = set(ENTRIES)
        """Those that code mentions which has started."""
        self._texts: set[str] = set()
        """Those among them that it may look for, as ``hasattr`` does."""
        self._started: set[int] = set()
        self._waiting: defaultdict[int, list[types.FunctionType]] = defaultdict(list)
        """Functions whose code has not started, by the code."""
        self._owners: list[tuple[Any, str, Sequence[type]]] = []
        """Objects of which further attributes may be mentioned."""
        self._seen: dict[int, Any] = {}
        self._queue: deque[tuple[Any, str]] = deque()

    def start(self, code: types.CodeType, global_names: Members) -> None:
        """Code is about to run, with these globals."""
        mentioned, texts, loaded, stored = _names(code)
        new = (mentioned | texts) - self._names
        self._names |= new
        if not _is_library(global_names.get("__name__")):
            self._texts |= texts
            names = sorted(loaded & global_names.keys())
            self._watch(functools.partial(map, global_names.get, names), names, fillable=True)
            read = functools.partial(_part, global_names, stored)
            self.surroundings.add(Namespace("", read, global_names.__setitem__, global_names.__delitem__))
        self._started.add(id(code))
        for function in self._waiting.pop(id(code), ()):
            self._reads(function)
        for owner in self._owners if new else ():
            self._attributes(*owner, frozenset(new))

    def follow(self, roots: Iterable[Any]) -> None:
        """Watch what can be read through values, and through what was found before."""
        for root in roots:
            self._visit(root, "")
        while self._queue:
            value, label = self._queue.popleft()
            follow = next(follow for kinds, follow in self._ways() if isinstance(value, kinds))
            follow(value, label)

    def _visit(self, value: Any, label: str) -> None:
        if not isinstance(value, PLAIN) and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._queue.append((value, label))

    def _ways(self) -> Iterator[tuple[Any, Callable[[Any, str], None]]]:
        yield (*GENERATORS, *ITERATORS), lambda value, _: self.draws.add(value)
        yield (torch.Tensor, *INERT), lambda *_: None
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
            self._visit(value, label)

    def _watch(self, read: Callable[[], Iterable[Any]], labels: Sequence[str], *, fillable: bool = False) -> None:
        """Watch values; among those that are ``fillable``, code may fill lists and dicts, and empty them."""
        self.readers.append((read, labels))
        for value, label in zip(list(read()), labels, strict=True):
            if fillable:
                self.surroundings.add_container(label, value)
            self._visit(value, label)

    def _function(self, function: types.FunctionType, _: str) -> None:
        if (function.__globals__.get("__name__") or "").startswith(TRACERS):
            return
        if not _is_library(function.__module__):
            self._object(function, function.__name__, ())
        if id(function.__code__) in self._started:
            self._reads(function)
        else:
            self._waiting[id(function.__code__)].append(function)

    def _reads(self, function: types.FunctionType) -> None:
        """What a function reads that runs: nothing else does. PyTorch's own, which puts back what it changes, reads the
        functions that it was given."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _is_library(function.__module__):
            given = [cell.cell_contents for _, cell in cells if _is_filled(cell)]
            self._each(filter(callable, given), "")
            return
        for name, cell in cells:
            self.surroundings.add(_namespace_of_cell(name, cell))
            self._watch(functools.partial(_contents, cell), [name], fillable=True)
        self._each((function.__defaults__, function.__kwdefaults__), function.__qualname__)

    def _cached(self, function: Any, label: str) -> None:
        self.surroundings.add_cache(function)
        self._visit(function.__wrapped__, label)

    def _module(self, module: torch.nn.Module, label: str) -> None:
        kinds = type(module).__mro__
        self._object(module, label or type(module).__name__, kinds[: kinds.index(torch.nn.Module)])
        self._each(chain(module._forward_pre_hooks.values(), module._forward_hooks.values()), label)
        self._each(module._modules.values(), "")

    def _container(self, value: Any, label: str) -> None:
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
        self._owners.append((value, label, kinds))
        self._may_change(value, label)
        self._attributes(value, label, kinds, self._names)
        self._present(value, label)

    def _attributes(self, value: Any, label: str, kinds: Sequence[type], names: Set[str]) -> None:
        """Attributes whose names code mentions, and the code of methods and properties among them."""
        members = [*(vars(kind) for kind in kinds if kind is not object), getattr(value, "__dict__", {})]
        found = {name: each[name] for each in members for name in sorted(names & each.keys())}
        self._each((code for each in members for name in names & each.keys() if (code := _code_of(each[name]))), label)
        read = [name for name, member in found.items() if _is_read(member, value) and name not in WATCHED_ELSEWHERE]
        if read:
            labels = [label, *[f"{label}.{name}" for name in read]]
            fillable = not _is_foreign(value)
            self._watch(functools.partial(attrgetter("__class__", *read), value), labels, fillable=fillable)

    def _present(self, value: Any, label: str) -> None:
        """How many attributes an object has that code may look for; not of PyTorch's layers. Those that it has are
        watched each, so that another one makes another number."""
        own, texts = getattr(value, "__dict__", {}), self._texts
        if own and not (isinstance(value, torch.nn.Module) and _is_library(type(value).__module__)):
            self._watch(lambda: (len(own.keys() & texts),), [f"attributes of {label}"])

    def _may_change(self, value: Any, label: str) -> None:
        """Code may change attributes of an object or a class, but for those of a module and of a library's objects."""
        if not _is_foreign(value) and not isinstance(value, (torch.nn.Module, types.ModuleType)):
            slots = [] if isinstance(value, type) else [name for each in type(value).__mro__ for name in _slots(each)]
            special = isinstance(value, (type, threading.local))
            # past frozen dataclasses
            ways = (setattr, delattr) if special else (object.__setattr__, object.__delattr__)
            write, delete = (functools.partial(way, value) for way in ways)
            self.surroundings.add(Namespace(label, functools.partial(_attributes, value, slots), write, delete))


def _is_foreign(value: Any) -> bool:
    """Whether an object or a class is one of a library, which puts back itself what a trace changes."""
    kind = value if isinstance(value, type) else type(value)
    return _is_library(kind.__module__) and kind not in NAMESPACES


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


def _attributes(value: Any, slots: Sequence[str]) -> Members:
    """All but those that Python itself adds when they are asked for."""
    own = {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}
    return {name: each for name, each in own.items() if not name.startswith("__")}


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


def _is_filled(cell: types.CellType) -> bool:
    """Whether a variable of an enclosing function has a value by now."""
    try:
        return cell.cell_contents is cell.cell_contents
    except ValueError:
        return False


def _contents(cell: types.CellType) -> tuple[Any]:
    return (cell.cell_contents,)


def _elements(value: Any) -> tuple[Any, ...]:
    """The number comes first: where it is another one, so are the elements. A subclass of dict may make its values anew
    each time it is asked."""
    return (len(value), *value, *dict.values(value)) if isinstance(value, dict) else (len(value), *value)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """Names that code mentions, as such and as texts; those of globals that it loads, and of those that it stores."""
    texts = frozenset(each for each in _texts(code.co_consts) if each.isidentifier())  # for getattr
    instructions = list(dis.get_instructions(code))
    of_globals = (
        frozenset(each.argval for each in instructions if each.opname in operations) for operations in (LOADS, STORES)
    )
    return frozenset(code.co_names), texts, *of_globals


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


def _is_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in LIBRARIES
