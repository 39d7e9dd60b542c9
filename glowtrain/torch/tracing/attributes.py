"""The attributes of modules before and after their Python code ran for a trace, which must leave them as they were.

torch.export puts back copies of lists and dicts: whoever shares one with a module, a configuration say, would change
the other one from then on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from glowtrain.errors import ModelError

MISSING = object()
"""What stands for a value where there is none."""
PLAIN = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device, Enum)
"""What modules count and remember beside tensors."""
STANDARD = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes of all modules: their tensors, submodules and hooks."""
CONTAINERS = (list, OrderedDict, dict, set, deque)
"""What holds values and can be filled. An ordered dict keeps an order of its own, which dict's methods break."""
FLAT = "_flat_weight"
"""What the lists are called that LSTM, GRU and RNN keep their parameters in, besides."""


@dataclass(frozen=True)
class Assigned:
    """A value that code leaves: whose it is, and how it is written again, under which name."""

    owner: Any
    write: Callable[[str, Any], None]
    name: str
    value: Any


class ContainerSnapshot:
    """What lists, dicts, sets and deques hold, and those within them."""

    def __init__(self) -> None:
        self._contents: dict[int, tuple[Any, Any]] = {}

    def take(self, values: Iterable[Any]) -> None:
        """Remember what those among the values hold."""
        for value in values:
            if isinstance(value, CONTAINERS) and id(value) not in self._contents:
                self._contents[id(value)] = value, _copied(value)
                self.take(_kind(value).values(value) if isinstance(value, dict) else value)
            elif isinstance(value, tuple):
                self.take(value)

    def new_keys(self, container: Any) -> dict[Any, Any]:
        """What a dict has got beside what it held, if that is all that has changed, and no tensor is among it."""
        before = self._contents[id(container)][1]
        if not isinstance(container, dict) or not _has_all(container, before):
            return {}
        added = {key: value for key, value in _kind(container).items(container) if key not in before}
        return {} if _has_tensors(list(added.values())) else added

    @property
    def added(self) -> Iterator[Any]:
        """What they have got since."""
        for container, before in self._contents.values():
            known = set(_identities(before))
            yield from (each for each in _elements(container) if id(each) not in known)

    def is_changed(self, value: Any) -> bool:
        """Whether a value, or what it holds, holds other objects."""
        container, before = self._contents.get(id(value), (None, None))
        if container is None:
            return isinstance(value, tuple) and any(map(self.is_changed, value))
        return _identities(container) != _identities(before) or any(map(self.is_changed, _elements(container)))

    def restore(self) -> None:
        """Give them back what they held."""
        for container, before in self._contents.values():
            if _identities(container) != _identities(before):
                _kind(container).clear(container)
                fill(container, before)


class Attributes:
    """What modules have, by name, and what the lists, dicts, sets and deques among it hold."""

    def __init__(self, modules: Mapping[str, torch.nn.Module] | None = None) -> None:
        self._parts: dict[int, tuple[str, torch.nn.Module, dict[str, Any]]] = {}
        self._contents = ContainerSnapshot()
        for path, module in (modules or {}).items():
            self.take(module, path)

    def __contains__(self, module: torch.nn.Module) -> bool:
        return id(module) in self._parts

    def take(self, module: torch.nn.Module, path: str) -> None:
        """Remember a module, unless it is known."""
        if module not in self:
            now = vars(module)
            self._parts[id(module)] = path, module, now.copy()
            self._contents.take(value for name, value in now.items() if not _is_pytorchs(name))

    def leave_to(self, others: Attributes) -> None:
        """Forget the modules that others know."""
        self._parts = {key: part for key, part in self._parts.items() if key not in others._parts}

    @property
    def assigned(self) -> list[Assigned]:
        """Attributes that are plain values now, and were others."""
        return [
            Assigned(module, vars(module).__setitem__, name, value)
            for _, module, name, value in self._differing()
            if is_plain(value)
        ]

    @property
    def left(self) -> Iterator[Any]:
        """Values that were not there."""
        yield from (value for *_, value in self._differing())
        yield from self._contents.added

    @property
    def unkept(self) -> list[str]:
        """The names of other attributes that are not what they were, or do not hold what they held."""
        replaced = {f"{path}.{name}": name for path, _, name, value in self._differing() if not is_plain(value)}
        filled = [
            f"{path}.{name}"
            for path, _, before in self._parts.values()
            for name, value in before.items()
            if not _is_pytorchs(name) and self._contents.is_changed(value)
        ]
        return [*dict.fromkeys([*replaced, *filled])]

    def _differing(self) -> Iterator[tuple[str, torch.nn.Module, str, Any]]:
        for path, module, before in self._parts.values():
            now = vars(module)
            for name in dict.fromkeys([*before, *now]):
                value = now.get(name, MISSING)
                if not _is_pytorchs(name) and value is not before.get(name, MISSING):
                    yield path, module, name, value

    def restore(self) -> None:
        """Make them what they were, the same objects with the same contents."""
        for _, module, before in self._parts.values():
            now = vars(module)
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update({name: value for name, value in before.items() if name not in STANDARD})
        self._contents.restore()


class Registered:
    """The parameters, buffers and submodules of a module and of its parts."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._dicts = [
            (path, each, each.copy())
            for path, part in module.named_modules()
            for each in (part._parameters, part._buffers, part._modules)
        ]

    def assigned(self) -> list[tuple[torch.Tensor, Any]]:
        """Buffers, and what has been assigned in their place.

        Raises :class:`ModelError` where that is no tensor of the same kind, and for what else is not what it was.
        """
        assigned = []
        for path, now, before in self._dicts:
            for name in dict.fromkeys([*before, *now]):
                old, new = before.get(name), now.get(name)
                if old is not new or (name in before) != (name in now):
                    _check_assigned(f"{path}.{name}", old, new)
                    assigned.append((old, new))
        return assigned

    def restore(self) -> None:
        """Give them back."""
        for _, now, before in self._dicts:
            if [*map(id, now.values())] != [*map(id, before.values())] or [*now] != [*before]:
                now.clear()
                now.update(before)


class LentAttributes:
    """The attributes that people have given to tensors, which have stand-ins in a trace."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._own = {name: vars(tensor) for name, tensor in tensors.items()}
        self._lent: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
        """Those of a tensor, those of its stand-in, and what of these is PyTorch's."""

    def lend(self, stand_ins: Mapping[str, torch.Tensor]) -> None:
        """Give them to the stand-ins, which have attributes of PyTorch's besides."""
        pairs = {id(each): (self._own[name], vars(each)) for name, each in stand_ins.items() if name in self._own}
        self._lent = []
        for own, theirs in pairs.values():
            internal = theirs.copy()
            if theirs is not own:
                theirs.update({name: value for name, value in own.items() if name not in internal})
                self._lent.append((own, theirs, internal))

    def take_back(self, restored: Container[int]) -> None:
        """Let the tensors have what code has made of them, if it is ``restored`` later, by the identities of dicts."""
        for own, theirs, internal in self._lent:
            if id(own) in restored:
                now = {name: value for name, value in theirs.items() if name not in internal}
                for name in own.keys() - now.keys() - internal.keys():
                    del own[name]
                own.update(now)


def _check_assigned(name: str, old: Any, new: Any) -> None:
    name = repr(name.partition(".")[2])
    if not all(isinstance(each, torch.Tensor) and not isinstance(each, torch.nn.Parameter) for each in (old, new)):
        raise ModelError(
            f"a call of the module registers, replaces or removes {name}: parameters, buffers and submodules must be "
            "made before (call the module once, or make them in __init__)"
        )
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        kinds = [f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (old, new)]
        raise ModelError(
            f"the module assigns to its buffer {name}, {kinds[0]}, what is {kinds[1]}: keep shape and type"
        )


def _is_pytorchs(name: str) -> bool:
    """Whether an attribute is PyTorch's own: what layers make of their parameters anew, as a trace replaces these."""
    return name in STANDARD or name.startswith(FLAT)


def is_plain(value: Any) -> bool:
    """Whether a value is no tensor and holds none."""
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(is_plain, value)))


def fill(container: Any, values: Any) -> None:
    """Add to a container, past methods of a subclass, which may do other things when it is filled."""
    kind = _kind(container)
    if issubclass(kind, dict):
        for key, value in values.items():
            kind.__setitem__(container, key, value)
    else:
        (kind.update if kind is set else kind.extend)(container, values)


def _kind(container: Any) -> Any:
    return next(kind for kind in CONTAINERS if isinstance(container, kind))


def _copied(container: Any) -> Any:
    """What a container holds, in one without methods of a subclass, which may make something where it is asked."""
    kind = _kind(container)
    return dict(kind.items(container)) if issubclass(kind, dict) else kind(container)


def _has_all(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return all(key in now and _is_same(dict.__getitem__(now, key), value) for key, value in before.items())


def _is_same(now: Any, before: Any) -> bool:
    """Whether a value is what it was, or a container made again of the same parts, none of them a tensor."""
    if now is before:
        return True
    made_again = isinstance(now, (list, dict, set, tuple)) and type(now) is type(before)
    return made_again and not _has_tensors([now, before]) and bool(now == before)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _elements(container: Any) -> list[Any]:
    kind = _kind(container)
    return [*kind.keys(container), *kind.values(container)] if issubclass(kind, dict) else [*container]


def _identities(container: Any) -> list[int]:
    """Which objects it holds, in their order; a set has none, nor has its copy the same."""
    identities = map(id, _elements(container))
    return sorted(identities) if isinstance(container, set) else [*identities]
