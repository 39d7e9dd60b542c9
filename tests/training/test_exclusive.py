"""One call of fit at a time: others are refused, before they touch anything."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.trainer.fitting.interrupts import Exclusive
from glowtrain.trainer.fitting.moments import Moment
from tests.training.trainers import Points, trainer_of


@pytest.mark.exhaustive
def test_fits_of_one_trainer_at_the_same_time_are_refused(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    trainer, log = trainer_of(mlp, "cpu"), tmp_path / "log.jsonl"
    inside, go_on = threading.Event(), threading.Event()

    def wait(moment: Moment) -> None:
        inside.set()
        go_on.wait(30)

    first = threading.Thread(target=trainer.fit, args=(points, 2, 8), kwargs={"log": log, "callbacks": [wait]})
    first.start()
    assert inside.wait(30)
    for _ in range(2):
        with pytest.raises(InputError, match="fit: another call of fit runs on this trainer; wait until it returns"):
            trainer.fit(points, 2, 8, log=log)
    go_on.set()
    first.join()
    assert [record["epoch"] for record in trainer.history] == [1, 2]
    assert len(log.read_text().splitlines()) == 2
    assert len(trainer.fit(points, 1, 8, progress=False)) == 3


def test_a_callback_cannot_fit_the_same_trainer(mlp: gt.Template, points: Points) -> None:
    trainer = trainer_of(mlp, "cpu")
    with pytest.raises(InputError, match="another call of fit"):
        trainer.fit(points, 1, 8, callbacks=[lambda moment: trainer.fit(points)])
    assert trainer.position.batch == 1


def test_a_child_of_fork_is_free_of_a_fit_that_stayed_behind() -> None:
    """Only the thread that forked is in the child."""
    exclusive = Exclusive("one at a time")
    with exclusive:
        exclusive.renew()
        with pytest.raises(InputError, match="one at a time"), exclusive:
            pass
        other = threading.Thread(target=exclusive.renew)
        other.start()
        other.join()
        with exclusive:
            pass
