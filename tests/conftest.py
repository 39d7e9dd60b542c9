"""What ``make test`` leaves to ``make test-all``, hypothesis profiles, and golden files.

``make test`` leaves out tests marked ``exhaustive``, and draws few examples (``--hypothesis-profile=quick``). Where the
cases of a test say much the same, ``@pytest.mark.spread`` marks most of them so: without an argument it leaves as many
as give every value of every parameter, with ``n`` it leaves n of them, chosen by chance (the same each time).

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
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

# Examples compile code and share the machine with other workers, so neither a deadline nor a slow draw is a failure.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("quick", _UNTIMED, derandomize=True, database=None, max_examples=10)
settings.register_profile("glowtrain", _UNTIMED, derandomize=True, database=None, max_examples=50)
settings.register_profile("thorough", _UNTIMED, max_examples=1000)
settings.load_profile("glowtrain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files in tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="glowtrain-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("spread"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        chosen = _spread(group)
        for item in group:
            if item not in chosen:
                item.add_marker("exhaustive")


def _spread(cases: Sequence[pytest.Function]) -> Sequence[pytest.Function]:
    marker = cases[0].get_closest_marker("spread")
    assert marker is not None
    if marker.args:
        name = cases[0].nodeid.partition("[")[0]
        return Random(name).sample(cases, min(marker.args[0], len(cases)))
    values = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}
    chosen, unseen = [], set().union(*values.values())
    while unseen:
        chosen.append(max(cases, key=lambda case: len(values[case] & unseen)))
        unseen -= values[chosen[-1]]
    return chosen


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
