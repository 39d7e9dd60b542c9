"""Steps that run several in a call: the same bits, records, errors and stops as one step after another."""

from __future__ import annotations

import io
import math
import signal
import threading
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from rich.progress import Progress

import glowtrain as gt
from glowtrain import data
from glowtrain.backends.base import Batches
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.errors import InputError, NonFiniteError
from glowtrain.ops.indexing.gather import Gather
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.fitting import pace
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.history import History
from tests.onnx_io import onnx_models
from tests.onnx_io.onnx_models import node
from tests.training.trainers import Points, images, trainer_of

Arrays = Mapping[str, np.ndarray]


def stepwise(trainer: gt.Trainer, arrays: Arrays, epochs: int, size: int, *, shuffle: bool = True) -> list[float]:
    """What ``fit`` means: the mean loss of each epoch."""
    means = []
    for epoch in range(epochs):
        total = 0.0
        for batch in data.batches(arrays, size, seed=trainer.spec.seed, epoch=epoch, shuffle=shuffle):
            total += trainer.step(batch) * data.count_examples(batch)
        means.append(total / data.count_examples(arrays))
    return means


def bits(trainer: gt.Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainer.variables().items()}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each native call was for; unless a test says otherwise, as many as there are."""
    seen: list[int] = []
    real = NativeInstance.run_many

    def counting(self: NativeInstance, batches: Batches) -> dict[str, np.ndarray]:
        seen.append(batches.count)
        return real(self, batches)

    monkeypatch.setattr(NativeInstance, "run_many", counting)
    monkeypatch.setattr(pace, "SECONDS", 1e3)
    return seen


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    "optimizer",
    [
        gt.optim.Adam(lr=0.02),
        gt.optim.SGD(lr=0.1, momentum=0.9, schedule=gt.optim.Warmup(4) * gt.optim.Cosine(9)),
        gt.optim.AdamW(lr=0.02, accumulate=3, clip_norm=1.0),
    ],
    ids=["adam", "schedule", "accumulate"],
)
@pytest.mark.parametrize("metrics", [False, True])
def test_fit_has_the_bits_of_steps(
    cnn: gt.Template, points: Points, optimizer: gt.optim.Optimizer, metrics: bool, backend: str, runs: list[int]
) -> None:
    """Batch normalization, dropout, a short last batch (22 = 2 · 8 + 6) and everything that an optimizer counts."""
    x, y = images(points)
    fitted, stepped = (trainer_of(cnn, backend, optimizer=optimizer, metrics=metrics) for _ in range(2))
    history = fitted.fit((x, y), 4, 8, progress=False)
    assert history.loss == stepwise(stepped, {"x": x, "labels": y}, 4, 8)
    assert bits(fitted) == bits(stepped)
    assert fitted.measured == stepped.measured
    assert backend != "cpu" or runs == [1, 1, 1, 2, 1, 2, 1, 2, 1]


@gt.model(x=gt.f32["batch", 3])
def tiny(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.dropout(gt.nn.tanh(gt.nn.linear(x, 4)), 0.3), 1)


@pytest.fixture(scope="module")
def pair() -> tuple[gt.Trainer, gt.Trainer]:
    """Two equal trainers, which stay compiled."""
    first, second = (gt.Trainer(tiny, "mse", gt.optim.Adam(0.02), threads=1) for _ in range(2))
    return first, second


@given(
    examples=st.integers(1, 40),
    size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    most=st.integers(1, 9),
    every=st.none() | st.integers(1, 5),
)
def test_any_number_of_steps_in_a_call(
    pair: tuple[gt.Trainer, gt.Trainer],
    tmp_path_factory: pytest.TempPathFactory,
    examples: int,
    size: int,
    epochs: int,
    shuffle: bool,
    drop_last: bool,
    most: int,
    every: int | None,
) -> None:
    whole = examples // size
    if drop_last and not whole:
        return
    random = np.random.default_rng(examples)
    x, y = (random.normal(size=(examples, width)).astype(np.float32) for width in (3, 1))
    fitted, stepped = pair
    for trainer in pair:
        trainer.position, trainer.history = Position(), History()
        trainer.set_variables(stepped.variables())
    settings: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "progress": False}
    if every is not None:
        settings |= {"checkpoint": tmp_path_factory.mktemp("run") / "run.safetensors", "checkpoint_every": every}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "SECONDS", 1e3)
        patch.setattr(pace, "MEMORY", most * size * 16)
        history = fitted.fit((x, y), epochs, size, **settings)
    batches = (
        batch
        for epoch in range(epochs)
        for batch in data.batches({"x": x, "target": y}, size, seed=0, epoch=epoch, shuffle=shuffle)
        if len(batch["x"]) == size or not drop_last
    )
    for batch in batches:
        stepped.step(batch)
    assert bits(fitted) == bits(stepped)
    assert len(history) == epochs


def test_data_of_other_types_are_converted_alike(mlp: gt.Template, points: Points, runs: list[int]) -> None:
    x, y = np.round(points[0] * 20).astype(np.int16), points[1].astype(np.int32)
    fitted, stepped = trainer_of(mlp, "cpu"), trainer_of(mlp, "cpu")
    history = fitted.fit((x[::-1], y[::-1]), 3, 4, progress=False)
    assert history.loss == stepwise(stepped, {"x": x[::-1], "labels": y[::-1]}, 3, 4)
    assert max(runs) == 5


def test_weights_of_examples_and_padding(points: Points, runs: list[int]) -> None:
    """Labels that are ignored, and a weight for each example as a third array."""

    @gt.model(x=gt.f32["batch", 6])
    def model(x: gt.Value) -> dict[str, gt.Value]:
        return {"scores": gt.nn.linear(x, 3), "value": gt.nn.reshape(gt.nn.linear(x, 1), (-1,))}

    def weighted(outputs: Mapping[str, gt.Value], inputs: Mapping[str, gt.Value]) -> gt.Value:
        return gt.nn.mean(inputs["weight"] * (outputs["value"] - inputs["t"]) ** 2.0)

    x, y = points
    weight = np.linspace(0, 1, len(x), dtype=np.float32)
    padded = np.where(np.arange(len(y)) % 3 == 2, -1, y)
    losses: list[tuple[Any, dict[str, np.ndarray]]] = [
        (gt.losses.custom(weighted, t=gt.f32["batch"], weight=gt.f32["batch"]), {"t": x[:, 0], "weight": weight}),
        (gt.losses.softmax_cross_entropy(output="scores", ignore_index=-1), {"labels": padded}),
    ]
    for loss, targets in losses:
        fitted, stepped = (trainer_of(model, "cpu", loss=loss) for _ in range(2))
        assert fitted.fit({"x": x, **targets}, 3, 4, progress=False).loss == stepwise(
            stepped, {"x": x, **targets}, 3, 4
        )
        assert bits(fitted) == bits(stepped)
    assert max(runs) == 5


def test_a_model_that_depends_on_elements_of_its_inputs(points: Points, runs: list[int]) -> None:
    """Each batch may be another specialisation: steps run one by one. Here the two rows of a batch are its shape."""
    nodes = [
        node("Mul", "x w", "scaled"),
        node("Reshape", "scaled shape", "table"),
        node("ReduceMax", "table", "peaks", axes=[0], keepdims=0),
        node("ReduceMean", "peaks", "error", keepdims=0),
    ]
    inputs = {"x": [2, 4], "shape": (TensorProto.INT64, [2])}
    proto = onnx_models.model(nodes, inputs, ["error"], {"w": np.ones(4, np.float32)}, opset=13)
    bound = gt.load(proto, values={"shape": [4, 2]})
    x, shape = points[0][:8, :4], np.array([2, 4, 4, 2, 8, 1, 1, 8])
    fitted, stepped = (trainer_of(bound, "cpu", loss="error") for _ in range(2))
    history = fitted.fit({"x": x, "shape": shape}, 2, 2, shuffle=False, progress=False)
    assert history.loss == stepwise(stepped, {"x": x, "shape": shape}, 2, 2, shuffle=False)
    assert bits(fitted) == bits(stepped)
    assert runs == []
    shape[6:] = 3, 3
    with pytest.raises(gt.GlowtrainError, match="Reshape"):
        fitted.fit({"x": x, "shape": shape}, 1, 2, shuffle=False, progress=False)
    for start in range(0, 6, 2):
        stepped.step({"x": x[start : start + 2], "shape": shape[start : start + 2]})
    assert bits(fitted) == bits(stepped)
    assert (fitted.position.batch, fitted.whole) == (3, True)


# --- the same records, errors and stops ------------------------------------------------------------------------------


def test_callbacks_see_every_batch(mlp: gt.Template, points: Points, runs: list[int]) -> None:
    moments: list[tuple[int, int, float, bytes]] = []

    def look(moment: Moment) -> None:
        moments.append((moment.epoch, moment.batch, moment.loss, moment.trainer.variables()["first.bias"].tobytes()))

    trainer_of(mlp, "cpu").fit(points, 2, 8, progress=False, callbacks=[look])
    assert set(runs) == {1}
    stepped, expected = trainer_of(mlp, "cpu"), []
    for epoch in (1, 2):
        parts = data.batches({"x": points[0], "labels": points[1]}, 8, seed=0, epoch=epoch - 1)
        for number, batch in enumerate(parts, 1):
            loss = stepped.step(batch)
            expected.append((epoch, number, loss, stepped.variables()["first.bias"].tobytes()))
    assert [each for each in moments if each in expected] == expected
    assert len(moments) == len(expected) + 2


def test_a_callback_that_changes_the_rate_or_stops(mlp: gt.Template, points: Points) -> None:
    class Enough(Exception):
        pass

    def act(moment: Moment) -> None:
        moment.trainer.hyper["lr"] /= 2
        if moment.batch == 4:
            raise Enough

    fitted, stepped = trainer_of(mlp, "cpu"), trainer_of(mlp, "cpu")
    with pytest.raises(Enough):
        fitted.fit(points, 2, 4, progress=False, callbacks=[act])
    for batch in islice(data.batches({"x": points[0], "labels": points[1]}, 4, seed=0, epoch=0), 4):
        stepped.step(batch)
        stepped.hyper["lr"] /= 2
    assert bits(fitted) == bits(stepped)
    assert (fitted.position.batch, fitted.position.examples) == (4, 16)


@pytest.mark.spread(3)
@pytest.mark.parametrize("bad", [0, 3, 5])
def test_a_loss_that_is_not_finite(
    mlp: gt.Template, points: Points, backend: str, bad: int, tmp_path: Path, runs: list[int]
) -> None:
    """It ends the run at its own batch, whose rows the message speaks of, after the updates of those before."""
    x, y = np.tile(points[0], (2, 1)), np.tile(points[1], 2)
    calm, path = x.copy(), tmp_path / "run.safetensors"
    x[4 * bad + 2, 1] = np.nan
    fitted, stepped = trainer_of(mlp, backend), trainer_of(mlp, backend)
    for trainer in (fitted, stepped):
        trainer.fit((calm, y), 1, 4, progress=False, shuffle=False)
    with pytest.raises(NonFiniteError) as told:
        fitted.fit((x, y), 1, 4, progress=False, shuffle=False, checkpoint=path)
    parts = data.batches({"x": x, "labels": y}, 4, seed=0, epoch=0, shuffle=False)
    for batch in islice(parts, bad):
        stepped.step(batch)
    with pytest.raises(NonFiniteError) as expected:
        stepped.step(next(parts))
    assert str(told.value).startswith(str(expected.value))
    assert "input 'x' (f32[4,6]): nan at [2, 1]" in str(told.value)
    assert f"(epoch 2, batch {bad + 1})" in str(told.value)
    assert bits(fitted) == bits(stepped)
    assert (fitted.position.batch, fitted.position.examples, fitted.whole) == (bad, 4 * bad, True)
    assert math.isfinite(fitted.position.loss_sum)
    assert not path.exists()


def test_a_batch_that_cannot_be_taken(mlp: gt.Template, points: Points, runs: list[int]) -> None:
    """Numbers that the type does not hold are seen on the way: the batches before them are trained on."""
    x, y = np.tile(points[0], (2, 1)).astype(np.float64), np.tile(points[1], 2)
    x[17, 2] = 1e300
    fitted, stepped = trainer_of(mlp, "cpu"), trainer_of(mlp, "cpu")
    with pytest.raises(InputError, match="'x' holds numbers that are too large for f32") as told:
        fitted.fit((x, y), 1, 4, progress=False, shuffle=False)
    assert not isinstance(told.value.__context__, InputError)
    for start in range(0, 16, 4):
        stepped.step({"x": x[start : start + 4], "labels": y[start : start + 4]})
    assert bits(fitted) == bits(stepped)
    assert (fitted.position.batch, fitted.whole) == (4, True)


def test_indices_into_inputs_are_checked_in_each_batch(runs: list[int]) -> None:
    """Rows of one example that another input picks: how many there are is the batch's own."""

    @gt.model(x=gt.f32["batch", 4], pick=gt.i64["batch"])
    def model(x: gt.Value, pick: gt.Value) -> gt.Value:
        return gt.nn.linear(Gather(axis=0)(x, pick), 1)

    random = np.random.default_rng(0)
    x, y = (random.normal(size=(24, width)).astype(np.float32) for width in (4, 1))
    pick = random.integers(0, 4, 24)
    fitted, stepped = (trainer_of(model, "cpu", loss="mse") for _ in range(2))
    history = fitted.fit({"x": x, "pick": pick, "target": y}, 2, 4, progress=False)
    assert history.loss == stepwise(stepped, {"x": x, "pick": pick, "target": y}, 2, 4)
    assert max(runs) == 6
    pick[18] = 4
    with pytest.raises(InputError, match=r"'pick' must hold numbers from -4 to 3 .* has 4 at \[2\]"):
        fitted.fit({"x": x, "pick": pick, "target": y}, 1, 4, progress=False, shuffle=False)
    assert fitted.position.batch == 4


@pytest.mark.spread(1)
@pytest.mark.parametrize("at", [0, 1, 7])
def test_ctrl_c_comes_between_steps_and_a_resumed_run_has_the_same_bits(
    mlp: gt.Template, points: Points, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, path = np.tile(points[0], (8, 1)), np.tile(points[1], 8), tmp_path / "run.safetensors"
    monkeypatch.setattr(pace, "SECONDS", 1e3)
    monkeypatch.setattr(pace, "MEMORY", 5 * 4 * 32)  # 5 of 44 batches in a call
    whole = trainer_of(mlp, "cpu")
    history = whole.fit((x, y), 2, 4, progress=False)
    real, calls = NativeInstance.run_many, [0]

    def struck(self: NativeInstance, batches: Batches) -> dict[str, np.ndarray]:
        if calls[0] == at:
            signal.raise_signal(signal.SIGINT)
        calls[0] += 1
        return real(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(NativeInstance, "run_many", struck)
        broken = trainer_of(mlp, "cpu")
        with pytest.raises(KeyboardInterrupt):
            broken.fit((x, y), 2, 4, checkpoint=path, progress=False)
    done = 1 + 5 * at
    assert (broken.position.epoch, broken.position.batch) == (0, done)
    assert broken.history.stopped == f"interrupted in epoch 1 after batch {done} of 44"
    resumed = trainer_of(mlp, "cpu")
    again = resumed.fit((x, y), 2, 4, checkpoint=path, resume=True, progress=False)
    assert bits(resumed) == bits(whole)
    assert again.deterministic() == history.deterministic()


def test_ctrl_c_of_a_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From outside, at any moment: it ends the run soon, between two steps."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(4096, width)).astype(np.float32) for width in (3, 1))
    path = tmp_path / "run.safetensors"
    trainer = gt.Trainer(tiny, "mse", gt.optim.Adam(1e-3), threads=1)
    trainer.fit((x, y), 1, 4, progress=False)
    timers, real = [threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])], NativeInstance.run_many

    def timed(self: NativeInstance, batches: Batches) -> dict[str, np.ndarray]:
        while timers:
            timers.pop().start()
        return real(self, batches)

    monkeypatch.setattr(NativeInstance, "run_many", timed)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit((x, y), 1_000_000, 4, progress=False, checkpoint=path)
    monkeypatch.undo()
    restored, stepped = (gt.Trainer(tiny, "mse", gt.optim.Adam(1e-3), threads=1) for _ in range(2))
    restored.restore(path)
    assert restored.position == trainer.position
    assert bits(restored) == bits(trainer)
    epochs, batch = restored.position.epoch, restored.position.batch
    stepped.fit((x, y), epochs, 4, progress=False)
    for part in islice(data.batches({"x": x, "target": y}, 4, seed=0, epoch=epochs), batch):
        stepped.step(part)
    assert bits(stepped) == bits(trainer)


def test_a_second_ctrl_c_between_a_call_and_its_count_spoils_no_checkpoint(
    mlp: gt.Template, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trainer = tmp_path / "run.safetensors", trainer_of(mlp, "cpu")
    trainer.fit(points, 1, 4, checkpoint=path, progress=False)
    before, real = path.read_bytes(), NativeInstance.run_many

    def struck(self: NativeInstance, batches: Batches) -> dict[str, np.ndarray]:
        real(self, batches)
        raise KeyboardInterrupt

    monkeypatch.setattr(NativeInstance, "run_many", struck)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(points, 1, 4, checkpoint=path, progress=False)
    assert path.read_bytes() == before
    assert not trainer.whole


def test_checkpoints_come_after_so_many_batches(
    mlp: gt.Template, points: Points, tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, saved = np.tile(points[0], (2, 1)), np.tile(points[1], 2), []
    real = gt.Trainer.save

    def save(self: gt.Trainer, path: Path) -> None:
        saved.append((self.position.epoch, self.position.batch))
        real(self, path)

    monkeypatch.setattr(gt.Trainer, "save", save)
    trainer_of(mlp, "cpu").fit((x, y), 1, 4, checkpoint=tmp_path / "run", checkpoint_every=4, progress=False)
    assert saved == [(0, 4), (0, 8), (1, 0)]
    assert runs == [1, 3, 4, 3]


def test_a_bar_counts_every_batch(mlp: gt.Template, points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    advanced: list[float] = []
    real = Progress.update

    def update(self: Progress, *args: Any, **settings: Any) -> None:
        advanced.append(settings["advance"])
        real(self, *args, **settings)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Progress, "update", update)
    trainer_of(mlp, "cpu").fit(points, 2, 4, progress=Terminal())
    assert sum(advanced) == 12


def test_positions_add_up() -> None:
    first = Position(epoch=3, batch_size=4).after([0.5, 0.25], {"accuracy": [1.0, 0.5]}, 4)
    assert first == Position(3, 2, 8, 3.0, 4, {"accuracy": 6.0})
    assert first.after([2.0], {"accuracy": [0.0]}, 2) == Position(3, 3, 10, 7.0, 4, {"accuracy": 6.0})
    assert first.after([], {"accuracy": []}, 4) == first
    assert Position().after([], {"accuracy": []}, 4) == Position()
    unmeasured = Position(batch=1, examples=4, loss_sum=1.0)
    assert unmeasured.after([1.0], {"accuracy": [1.0]}, 4) == Position(batch=2, examples=8, loss_sum=5.0)
    values = [0.1] * 10
    assert Position().after(values, {}, 1).loss_sum == 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 < 1


# --- how many --------------------------------------------------------------------------------------------------------


def test_as_many_batches_as_fit_into_the_time_and_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SECONDS", 0.02)
    monkeypatch.setattr(pace, "MEMORY", 1000)
    found = pace.Pace(batch_bytes=10)
    assert found.batches == 1
    for batches, seconds, expected in ((1, 0.001, 20), (20, 0.04, 10), (10, 0.0, 100), (100, 100.0, 1)):
        found.went(batches, seconds)
        assert found.batches == expected
    large = pace.Pace(batch_bytes=2000)
    large.went(1, 1e-6)
    assert large.batches == 1
