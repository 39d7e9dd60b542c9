"""A short run of the soak that ``make soak`` does for ten minutes."""

from __future__ import annotations

import pytest

from tests.runtime.soak import BRIEF, Soak


@pytest.mark.exhaustive
def test_no_answer_is_lost_doubled_or_mixed_up() -> None:
    report = Soak(clients=3, pause=0.1, seed=1).run(4.0)
    print(report)
    assert not report.wrong
    assert report.outcomes["answered"] > 100
    assert report.outcomes["cancelled"] > 0
    assert report.swaps > 0
    assert report.left == 0
    assert max(report.threads) <= report.threads[0] + BRIEF
