"""Instances of bundles as their processes live: threads, forks, copies, weights beside the code, damaged files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import glowtrain as gt
from glowtrain.bundles.faces.python import loader
from glowtrain.bundles.faces.python.loading import LoadedBundle
from glowtrain.errors import BundleError
from tests.bundles.small_bundles import BATCH, digits, same, trainer, written
from tests.compiler.networks import mlp


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mlp"))


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None, True])
def test_threads_are_counted_from_one(folder: Path, threads: Any) -> None:
    with pytest.raises(BundleError, match=f"threads must be a whole number from 1 on, not {threads!r}$"):
        gt.load_bundle(folder, threads=threads)
    with pytest.raises(BundleError, match="mlp was made for one thread, not 2: bundle it with --threads 2$"):
        gt.load_bundle(folder, threads=2)


FORKED = """
import os, signal, sys
import numpy as np
import glowtrain as gt
from tests.bundles.small_bundles import digits

loaded = gt.load_bundle(sys.argv[1], threads=2)
loaded.step(**digits(1))
child = os.fork()
signal.alarm(60)  # a call that never returns ends the process
losses = [loaded.step(**digits(seed)) for seed in (2, 3)]
if child == 0:
    os.write(int(sys.argv[2]), repr(losses).encode())
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(repr(losses), end="")
"""


@pytest.mark.exhaustive
def test_a_child_of_fork_trains_on_threads_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, threads=2)
    reader, writer = os.pipe()
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path), str(writer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[writer])
    os.close(writer)
    with open(reader, "rb") as child:
        in_child = child.read().decode()
    assert done.returncode == 0, done.stderr
    alone = gt.load_bundle(tmp_path)
    assert in_child == done.stdout == repr([alone.step(**digits(seed)) for seed in (1, 2, 3)][1:])


def test_copies_go_on_by_themselves(folder: Path) -> None:
    one = gt.load_bundle(folder)
    one.step(**digits(1))
    one.hyper["lr"] = 0.5
    copy = deepcopy(one)
    assert isinstance(copy, LoadedBundle)
    assert same(dict(copy.variables), dict(one.variables))
    start = dict(one.variables)
    loss = copy.step(**digits(2))
    assert same(dict(one.variables), start)
    assert one.step(**digits(2)) == loss


def test_copies_of_what_has_no_variables(tmp_path: Path) -> None:
    one = gt.load_bundle(written(tmp_path, mlp, dims={"batch": BATCH}))
    (expected,), (found,) = (each.predict(x=digits(1)["x"]).values() for each in (one, deepcopy(one)))
    assert found.tobytes() == expected.tobytes()


def test_an_instance_is_not_pickled(folder: Path) -> None:
    loaded = gt.load_bundle(folder)
    with pytest.raises(BundleError, match=r"mlp cannot be pickled, .*: save\(\) its variables, and in the"):
        pickle.dumps(loaded)


def test_weights_beside_the_code_are_loaded(tmp_path: Path) -> None:
    own = trainer()
    own.step(digits(1))
    written(tmp_path, own, dims={"batch": BATCH}, weights="file", shared=True)
    for loaded in (gt.load_bundle(tmp_path), loader.load(tmp_path), gt.load_bundle(tmp_path).another()):
        assert same(dict(loaded.variables), own.variables())
        loaded.step(**digits(2))
        loaded.reset()
        assert same(dict(loaded.variables), own.variables())


def test_weights_beside_the_code_may_be_newer(tmp_path: Path) -> None:
    loaded = gt.load_bundle(written(tmp_path, weights="file"))
    loaded.step(**digits(1))
    loaded.save(tmp_path / "mlp.safetensors")
    assert same(dict(gt.load_bundle(tmp_path).variables), dict(loaded.variables))


def test_weights_beside_the_code_that_are_gone_or_others(tmp_path: Path) -> None:
    weights = written(tmp_path, weights="file") / "mlp.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BundleError, match="mlp.safetensors: READ_FAILED"):
        gt.load_bundle(tmp_path)
    weights.unlink()
    with pytest.raises(BundleError, match="mlp.safetensors, which holds the weights, cannot be read: No such file"):
        gt.load_bundle(tmp_path)


def test_weights_of_a_trainer_itself_and_of_an_instance(folder: Path, tmp_path: Path) -> None:
    own, loaded = trainer(), gt.load_bundle(folder)
    own.step(digits(1))
    gt.save_bundle_weights(folder, own, tmp_path / "w")
    loaded.load(tmp_path / "w")
    assert same(dict(loaded.variables), own.variables())
    gt.save_bundle_weights(folder, loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "w").read_bytes()
    wrong: Any = [1]
    with pytest.raises(BundleError, match="variables must be a mapping by name, a trainer or .*, not list"):
        gt.save_bundle_weights(folder, wrong, tmp_path / "w")


NEEDED = {
    ("interface",), ("version",), ("target",), ("target", "name"), ("target", "triple"), ("target", "cpu"),
    ("alignment",), ("variables_bytes",), ("arena_bytes",), ("threads",), ("errors",), ("files",),
    ("hyper",), ("hyper", 0, "name"), ("hyper", 0, "dtype"), ("hyper", 0, "shape"), ("hyper", 0, "default"),
    ("functions",), ("functions", "step", "inputs"), ("functions", "step", "inputs", 0, "shape"),
    ("functions", "predict", "outputs"), ("functions", "predict", "outputs", 0, "dtype"),
    ("variables",), ("variables", 0, "name"), ("variables", 0, "role"), ("variables", 0, "shape"),
}  # fmt: skip
"""Where a description holds what is read of it."""


def edited(folder: Path, copy: Path, path: tuple[Any, ...], **value: Any) -> Path:
    """A copy of a bundle in whose description something is missing, or has another value."""
    said = place = json.loads((folder / "mlp.json").read_text())
    *outer, last = path
    for key in outer:
        place = place[key]
    if value:
        place[last] = value["to"]
    else:
        del place[last]
    copy.mkdir()
    (copy / "mlp.o").write_bytes((folder / "mlp.o").read_bytes())
    (copy / "mlp.json").write_text(json.dumps(said))
    return copy


@pytest.mark.parametrize("path", sorted(NEEDED, key=str))
def test_descriptions_that_are_damaged(folder: Path, tmp_path: Path, path: tuple[Any, ...]) -> None:
    whole = len(path) == 1 and path[0] in ("interface", "functions")
    said = "holds no bundle" if whole else "mlp.json is damaged: .*; bundle the model again$"
    with pytest.raises(BundleError, match=said):
        gt.load_bundle(edited(folder, tmp_path / "missing", path))
    for number, value in enumerate((None, [None]) if path[-1] == "default" else (None, [None], -1.5)):
        with pytest.raises(BundleError, match=r"mlp.json is damaged: .*; bundle the model again$"):
            gt.load_bundle(edited(folder, tmp_path / str(number), path, to=value))


def test_a_description_that_was_cut_short(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mlp.json").write_bytes((folder / "mlp.json").read_bytes()[:-9])
    with pytest.raises(BundleError, match="holds no bundle"):
        gt.load_bundle(tmp_path)
    with pytest.raises(BundleError, match="mlp.json describes no bundle: it is damaged"):
        gt.load_bundle(tmp_path, "mlp")


def test_a_pipe_is_written_to_and_a_link_stays_one(folder: Path, tmp_path: Path) -> None:
    """As a device is, which a file had taken the place of."""
    network, pipe, link = gt.load_bundle(folder), tmp_path / "pipe", tmp_path / "link"
    network.save(tmp_path / "file")
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reading:
        came = reading.submit(pipe.read_bytes)
        network.save(pipe)
        assert came.result(60) == (tmp_path / "file").read_bytes()
    assert pipe.is_fifo()
    link.symlink_to(tmp_path / "file")
    network.step(**digits(0))
    network.save(link)
    assert link.is_symlink()
    network.load(tmp_path / "file")
    for wrong in (tmp_path, ""):
        with pytest.raises(BundleError, match="cannot be written: Is a directory"):
            network.save(wrong)


def test_no_more_of_a_file_is_read_than_weights_have(folder: Path, tmp_path: Path) -> None:
    network, endless = gt.load_bundle(folder), tmp_path / "endless"
    network.save(endless)
    os.truncate(endless, 1 << 40)
    with pytest.raises(BundleError, match="OTHER_WEIGHTS: the file has more than"):
        network.load(endless)
