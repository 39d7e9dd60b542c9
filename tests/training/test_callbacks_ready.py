"""Ready callbacks, and loggers, whose files are read by what reads them elsewhere."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import glowtrain as gt
from glowtrain import callbacks
from glowtrain.errors import CheckpointError, DataError, InputError, MissingExtraError
from glowtrain.trainer.fitting.moments import EVENTS, Moment


def trainer(lr: float = 0.05, **settings: Any) -> gt.Trainer:
    @gt.model(x=gt.f32["batch", 4])
    def linear(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 1)

    return gt.Trainer(linear, "mse", gt.optim.SGD(lr), backend="interpreter", **settings)


def points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    return x, x[:, :1] - 2 * x[:, 1:2] + 0.5


DATA, VALID = points(0, 96), points(1, 32)


class Recorder:
    """Every event, with the place of its moment."""

    def __init__(self) -> None:
        self.met: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda moment: self.met.append((name, moment.epoch, moment.batch))


def test_objects_get_the_events_that_they_have_methods_for() -> None:
    recorder = Recorder()
    trainer().fit(DATA, 2, 16, callbacks=[recorder], progress=False)
    batches = len(DATA[0]) // 16
    expected = [("on_train_begin", 1, 0)]
    for epoch in (1, 2):
        expected += [("on_batch_end", epoch, batch) for batch in range(1, batches + 1)]
        expected.append(("on_epoch_end", epoch, batches))
    assert recorder.met == [*expected, ("on_train_end", 3, 0)]


def test_what_needs_no_batches_leaves_steps_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    own = trainer()
    run = own.run
    monkeypatch.setattr(own, "run", lambda arrays, count, size: counts.append(count) or run(arrays, count, size))

    class Epochs:
        def on_epoch_end(self, moment: Moment) -> None:
            assert moment.record is not None

    own.fit(DATA, 3, 4, callbacks=[Epochs()], progress=False)
    assert max(counts) > 1


@pytest.mark.parametrize("wrong", [3, object(), callbacks.TimeLimit, "tensorboard"])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="a callback is a function of a Moment, or an object with on_train_begin"):
        trainer().fit(DATA, 1, callbacks=[wrong], progress=False)


def test_one_callback_is_no_list() -> None:
    with pytest.raises(InputError, match="callbacks takes a list, not TimeLimit"):
        trainer().fit(DATA, 1, callbacks=callbacks.TimeLimit(9), progress=False)  # type: ignore[arg-type]


def test_numbers_that_callbacks_add_are_in_the_log(tmp_path: Path) -> None:
    def add(moment: Moment) -> None:
        if moment.record is not None:
            moment.record["answer"] = 42.0

    history = trainer().fit(DATA, 1, callbacks=[add], log=tmp_path / "log.jsonl", progress=False)
    assert history["answer"] == [42.0]
    assert '"answer": 42.0' in (tmp_path / "log.jsonl").read_text()


def test_what_callbacks_change_is_in_the_checkpoint(tmp_path: Path) -> None:
    def halve(moment: Moment) -> None:
        if moment.record is not None:
            moment.trainer.lr /= 2

    path = tmp_path / "run.safetensors"
    trainer(0.05).fit(DATA, 1, callbacks=[halve], checkpoint=path, progress=False)
    again = trainer(0.05)
    again.restore(path)
    assert again.lr == pytest.approx(0.025)


class TestHeldOut:
    """``validation=0.25``: a part of the arrays."""

    def test_a_part_is_measured_and_not_trained_on(self) -> None:
        own, other = trainer(seed=7), trainer(seed=7)
        train, valid = gt.data.split({"x": DATA[0], "target": DATA[1]}, 0.25, seed=7)
        history = own.fit(DATA, 2, validation=0.25, progress=False)
        expected = other.fit(train, 2, validation=valid, progress=False)
        assert history.deterministic() == expected.deterministic()

    def test_batches_of_a_loader_are_refused(self) -> None:
        with pytest.raises(InputError, match="not of batches that come so"):
            trainer().fit([DATA], 1, validation=0.25, progress=False)

    @pytest.mark.parametrize("wrong", [0, 1.5, True])
    def test_what_is_no_part(self, wrong: Any) -> None:
        with pytest.raises(DataError, match="fraction between 0 and 1"):
            trainer().fit(DATA, 1, validation=wrong, progress=False)


class TestStopping:
    def test_in_the_middle_of_an_epoch_and_going_on_to_the_same_bits(self, tmp_path: Path) -> None:
        def stop(moment: Moment) -> None:
            if moment.record is None and (moment.epoch, moment.batch) == (2, 3):
                moment.stop("enough")

        path, whole = tmp_path / "run.safetensors", trainer(seed=5)
        whole.fit(DATA, 3, 8, VALID, progress=False)
        first = trainer(seed=5)
        history = first.fit(DATA, 3, 8, VALID, callbacks=[stop], checkpoint=path, progress=False)
        assert (history.stopped, len(history), first.position.batch) == ("enough", 1, 3)
        second = trainer(seed=5)
        second.fit(DATA, 3, 8, VALID, checkpoint=path, resume=True, progress=False)
        for name, array in whole.variables().items():
            assert np.array_equal(array, second.variables()[name])
        assert whole.history.deterministic() == second.history.deterministic()

    def test_at_the_end_of_an_epoch(self) -> None:
        def stop(moment: Moment) -> None:
            if moment.record is not None:
                moment.stop("one will do")

        history = trainer().fit(DATA, 3, callbacks=[stop], progress=False)
        assert (history.stopped, len(history)) == ("one will do", 1)

    def test_by_the_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter(range(1000))
        monkeypatch.setattr("glowtrain.callbacks.control.time", SimpleNamespace(monotonic=lambda: next(clock)))
        own = trainer()
        history = own.fit(DATA, 100, 8, callbacks=[callbacks.TimeLimit(3)], progress=False)
        assert history.stopped == "the time limit of 3 s is over"
        assert own.position.batch == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_end_is_told_whatever_it_is(error: type[BaseException]) -> None:
    class Ending:
        ended = 0

        def on_batch_end(self, moment: Moment) -> None:
            raise error

        def on_train_end(self, moment: Moment) -> None:
            self.ended += 1

    ending = Ending()
    with pytest.raises(error):
        trainer().fit(DATA, 1, callbacks=[ending], progress=False)
    assert ending.ended == 1


def test_the_best_parameters_are_back_at_the_end() -> None:
    own, seen = trainer(3.0), []

    class Ending:
        def on_train_end(self, moment: Moment) -> None:
            seen.append(moment.trainer.parameters()["linear.weight"])

    own.fit(DATA, 4, validation=VALID, patience=2, restore_best=True, callbacks=[Ending()], progress=False)
    assert np.array_equal(seen[0], own.parameters()["linear.weight"])


class TestPlateau:
    def test_the_rate_falls_after_epochs_without_progress(self) -> None:
        own = trainer(1e-9)
        plateau = callbacks.ReduceOnPlateau(patience=2, factor=0.5, min_delta=10.0)
        history = own.fit(DATA, 6, callbacks=[plateau], progress=False)
        assert history["lr"] == pytest.approx([1e-9, 1e-9, 1e-9, 5e-10, 5e-10, 2.5e-10])

    def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(self, tmp_path: Path) -> None:
        def fit(own: gt.Trainer, epochs: int, **settings: Any) -> gt.History:
            plateau = callbacks.ReduceOnPlateau("val_loss", patience=2, factor=0.5, min_delta=10.0)
            return own.fit(DATA, epochs, validation=VALID, callbacks=[plateau], progress=False, **settings)

        path, whole = tmp_path / "run.safetensors", trainer(1e-9)
        fit(whole, 7)
        fit(trainer(1e-9), 4, checkpoint=path)
        again = fit(trainer(1e-9), 7, checkpoint=path, resume=True)
        assert again["lr"] == whole.history["lr"]

    def test_not_below_the_least(self) -> None:
        own = trainer(1e-9)
        own.fit(DATA, 9, callbacks=[callbacks.ReduceOnPlateau(patience=1, min_delta=10, least=5e-10)], progress=False)
        assert own.lr == pytest.approx(5e-10)

    @pytest.mark.parametrize("wrong", [{"factor": 1.0}, {"factor": 0.0}, {"patience": 0}, {"mode": "lowest"}])
    def test_what_it_cannot_be(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="must be|choose min or max"):
            callbacks.ReduceOnPlateau(**wrong)

    def test_a_column_that_there_is_not(self) -> None:
        with pytest.raises(InputError, match=r"no column 'val_los' \(the nearest is 'val_loss'\)"):
            trainer().fit(DATA, 1, validation=VALID, callbacks=[callbacks.ReduceOnPlateau("val_los")], progress=False)


def test_the_best_checkpoint_is_that_of_the_best_epoch(tmp_path: Path) -> None:
    path, kept = tmp_path / "best.safetensors", []

    def worsen(moment: Moment) -> None:
        if moment.record is not None:
            kept.append(moment.trainer.variables())
            moment.trainer.lr = 3.0  # too high from now on

    own = trainer()
    own.fit(DATA, 3, validation=VALID, callbacks=[callbacks.BestCheckpoint(path), worsen], progress=False)
    best = trainer()
    best.restore(path)
    assert best.position.epoch == 1
    assert np.array_equal(best.variables()["linear.weight"], kept[0]["linear.weight"])


def test_a_column_of_a_callback_needs_a_direction(tmp_path: Path) -> None:
    def add(moment: Moment) -> None:
        if moment.record is not None:
            moment.record["answer"] = float(moment.epoch)

    path = tmp_path / "best.safetensors"
    with pytest.raises(InputError, match=r"nothing says whether more of 'answer' is better: mode='min' or 'max'"):
        trainer().fit(DATA, 1, callbacks=[add, callbacks.BestCheckpoint(path, "answer")], progress=False)
    trainer().fit(DATA, 3, callbacks=[add, callbacks.BestCheckpoint(path, "answer", "max")], progress=False)
    best = trainer()
    best.restore(path)
    assert best.position.epoch == 3


def test_gradient_norms_are_those_of_the_gradients() -> None:
    norms, own = callbacks.GradientNorms(every=3), trainer()
    history = own.fit(DATA, 1, 16, shuffle=False, callbacks=[norms], progress=False)
    assert set(norms.last) == {"linear.weight", "linear.bias"}
    assert history["grad_norm"][0] > 0
    one = trainer()
    norms = callbacks.GradientNorms()
    one.fit(DATA, 1, len(DATA[0]), shuffle=False, callbacks=[norms], progress=False)
    gradients = one.gradients({"x": DATA[0], "target": DATA[1]})
    expected = {name: np.linalg.norm(array.astype(float)) for name, array in gradients.items()}
    assert norms.last == pytest.approx(expected)


class TestTables:
    def test_a_row_for_each_epoch(self, tmp_path: Path) -> None:
        path = tmp_path / "run.csv"
        history = trainer().fit(DATA, 3, validation=VALID, callbacks=[callbacks.CSV(path)], progress=False)
        rows = list(csv.DictReader(path.open()))
        assert [float(row["val_loss"]) for row in rows] == history["val_loss"]

    def test_what_cannot_be_written_is_said_before_training(self, tmp_path: Path) -> None:
        own = trainer()
        with pytest.raises(CheckpointError, match="nowhere"):
            own.fit(DATA, 1, callbacks=[callbacks.CSV(tmp_path / "nowhere" / "run.csv")], progress=False)
        assert own.position.epoch == 0


class TestTensorBoard:
    def events(self, folder: Path) -> EventAccumulator:
        found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
        found.Reload()
        return found

    def test_its_reader_reads_what_was_logged(self, tmp_path: Path) -> None:
        board = callbacks.TensorBoard(tmp_path, every=2, histograms=True)
        history = trainer().fit(DATA, 3, 16, VALID, callbacks=[board], progress=False)
        events = self.events(tmp_path)
        assert [event.value for event in events.Scalars("val_loss")] == pytest.approx(history["val_loss"])
        assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
        batches = len(DATA[0]) // 16
        assert [event.step for event in events.Scalars("batch/loss")][:2] == [1, 3]
        assert len(events.Scalars("batch/loss")) == 3 * (batches // 2)
        assert len(events.Histograms("parameters/linear.weight")) == 3
        assert len(events.Histograms("gradients/linear.weight")) == 3
        names = {node.name for node in events.Graph().node}
        assert any("weight" in name for name in names)

    def test_a_resumed_run_replaces_later_epochs(self, tmp_path: Path) -> None:
        path, folder = tmp_path / "run.safetensors", tmp_path / "board"
        for epochs in (2, 4):
            own = trainer()
            own.fit(
                DATA, epochs, checkpoint=path, resume=True, callbacks=[callbacks.TensorBoard(folder)], progress=False
            )
        assert [event.step for event in self.events(folder).Scalars("loss")] == [1, 2, 3, 4]

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="file cannot be written"):
            trainer().fit(DATA, 1, callbacks=[callbacks.TensorBoard(tmp_path / "file")], progress=False)

    def test_without_its_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(
            MissingExtraError, match=r"TensorBoard needs tensorboardX: pip install -e '\.\[tensorboard\]'"
        ):
            callbacks.TensorBoard(tmp_path)


class TestServices:
    """MLflow and Weights & Biases are not installed here: what is called is looked at."""

    def test_mlflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        met: list[tuple[str, Any, Any]] = []
        module: Any = ModuleType("mlflow")
        module.log_params = lambda params: met.append(("params", params, None))
        module.log_metrics = lambda metrics, step: met.append(("metrics", metrics, step))
        monkeypatch.setitem(sys.modules, "mlflow", module)
        history = trainer().fit(DATA, 2, callbacks=[callbacks.MLflow()], progress=False)
        assert met[0][1]["optimizer"] == "sgd"
        assert met[0][1]["lr"] == pytest.approx(0.05)
        assert [(each[1]["loss"], each[2]) for each in met[1:]] == list(zip(history["loss"], (1, 2), strict=True))

    def test_weights_and_biases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        met: list[tuple[str, Any]] = []
        run = SimpleNamespace(config=SimpleNamespace(update=lambda values, **_: met.append(("config", values))))
        module: Any = ModuleType("wandb")
        module.run = None
        module.init = lambda **settings: met.append(("init", settings)) or run
        module.log = lambda values, step: met.append(("log", (values["loss"], step)))
        monkeypatch.setitem(sys.modules, "wandb", module)
        history = trainer().fit(DATA, 1, callbacks=[callbacks.WandB(project="digits")], progress=False)
        assert [name for name, _ in met] == ["init", "config", "log"]
        assert met[0][1] == {"project": "digits"}
        assert met[2][1] == (history["loss"][0], 1)

    @pytest.mark.parametrize("make", [callbacks.MLflow, callbacks.WandB])
    def test_a_package_that_is_missing_is_named(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("mlflow", "wandb"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match="needs the package: pip install"):
            make()
