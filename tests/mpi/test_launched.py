"""Processes that a launcher of MPI starts: the same bits, and an end for all of them whatever happens to one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCHER = str(Path(sys.executable).parent / "mpiexec")
GLOWTRAIN = [sys.executable, "-m", "glowtrain"]
PROGRAM = Path(__file__).parent / "program.py"


def launched(ranks, *command, **settings):
    return subprocess.run(
        [LAUNCHER, "-n", str(ranks), *map(str, command)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **settings,
    )


def training(out, *options, epochs=2):
    return [
        *GLOWTRAIN,
        "train",
        "cnn",
        "--data",
        "digits",
        "--epochs",
        str(epochs),
        "--shards",
        "12",
        "--out",
        out,
        *options,
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The model that one process without a launcher trains."""
    out = tmp_path_factory.mktemp("alone") / "trained.onnx"
    done = subprocess.run(training(out, "--fleet", "mpi"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, ()),
        (3, ()),
        (4, ()),
        (2, ("--fleet-bucket", "16KB")),
        (2, ("--fleet-bucket", "16KB", "--wait")),
    ],
)
def test_launched_ranks_train_the_model_of_one_process(alone, tmp_path, ranks, options):
    out = tmp_path / "trained.onnx"
    done = launched(ranks, *training(out, "--fleet", "mpi", *options))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == alone
    assert done.stdout.count("epoch 1/2") == 1
    assert done.stdout.count(" %, waiting ") == 2
    assert not done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_optimizers_in_slices_train_that_model_and_write_whole_checkpoints(alone, tmp_path, ranks):
    """Which go on with another number of ranks, each of which updates the whole."""
    out, kept = tmp_path / "trained.onnx", tmp_path / "run.safetensors"
    options = "--fleet", "mpi", "--optimizer", "adam", "--checkpoint", kept
    done = launched(ranks, *training(out, *options, "--fleet-sharded-optimizer", epochs=1))
    assert done.returncode == 0, done.stderr
    done = launched(6 // ranks, *training(out, *options, "--resume"))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == alone


def test_a_command_starts_its_ranks_itself(alone, tmp_path):
    out = tmp_path / "trained.onnx"
    done = subprocess.run(training(out, "--fleet", "local:2"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == alone


def test_a_signal_to_a_command_reaches_the_ranks_that_it_started(tmp_path):
    """All end behind a batch, with a checkpoint and the status of the signal; none is left."""
    checkpoint = tmp_path / "run.safetensors"
    command = training(
        tmp_path / "trained.onnx", "--fleet", "local:2", "--checkpoint", str(checkpoint), "--overwrite", epochs=2000
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)  # as soon as no rank holds these streams any more
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "resume to go on" in said
    assert errors.count("--resume") == 1


def test_processes_of_another_librarys_launcher_are_refused(tmp_path):
    """Each would be a fleet of one, and train and write everything."""
    there = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}
    command = training(tmp_path / "trained.onnx", "--fleet", "mpi")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=there)
    assert done.returncode != 0
    assert "the launcher started 2 processes, and each finds itself alone" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--fleet", "mpi", "--shards", "16"), "16 shards cannot be shared out evenly to 3 ranks"),
        (("--fleet", "mpi", "--batch-size", "5"), "a batch of 5 has fewer examples than shards=12"),
        (("--fleet", "mpi", "--data", "nothing.npz"), "nothing.npz: no such file"),
        (("--fleet", "mpi", "--micro-batches", "2"), "leave out micro_batches= (--micro-batches)"),
        (("--fleet", "mpi", "--fleet-timeout", "0"), "timeout must be a number of seconds above 0"),
        (("--fleet", "all"), "--fleet is mpi, or local:N"),
        (("--fleet", "local:none"), "N is a number of processes"),
    ],
)
def test_mistakes_are_said_once_and_end_all_ranks(tmp_path, options, said):
    done = launched(3, *training(tmp_path / "trained.onnx", *options))
    assert done.returncode != 0
    assert done.stderr.count(said) == (1 if options[1] == "mpi" and "--fleet-timeout" not in options else 3)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "trained.onnx").exists()


# --- faults -----------------------------------------------------------------------------------------------------------


class Job:
    """A training of two ranks that says when its steps are made, and can be disturbed."""

    def __init__(self, tmp_path, fault="none", ranks=2, timeout=5, epochs=400):
        self.path = tmp_path
        settings = {"folder": str(tmp_path), "fault": fault, "timeout": timeout, "epochs": epochs}
        self.process = subprocess.Popen(
            [LAUNCHER, "-n", str(ranks), sys.executable, str(PROGRAM), json.dumps(settings)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def pids(self):
        """The ranks' processes, once all have made some steps."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = sorted(self.path.glob("steps.*"))
            if len(found) == 2:
                return [int(path.read_text()) for path in found]
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(self.process.communicate())

    def ended(self, within):
        """Exit status and standard error, and that no rank is left."""
        began = time.monotonic()
        _, errors = self.process.communicate(timeout=60)
        assert time.monotonic() - began < within, errors
        end = time.monotonic() + 10
        while (left := [pid for pid in self.known if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left
        return self.process.returncode, errors

    @property
    def known(self):
        return [int(path.read_text()) for path in self.path.glob("steps.*")]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_job(tmp_path, rank):
    job = Job(tmp_path)
    os.kill(job.pids()[rank], signal.SIGKILL)
    status, _ = job.ended(within=10)
    assert status != 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_ends_the_job_when_time_is_up_and_is_named(tmp_path, rank):
    job = Job(tmp_path)
    os.kill(job.pids()[rank], signal.SIGSTOP)
    status, errors = job.ended(within=20)
    assert status != 0
    assert f"for rank {rank} while training" in errors


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_in_one_rank_ends_the_job_and_is_named(tmp_path, rank):
    job = Job(tmp_path, fault=f"raise {rank}")
    status, errors = job.ended(within=60)
    assert status != 0
    assert f"rank {rank} on " in errors
    assert "the disk is full" in errors


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_before_training_is_not_waited_for(tmp_path, rank):
    job = Job(tmp_path, fault=f"before {rank}", timeout=120)
    status, errors = job.ended(within=60)
    assert status != 0
    assert f"FleetError: rank {rank} on " in errors
    assert errors.count("there are no such data") == 3  # a traceback has it twice, and the other rank names it


def test_nan_on_one_rank_is_an_error_of_all(tmp_path):
    job = Job(tmp_path, fault="nan 1")
    status, errors = job.ended(within=60)
    assert status != 0
    assert "(rank 1): the first bad value is input 'x'" in errors


def test_sigterm_to_one_rank_writes_a_checkpoint_that_goes_on_elsewhere(tmp_path):
    """And to the bits of a run that was not disturbed."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    assert Job(whole, epochs=100).process.wait(120) == 0
    job = Job(broken, epochs=100)
    os.kill(job.pids()[1], signal.SIGTERM)
    status, errors = job.ended(within=20)
    assert status != 0, errors
    assert (broken / "run.safetensors").exists()
    for path in broken.glob("steps.*"):
        path.unlink()
    again = Job(broken, ranks=4, epochs=100)
    _, errors = again.process.communicate(timeout=120)
    assert again.process.returncode == 0, errors
    assert (broken / "variables").read_text() == (whole / "variables").read_text()
