"""Blocks without Python's search for cycles leave it as it was."""

from __future__ import annotations

import gc
import weakref

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


def test_what_imports_make_is_not_looked_at_before_a_search_through_everything() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gc.collect()
    frozen = gc.get_freeze_count()
    with uncollected(importing=True):
        garbage = weakref.ref(Cycle())
        kept = [{}]  # type: ignore[var-annotated]
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
    gc.collect(1)
    assert (garbage() is None) == bool(frozen)
    gc.collect()
    assert garbage() is None
    assert kept


def test_what_somebody_has_frozen_stays_so() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with uncollected(importing=True):
            pass
        assert gc.get_freeze_count() >= frozen - 100  # but for what has gone since
    finally:
        gc.unfreeze()


def test_errors_of_loading_and_of_trainers_leave_it_on() -> None:
    with pytest.raises(gt.GlowtrainError):
        gt.load(b"no model")
    with pytest.raises(gt.GlowtrainError):
        gt.Trainer(gt.Graph((), {}), "loss", gt.optim.SGD(lr=0.1))
    assert gc.isenabled()
