"""Tests of glowtrain.torch: make test-torch runs them, with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """PyTorch on one thread, as two workers of pytest share two cores; every test alone sees the same numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
