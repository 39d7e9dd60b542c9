"""Which values code reaches that runs, beside tensors, and how each is read again.

Code that has run is followed, and no other, as nothing else can have been read: globals that it loads, variables of
enclosing functions, attributes of objects whose names it mentions, short lists, dicts and arrays. Not followed are
globals of PyTorch, NumPy and the standard library.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import sys
import threading
import types
import typing
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from operator import attrgetter, methodcaller
from queue import LifoQueue, PriorityQueue, Queue, SimpleQueue
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch._subclasses.fake_tensor import is_fake
from torch.optim.lr_scheduler import LRScheduler

from glowtrain.torch.tracing.attributes import PLAIN
from glowtrain.torch.tracing.drawn import GENERATORS, Generators
from glowtrain.torch.tracing.surroundings import Namespace, Surroundings, namespace_of_items
from glowtrain.torch.watching import values
from glowtrain.torch.watching.code_names import CodeNames, names_of, parts_of
from glowtrain.torch.watching.values import CACHED, Members, code_holder

ITERATORS: tuple[type, ...] = (
    types.GeneratorType, enumerate, filter, map, reversed, zip,
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
    *map(type, map(iter, ([], (), range(0), set(), {}, {}.values(), {}.items()))),
    type(reversed([])), SimpleQueue,
)  # fmt: skip
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
INERT = (logging.Logger, types.GenericAlias, types.UnionType, typing._GenericAlias)  # type: ignore[attr-defined]
"""What says or describes things; some of it makes its attributes anew each time."""
LONGEST, MOST_BYTES = 64, 512
"""Elements of lists and dicts, and bytes of arrays, that are watched at most."""
NAMESPACES = (
    types.SimpleNamespace, argparse.Namespace, threading.local, threading.Event, types.FunctionType,
    UserDict, UserList, ChainMap, WeakKeyDictionary, WeakValueDictionary, Queue, LifoQueue, PriorityQueue,
)  # fmt: skip
"""Classes of the standard library whose objects are what people put into them."""
OWNED = (LRScheduler, torch.optim.Optimizer, torch.Tensor)
"""Classes of PyTorch whose objects keep what people's code changes."""
ENTRIES = frozenset({
    "forward", "__call__", "__getitem__", "__setitem__", "__contains__", "__iter__", "__next__", "__len__", "__bool__",
    "__enter__", "__exit__", "__getattr__", "__setattr__",
})  # fmt: skip
"""Methods that code calls without their names."""
WATCHED_ELSEWHERE = frozenset({"__dict__", "__doc__", "__module__", "__annotations__", *vars(torch.nn.Module())})
"""Modes, parameters, submodules and hooks; each attribute for itself; and what only describes."""
LIBRARIES = frozenset(
    {"torch", "sympy", "mpmath", "numpy", "glowtrain", "builtins", "_pytest", *sys.stdlib_module_names}
)
"""What is not followed; pytest has asserts in tests call it."""
TRACERS = ("torch.fx.", "torch.export.", "torch._export.")
"""What puts methods of its own into classes of modules while it traces them."""


class Walk:
    """Code that runs, and the objects that it reaches: how each value is read again, with its label."""

    def __init__(self) -> None:
        self.readers: list[tuple[Callable[[], Iterable[Any]], Sequence[str]]] = []
        self.draws = Generators()
        self.surroundings = Surroundings()
        """What the code may change beside attributes of modules, as it is before that starts."""
        self._names: set[str] = set(ENTRIES)
        """Those that code mentions which has started."""
        self._looked_for: set[str] = set()
        """Attributes that an object need not have: code can do without, or calls a method of its class, which they
        hide."""
        self._makes_up_names = False
        """Whether code may ask for attributes by names that do not stand in it."""
        self._keeping: dict[int, bool] = {}
        """Whether classes keep values under made-up names."""
        self._members: set[tuple[int, str]] = set()
        """Members of classes, and attributes of objects, that are watched."""
        self._started: set[int] = set()
        self._waiting: defaultdict[int, list[types.FunctionType]] = defaultdict(list)
        """Functions whose code has not started, by the code."""
        self._owners: list[tuple[Any, str, Sequence[type]]] = []
        """Objects of which further attributes may be mentioned."""
        self.seen: dict[int, Any] = {}
        """What was reached, by identity."""
        self._queue: deque[tuple[Any, str]] = deque()
        self._tensor_attributes: list[Members] = []
        """Those of each tensor, by name."""
        self._tensor_labels: dict[int, str] = {}
        self._watch(self._looked_for_on_tensors, ["attributes of tensors"])

    def start(self, code: types.CodeType, global_names: Members) -> None:
        """Code is about to run, with these globals."""
        names = names_of(code)
        mentioned, opens = names.mentioned | names.texts, False
        if not _is_library(global_names.get("__name__")):
            mentioned, opens = mentioned | names.own, bool(names.opens)
            self._looked_for |= names.optional
            self._makes_up_names |= opens
            self._globals(global_names, names)
        self._started.add(id(code))
        for function in self._waiting.pop(id(code), ()):
            self._reads(function)
        self._mention(mentioned, again=opens)

    def _globals(self, global_names: Members, names: CodeNames) -> None:
        loaded = sorted(names.loaded & global_names.keys())
        self._watch(functools.partial(map, global_names.get, loaded), loaded, fillable=True)
        read = functools.partial(values.part_of, global_names, names.stored)
        ways = global_names.__setitem__, global_names.__delitem__
        self.surroundings.add(Namespace(global_names, "", read, *ways, names.stored))

    def _mention(self, names: Set[str], *, again: bool = False) -> None:
        """Code mentions these names of attributes."""
        new = names - self._names
        self._names |= new
        for owner in self._owners if new or again else ():
            self._attributes(*owner, new)

    def follow(self, roots: Iterable[Any]) -> None:
        """Watch what can be read through values, and through what was found before."""
        for root in roots:
            self._visit(root, "")
        while self._queue:
            value, label = self._queue.popleft()
            follow = next(follow for kinds, follow in self._ways() if isinstance(value, kinds))
            follow(value, label)

    def watch_elements(self, tensors: Iterable[torch.Tensor]) -> None:
        """Watch what tensors hold, of which code has made numbers."""
        for tensor in tensors:
            label = f"elements of {self._tensor_labels.get(id(tensor)) or 'a tensor'}"
            self._watch(functools.partial(values.bytes_of, tensor), [label])

    def _visit(self, value: Any, label: str) -> None:
        if not isinstance(value, PLAIN) and id(value) not in self.seen:
            self.seen[id(value)] = value
            self._queue.append((value, label))

    def _ways(self) -> Iterator[tuple[Any, Callable[[Any, str], None]]]:
        yield (*GENERATORS, *ITERATORS), lambda value, _: self.draws.add(value)
        yield torch.Tensor, self._tensor
        yield INERT, lambda *_: None
        yield types.FunctionType, self._function
        yield types.MethodType, lambda value, label: self._each((value.__func__, value.__self__), label)
        yield (attrgetter, methodcaller), self._getter
        yield types.BuiltinMethodType, lambda value, label: self._given((value.__self__,), label)
        yield CACHED, self._cached
        yield ReferenceType, lambda value, label: self._given((value(),), label)
        yield functools.partial, self._partial
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

    def _given(self, values: Iterable[Any], label: str) -> None:
        """Follow what functions were given, lists and dicts among it that code may fill."""
        for value in values:
            self.surroundings.add_container(label, value)
            self._visit(value, label)

    def _getter(self, value: Any, _: str) -> None:
        """The names that a getter was made of; a ``methodcaller`` has arguments, too."""
        self._mention(parts_of(each for each in value.__reduce__()[1] if isinstance(each, str)))

    def _partial(self, value: functools.partial[Any], label: str) -> None:
        parts = (value.func, *value.args, *value.keywords.values())
        self._watch(lambda: parts, [label] * len(parts), fillable=True)

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
            self._each(filter(callable, [values.content(cell) for _, cell in cells]), "")
            return
        for name, cell in cells:
            self.surroundings.add(values.namespace_of_cell(name, cell))
            self._watch(functools.partial(values.contents, cell), [name], fillable=True)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._given(defaults, f"defaults of {function.__qualname__}")

    def _cached(self, function: Any, label: str) -> None:
        self.surroundings.add_cache(function)
        self._watch(lambda: (function.__wrapped__,), [label])

    def _module(self, module: torch.nn.Module, label: str) -> None:
        label = label or type(module).__name__
        self.surroundings.modules.take(module, label)
        kinds = type(module).__mro__
        self._object(module, label, kinds[: kinds.index(torch.nn.Module)])
        self._each(chain(module._forward_pre_hooks.values(), module._forward_hooks.values()), f"hooks of {label}")
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            self._visit(tensor, f"{label}.{name}")
        self._each(module._modules.values(), "")

    def _tensor(self, tensor: torch.Tensor, label: str) -> None:
        """The attributes that people have given it. Most tensors have none."""
        if is_fake(tensor):  # whose attributes are those of the tensor that it stands for
            return
        self._tensor_labels[id(tensor)] = label
        own = vars(tensor)
        self.surroundings.add(namespace_of_items(own, label))
        self._tensor_attributes.append(own)
        if own:
            self._owners.append((tensor, label, ()))
            self._attributes(tensor, label, (), self._names)

    def _container(self, value: Any, label: str) -> None:
        if hasattr(value, "__dict__"):
            self._object(value, label, type(value).__mro__)
        if len(value) <= LONGEST:
            keys = value if isinstance(value, dict) else ()
            items = [f"{label}[{key!r}]" for key in (keys or range(len(value)))]
            labels = [f"len({label})", *(f"key {key!r} of {label}" for key in keys), *items]
            self._watch(functools.partial(values.elements, value), labels)

    def _array(self, array: Any, label: str) -> None:
        if array.nbytes <= MOST_BYTES:
            self._watch(lambda: (values.digits(array),), [label])
            if array.dtype.kind in "biufc":
                read, write = (lambda: {"": values.digits(array)}), functools.partial(values.set_digits, array)
                self.surroundings.add(Namespace(array, label, read, write, array.__delitem__))

    def _namespace(self, value: Any, label: str) -> None:
        if not _is_library(value.__name__ if isinstance(value, types.ModuleType) else value.__module__):
            self._object(value, label or value.__name__, value.__mro__ if isinstance(value, type) else ())

    def _object(self, value: Any, label: str, kinds: Sequence[type]) -> None:
        self._owners.append((value, label, kinds))
        self._each((kind for kind in kinds if not _is_foreign(kind)), "")
        self._may_change(value, label)
        self._attributes(value, label, kinds, self._names)
        self._present(value, label, kinds)

    def _attributes(self, value: Any, label: str, kinds: Sequence[type], names: Set[str]) -> None:
        """Attributes whose names code mentions, and the code of methods and properties among them."""
        own = {} if isinstance(value, type) else getattr(value, "__dict__", {})
        if self._is_open(value, own, kinds):
            names = names | (own.keys() - WATCHED_ELSEWHERE)
        for kind in kinds:
            self._of_class(kind, sorted(names & vars(kind).keys()))
        found = {name: each[name] for kind in kinds for each in [vars(kind)] for name in sorted(names & each.keys())}
        read = {name for name, member in found.items() if values.is_read(member, value)} | (names & own.keys())
        fresh = sorted(name for name in read - WATCHED_ELSEWHERE if (id(value), name) not in self._members)
        self._members.update((id(value), name) for name in fresh)
        if fresh:
            labels = [label, *[f"{label}.{name}" for name in fresh]]
            fillable = not _is_foreign(value)
            self._watch(functools.partial(attrgetter("__class__", *fresh), value), labels, fillable=fillable)

    def _of_class(self, kind: type, names: Iterable[str]) -> None:
        """The functions of methods and properties, which may be replaced in a class of a person's."""
        members = vars(kind)
        for name in names:
            if (id(kind), name) not in self._members and code_holder(members[name]) is not None:
                self._members.add((id(kind), name))
                self._looked_for.add(name)
                if _is_foreign(kind):
                    self._visit(code_holder(members[name]), f"{kind.__name__}.{name}")
                else:
                    read = functools.partial(values.method, members, name)
                    self._watch(read, [f"{kind.__name__}.{name}"])

    def _is_open(self, value: Any, own: Members, kinds: Sequence[type]) -> bool:
        """Whether code may ask an object for attributes of any name."""
        if _is_foreign(value) or len(own) > LONGEST:
            return False
        return self._makes_up_names or any(map(self._keeps_values, kinds))

    def _keeps_values(self, kind: type) -> bool:
        """Whether a class has descriptors of a person's, which keep values under names that they make up."""
        if id(kind) not in self._keeping:
            members = vars(kind).values()
            self._keeping[id(kind)] = any(
                hasattr(type(each), "__get__") and not _is_library(type(each).__module__) for each in members
            )
        return self._keeping[id(kind)]

    def _looked_for_on_tensors(self) -> tuple[int]:
        """How many attributes tensors have among those that they need not have."""
        own, names = self._tensor_attributes, self._looked_for
        return (sum(len(each.keys() & names) for each in own) if any(own) else 0,)

    def _present(self, value: Any, label: str, kinds: Sequence[type]) -> None:
        """How many attributes an object has among those that it need not have. They are watched each, so that another
        one makes another number."""
        own, names = getattr(value, "__dict__", {}), self._looked_for
        if self._is_open(value, own, kinds) and not isinstance(value, type):
            self._watch(lambda: (len(own),), [f"attributes of {label}"])
        elif hasattr(value, "__dict__"):
            self._watch(lambda: (len(own.keys() & names),), [f"attributes of {label}"])

    def _may_change(self, value: Any, label: str) -> None:
        """Code may change attributes of an object, a class or a module of Python, but not those of a library's."""
        if not _is_foreign(value) and not isinstance(value, torch.nn.Module):
            slots = [] if isinstance(value, type) else values.slots_of(type(value))
            special = isinstance(value, (type, types.ModuleType, threading.local))
            # past frozen dataclasses
            ways = (setattr, delattr) if special else (object.__setattr__, object.__delattr__)
            write, delete = (functools.partial(way, value) for way in ways)
            owner = vars(value) if isinstance(value, types.ModuleType) else value
            read = functools.partial(values.attributes_of, value, slots)
            self.surroundings.add(Namespace(owner, label, read, write, delete))


def _is_foreign(value: Any) -> bool:
    """Whether an object or a class is one of a library, which puts back itself what a trace changes."""
    kind = value if isinstance(value, type) else type(value)
    owned = kind in (*NAMESPACES, types.ModuleType) or issubclass(kind, OWNED)
    return _is_library(kind.__module__) and not owned


def code_of(function: types.FunctionType) -> Any:
    """The code of a function, and of those that one of PyTorch was given; variables of other enclosing functions are
    watched for themselves."""
    given = map(values.content, function.__closure__ or ()) if _is_library(function.__module__) else ()
    return function.__code__, *(each.__code__ for each in given if isinstance(each, types.FunctionType))


def _is_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in LIBRARIES
