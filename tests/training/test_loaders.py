"""Batches from loaders, iterables and functions: the bits of arrays, and what is said of batches that do not fit."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress

import glowtrain as gt
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.data import Dataset
from glowtrain.errors import BatchError, BatchesWarning, DataError, InputError
from glowtrain.ops.indexing.gather import Gather
from glowtrain.trainer import pace
from glowtrain.trainer.feed import comes_in_batches
from glowtrain.trainer.fit import Moment
from glowtrain.trainer.sources.prefetch import Prefetched
from tests.training.loaders import Batch, FakeTensor, Loader, bits, cut
from tests.training.trainers import Points, images, trainer_of

# --- the same bits as arrays -----------------------------------------------------------------------------------------


def as_dicts(batches: list[Batch]) -> list[dict[str, np.ndarray]]:
    return [{"labels": y, "x": x} for x, y in batches]


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


# --- what is data, and what is a batch -------------------------------------------------------------------------------


def test_what_comes_in_batches(points: Points) -> None:
    x, y = points
    batches = cut(points)
    batched = [batches, iter(batches), (b for b in batches), Loader(batches), lambda: batches, as_dicts(batches), [[x]]]
    arrays = [(x, y), [x, y], {"x": x}, Dataset("d", {"x": x}), x, FakeTensor(x), ([[1.0]], [1]), [[1.0, 2.0], [0, 1]]]
    assert [comes_in_batches(data) for data in batched] == [True] * len(batched)
    assert [comes_in_batches(data) for data in (*arrays, tuple(batches), "x", b"x", None, 7, Loader)] == [False] * 14


def test_a_batch_of_one_array_for_a_model_that_takes_nothing_else(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def coder(x: gt.Value) -> dict[str, gt.Value]:
        y = gt.nn.linear(gt.nn.linear(x, 2), 6)
        return {"y": y, "error": gt.nn.mean(gt.nn.mean((x - y) * (x - y), 0), 0)}

    parts = [x for x, _ in cut(points)]
    first, second = (trainer_of(coder, "cpu", loss="error") for _ in range(2))
    first.fit({"x": points[0]}, 2, 4, shuffle=False, progress=False)
    second.fit(iter(parts * 2), 2, steps_per_epoch=6, progress=False)
    assert bits(first) == bits(second)


@gt.model(nodes=gt.f32["nodes", 2], edges=gt.f32["edges"], rate=gt.f32[()])
def net(nodes: gt.Value, edges: gt.Value, rate: gt.Value) -> dict[str, gt.Value]:
    y = gt.nn.linear(nodes, 1) * rate
    return {"y": y, "loss": gt.nn.total(gt.nn.mean(y * y, 0)) + 0.0 * gt.nn.total(gt.nn.mean(edges, 0))}


def test_batches_without_a_common_first_axis(backend: str) -> None:
    """A graph in each batch: nodes, edges and a number. Each counts as one example."""
    rng = np.random.default_rng(3)
    graphs = [
        {"nodes": rng.standard_normal((n, 2), np.float32), "edges": np.ones(n * 2, np.float32), "rate": np.float32(n)}
        for n in (3, 4, 3)
    ]
    fitted, stepped = (trainer_of(net, backend, loss="loss") for _ in range(2))
    history = fitted.fit(graphs, 1, progress=False)
    assert history.loss == [sum(map(stepped.step, graphs)) / 3]
    assert bits(fitted) == bits(stepped)


@gt.model(x=gt.f32["batch", "time", 2])
def sequence(x: gt.Value) -> gt.Value:
    return gt.nn.mean(gt.nn.linear(x, 3), 1)


def test_extents_with_names_may_change(points: Points) -> None:
    """Sequences of other lengths in each batch; an extent that the model fixes stays."""
    rng = np.random.default_rng(5)
    batches = [(rng.standard_normal((4, time, 2), np.float32), np.arange(4) % 3) for time in (5, 7, 5)]
    fitted, stepped = (trainer_of(sequence, "cpu") for _ in range(2))
    fitted.fit(batches, 1, progress=False)
    for x, y in batches:
        stepped.step({"x": x, "labels": y})
    assert bits(fitted) == bits(stepped)
    batches[2] = rng.standard_normal((4, 5, 3), np.float32), batches[2][1]
    with pytest.raises(BatchError, match=r"batch 3: 'x' is float32\[4,5,3\], where float32\[\*,5,2\] is expected"):
        trainer_of(sequence, "cpu").fit(batches, 1, progress=False)


# --- batches that do not fit -----------------------------------------------------------------------------------------


def bad(points: Points, number: int, change: Callable[[np.ndarray, np.ndarray], Any]) -> list[Any]:
    """Batches of which one, counted from 1, is another."""
    batches: list[Any] = cut(points)
    batches[number - 1] = change(*batches[number - 1])
    return batches


WRONG: dict[str, tuple[Callable[[np.ndarray, np.ndarray], Any], str]] = {
    "dtype": (
        lambda x, y: (x.astype(np.float64), y),
        r"'x' is float64\[4,6\], where float32\[\*,6\] is expected, as in the first batch",
    ),
    "dtype of targets": (
        lambda x, y: (x, y.astype(np.int32)),
        r"'labels' is int32\[4\], where int64\[\*\] is expected",
    ),
    "shape": (lambda x, y: (x[:, :5], y), r"'x' is float32\[4,5\], where float32\[\*,6\] is expected"),
    "rank": (lambda x, y: (x, y[:, None]), r"'labels' is int64\[4,1\], where int64\[\*\] is expected"),
    "fewer labels": (lambda x, y: (x, y[:3]), r"'labels' must be i64\[4\], not int64\[3\]"),
    "a label out of range": (lambda x, y: (x, y + 3), r"'labels' must hold classes from 0 to 2"),
    "too many arrays": (
        lambda x, y: (x, y, y),
        "the batch has 3 arrays, but the model and its loss take 'x', 'labels'",
    ),
    "names": (lambda x, y: {"x": x, "z": y}, "data has 'x', 'z', but the model and its loss take 'x', 'labels'"),
    "no batch": (lambda x, y: 7, "the batch is a int, but"),
    "no examples": (lambda x, y: (x[:0], y[:0]), "the batch has no examples"),
    "ragged": (lambda x, y: ([[1.0], [1.0, 2.0]], y), "'x' cannot be read as an array"),
    "on a GPU": (
        lambda x, y: (FakeTensor(x, device="cuda:0"), y),
        r"'x' is a tensor on cuda:0, but glowtrain computes on the CPU: give it .cpu\(\) of it",
    ),
    "requires grad": (
        lambda x, y: (FakeTensor(x, requires_grad=True), y),
        r"'x' is a tensor that requires grad.*: give it .detach\(\) of it",
    ),
}

OF_INPUTS = ("dtype", "shape", "no batch", "no examples", "ragged", "on a GPU", "requires grad")


@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("what", WRONG)
def test_a_batch_that_does_not_fit_is_named(
    mlp: gt.Template, points: Points, what: str, prefetch: int | None, tmp_path: Path
) -> None:
    """The batches before it are trained on, and the last checkpoint is whole."""
    change, message = WRONG[what]
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    trainer.fit(cut(points), 1, progress=False, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(BatchError, match=f"epoch 2, batch 4: .*({message})") as told:
        trainer.fit(bad(points, 4, change), 1, progress=False, checkpoint=path, prefetch=prefetch)
    assert str(told.value).endswith(f"; the parameters are from before it, and {path} holds the last good checkpoint")
    assert (told.value.epoch, told.value.batch) == (2, 4)
    stepped = trainer_of(mlp)
    for x, y in cut(points) + cut(points)[:3]:
        stepped.step({"x": x, "labels": y})
    assert bits(trainer) == bits(stepped)
    assert (trainer.position.epoch, trainer.position.batch, trainer.whole) == (1, 3, True)
    assert path.read_bytes() == before
    for measure in (trainer.evaluate, trainer.predict) if what in OF_INPUTS else (trainer.evaluate,):
        with pytest.raises(BatchError, match=f"^batch 4: .*({message})") as told:
            measure(bad(points, 4, change), prefetch=prefetch)
        assert (told.value.epoch, told.value.batch) == (None, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:, :5], y), r"'x' must be f32\[batch,6\], not float32\[4,5\]"),
        (lambda x, y: (x.astype(str), y), r"'x' must be f32\[batch,6\], not <U32\[4,6\]; convert it"),
        (lambda x, y: (x, y.astype(np.float32)), "'labels' must be i64"),
    ],
)
def test_the_first_batch_must_be_what_the_inputs_take(
    mlp: gt.Template, points: Points, change: Callable[..., Any], message: str
) -> None:
    with pytest.raises(BatchError, match=f"epoch 1, batch 1: .*{message}"):
        trainer_of(mlp).fit(bad(points, 1, change), 1, progress=False)


def test_what_the_first_batch_was_holds_for_all_epochs(mlp: gt.Template, points: Points) -> None:
    def by_epoch(epoch: int) -> Any:
        return bad(points, 2, lambda x, y: (x.astype(np.float64), y)) if epoch else cut(points)

    with pytest.raises(BatchError, match=r"epoch 2, batch 2: 'x' is float64"):
        trainer_of(mlp).fit(by_epoch, 2, progress=False)


def test_a_bad_batch_in_a_row_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the native call finds: an index out of range is told with its own batch's number."""

    @gt.model(x=gt.f32["batch", 4], pick=gt.i64["batch"])
    def model(x: gt.Value, pick: gt.Value) -> gt.Value:
        return gt.nn.linear(Gather(axis=0)(x, pick), 1)

    monkeypatch.setattr(pace, "SECONDS", 1e3)
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal((4, 4), np.float32), rng.integers(0, 4, 4), rng.standard_normal((4, 1), np.float32))
        for _ in range(40)
    ]
    batches[29][1][2] = 9
    fitted, stepped = (trainer_of(model, "cpu", loss="mse") for _ in range(2))
    with pytest.raises(BatchError, match=r"epoch 1, batch 30: .*'pick' must hold numbers .* has 9 at \[2\]"):
        fitted.fit(batches, 1, progress=False)
    for x, pick, y in batches[:29]:
        stepped.step({"x": x, "pick": pick, "target": y})
    assert bits(fitted) == bits(stepped)


def test_a_loss_that_is_not_finite_is_told_as_for_arrays(mlp: gt.Template, points: Points) -> None:
    x, y = points[0].copy(), points[1]
    x[14, 1] = np.nan
    messages = []
    for source, size in (((x, y), 4), (cut((x, y)), None)):
        with pytest.raises(gt.errors.NonFiniteError) as told:
            trainer_of(mlp, "cpu").fit(source, 1, size, shuffle=False, progress=False)
        messages.append(str(told.value))
    assert messages[0] == messages[1]
    assert "(epoch 1, batch 4)" in messages[0]


# --- sources that raise, end early, or say another length ------------------------------------------------------------


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


def test_batch_sizes_are_those_of_the_source(mlp: gt.Template, points: Points) -> None:
    trainer, batches = trainer_of(mlp), cut(points)
    message = "batch_size= is for arrays: batches of a loader or an iterable are taken as they are"
    for use in (trainer.evaluate, trainer.predict, lambda data, **size: trainer.fit(data, 1, **size)):
        with pytest.raises(InputError, match=message):
            use(batches, batch_size=4)
    history = trainer.fit(batches, 1, 8, points, progress=False)  # of the arrays to validate on
    assert history.last["val_loss"] == trainer.evaluate(points, batch_size=8)["loss"]


# --- evaluation and prediction ---------------------------------------------------------------------------------------


def test_predictions_take_the_inputs_alone(points: Points) -> None:
    @gt.model(a=gt.f32["batch", 6], b=gt.f32["batch", 6])
    def two(a: gt.Value, b: gt.Value) -> dict[str, gt.Value]:
        return {"sum": gt.nn.linear(a + b, 3), "first": a}

    trainer, batches = trainer_of(two, "cpu", loss=gt.losses.softmax_cross_entropy(output="sum")), cut(points)
    x = points[0]
    expected = trainer.predict({"a": x, "b": 2 * x})
    for kind in (
        [(x, 2 * x) for x, _ in batches],
        [(x, 2 * x, y) for x, y in batches],
        [(x, 2 * x, y, "a.png") for x, y in batches],
        [{"b": 2 * x, "a": x} for x, _ in batches],
        [{"labels": y, "b": 2 * x, "a": x} for x, y in batches],
        [{"y": y, "b": 2 * x, "a": x} for x, y in batches],
    ):
        found = trainer.predict(iter(kind))
        np.testing.assert_array_equal(found["first"], x)
        np.testing.assert_allclose(found["sum"], expected["sum"], rtol=1e-5, atol=1e-6)
    with pytest.raises(BatchError, match="batch 1: the batch has 1 arrays, but the model.* take 'a', 'b'"):
        trainer.predict([(x,) for x, _ in batches])
    with pytest.raises(BatchError, match="batch 1: data has 'a', 'b', 'c', but"):
        trainer.predict([{"a": x, "b": x, "c": x}])


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


def test_outputs_that_cannot_be_joined(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def totals(x: gt.Value) -> dict[str, gt.Value]:
        return {"each": gt.nn.linear(x, 3), "all": gt.nn.total(gt.nn.linear(x, 3))}

    trainer = trainer_of(totals, loss=gt.losses.softmax_cross_entropy(output="each"))
    with pytest.raises(BatchError, match="batch 1: output 'all' is not one for each of 4 examples"):
        trainer.predict(cut(points))


def test_validation_from_a_loader_that_fails(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """It is the validation that is named, and the parameters are those of the epoch."""
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    batches = bad(points, 4, lambda x, y: (x.astype(np.float64), y))
    with pytest.raises(BatchError, match=r"^validation of epoch 1, batch 4: 'x' is float64\[4,6\]") as told:
        trainer.fit(points, 2, 4, batches, checkpoint=path, progress=False)
    assert "from before it" not in str(told.value)
    assert not path.exists()
    assert trainer.position.batch == 6
