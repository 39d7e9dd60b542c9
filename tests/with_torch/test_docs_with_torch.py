"""The examples of those pages that need PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import PAGES, needs_torch, page_name, run_examples


@pytest.mark.parametrize("path", [path for path in PAGES if needs_torch(path)], ids=page_name)
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples(path, tmp_path, monkeypatch)


def test_there_are_such_pages() -> None:
    assert "docs/pytorch.md" in [page_name(path) for path in PAGES if needs_torch(path)]
