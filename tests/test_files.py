"""Writing files: whole or not at all, through links and into pipes, and without anything left over."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.errors import CheckpointError, GlowtrainError
from glowtrain.files import write_atomically
from glowtrain.gradcheck import GradcheckReport
from glowtrain.trainer import History
from glowtrain.trainer.checkpoints.files import check_writable


@gt.model(x=gt.f32["batch", 2])
def net(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 1, name="only")


def trainer() -> gt.Trainer:
    return gt.Trainer(net, gt.losses.mse(), gt.optim.SGD(), backend="interpreter")


WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: write_atomically(path, b"new"),
    "gt.save": lambda path: gt.save(net.bind({"batch": 1}), path),
    "Trainer.save": lambda path: trainer().save(path),
    "plot": History([{"epoch": 1, "loss": 0.5}]).plot,
}


@pytest.fixture(params=WRITERS.values(), ids=list(WRITERS))
def write(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    if request.param is WRITERS["plot"]:
        pytest.importorskip("matplotlib")
    writer: Callable[[Path], object] = request.param
    return writer


def test_a_pipe_is_written_to(write: Callable[[Path], object], tmp_path: Path) -> None:
    pipe, plain = tmp_path / "pipe.png", tmp_path / "plain.png"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe, 1 << 60)
        write(pipe)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        write(plain)
        assert os.read(reader, 1 << 20) == plain.read_bytes()
    finally:
        os.close(reader)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["pipe.png", "plain.png"]


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_a_link_is_followed(write: Callable[[Path], object], tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link.png", tmp_path / "elsewhere" / "file"
    link.symlink_to(Path("elsewhere") / "file")
    if there:
        target.write_bytes(b"old")
        target.chmod(0o640)
    check_writable(link)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() not in (b"old", b"")
    assert [entry.name for entry in target.parent.iterdir()] == ["file"]
    assert not there or stat.S_IMODE(target.stat().st_mode) == 0o640


@contextmanager
def small_disk(nbytes: int) -> Iterator[None]:
    """Files cannot grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def commanded(*arguments: str) -> Callable[[Path], object]:
    """A command that writes a page, and fails if it cannot."""

    def write(path: Path) -> None:
        done = CliRunner().invoke(app, [*arguments, "--output", str(path)])
        if done.exit_code:
            raise OSError(done.output)

    return write


REPORTS: dict[str, Callable[[Path], object]] = {
    "conformance": commanded("conformance", "abs"),
    "operators": commanded("operators"),
    "gradcheck": GradcheckReport(()).to_json,
}


@pytest.mark.parametrize("write", REPORTS.values(), ids=list(REPORTS))
def test_a_report_that_cannot_be_finished_leaves_the_old_one(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked in ("matching", "run_all"):
        monkeypatch.setattr(f"glowtrain.onnx_io.checks.conformance.{asked}", lambda *_: [])
    monkeypatch.setattr("glowtrain.onnx_io.checks.support.table", lambda _: "a table")
    path = tmp_path / "report"
    path.write_text("old")
    with small_disk(2), pytest.raises(OSError, match="File too large"):
        write(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report", "old")]
    write(path)
    assert path.read_text() not in ("", "old")


def test_links_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    circle, dangling = tmp_path / "circle", tmp_path / "dangling"
    circle.symlink_to(circle)
    dangling.symlink_to(tmp_path / "missing" / "file")
    for link, message in ((circle, "Too many levels of symbolic links"), (dangling, "missing does not exist; create")):
        with pytest.raises(CheckpointError, match=message):
            check_writable(link)
        with pytest.raises(GlowtrainError, match="cannot be written"):
            trainer().save(link)
        assert link.is_symlink()


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """In a process of its own, which ends in the middle of the write."""
    program = f"""
import os, signal
from pathlib import Path
from typing import BinaryIO
from glowtrain import files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path({str(tmp_path / "run.st")!r}), b"half")
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".run.st.")
    other = tmp_path / ".other.st.1.1.tmp"
    other.write_bytes(b"of another file")
    write_atomically(tmp_path / "run.st", b"whole")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "run.st"]


def test_what_another_writer_is_writing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "file", os.fsync
    inside, finish = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        inside.set()
        finish.wait(60)

    monkeypatch.setattr(os, "fsync", slow)
    first = threading.Thread(target=write_atomically, args=(path, b"first"))
    first.start()
    assert inside.wait(60)
    write_atomically(path, b"second")
    assert len(list(tmp_path.iterdir())) == 2
    finish.set()
    first.join()
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_that_another_writer_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = fcntl.flock, []

    def late(file: BinaryIO, operation: int) -> None:
        if not removed:
            (left,) = tmp_path.iterdir()
            removed.append(left)
            left.unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomically(tmp_path / "file", b"whole")
    assert removed
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"whole")]
