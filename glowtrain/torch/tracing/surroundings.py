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

from glowtrain.torch.tracing.attributes import Assigned, ContainerSnapshot, is_plain

MISSING = object()


@dataclass(frozen=True)
class Namespace:
    """Values by name, and how they are written and deleted. ``label`` says whose they are, for people."""

    label: str
    read: Callable[[], Mapping[str, Any]]
    write: Callable[[str, Any], None]
    delete: Callable[[str], None]

    def title(self, name: str) -> str:
        """What people call a value."""
        return f"{self.label}.{name}" if self.label else name


class Surroundings:
    """What code can reach, as it is found while code is followed."""

    def __init__(self) -> None:
        self.namespaces: list[Namespace] = []
        self.containers: list[tuple[str, Any]] = []
        """Lists, dicts, sets and deques under labels for people."""
        self.caches: list[Any] = []
        """Functions with ``functools.lru_cache``."""

    def snapshot(self) -> Snapshot:
        """What all of it is now."""
        return Snapshot(self)


class Snapshot:
    """What surroundings were when this was made."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._namespaces = [(each, dict(each.read())) for each in surroundings.namespaces]
        self._containers = surroundings.containers
        self._caches = [(each, each.cache_info().misses) for each in surroundings.caches]
        self._contents = ContainerSnapshot()
        # what a block of parametrize.cached() has computed by now
        self._contents.take([parametrize._cache, *(container for _, container in self._containers)])
        self.assigned: list[Assigned] = []
        """Names that had plain values before :meth:`restore`, and others when this was made."""
        self.unkept: list[str] = []
        """What else differed then, for people."""
        self.replaced: list[tuple[str, torch.Tensor]] = []
        """What was a tensor, and became another one."""

    def restore(self) -> None:
        """Make them what they were."""
        for namespace, name, was, value in list(self._differing()):
            if value is not MISSING and is_plain(value):
                self.assigned.append((namespace.write, name, value))
            else:
                self.unkept.append(namespace.title(name))
                self.replaced += [(namespace.title(name), was)] if isinstance(was, torch.Tensor) else []
            namespace.delete(name) if was is MISSING else namespace.write(name, was)
        for _, container in self._containers:
            self._contents.keep_new_keys(container)
        self.unkept += [label for label, container in self._containers if self._contents.is_changed(container)]
        self._contents.restore()
        for cached, misses in self._caches:
            if cached.cache_info().misses != misses:
                cached.cache_clear()

    def _differing(self) -> Iterator[tuple[Namespace, str, Any, Any]]:
        for namespace, before in self._namespaces:
            now = namespace.read()
            for name in dict.fromkeys([*before, *now]):
                was, value = before.get(name, MISSING), now.get(name, MISSING)
                if was is not value:
                    yield namespace, name, was, value
