"""Hypothesis profiles and golden files.

The default profile draws the same examples in every run; ``--hypothesis-profile=thorough`` new ones.
``--update-golden`` writes the texts that tests compare with files in tests/golden; look at the difference before
committing it.

No test touches the user's folder of compiled code. In this process nothing is kept, so that tests which change the
compiler see their changes; processes that tests start keep what they compile in a folder of this run.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

# Examples compile code and share the machine with other workers, so neither a deadline nor a slow draw is a failure.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("glowtrain", _UNTIMED, derandomize=True, database=None, max_examples=50)
settings.register_profile("thorough", _UNTIMED, max_examples=1000)
settings.load_profile("glowtrain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files in tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="glowtrain-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glowtrain.backends.cache.location.user_cache", lambda: None)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> np.random.Generator:
    """Numbers of this test's own: the same whichever others run, in whatever order."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text equals the file of that name in tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; pytest --update-golden writes it anew"

    return compare
