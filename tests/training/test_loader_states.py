"""Runs over loaders that go on from a checkpoint: to the same bits where that can be, and what is said where not."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.errors import BatchError, CheckpointError, DataError
from glowtrain.trainer.checkpoints.checkpoint import Position, read
from glowtrain.trainer.fitting import pace
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.sources.states import decode, encode
from tests.training.loaders import Batch, Loader, StatefulLoader, bits, cut
from tests.training.trainers import Points, trainer_of


class Stop:
    """Ctrl-C after some calls."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, moment: Moment) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Shuffled:
    """In an order that is a function of the epoch, which the source is told, as PyTorch's DistributedSampler is."""

    epoch = -1

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        order = np.random.default_rng(self.epoch).permutation(len(self.batches))
        return iter([self.batches[number] for number in order])


class SequentialSampler:
    pass


class InOrder(Loader):
    """Like PyTorch's loader without ``shuffle``."""

    sampler = SequentialSampler()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


class Drawing(InOrder):
    """Like PyTorch's loader with a ``batch_sampler`` of one's own, beside which it has a sampler that is not used."""

    batch_sampler = object()


class WithSampler:
    """Like PyTorch's loader with a sampler that is told the epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self.sampler = Shuffled(batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.sampler)


def shuffled(batches: list[Batch]) -> Callable[[int], list[Batch]]:
    return lambda epoch: [batches[number] for number in np.random.default_rng(epoch).permutation(len(batches))]


def generator(batches: list[Batch]) -> Iterator[Batch]:
    """One stream over all epochs."""
    rng = np.random.default_rng(3)
    while True:
        yield batches[rng.integers(len(batches))]


EXACT: dict[str, tuple[Callable[[list[Batch]], Any], dict[str, Any]]] = {
    "list": (list, {}),
    "function of the epoch": (shuffled, {}),
    "set_epoch": (Shuffled, {}),
    "set_epoch of the sampler": (WithSampler, {}),
    "in order": (InOrder, {}),
    "state": (StatefulLoader, {}),
}
SAID = {
    "generator": (generator, {"steps_per_epoch": 6}),
    "function": (lambda batches: lambda: batches, {}),
    "loader in order, unknown": (Drawing, {}),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("prefetch", [None, 0])
@pytest.mark.parametrize("after", [3, 6, 7, 9, 14])
@pytest.mark.parametrize("kind", [*EXACT, *SAID])
def test_a_run_that_goes_on_has_the_bits_of_one_without_a_stop(
    mlp: gt.Template, points: Points, tmp_path: Path, kind: str, after: int, prefetch: int | None
) -> None:
    """Stopped in the middle of an epoch, behind its last batch, and at its end. All these give the same batches again,
    but of some that cannot be seen, and is said."""
    make, settings = {**EXACT, **SAID}[kind]
    settings = {**settings, "prefetch": prefetch, "progress": False}
    whole, path = trainer_of(mlp), tmp_path / "run.safetensors"
    whole.fit(make(cut(points)), 3, checkpoint=tmp_path / "whole", **settings)
    broken = trainer_of(mlp)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(make(cut(points)), 3, checkpoint=path, callbacks=[Stop(after)], **settings)
    resumed = trainer_of(mlp)
    settings["progress"] = told = io.StringIO()
    history = resumed.fit(make(cut(points)), 3, checkpoint=path, resume=True, **settings)
    assert history.deterministic() == whole.history.deterministic()
    assert bits(resumed) == bits(whole)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    said = "the data source has no state to restore, so it is read anew"
    assert (said in told.getvalue(), said in history.resumed) == (kind in SAID, kind in SAID)


def test_what_is_said_of_a_source_that_cannot_be_set(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """It is read anew from where it is, and batches that were trained on are left out."""
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trainer_of(mlp).fit(Loader(cut(points)), 3, checkpoint=path, callbacks=[Stop(9)], progress=False)
    resumed, stepped = trainer_of(mlp), trainer_of(mlp)
    stepped.restore(path)
    assert stepped.history.resumed == ""
    loader, same = Loader(cut(points), seed=8), Loader(cut(points), seed=8)
    resumed.fit(loader, 2, checkpoint=path, resume=True, progress=False)
    assert resumed.history.resumed == (
        "going on in epoch 2: the data source has no state to restore, so it is read anew without its first 2 batches; "
        "only if it gives the same batches again will the bits be those of a run without a stop"
    )
    for x, y in list(same)[2:]:
        stepped.step({"x": x, "labels": y})
    assert bits(resumed) == bits(stepped)
    again = trainer_of(mlp)
    again.fit(Loader(cut(points)), 3, checkpoint=path, resume=True, progress=False)
    assert again.history.resumed.startswith("going on in epoch 3: the data source has no state to restore, so it is re")
    assert "without its first" not in again.history.resumed


def test_the_same_generator_goes_on_where_it_is(mlp: gt.Template, points: Points) -> None:
    """In the same process, after an interrupt: nothing is left out, as it was not begun anew."""
    trainer, stepped, numbers = trainer_of(mlp), trainer_of(mlp), iter(range(100))
    batches = cut(points) * 3
    source = (batches[number] for number in numbers)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(source, 1, steps_per_epoch=8, callbacks=[Stop(3)], prefetch=0, progress=False)
    trainer.fit(source, 1, steps_per_epoch=8, prefetch=0, progress=False)
    for x, y in batches[:8]:
        stepped.step({"x": x, "labels": y})
    assert bits(trainer) == bits(stepped)
    assert next(numbers) == 8


@pytest.mark.parametrize("kind", ["list", "state"])
def test_fit_goes_on_in_the_same_process(mlp: gt.Template, points: Points, kind: str, tmp_path: Path) -> None:
    make = EXACT[kind][0]
    whole, broken, source = trainer_of(mlp), trainer_of(mlp), make(cut(points))
    settings: dict[str, Any] = {"progress": False, "checkpoint": tmp_path / "run"}
    whole.fit(make(cut(points)), 2, **settings)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(source, 2, callbacks=[Stop(3)], **settings)
    broken.fit(source, 2, **settings)
    assert bits(broken) == bits(whole)


def test_restoring_by_hand_sets_the_source_too(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    whole, first, second = (trainer_of(mlp) for _ in range(3))
    path = tmp_path / "run.safetensors"
    whole.fit(StatefulLoader(cut(points)), 4, progress=False)
    first.fit(StatefulLoader(cut(points)), 2, checkpoint=path, progress=False)
    second.restore(path)
    second.fit(StatefulLoader(cut(points)), 2, progress=False)
    assert bits(second) == bits(whole)
    second.fit(StatefulLoader(cut(points)), 1, progress=False)  # another one, which begins anew
    assert second.position.epoch == 5


def test_the_order_of_a_run_that_goes_on_is_the_loaders(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """The state of the batch that was trained on, not of those that were made ahead."""
    path, loader = tmp_path / "run.safetensors", StatefulLoader(cut(points))
    with pytest.raises(KeyboardInterrupt):
        trainer_of(mlp).fit(loader, 3, checkpoint=path, callbacks=[Stop(2)], prefetch=3, progress=False)
    position = read(path).position
    assert decode(position.source)["done"] == position.batch == 2
    trainer_of(mlp).fit(StatefulLoader(cut(points)), 1, checkpoint=path, progress=False)
    assert decode(read(path).position.source)["order"] is None


@pytest.mark.parametrize("prefetch", [None, 3])
def test_the_state_behind_a_row_of_many(
    mlp: gt.Template, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    """Short steps run many in a call: the state is that behind the last of them."""
    monkeypatch.setattr(pace, "SECONDS", 1e3)
    saved: list[tuple[int, int]] = []
    real = gt.Trainer.save

    def save(self: gt.Trainer, path: Path) -> None:
        if self.position.batch:
            saved.append((decode(self.position.source)["done"], self.position.batch))
        real(self, path)

    monkeypatch.setattr(gt.Trainer, "save", save)
    source = StatefulLoader(cut(points)[:5] * 20)
    settings = {"checkpoint": tmp_path / "run", "checkpoint_every": 30, "prefetch": prefetch, "progress": False}
    trainer_of(mlp).fit(source, 1, **settings)
    assert saved == [(30, 30), (60, 60), (90, 90)]


def test_a_checkpoint_of_other_batches(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    for first, size, second, other, message in (
        (points, 4, cut(points), None, "over arrays in batches of 4; go on with these"),
        (cut(points), None, points, 4, "over a loader's batches; go on with such"),
    ):
        with pytest.raises(KeyboardInterrupt):
            trainer_of(mlp).fit(first, 3, size, checkpoint=path, callbacks=[Stop(2)], progress=False)
        with pytest.raises(CheckpointError, match=f"from the middle of an epoch {message}"):
            trainer_of(mlp).fit(second, 3, other, checkpoint=path, resume=True, progress=False)
        path.unlink()


def test_an_epoch_begins_anew_over_data_of_another_kind(mlp: gt.Template, points: Points) -> None:
    """In the same process: who stopped a run over a loader is free to train on arrays."""
    for first, size, second, other in ((points, 4, cut(points), None), (cut(points), None, points, 4)):
        trainer, stepped = trainer_of(mlp), trainer_of(mlp)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(first, 1, size, callbacks=[Stop(2)], shuffle=False, progress=False)
        history = trainer.fit(second, 1, other, shuffle=False, progress=False)
        for x, y in cut(points)[:2]:
            stepped.step({"x": x, "labels": y})
        assert history.loss == pytest.approx(
            [sum(stepped.step({"x": x, "labels": y}) * len(y) for x, y in cut(points)) / 22]
        )
        assert bits(trainer) == bits(stepped)
        assert trainer.position == Position(1)


def test_a_source_that_is_shorter_than_it_was(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trainer_of(mlp).fit(cut(points), 3, checkpoint=path, callbacks=[Stop(4)], progress=False)
    with pytest.raises(BatchError, match="batch 3: the data source ended, but the run goes on behind 4 batches"):
        trainer_of(mlp).fit(cut(points)[:2], 3, checkpoint=path, resume=True, progress=False)


def test_a_source_that_does_not_take_its_state(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    class Other(StatefulLoader):
        def load_state_dict(self, state: dict[Any, Any]) -> None:
            raise ValueError("another number of workers")

    path = tmp_path / "run.safetensors"
    trainer_of(mlp).fit(StatefulLoader(cut(points)), 1, checkpoint=path, progress=False)
    message = r"the data source does not take its state of the checkpoint \(ValueError: another number of workers\)"
    with pytest.raises(CheckpointError, match=message):
        trainer_of(mlp).fit(Other(cut(points)), 2, checkpoint=path, resume=True, progress=False)


def test_a_state_that_cannot_be_kept(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    """Only where a checkpoint is to hold it."""

    class Strange(StatefulLoader):
        def state_dict(self) -> dict[str, Any]:
            return {"place": {"file": io.StringIO()}}

    trainer_of(mlp).fit(Strange(cut(points)), 1, progress=False)
    message = (
        r"epoch 1, batch 1: the data source's state cannot be kept: DataError: state_dict\(\)\['place'\]\['file'\] of "
        "the data source is a StringIO, which a checkpoint cannot hold"
    )
    with pytest.raises(BatchError, match=message):
        trainer_of(mlp).fit(Strange(cut(points)), 1, checkpoint=tmp_path / "run", progress=False)


# --- states as JSON --------------------------------------------------------------------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([math.inf, np.float32(0.1), np.int64(7), np.bool_(True)])
)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
STATES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.lists(inner).map(tuple) | st.sets(st.integers()),
)


@given(STATES)
def test_states_come_back(state: Any) -> None:
    found = decode(json.loads(json.dumps(encode(state))))
    assert found == state
    assert type(found) is type(state)


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "?", "<U3", "<c8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_of_states_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    found = decode(encode({"a": array.T}))["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.T.shape)
    np.testing.assert_array_equal(found, array.T)
    assert found.flags.writeable


@pytest.mark.parametrize("value", [object(), lambda: None, np.array([object()]), np.random.default_rng(0), {1: open}])
def test_what_would_need_code_to_be_read_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="a checkpoint cannot hold"):
        encode(value)


@pytest.mark.parametrize("plain", [{"array": ["u1", [3], ""]}, {"call": "os.system"}, {}, {"array": 7}, {"dict": [1]}])
def test_a_damaged_state_is_told(plain: Any) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's state of the data source is damaged"):
        decode(plain)


def test_positions_without_a_state_are_written_as_before(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    trainer.fit(points, 1, 4, checkpoint=path, progress=False)
    assert b'"source"' not in path.read_bytes()
    assert read(path).position == Position(1)
