"""Checkpoints: runs go on as if nothing had happened, and files that are broken or cannot be written are refused."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.interpreter import InterpretedInstance
from glowtrain.errors import CheckpointError
from glowtrain.trainer.checkpoints.checkpoint import read
from glowtrain.trainer.fitting.moments import Moment
from tests.training.trainers import Points, images, trainer_of


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [None, 2])
def test_resuming_gives_the_same_bytes(
    cnn: gt.Template, points: Points, backend: str, tmp_path: Path, every: int | None
) -> None:
    data = images(points)
    optimizer = gt.optim.Adam(lr=0.02, schedule=gt.optim.Cosine(30), accumulate=2)
    settings = {"batch_size": 8, "validation": data, "checkpoint_every": every}
    whole = trainer_of(cnn, backend, optimizer=optimizer)
    whole.fit(data, 10, checkpoint=tmp_path / "whole", **settings)
    trainer_of(cnn, backend, optimizer=optimizer).fit(data, 5, checkpoint=tmp_path / "half", **settings)
    resumed = trainer_of(cnn, backend, optimizer=optimizer)
    history = resumed.fit(data, 10, checkpoint=tmp_path / "half", resume=True, **settings)
    assert history.loss == whole.history.loss
    assert (tmp_path / "half").read_bytes() == (tmp_path / "whole").read_bytes()


def test_save_and_restore_by_hand(cnn: gt.Template, points: Points, tmp_path: Path) -> None:
    data = images(points)
    whole, first, second = (trainer_of(cnn) for _ in range(3))
    whole.fit(data, 10, 8)
    first.fit(data, 5, 8)
    first.hyper["lr"] = 0.02
    first.save(tmp_path / "run.safetensors")
    second.restore(tmp_path / "run.safetensors")
    second.fit(data, 5, 8)
    assert second.history.deterministic() == whole.history.deterministic()
    for name, array in whole.variables().items():
        assert array.tobytes() == second.variables()[name].tobytes()


class Stop:
    """Ctrl-C after some batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, moment: Moment) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("metrics", [False, True])
def test_ctrl_c_in_the_middle_of_an_epoch_loses_nothing(
    cnn: gt.Template, points: Points, tmp_path: Path, metrics: bool
) -> None:
    data, path = images(points), tmp_path / "run.safetensors"
    whole = trainer_of(cnn, metrics=metrics)
    whole.fit(data, 4, 8, checkpoint=tmp_path / "whole")
    broken = trainer_of(cnn, metrics=metrics)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(data, 4, 8, checkpoint=path, callbacks=[Stop(6)])  # 3 batches and an epoch's end, then 2 batches
    assert (broken.position.epoch, broken.position.batch) == (1, 2)
    resumed = trainer_of(cnn, metrics=metrics)
    resumed.fit(data, 4, 8, checkpoint=path, resume=True)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(resumed.history["train_accuracy"]) == 4 * metrics
    again = trainer_of(cnn)
    with pytest.raises(KeyboardInterrupt):
        again.fit(data, 4, 8, checkpoint=path, callbacks=[Stop(2)])
    with pytest.raises(CheckpointError, match="in batches of 8; go on with batch_size=8, not 4"):
        trainer_of(cnn).fit(data, 4, 4, checkpoint=path, resume=True)


def test_an_epoch_of_which_a_part_was_not_measured_has_no_accuracy(
    mlp: gt.Template, points: Points, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trainer_of(mlp).fit(points, 3, 8, checkpoint=path, callbacks=[Stop(6)])
    resumed = trainer_of(mlp, metrics=True)
    resumed.fit(points, 3, 8, checkpoint=path, resume=True)
    assert ["train_accuracy" in record for record in resumed.history] == [False, False, True]


def test_a_step_that_is_broken_off_is_not_saved(
    mlp: gt.Template, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    trainer.fit(points, 1, 8, checkpoint=path)
    before = path.read_bytes()

    def broken(self: InterpretedInstance, inputs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(InterpretedInstance, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(points, 1, 8, checkpoint=path)
    assert path.read_bytes() == before


def test_the_signal_waits_for_the_end_of_the_step(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    sent: list[int] = []

    def send(moment: Moment) -> None:
        if not sent:
            sent.append(moment.batch)
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(points, 3, 8, checkpoint=path, callbacks=[send])
    assert signal.getsignal(signal.SIGINT) is handler
    assert (trainer.position.epoch, trainer.position.batch) == (0, 1)
    restored = trainer_of(mlp)
    restored.restore(path)
    assert restored.position == trainer.position


def test_a_signal_after_the_last_step_acts_at_the_end(mlp: gt.Template, points: Points) -> None:
    trainer = trainer_of(mlp)

    def send(moment: Moment) -> None:
        if moment.record is not None:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(points, 1, 8, callbacks=[send])
    finally:
        signal.signal(signal.SIGINT, before)
    assert trainer.history.stopped == "1 epoch is done"


ENDED = """
import os, signal, sys, numpy as np, glowtrain as gt
@gt.model(x=gt.f32["batch", 2])
def net(x):
    return gt.nn.linear(x, 1)
def send(moment):
    if moment.batch == 2 and (moment.record is not None) == {at_the_end}:
        os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, {handler})
trainer = gt.Trainer(net, gt.losses.mse(), gt.optim.SGD(), backend="interpreter")
try:
    data = np.ones((4, 2), "f4"), np.ones((4, 1), "f4")
    trainer.fit(data, 1, 2, checkpoint=sys.argv[1], callbacks=[send], progress=False)
finally:
    print(trainer.history.stopped)
"""


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("handler", "at_the_end", "status", "said"),
    [
        ("signal.SIG_DFL", False, 143, "interrupted in epoch 1 after batch 2 of 2\n"),
        ("signal.SIG_DFL", True, -signal.SIGTERM, ""),
        ("lambda number, frame: print('handled')", False, 0, "handled\n1 epoch is done\n"),
        ("signal.SIG_IGN", False, 0, "1 epoch is done\n"),
    ],
    ids=["between steps", "after the last", "handled", "ignored"],
)
def test_sigterm_ends_the_process_with_a_checkpoint(
    tmp_path: Path, handler: str, at_the_end: bool, status: int, said: str
) -> None:
    path = tmp_path / "run.safetensors"
    program = ENDED.format(handler=handler, at_the_end=at_the_end)
    found = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (status, said, "")
    position = read(path).position
    assert (position.epoch, position.batch) == ((0, 2) if status == 143 else (1, 0))


@pytest.mark.parametrize("torn", ["", '{"epoch": 3, "lo'], ids=["whole lines", "a line broken off"])
def test_a_kill_between_an_epochs_line_and_its_checkpoint(
    mlp: gt.Template, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    path, log, save = tmp_path / "run.safetensors", tmp_path / "log.jsonl", gt.Trainer.save

    def killed(self: gt.Trainer, path: Path) -> None:
        if self.position.epoch == 2:
            raise RuntimeError("killed")
        save(self, path)

    monkeypatch.setattr(gt.Trainer, "save", killed)
    with pytest.raises(RuntimeError, match="killed"):
        trainer_of(mlp).fit(points, 4, 8, checkpoint=path, log=log)
    monkeypatch.undo()
    assert len(log.read_text().splitlines()) == 2
    log.write_text(log.read_text().replace("{", "a note\n{", 1) + torn)
    history = trainer_of(mlp).fit(points, 4, 8, checkpoint=path, resume=True, log=log)
    note, *lines = log.read_text().splitlines()
    assert note == "a note"
    assert [json.loads(line)["loss"] for line in lines] == history.loss
    assert len(lines) == 4


def test_a_resumed_run_takes_a_pipe_as_its_log(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path, pipe = tmp_path / "run.safetensors", tmp_path / "pipe"
    trainer_of(mlp).fit(points, 1, 8, checkpoint=path)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        trainer_of(mlp).fit(points, 2, 8, checkpoint=path, resume=True, log=pipe)
        assert json.loads(os.read(reader, 1 << 16))["epoch"] == 2
    finally:
        os.close(reader)


def test_foreign_checkpoints_are_refused(mlp: gt.Template, cnn: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    trainer_of(mlp).save(path)
    for other, message in (
        (trainer_of(cnn), r"variables in the checkpoint, but not here: first\.bias"),
        (
            trainer_of(mlp, optimizer=gt.optim.SGD(momentum=0.9)),
            "optimizer differs: 'adam, accumulate=1' in the checkpoint, 'sgd",
        ),
        (trainer_of(mlp, loss=gt.losses.nll()), "loss differs"),
        (trainer_of(mlp, seed=3), "written with seed=0, this trainer has seed=3"),
        (trainer_of(mlp, trainable=["second.*"]), "trained parameters differs"),
    ):
        before = other.variables()
        with pytest.raises(CheckpointError, match=message):
            other.restore(path)
        assert all(np.array_equal(array, before[name]) for name, array in other.variables().items())


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "missing"])
def test_broken_checkpoints_are_refused(mlp: gt.Template, tmp_path: Path, damage: str) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "run.safetensors"
    trainer = trainer_of(mlp)
    trainer.save(path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        save_file({"w": np.zeros(3)}, path)
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match="not a whole|not a checkpoint of glowtrain|no such file"):
        trainer.restore(path)


def test_a_full_disk_leaves_the_last_checkpoint(
    mlp: gt.Template, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, path = trainer_of(mlp), tmp_path / "run.safetensors"
    trainer.fit(points, 1, 8, checkpoint=path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; what was there before is untouched"):
        trainer.fit(points, 1, 8, checkpoint=path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_limit_on_file_sizes_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """In a process of its own: the limit cannot be taken back."""
    program = f"""
import resource, signal, numpy as np, glowtrain as gt
from glowtrain.trainer.checkpoints.files import write_atomically
from pathlib import Path
path = Path({str(tmp_path)!r}) / "file"
write_atomically(path, b"old")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, {resource.RLIM_INFINITY}))
try:
    write_atomically(path, bytes(5000))
except gt.GlowtrainError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "File too large; what was there before is untouched" in found.stdout
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


@pytest.mark.parametrize("option", ["checkpoint", "log", "plot"])
def test_unwritable_outputs_are_found_before_training(
    mlp: gt.Template, points: Points, tmp_path: Path, option: str
) -> None:
    trainer = trainer_of(mlp)
    for path, message in ((tmp_path / "no" / "file", "does not exist; create it"), (tmp_path, "is a directory")):
        with pytest.raises(CheckpointError, match=message):
            trainer.fit(points, **{option: path})
    assert trainer.variables()["optimizer.step"] == 0


@pytest.mark.exhaustive
def test_the_plot_is_a_picture(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trainer_of(mlp).fit(points, 2, 8, validation=points, plot=tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


# --- hyperparameters of a resumed run --------------------------------------------------------------------------------


def _half_a_run(mlp: gt.Template, points: Points, path: Path, **settings: Any) -> gt.Trainer:
    trainer = trainer_of(mlp, optimizer=gt.optim.Adam(lr=0.01, **settings))
    trainer.fit(points, 2, 8, checkpoint=path)
    return trainer


def _resumed(mlp: gt.Template, points: Points, path: Path, optimizer: gt.optim.Optimizer) -> gt.Trainer:
    trainer = trainer_of(mlp, optimizer=optimizer)
    trainer.fit(points, 4, 8, checkpoint=path, resume=True, progress=False)
    return trainer


def test_a_rate_that_is_given_takes_effect_when_a_run_goes_on(
    mlp: gt.Template, points: Points, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.safetensors"
    by_hand = _half_a_run(mlp, points, path)
    by_hand.hyper["lr"] = 0.001
    by_hand.fit(points, 2, 8)
    resumed = trainer_of(mlp, optimizer=gt.optim.Adam(lr=0.001))
    resumed.fit(points, 4, 8, checkpoint=path, resume=True)
    assert resumed.history.deterministic() == by_hand.history.deterministic()
    assert resumed.history.resumed == "going on in epoch 3 with lr 0.001 instead of 0.01"
    assert resumed.history.resumed in capsys.readouterr().err
    further = _resumed(mlp, points, path, gt.optim.Adam())
    assert further.hyper["lr"] == 0.001


def test_a_rate_that_is_not_given_is_the_runs_own(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    whole = _half_a_run(mlp, points, path)
    whole.fit(points, 2, 8)
    resumed = _resumed(mlp, points, path, gt.optim.Adam())
    assert resumed.hyper["lr"] == 0.01
    assert resumed.history.deterministic() == whole.history.deterministic()
    assert resumed.history.resumed == ""


def test_a_rate_that_a_run_changed_itself_stays_changed(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    trainer = trainer_of(mlp, optimizer=gt.optim.Adam(lr=0.01))
    trainer.fit(points, 1, 8)
    trainer.hyper["lr"] = 0.005
    trainer.fit(points, 1, 8, checkpoint=path)
    assert _resumed(mlp, points, path, gt.optim.Adam(lr=0.01)).hyper["lr"] == 0.005


def test_a_longer_schedule_takes_effect(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    _half_a_run(mlp, points, path, schedule=gt.optim.Cosine(6))
    resumed = _resumed(mlp, points, path, gt.optim.Adam(schedule=gt.optim.Cosine(12), clip_norm=None))
    assert dict(resumed.hyper)["schedule.cosine.steps"] == 12
    assert resumed.hyper["lr"] == 0.01
    assert resumed.history.resumed.endswith("with schedule.cosine.steps 12 instead of 6")
    assert resumed.history.loss[3] < resumed.history.loss[2] < resumed.history.loss[1]


def test_fewer_epochs_than_there_are_is_said(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    _half_a_run(mlp, points, path)
    for epochs, asked in ((1, "1 were"), (2, "they were")):
        trainer = trainer_of(mlp)
        trainer.fit(points, epochs, 8, checkpoint=path, resume=True)
        assert trainer.history.stopped == f"the checkpoint's run has 2 epochs already, and {asked} asked for"
        assert trainer.position.epoch == 2
