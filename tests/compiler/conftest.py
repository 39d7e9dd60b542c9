"""A model's file, a folder of kept code of the test's own, and a count of files that are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import glowtrain as gt
from glowtrain.backends.cache import location
from glowtrain.backends.cache.folder import Cache
from tests.compiler.known_models import network


@pytest.fixture
def path(tmp_path: Path) -> Path:
    gt.save(network, tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's folder, elsewhere."""
    cache = Cache(tmp_path / "caches" / "glowtrain", own=True)
    monkeypatch.setattr(location, "user_cache", lambda: cache)
    return cache


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were read from their files, by title."""
    import glowtrain.onnx_io.read.load as module

    read, whole = list[str](), module.loaded

    def counted(model: Any, *args: Any, **options: Any) -> Any:
        read.append(model.title)
        return whole(model, *args, **options)

    monkeypatch.setattr(module, "loaded", counted)
    return read
