"""Sources of batches that raise, end early or say another length than they have, and their short last batch."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress

import glowtrain as gt
from glowtrain.errors import BatchError, BatchesWarning, DataError, InputError
from tests.training.loaders import Batch, Loader, bits, cut
from tests.training.trainers import Points, trainer_of


@pytest.mark.parametrize("prefetch", [None, 0])
def test_a_source_that_raises(mlp: gt.Template, points: Points, prefetch: int | None, tmp_path: Path) -> None:
    error = ValueError("no file 17\nin three\nlines")

    def source(epoch: int) -> Iterator[Batch]:
        yield from cut(points)[:4]
        if epoch == 1:
            raise error

    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    with pytest.raises(BatchError, match="epoch 2, batch 5: the data source raised ValueError: no file 17 lines; the"):
        trainer.fit(source, 3, progress=False, checkpoint=path, prefetch=prefetch)
    restored = trainer_of(mlp)
    restored.restore(path)
    assert (restored.position.epoch, restored.position.batch) == (1, 0)
    with pytest.raises(BatchError) as told:
        trainer.evaluate(lambda: source(1), prefetch=prefetch)
    assert told.value.__cause__ is error
    assert isinstance(told.value, DataError)


def test_a_function_that_raises_or_gives_no_batches(mlp: gt.Template, points: Points) -> None:
    iterator = iter(cut(points))
    for function, kind, message in (
        (lambda: 1 / 0, BatchError, "epoch 1, batch 1: the data source cannot be read: ZeroDivisionError"),
        (lambda: 7, InputError, "the function must return an iterable of batches, not a int"),
        (lambda: [], BatchError, "epoch 1, batch 1: the function must return a new iterator each time"),
        (lambda: iterator, BatchError, "epoch 2, batch 1: the function must return a new iterator each time"),
        (Loader([]), BatchError, "epoch 1, batch 1: the data source is empty"),
    ):
        with pytest.raises(kind, match=message):
            trainer_of(mlp).fit(function, 2, progress=False)


def test_a_generator_is_read_once(mlp: gt.Template, points: Points) -> None:
    trainer, generator = trainer_of(mlp), (batch for batch in cut(points))
    with pytest.raises(
        InputError, match=r"generator can be read once only, but there are 3 epochs: .*steps_per_epoch="
    ):
        trainer.fit(generator, progress=False)
    with pytest.raises(InputError, match="validation: a generator can be read once only, but there are 2 epochs"):
        trainer.fit(cut(points), 2, validation=generator, progress=False)
    trainer.fit(generator, 1, progress=False)
    assert trainer.position.epoch == 1
    for use in (lambda: trainer.fit(generator, 1, progress=False), lambda: trainer.evaluate(generator)):
        with pytest.raises(
            BatchError, match="batch 1: the generator is exhausted; pass a list, a DataLoader or a func"
        ):
            use()


def test_a_generator_is_read_no_further_than_its_batches(mlp: gt.Template, points: Points) -> None:
    """It goes on where an epoch, or a call of fit, ended."""
    batches, taken = cut(points) * 4, list[int]()

    def endless() -> Iterator[Batch]:
        for number in range(24):
            taken.append(number)
            yield batches[number]

    generator = endless()
    fitted, stepped = trainer_of(mlp), trainer_of(mlp)
    fitted.fit(generator, 3, steps_per_epoch=4, progress=False)
    assert taken == [*range(12)]
    fitted.fit(generator, 1, steps_per_epoch=5, progress=False)
    assert taken == [*range(17)]
    for x, y in batches[:17]:
        stepped.step({"x": x, "labels": y})
    assert bits(fitted) == bits(stepped)
    with pytest.raises(
        BatchError, match="epoch 6, batch 3: the data source ended after 2 of steps_per_epoch=5 batches"
    ):
        fitted.fit(generator, 2, steps_per_epoch=5, progress=False)
    assert (fitted.position.epoch, fitted.position.batch) == (5, 2)


def test_steps_of_an_epoch(mlp: gt.Template, points: Points) -> None:
    """A source that can be read again is, from its beginning, for each epoch; so are arrays."""
    fitted, of_arrays, stepped = (trainer_of(mlp) for _ in range(3))
    fitted.fit(cut(points), 2, steps_per_epoch=4, progress=False)
    of_arrays.fit(points, 2, 4, steps_per_epoch=4, shuffle=False, progress=False)
    for x, y in cut(points)[:4] * 2:
        stepped.step({"x": x, "labels": y})
    assert bits(fitted) == bits(stepped) == bits(of_arrays)
    assert of_arrays.history.deterministic() == fitted.history.deterministic()
    with pytest.raises(
        BatchError, match="epoch 3, batch 7: the data source ended after 6 of steps_per_epoch=9 batches"
    ):
        fitted.fit(cut(points), 1, steps_per_epoch=9, progress=False)
    with pytest.raises(InputError, match="22 examples are 6 batches of 4, fewer than steps_per_epoch=9"):
        of_arrays.fit(points, 1, 4, steps_per_epoch=9, progress=False)
    for steps in (0, 2.5):
        with pytest.raises(InputError, match="steps_per_epoch must be a whole number of at least 1"):
            fitted.fit(cut(points), 1, steps_per_epoch=steps, progress=False)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prefetch must be a whole number of at least 0"):
        fitted.fit(cut(points), 1, prefetch=-1, progress=False)


@pytest.mark.parametrize("says", [5, 7])
def test_another_number_of_batches_than_len_says(mlp: gt.Template, points: Points, says: int) -> None:
    """All there are are trained on, as in a loop of one's own."""

    class Estimate(Loader):
        def __len__(self) -> int:
            return says

    trainer = trainer_of(mlp)
    with pytest.warns(BatchesWarning, match=rf"the data source gave 6 batches, but its len\(\) is {says}"):
        trainer.fit(Estimate(cut(points)), 1, progress=False)
    assert trainer.position.epoch == 1
    with pytest.warns(BatchesWarning, match="gave 6 batches"):
        assert trainer.evaluate(Estimate(cut(points))) == pytest.approx(trainer.evaluate(points))


@pytest.mark.parametrize("says", [None, 6])
def test_progress_with_and_without_a_length(
    mlp: gt.Template, points: Points, says: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    totals: list[float | None] = []
    real = Progress.add_task

    def add(self: Progress, *args: Any, **settings: Any) -> Any:
        totals.append(settings["total"])
        return real(self, *args, **settings)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Progress, "add_task", add)
    source, seen = (lambda: cut(points)) if says is None else cut(points), list[int | None]()
    terminal = Terminal()
    trainer_of(mlp).fit(source, 2, progress=terminal, callbacks=[lambda moment: seen.append(moment.batches)])
    assert totals == [None if says is None else 12]
    assert seen == [says] * 14
    assert ("12/?" in terminal.getvalue(), "left" in terminal.getvalue()) == (says is None, says is not None)


# --- the last, short batch -------------------------------------------------------------------------------------------


def fixed(model: gt.Template) -> gt.Graph:
    return model.bind({"batch": 4}).with_(template=None)


@pytest.mark.parametrize("source", [list, lambda batches: lambda: iter(batches)], ids=["length", "no length"])
@pytest.mark.parametrize("prefetch", [None, 0])
def test_the_short_last_batch_can_be_left_out(
    mlp: gt.Template, points: Points, source: Callable[..., Any], prefetch: int | None
) -> None:
    cutting, fed = trainer_of(mlp), trainer_of(mlp)
    cutting.fit(points, 2, 4, shuffle=False, drop_last=True, progress=False)
    fed.fit(source(cut(points)), 2, drop_last=True, prefetch=prefetch, progress=False)
    assert bits(fed) == bits(cutting)
    assert fed.history.deterministic() == cutting.history.deterministic()
    batches = [(x[:size], y[:size]) for (x, y), size in zip(cut(points), (4, 2, 3, 4, 4, 1), strict=True)]
    some, stepped = trainer_of(mlp), trainer_of(mlp)
    some.fit(source(batches), 1, drop_last=True, prefetch=prefetch, progress=False)
    for x, y in batches[:5]:
        stepped.step({"x": x, "labels": y})
    assert bits(some) == bits(stepped)


def test_a_model_with_a_fixed_batch(mlp: gt.Template, points: Points) -> None:
    batches = cut(points)
    trainer, cutting = trainer_of(fixed(mlp)), trainer_of(fixed(mlp))
    with pytest.raises(
        BatchError, match=r"batch 6: the model's batch is fixed at 4 and cannot take 2 examples: .*drop_"
    ):
        trainer.fit(batches, 1, progress=False)
    trainer = trainer_of(fixed(mlp))
    trainer.fit(batches, 2, validation=batches, drop_last=True, progress=False)
    cutting.fit(points, 2, validation=points, shuffle=False, drop_last=True, progress=False)
    assert trainer.history.deterministic() == cutting.history.deterministic()
    assert trainer.evaluate(batches, drop_last=True) == cutting.evaluate(points, drop_last=True)
    with pytest.raises(BatchError, match="batch 6: the model's batch is fixed at 4"):
        trainer.evaluate(batches)
    np.testing.assert_array_equal(trainer.predict(batches)["output"], cutting.predict(points[0])["output"])
    open_trainer = trainer_of(mlp)
    assert open_trainer.evaluate(batches, drop_last=True) == open_trainer.evaluate(points, batch_size=4, drop_last=True)
