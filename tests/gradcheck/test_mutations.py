"""Known kinds of mistake, planted one at a time: the suite's own checks find every one of them.

``python tests/gradcheck/test_mutations.py`` plants them all and prints what found each, and the catch rate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from changes import NotPlanted
from mistakes import MISTAKES
from planting import Mistake, clean

CAUGHT: dict[str, bool] = {}


@pytest.fixture(scope="module", autouse=True)
def catch_rate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print how many of the planted mistakes were caught."""
    yield
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if CAUGHT and capture is not None:
        with capture.global_and_fixture_disabled():
            print(f"\nplanted mistakes: {sum(CAUGHT.values())} of {len(CAUGHT)} caught")


def caught(mistake: Mistake) -> bool:
    """Whether the check finds the mistake; it must find nothing before."""
    assert clean(mistake.find), f"{mistake.find} fails on the code as it is"
    with pytest.MonkeyPatch.context() as patch:
        mistake.plant(patch)
        return mistake.find()


@pytest.mark.spread(12)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_planted_mistake_is_caught(mistake: Mistake) -> None:
    CAUGHT[mistake.name] = False
    CAUGHT[mistake.name] = caught(mistake)
    assert CAUGHT[mistake.name], f"{mistake.name}: not found by {mistake.find}"


def test_there_are_many_kinds_of_mistakes() -> None:
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 60


def main() -> int:
    """Plant every mistake; exit code 1 if one is not found."""
    found = 0
    for mistake in MISTAKES:
        begin = time.perf_counter()
        try:
            good = caught(mistake)
        except (AssertionError, NotPlanted) as error:
            good = False
            print(error)
        found += good
        print(f"{'caught' if good else 'MISSED':7} {time.perf_counter() - begin:5.1f} s  {mistake.name}")
    print(f"planted mistakes: {found} of {len(MISTAKES)} caught ({100 * found / len(MISTAKES):.1f} %)")
    return int(found < len(MISTAKES))


if __name__ == "__main__":
    raise SystemExit(main())
