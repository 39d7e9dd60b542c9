"""Tests of glowtrain.torch: make test-torch runs them, with PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from glowtrain.torch.dynamo.backend import CapturedFunction, FallbackWarning


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """PyTorch on one thread, as two workers of pytest share two cores; every test alone sees the same numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_falls_back(request: pytest.FixtureRequest) -> Any:
    """PyTorch must not have computed what we are tested on."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        if not request.node.get_closest_marker("filterwarnings"):
            warnings.simplefilter("error", FallbackWarning)
        yield


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[CapturedFunction]:
    """All captured functions that a test makes."""
    made: list[CapturedFunction] = []
    before = CapturedFunction.__init__

    def noting(self: CapturedFunction, *given: Any) -> None:
        before(self, *given)
        made.append(self)

    monkeypatch.setattr(CapturedFunction, "__init__", noting)
    return made
