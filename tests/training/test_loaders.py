"""Batches from loaders, iterables and functions have the bits of arrays, however many steps run in a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.errors import InputError
from glowtrain.trainer.fitting import pace
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.sources.prefetch import Prefetched
from tests.training.loaders import Batch, FakeTensor, as_dicts, bits, cut
from tests.training.trainers import Points, images, trainer_of

SOURCES: dict[str, Callable[[list[Batch]], Any]] = {
    "list of tuples": list,
    "list of lists": lambda batches: [list(batch) for batch in batches],
    "list of dicts": as_dicts,
    "dicts of x and y": lambda batches: [{"x": x, "y": y} for x, y in batches],
    "function": lambda batches: lambda: iter(batches),
    "function of the epoch": lambda batches: lambda epoch: batches,
    "tensors": lambda batches: lambda: ((FakeTensor(x), FakeTensor(y)) for x, y in batches),
    "u8 labels": lambda batches: [(x, y.astype(np.uint8)) for x, y in batches],
    "not contiguous": lambda batches: [(np.asfortranarray(x), np.repeat(y, 2)[::2]) for x, y in batches],
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("prefetch", [None, 0, 1])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_of_batches_has_the_bits_of_arrays(
    mlp: gt.Template, points: Points, kind: str, prefetch: int | None
) -> None:
    cutting, fed = trainer_of(mlp), trainer_of(mlp)
    expected = cutting.fit(points, 3, 4, points, shuffle=False, progress=False)
    source = SOURCES[kind](cut(points))
    history = fed.fit(source, 3, validation=source, prefetch=prefetch, progress=False)
    assert history.loss == expected.loss
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)
    assert bits(fed) == bits(cutting)
    assert fed.position == cutting.position
    assert fed.evaluate(source, prefetch=prefetch) == cutting.evaluate(points, batch_size=4)
    np.testing.assert_allclose(fed.predict(source)["output"], cutting.predict(points[0])["output"], rtol=1e-5)


@pytest.mark.spread(1)
def test_state_dropout_metrics_and_callbacks(cnn: gt.Template, points: Points, backend: str) -> None:
    data = images(points)
    cutting, fed = (trainer_of(cnn, backend, metrics=True) for _ in range(2))
    seen: list[list[tuple[int, int, int | None, float]]] = [[], []]
    for trainer, source, told in ((cutting, data, seen[0]), (fed, cut(data, 8), seen[1])):

        def look(moment: Moment, told: list[tuple[int, int, int | None, float]] = told) -> None:
            told.append((moment.epoch, moment.batch, moment.batches, moment.loss))
            moment.trainer.hyper["lr"] /= 2

        size = 8 if source is data else None
        trainer.fit(source, 2, size, shuffle=False, progress=False, callbacks=[look])
    assert seen[0] == seen[1]
    assert bits(fed) == bits(cutting)
    assert fed.history.deterministic() == cutting.history.deterministic()


@pytest.fixture(scope="module")
def small() -> gt.Template:
    @gt.model(x=gt.f32["batch", 3])
    def small(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 4)), 1)

    return small


@pytest.mark.exhaustive
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12), prefetch=st.sampled_from([None, 0, 1, 3]))
def test_any_sizes_of_batches_have_the_bits_of_steps(
    small: gt.Template, sizes: list[int], prefetch: int | None
) -> None:
    """Those of one size that lie one behind the other may run in a call."""
    rng = np.random.default_rng(len(sizes))
    batches = [tuple(rng.standard_normal((size, width), np.float32) for width in (3, 1)) for size in sizes]
    fitted, stepped = (gt.Trainer(small, "mse", gt.optim.Adam(lr=0.1), backend="interpreter") for _ in range(2))
    history = fitted.fit(batches, 2, prefetch=prefetch, progress=False)
    means = []
    for _ in range(2):
        total = 0.0
        for x, y in batches:
            total += stepped.step({"x": x, "target": y}) * len(x)
        means.append(total / sum(sizes))
    assert history.loss == means
    assert bits(fitted) == bits(stepped)


@pytest.mark.parametrize(
    ("prefetch", "callbacks", "expected"),
    [
        (None, [], [1, 2, 64, 64, 19, 1, 44, 5]),
        (3, [], [1, 3, *[3] * 48, 2, 1, *[3] * 16, 1]),
        (1, [], [1] * 200),
        (0, [], [1] * 200),
        (None, [lambda moment: None], [1] * 200),
    ],
)
def test_short_steps_run_many_in_a_call(
    small: gt.Template,
    monkeypatch: pytest.MonkeyPatch,
    prefetch: int | None,
    callbacks: list[Any],
    expected: list[int],
) -> None:
    """As many as are ready, of one size; here the thread has always made all that it may."""
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((4, 3), np.float32), rng.standard_normal((4, 1), np.float32)) for _ in range(200)]
    batches[150] = batches[150][0][:2], batches[150][1][:2]
    real_run, real_take, runs = NativeInstance.run_many, Prefetched.take, list[int]()

    def counting(self: NativeInstance, row: Any) -> dict[str, np.ndarray]:
        runs.append(row.count)
        return real_run(self, row)

    def late(self: Prefetched[Any], most: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._ready) >= self.ahead or not self._running, 30)
        return real_take(self, most)

    monkeypatch.setattr(NativeInstance, "run_many", counting)
    monkeypatch.setattr(Prefetched, "take", late)
    monkeypatch.setattr(pace, "SECONDS", 1e3)
    trainer = gt.Trainer(small, "mse", gt.optim.Adam(lr=0.1), threads=1)
    trainer.fit(batches, 1, progress=False, prefetch=prefetch, callbacks=callbacks)
    assert runs == expected


def test_a_source_that_fills_the_same_memory_again(small: gt.Template) -> None:
    """Batches that are made ahead are not written over."""
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((4, 3), np.float32), rng.standard_normal((4, 1), np.float32)) for _ in range(30)]

    def refilled() -> Iterator[Batch]:
        x, y = np.empty((4, 3), np.float32), np.empty((4, 1), np.float32)
        for batch in batches:
            x[:], y[:] = batch
            yield x, y

    plain, reusing = (gt.Trainer(small, "mse", gt.optim.Adam(lr=0.1)) for _ in range(2))
    assert reusing.fit(refilled, 2, progress=False).loss == plain.fit(batches, 2, progress=False).loss


def test_memory_of_a_list_is_not_copied(mlp: gt.Template, points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, seen = cut(points), []
    real = NativeInstance.run_many

    def look(self: NativeInstance, row: Any) -> dict[str, np.ndarray]:
        seen.extend(np.shares_memory(row.rows["x"], x) for x, _ in batches if len(row.rows["x"]) == len(x))
        return real(self, row)

    monkeypatch.setattr(NativeInstance, "run_many", look)
    trainer_of(mlp, "cpu").fit(batches, 1, progress=False, callbacks=[lambda moment: None])
    assert sum(seen) == len(batches)


def test_batch_sizes_are_those_of_the_source(mlp: gt.Template, points: Points) -> None:
    trainer, batches = trainer_of(mlp), cut(points)
    message = "batch_size= is for arrays: batches of a loader or an iterable are taken as they are"
    for use in (trainer.evaluate, trainer.predict, lambda data, **size: trainer.fit(data, 1, **size)):
        with pytest.raises(InputError, match=message):
            use(batches, batch_size=4)
    history = trainer.fit(batches, 1, 8, points, progress=False)  # of the arrays to validate on
    assert history.last["val_loss"] == trainer.evaluate(points, batch_size=8)["loss"]


def test_tensors_are_arrays(mlp: gt.Template, points: Points) -> None:
    x, y = points
    trainer, other = trainer_of(mlp), trainer_of(mlp)
    trainer.fit((FakeTensor(x), FakeTensor(y)), 1, 8, {"x": FakeTensor(x), "y": FakeTensor(y)}, progress=False)
    other.fit((x, y), 1, 8, (x, y), progress=False)
    assert trainer.history.deterministic() == other.history.deterministic()
    expected = trainer.predict(x)["output"]
    for inputs in (FakeTensor(x), {"x": FakeTensor(x)}, [FakeTensor(x)][0]):
        np.testing.assert_array_equal(trainer.predict(inputs)["output"], expected)
    assert trainer.step({"x": FakeTensor(x), "labels": FakeTensor(y)}) == other.step({"x": x, "labels": y})
    for use in (trainer.predict, lambda bad: trainer.fit((bad, y), 1)):
        with pytest.raises(InputError, match=r"'x' is a tensor on cuda:0.*give it .cpu\(\) of it"):
            use(FakeTensor(x, device="cuda:0"))
