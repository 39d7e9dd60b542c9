"""What traced Python code may change beside attributes of modules.

That is globals, variables of enclosing functions, objects and classes, lists and dicts, results of ``lru_cache``.

A trace computes with tensors that have no elements. None of these may be left where code outside of the trace, or the
next trace, finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parametrize

from glowtrain.torch.tracing.attributes import (
    CONTAINERS,
    MISSING,
    Assigned,
    Attributes,
    ContainerSnapshot,
    fill,
    is_plain,
)


@dataclass(frozen=True)
class Namespace:
    """Values by name, and how they are written and deleted. ``owner`` has them, under ``label`` for people; ``names``
    are those that code may assign, any where there are none."""

    owner: Any
    label: str
    read: Callable[[], Mapping[str, Any]]
    write: Callable[[str, Any], None]
    delete: Callable[[str], None]
    names: frozenset[str] | None = None

    def title(self, name: str) -> str:
        """What people call a value."""
        return f"{self.label}.{name}" if self.label else name


def namespace_of_items(items: dict[str, Any], label: str) -> Namespace:
    """The settings that a dict holds."""
    return Namespace(items, label, items.copy, items.__setitem__, items.__delitem__)


class Surroundings:
    """What code can reach that is about to run, as it is when it is added here: before the code changes it."""

    def __init__(self) -> None:
        self._namespaces: list[tuple[Namespace, dict[str, Any], frozenset[str | None]]] = []
        """With their values, and the names that were known before of the same owner."""
        self.known: dict[int, set[str | None]] = {}
        """Names by the identities of their owners; None where any name is known."""
        self._containers: list[tuple[str, Any]] = []
        """Lists, dicts, sets and deques under labels for people."""
        self.modules = Attributes()
        """Modules, some of which are no part of what is traced, and need not be called."""
        self._caches: list[tuple[Any, int]] = []
        """Functions with ``functools.lru_cache``, and how often these had no result."""
        self._contents = ContainerSnapshot()
        self._contents.take([parametrize._cache])  # what a block of parametrize.cached() has computed by now
        self._added: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.assigned: list[Assigned] = []
        """Names that had plain values before :meth:`restore`, and others when they were added."""
        self.unkept: list[str] = []
        """What else differed then, for people."""
        self.replaced: list[tuple[str, torch.Tensor]] = []
        """What was a tensor, and became another one."""

    def add(self, namespace: Namespace) -> None:
        """Add values by name, but for those that are known: code may have changed them since."""
        known = self.known.setdefault(id(namespace.owner), set())
        if None not in known:
            before = {name: value for name, value in namespace.read().items() if name not in known}
            self._namespaces.append((namespace, before, frozenset(known)))
            known |= {None} if namespace.names is None else namespace.names

    def add_container(self, label: str, value: Any) -> None:
        """Add a value if it is a list, dict, set or deque, with those within it."""
        if isinstance(value, CONTAINERS):
            self._containers.append((label, value))
        self._contents.take([value])

    def add_cache(self, function: Any) -> None:
        """Add a function with ``functools.lru_cache``."""
        self._caches.append((function, function.cache_info().misses))

    @property
    def left(self) -> Iterator[Any]:
        """Values that were not there."""
        yield from (value for *_, value in self._differing())
        yield from self._contents.added
        yield from self.modules.left

    def restore(self) -> None:
        """Make all of it what it was."""
        for namespace, name, was, value in list(self._differing()):
            if value is not MISSING and is_plain(value):
                self.assigned.append(Assigned(namespace.owner, namespace.write, name, value))
            else:
                self.unkept.append(namespace.title(name))
                self.replaced += [(namespace.title(name), was)] if isinstance(was, torch.Tensor) else []
            namespace.delete(name) if was is MISSING else namespace.write(name, was)
        self.assigned += self.modules.assigned
        self.unkept += self.modules.unkept
        self.modules.restore()
        changed = [(label, each) for label, each in self._containers if self._contents.is_changed(each)]
        added = [(label, each, self._contents.new_keys(each)) for label, each in changed]
        self._added += [(each, new) for _, each, new in added if new]
        self.unkept += [label for label, _, new in added if not new]
        self._contents.restore()
        for cached, misses in self._caches:
            if cached.cache_info().misses != misses:
                cached.cache_clear()

    def leave(self) -> None:
        """Put into dicts again what code has computed once for new keys."""
        for container, new in self._added:
            fill(container, new)

    def _differing(self) -> Iterator[tuple[Namespace, str, Any, Any]]:
        for namespace, before, known in self._namespaces:
            now = namespace.read()
            for name in dict.fromkeys([*before, *(name for name in now if name not in known)]):
                was, value = before.get(name, MISSING), now.get(name, MISSING)
                if was is not value:
                    yield namespace, name, was, value
