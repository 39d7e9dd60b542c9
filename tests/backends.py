"""The backends that tests of ``make test`` run on."""

from __future__ import annotations

from glowtrain.backends.discovery import backend_names

WITH_EXTRAS = frozenset({"webgpu"})
"""Those that need a package, and a driver: their tests are in folders of their own."""


def plain_backends() -> tuple[str, ...]:
    """Those that run wherever Glowtrain does."""
    return tuple(name for name in backend_names() if name not in WITH_EXTRAS)
