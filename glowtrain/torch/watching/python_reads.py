"""What the Python code of a step reads beside tensors: numbers, flags, settings, which function a name stands for.

A trace runs that code once, so that these values become part of the compiled step. Code is followed from the loss and
from the modules' ``forward``: globals that it loads, variables of enclosing functions, attributes of objects whose
names it mentions, short lists, dicts and arrays. Not followed are globals of PyTorch, NumPy and the standard library.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from operator import attrgetter, call, is_
from random import Random
from typing import Any

import numpy as np
import torch

PLAIN = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, Enum)
GENERATORS = (Random, np.random.Generator, np.random.RandomState)
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
LONGEST, MOST_BYTES = 64, 512
"""Elements of lists and dicts, and bytes of arrays, that are watched at most."""
LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
ENTRIES = frozenset({"forward", "__call__", "__getitem__", "__iter__", "__len__", "__getattr__"})
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
        yield GENERATORS, lambda value, _: self.generators.append(value)
        yield torch.Tensor, lambda *_: None
        yield types.FunctionType, self._function
        yield types.MethodType, lambda value, label: self._each((value.__func__, value.__self__), label)
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
        mentioned, texts, loaded = _names(function.__code__)
        self.names |= mentioned | texts
        self.texts |= texts
        own = function.__globals__
        if not _is_library(own.get("__name__")):
            names = sorted(loaded & own.keys())
            self._watch(functools.partial(map, own.get, names), names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watch(functools.partial(_contents, cell), [name])
        self._each((function.__defaults__, function.__kwdefaults__), function.__qualname__)

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
        """Attributes whose names code mentions, and the code of methods and properties among them."""
        members = [*(vars(kind) for kind in kinds if kind is not object), getattr(value, "__dict__", {})]
        found = {name: each[name] for each in members for name in sorted(self.names & each.keys())}
        methods = [_code_of(each[name]) for each in members for name in sorted(self.names & each.keys())]
        self._each(filter(None, methods), label)
        names = [name for name, member in found.items() if _is_read(member, value) and name not in WATCHED_ELSEWHERE]
        if names:
            read = functools.partial(attrgetter("__class__", *names), value)
            self._watch(read, [label, *[f"{label}.{name}" for name in names]])
        self._absent(value, label, self.texts - found.keys())

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
    return member if isinstance(member, types.FunctionType) else None


def _is_read(member: Any, owner: Any) -> bool:
    """Whether a member of an object is a value, set by now: reading others runs code, or makes an object each time."""
    if not isinstance(member, types.MemberDescriptorType):
        return not hasattr(type(member), "__get__")
    try:
        member.__get__(owner, type(owner))
    except (AttributeError, TypeError):  # an empty slot, or one of a class's objects
        return False
    return True


def _contents(cell: types.CellType) -> tuple[Any]:
    return (cell.cell_contents,)


def _elements(value: Any) -> tuple[Any, ...]:
    """The number comes first: where it is another one, so are the elements. A subclass of dict may make its values anew
    each time it is asked."""
    return (len(value), *value, *dict.values(value)) if isinstance(value, dict) else (len(value), *value)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Names that code, and code within it, mentions, as such and as texts; and those of globals that it loads."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    texts = [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]  # for getattr
    loaded = [each.argval for each in dis.get_instructions(code) if each.opname in LOADS]
    return (
        frozenset(code.co_names).union(*(mentioned for mentioned, _, _ in inner)),
        frozenset(texts).union(*(looked for _, looked, _ in inner)),
        frozenset(loaded).union(*(globals_ for _, _, globals_ in inner)),
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
