"""Blocks without Python's search for cycles leave it as it was."""

from __future__ import annotations

import gc

import pytest

import glowtrain as gt
from glowtrain.collector import uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_the_search_is_as_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected():
            with uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(KeyError), uncollected():
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_errors_of_loading_and_of_trainers_leave_it_on() -> None:
    with pytest.raises(gt.GlowtrainError):
        gt.load(b"no model")
    with pytest.raises(gt.GlowtrainError):
        gt.Trainer(gt.Graph((), {}), "loss", gt.optim.SGD(lr=0.1))
    assert gc.isenabled()
