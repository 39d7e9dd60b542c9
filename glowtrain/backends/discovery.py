"""Backends by name: those that come along, and those of installed packages (entry points ``glowtrain.backends``)."""

from __future__ import annotations

import inspect
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from glowtrain.backends.base import Backend
from glowtrain.errors import BackendError, InputError
from glowtrain.graph.plugins import FAILURES, package_of
from glowtrain.presentation.messages import kind_of

if TYPE_CHECKING:
    from glowtrain.backends.cache.location import CacheChoice
    from glowtrain.backends.target import Target

GROUP = "glowtrain.backends"
BUILT_IN = {
    "cpu": "glowtrain.backends.cpu.backend:Cpu",
    "interpreter": "glowtrain.backends.interpreter:Interpreter",
    "evaluator": "glowtrain.backends.evaluator:Evaluator",
    "webgpu": "glowtrain.backends.webgpu.backend:Webgpu",
}
"""Where each backend that comes along is defined: its module is imported when it is asked for."""


def backend_names() -> tuple[str, ...]:
    """The names that :func:`backend_of` knows; nothing is imported for it."""
    return (*BUILT_IN, *(name for name in sorted(_offered()) if name not in BUILT_IN))


def backend_of(backend: str | Backend, threads: int | None = None) -> Backend:
    """A backend by name, or the one given; on a number of ``threads``, or its own.

    Raises :class:`InputError` listing the names that there are, :class:`BackendError` for a package whose backend
    cannot be imported or made, or is none, and for threads that a backend does not have.
    """
    found = backend if isinstance(backend, Backend) else _named(backend)
    return found if threads is None else found.with_threads(threads)


def backend_for(target: Target, cache: CacheChoice = None, threads: int | None = None) -> Backend:
    """The backend that makes code for a processor; it caches code where it is told, by default nowhere.

    Raises :class:`InputError` for a cache that cannot be used, and for what is no number of threads.
    """
    made: Backend = _built_in("cpu")(target, cache, threads=threads)
    return made


def _built_in(name: str) -> Any:
    module, _, attribute = BUILT_IN[name].partition(":")
    return getattr(import_module(module), attribute)


def _named(backend: str) -> Backend:
    if not isinstance(backend, str):
        raise InputError(f"a backend is a name or a Backend, not {kind_of(backend)}")
    if backend in BUILT_IN:
        made: Backend = _built_in(backend)()
        return made
    offered = _offered()
    if backend not in offered:
        raise InputError(f"there is no backend {backend!r}; choose from {', '.join(backend_names())}")
    return _made(offered[backend])


def _offered() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _made(point: metadata.EntryPoint) -> Backend:
    origin = f"backend {point.name!r} ({point.value} of {package_of(point)})"
    try:
        kind: Any = point.load()
    except FAILURES as error:
        raise BackendError(f"{origin} cannot be imported: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(kind) and issubclass(kind, Backend)):
        raise BackendError(f"{origin} is {kind_of(kind)}, not a class derived from glowtrain.backends.base.Backend")
    if kind.__abstractmethods__:
        raise BackendError(f"{origin} lacks {', '.join(sorted(kind.__abstractmethods__))}")
    if getattr(kind, "name", None) != point.name:
        raise BackendError(f"{origin} calls itself {getattr(kind, 'name', None)!r}: its name must be the entry point's")
    try:
        made: Backend = kind()
    except FAILURES as error:
        raise BackendError(f"{origin} cannot be made without arguments: {type(error).__name__}: {error}") from error
    return made
